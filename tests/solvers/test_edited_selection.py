"""Plans edited number by number: what they claim is what they run, or nothing.

Every leaf of every plan is multiplied by 10 and by 1/10, made NaN and negated; every size is doubled and
halved. A run is either refused, or its loss and its certificate are infinite, or both are at least what an
account in NumPy finds from the noise that was really drawn: scales are recorded where the noise is added,
sensitivities are written down here anew.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective, OneHot
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import (
    finite_class,
    item_group_privacy,
    metric_entropy,
    output_perturbation,
    preconditioned_sgd,
    winsorized_erm,
)
from tests.support.drawn import (
    ORDER,
    Noise,
    gaussian_divergence,
    least_epsilon,
    pure_divergence,
    range_divergence,
    recorded,
)
from tests.support.planned import planned

USERS, ITEMS, DELTA = 8, 2, 1e-3
AT = int(np.argmin(np.abs(privacy.ORDERS - ORDER)))
LINEAR = Objective(lambda w, z: jnp.vdot(z, w), 1.0, 1e-3, domains.ball(1.0))
LOGISTIC = losses.logistic(1.0, domains.ball(2.0), ridge=0.01)
FLAT = losses.huber(1.0, delta=1e-3)
ABSOLUTE = Objective(lambda w, z: jnp.sum(jnp.abs(w - z)) / 2, 0.5, None, domains.ball(1.0))
RNG = np.random.default_rng(0)
POINTS = UserData(jnp.asarray(RNG.normal(size=(USERS, ITEMS, 3)), jnp.float32))
LABELS = jnp.asarray(RNG.integers(0, 2, (USERS, ITEMS)), jnp.float32)
COLUMNS = jnp.asarray(RNG.integers(0, 5, (USERS, ITEMS, 2)), jnp.int32)
SIZES = {"num_users": USERS, "items_per_user": ITEMS}
BUDGET = SIZES | {"epsilon": 2.0, "delta": DELTA}


class Case(NamedTuple):
    """A solver: its module, a plan, what it runs on, and the Rényi divergence of what it drew."""

    solver: Any
    plan: Any
    objective: Any
    data: Any
    params: Any
    account: Any  # of (plan, Noise): Rényi divergence of order ORDER


def selection_account(plan, noise):
    """Each draw releases a mean of values in an interval; the best of them costs three draws."""
    selection = getattr(plan, "selection", plan)
    if not noise.laplace:
        return 0.0  # nothing was drawn
    scale = noise.laplace[0]
    if not all(math.isfinite(s) and s > 0 for s in (*noise.laplace, *noise.ranges)):
        return math.inf
    half = float(selection.bound)
    if selection.winsorized:
        half = min(2.25 * float(selection.radius), half)
    draw = 2 * half / USERS / scale + (noise.ranges[0] if selection.winsorized else 0.0)
    return pure_divergence(3 * draw)


@functools.cache
def _drawn_divergence(draws, clip_norm, stddev, order):
    """One user's canaries against opposite ones, drawn k ~ Bin(B, 1/N) times, in one step."""
    count = np.arange(draws + 1)
    weight = stats.binom.pmf(count, draws, 1 / USERS)
    shift = count * clip_norm / draws / stddev
    low, high = -(shift[-1] + 12), order * shift[-1] + 12
    x = np.linspace(low, high, min(math.ceil((high - low) / 0.04), 20001))

    def log_density(places):
        found = np.exp(-0.5 * np.square(x[:, None] - places)) @ weight
        return np.log(found / math.sqrt(2 * math.pi) + 1e-300)

    logs = order * log_density(shift) + (1 - order) * log_density(-shift)
    top = np.max(logs)
    return (top + np.log(np.trapezoid(np.exp(logs - top), x))) / (order - 1)


def _drawn_at(plan, stddev, order):
    return _drawn_divergence(plan.batch_size, float(plan.clip_norm), stddev, float(order))


def drawn_items_account(plan, noise):
    if any(not (math.isfinite(s) and s > 0) for s in noise.gaussian):
        return math.inf
    return sum(_drawn_at(plan, s, ORDER) for s in noise.gaussian)


def drawn_items_epsilon(plan, noise, delta):
    """What Rényi curves, by which it is certified, give for that pair."""
    orders = privacy.ORDERS[privacy.ORDERS <= 200]
    each = np.array([_drawn_at(plan, noise.gaussian[0], order) for order in orders])
    offset = np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    return np.min(len(noise.gaussian) * each + offset)


def output_account(plan, noise):
    """A loss that is linear where it runs: each step adds η·2L/N and shrinks the rest by 1 - ηλ."""
    kept = 1 - float(plan.step_size) * float(plan.regularization)
    apart = 0.0
    for _ in range(plan.num_steps):
        apart = kept * apart + 2e-3 * float(plan.step_size) / plan.num_users
    return gaussian_divergence(noise.gaussian, apart) if math.isfinite(apart) else math.inf


def preconditioned_account(plan, noise):
    """Moments of two users without a common column are √2·B²/√k apart; sums, 2·√(1 + b²) at least."""
    moments, steps = noise.gaussian[:1], noise.gaussian[1:]
    weight = float(plan.component_weight)
    if not math.isfinite(weight):
        return math.inf
    apart = 2 * math.sqrt(1 + weight**2) / USERS
    return gaussian_divergence(moments, 1 / USERS) + gaussian_divergence(steps, apart)


def winsorized_account(plan, noise):
    """A box has 2h·√padded/n, a ball of radius r 2r/n; rows are clipped to the bound."""
    numbers = plan.releases
    bound, ball = float(numbers.bound), float(numbers.ball_radius)
    box = min(2 * float(numbers.coordinate_radius) + float(numbers.bin_width) / 2, bound) * 2.0
    apart = {
        "clipped": [bound], "winsorized": [box], "refined": [box, ball], "recentred": [bound, ball],
    }[numbers.form]  # fmt: skip
    found = noise.gaussian
    each = len(apart)
    assert len(found) == each * numbers.num_queries
    total = range_divergence(noise.ranges)
    if numbers.form in ("winsorized", "refined"):
        assert len(noise.ranges) == 4 * numbers.num_queries  # three coordinates, padded to four
    # Callbacks of one step may come in any order: the coarse noise is told by its size.
    coarse = None if each == 1 else float(numbers.coarse_multiplier)
    if coarse is None:
        return total + gaussian_divergence(found, 2 * apart[0] / USERS)
    scale = [2 * a / USERS for a in apart]
    if not all(math.isfinite(s) and s > 0 for s in found):
        return math.inf
    final = float(numbers.noise_multiplier)
    guess = [coarse * scale[0], final * scale[1]]
    for s in found:
        nearest = int(np.argmin(np.abs(np.log(np.asarray(guess) / s))))
        total += gaussian_divergence([s], scale[nearest])
    return total


def _winsorized(form, **changes):
    plan = planned(
        winsorized_erm.plan,
        LINEAR,
        **BUDGET,
        dim=3,
        num_steps=2,
        method="convex",
        form="clipped",
        radius=0.2,
    )
    boxed = form in ("winsorized", "refined")
    numbers = dataclasses.replace(
        plan.releases, form=form, coordinate_radius=0.15, bin_width=0.08, ball_radius=0.3,
        range_epsilon=0.2 if boxed else math.inf, noise_multiplier=5.0, coarse_multiplier=20.0,
    )  # fmt: skip
    return plan.replace(releases=numbers)


def _case(name):
    if name in ("finite class", "winsorized class"):
        plan = planned(finite_class.plan,
            ABSOLUTE, **SIZES, dim=1, num_candidates=3, epsilon=3.0, loss_range=(0.0, 1.0),
            stopping_probability=0.3,
        )  # fmt: skip
        plan = plan.replace(winsorized=name == "winsorized class", radius=0.1)
        candidates = jnp.asarray([-0.5, 0.0, 0.5])
        return Case(finite_class, plan, ABSOLUTE, POINTS, candidates, selection_account)
    if name == "metric entropy":
        plan = planned(metric_entropy.plan,
            ABSOLUTE, **SIZES, dim=1, epsilon=3.0, loss_range=(0.0, 1.0), lower=-1.0, upper=1.0,
            points_per_axis=3,
        )  # fmt: skip
        chosen = plan.selection.replace(stopping_probability=0.3)
        plan = plan.replace(selection=chosen)
        return Case(metric_entropy, plan, ABSOLUTE, POINTS, jnp.zeros(1), selection_account)
    if name == "output perturbation":
        plan = planned(
            output_perturbation.plan, FLAT, **BUDGET, dim=1, distance=1.0, regularization=0.05
        )
        data = UserData(Example(jnp.ones((USERS, ITEMS, 1)), LABELS))
        plan = plan.replace(num_steps=6)
        return Case(output_perturbation, plan, FLAT, data, jnp.zeros(1), output_account)
    if name in ("all items", "drawn items"):
        plan = planned(
            item_group_privacy.plan,
            LINEAR,
            **BUDGET,
            dim=3,
            num_steps=4,
            batch_size=None if name == "all items" else 4,
        )
        whole = lambda p, noise: gaussian_divergence(noise.gaussian, 2 * float(p.clip_norm) / USERS)  # noqa: E731
        account = whole if name == "all items" else drawn_items_account
        return Case(item_group_privacy, plan, LINEAR, POINTS, jnp.zeros(3), account)
    if name == "preconditioned":
        plan = planned(
            preconditioned_sgd.plan, LOGISTIC, **BUDGET, dim=5, columns_per_row=2, num_steps=3
        )
        data = UserData(Example(OneHot(COLUMNS), LABELS))
        return Case(preconditioned_sgd, plan, LOGISTIC, data, jnp.zeros(5), preconditioned_account)
    form = name.split()[1]
    return Case(winsorized_erm, _winsorized(form), LINEAR, POINTS, jnp.zeros(3), winsorized_account)


def _places(plan, path=()):
    """(path, whether a leaf, value) of every number of a plan and of the plans in it."""
    for field in dataclasses.fields(plan):
        value = getattr(plan, field.name)
        if dataclasses.is_dataclass(value):
            yield from _places(value, (*path, field.name))
        elif field.type is Any and value is not None:
            yield (*path, field.name), True, value
        elif isinstance(value, int) and not isinstance(value, bool):
            yield (*path, field.name), False, value


def _edited(plan, path, value):
    if len(path) == 1:
        return dataclasses.replace(plan, **{path[0]: value})
    return dataclasses.replace(plan, **{path[0]: _edited(getattr(plan, path[0]), path[1:], value)})


def _claims(case, run, noise, plan):
    """(divergence that the loss claims, certificate, divergence by the account); None if refused."""
    for kept in noise:
        kept.clear()
    try:
        solution = run(jax.tree.map(lambda x: np.asarray(x, np.float32), plan))
        jax.effects_barrier()
        jax.block_until_ready(solution.privacy)
    except ValueError:
        return None
    try:
        certificate = plan.certificate()
    except ValueError:
        certificate = None
    return float(solution.privacy.rdp[AT]), certificate, case.account(plan, noise)


def _check(case, run, noise, plan, what):
    found = _claims(case, run, noise, plan)
    if found is None:
        return False
    claimed, certificate, truth = found
    assert not math.isnan(claimed), what
    assert claimed >= truth * (1 - 1e-4), (what, claimed, truth)
    if certificate is None or math.isinf(certificate.epsilon):
        return True
    assert math.isfinite(truth), (what, certificate)
    least = least_epsilon(truth, certificate.delta)
    if (
        case.account is drawn_items_account
    ):  # a mixture is not as bad as a Gaussian of its divergence
        least = drawn_items_epsilon(plan, noise, certificate.delta)
    assert certificate.epsilon >= least * (1 - 1e-4), what
    return True


NAMES = (
    "finite class", "winsorized class", "metric entropy", "output perturbation", "all items",
    "drawn items", "preconditioned", "means clipped", "means winsorized", "means refined",
    "means recentred",
)  # fmt: skip

# Means of both kinds are in those kept, a class of candidates too; drawn items and scaled rows are long.
LONG = {
    *("finite class", "metric entropy", "drawn items", "preconditioned", "output perturbation"),
    *("means clipped", "means refined"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in NAMES]
)
def test_what_is_claimed_is_what_runs(name):
    case, noise = _case(name), Noise([], [], [])

    def solve(plan):
        return case.solver.solve(jax.random.key(0), plan, case.objective, case.data, case.params)

    with recorded(noise):
        run = jax.jit(solve)
        assert _check(case, run, noise, case.plan, "as it is"), "the plan itself was refused"
        assert math.isfinite(_claims(case, run, noise, case.plan)[0])
        for path, leaf, value in _places(case.plan):
            if leaf:
                changes = [10.0 * np.asarray(value), 0.1 * np.asarray(value), -np.asarray(value)]
                changes.append(np.nan * np.asarray(value))
            else:  # more users at once than there are is the program of all at once
                changes = [2 * value] if path[-1] != "chunk_size" else []
                changes.append(max(1, value // 2))
            for change in changes:
                try:
                    plan = _edited(case.plan, path, change)
                except ValueError:  # sizes that do not fit are refused where they are edited
                    continue
                _check(case, run, noise, plan, (name, path, change))
