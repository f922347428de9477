"""Plans whose numbers somebody has edited claim what they run, or claim nothing, or are refused.

A row is a solver: a plan, a run of it, and an account of what the plan runs that owes nothing to the
package's curves (``tests.support.edited_plans``). Every number of the plan is multiplied by 10, 0.1, NaN and
-1, every size by 2 and 1/2, those of phases together and of the last phase alone. Whatever is not refused
with a ``ValueError`` must have a loss and a certificate that are at least the account.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.privacy.releases import GaussianReleases
from dpsco_jax.problems import losses
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.item_level import erm, private_ac_sa, sco
from dpsco_jax.solvers.means import Clipped
from dpsco_jax.solvers.user_level import (
    accelerated_phased_erm,
    accelerated_sgd,
    accelerated_strongly_convex,
    auto,
    localized_sgd,
    multipass_sgd,
    phased_erm,
    phased_sgd,
    sgd,
)
from tests.support import edited_plans as edits
from tests.support.planned import planned

USERS, ITEMS, DIM, DELTA = 120, 2, 2, 1e-3
POINTS = losses.squared_distance(point_bound=1.0, radius=1.0)
ITEM = {"num_users": USERS, "dim": DIM, "delta": DELTA}
USER = ITEM | {"items_per_user": ITEMS}
_ROUNDING = 2e-3  # of the accounts


class Row(NamedTuple):
    """A solver in the table.

    Attributes:
        name: of the row.
        make_plan: the plan that is edited.
        solve: ``solve(key, plan, objective, data, params)`` of the solver.
        account: ``account(plan, delta)``: what is known of ε without the package.
    """

    name: str
    make_plan: Callable[[], Any]
    solve: Callable[..., Any]
    account: Callable[[Any, float], float]


def _gaussian(releases, delta):
    if releases.batch_size == releases.population_size and releases.sampling == "fixed":
        return edits.everybody(releases.noise_multiplier, releases.num_steps, delta)
    rate = releases.batch_size / releases.population_size
    run = (releases.noise_multiplier, rate, releases.num_steps)
    return edits.sampled([run], delta, releases.sampling == "poisson")


def _sgd(plan, delta):
    rate = plan.batch_size / plan.num_users
    if rate == 1.0 and plan.sampling != "poisson":
        return edits.everybody(plan.noise_multiplier, plan.num_steps, delta)
    run = (plan.noise_multiplier, rate, plan.num_steps)
    return edits.sampled([run], delta, plan.sampling == "poisson")


def _releases(plan, delta):
    of = _gaussian if isinstance(plan.releases, GaussianReleases) else edits.tested
    return of(plan.releases, delta)


def _worst(parts):
    """Of parts on users of their own."""
    return lambda plan, delta: max(_releases(part, delta) for part in parts(plan))


def _phased_sgd(plan, delta):
    of = {
        True: lambda: edits.everybody(plan.noise_multiplier, 1, delta),
        False: lambda: edits.tested(plan.releases, delta),
    }
    return max(of[clipped]() for clipped in set(plan.clipped))


def _phased_erm(plan, delta):
    found = []
    for phase in plan.parts:
        steps = min(phase.num_steps, phase.releases.num_queries)
        found.append(edits.everybody(phase.releases.noise_multiplier, steps, delta))
    return max(found)


def _run_of(part):
    return (part.noise_multiplier, part.batch_size / part.num_users, part.num_steps)


def _composite(plan, delta):
    """Of stages on the same users, or of phases on users of their own."""
    if not hasattr(plan, "parts"):
        return edits.sampled([_run_of(plan)], delta)
    if plan.on_blocks:
        return max(_composite(part, delta) for part in plan.parts)
    return edits.sampled([_run_of(part) for part in plan.parts], delta)


ROWS = [
    Row(
        "sgd, Poisson",
        lambda: planned(sgd.plan, POINTS, **ITEM, epsilon=2.0, num_steps=4, batch_size=30),
        sgd.solve,
        _sgd,
    ),
    Row(
        "sgd, fixed",
        lambda: planned(
            sgd.plan, POINTS, **ITEM, epsilon=2.0, num_steps=4, batch_size=30, sampling="fixed"
        ),
        sgd.solve,
        _sgd,
    ),
    Row(
        "sgd, full",
        lambda: planned(sgd.plan, POINTS, **ITEM, epsilon=2.0, num_steps=4, sampling="full"),
        sgd.solve,
        _sgd,
    ),
    Row(
        "private AC-SA",
        lambda: planned(
            private_ac_sa.plan, POINTS, **ITEM, epsilon=2.0, num_steps=4, batch_size=30
        ),
        private_ac_sa.solve,
        lambda plan, delta: edits.sampled([_run_of(plan)], delta),
    ),
    Row(
        "multi-pass SGD, tested",
        lambda: planned(multipass_sgd.plan, POINTS, **USER, epsilon=8.0, num_steps=3, radius=0.5),
        multipass_sgd.solve,
        _releases,
    ),
    Row(
        "multi-pass SGD, clipped",
        lambda: planned(multipass_sgd.plan, POINTS, **USER, epsilon=8.0, num_steps=3, radius=5.0),
        multipass_sgd.solve,
        _releases,
    ),
    Row(
        "accelerated SGD, tested",
        lambda: planned(
            accelerated_sgd.plan,
            POINTS,
            **USER,
            epsilon=8.0,
            stage_length=2,
            num_stages=2,
            radius=0.5,
        ),
        accelerated_sgd.solve,
        _releases,
    ),
    Row(
        "accelerated SGD, clipped batches",
        lambda: planned(
            accelerated_sgd.plan,
            POINTS,
            **USER,
            epsilon=2.0,
            stage_length=2,
            num_stages=2,
            batch_size=30,
            mean=Clipped,
        ),
        accelerated_sgd.solve,
        _releases,
    ),
    Row(
        "accelerated phased ERM",
        lambda: planned(
            accelerated_phased_erm.plan, POINTS, **USER, epsilon=30.0, num_phases=2, radius=0.5
        ),
        accelerated_phased_erm.solve,
        _worst(lambda plan: plan.parts),
    ),
    Row(
        "accelerated phased ERM, strongly convex",
        lambda: planned(
            accelerated_strongly_convex.plan,
            POINTS,
            **USER,
            epsilon=4.0,
            num_blocks=2,
            batch_size=10,
            mean=Clipped,
        ),
        accelerated_strongly_convex.solve,
        _worst(lambda plan: [phase for block in plan.parts for phase in block.parts]),
    ),
    Row(
        "localized SGD",
        lambda: planned(
            localized_sgd.plan, POINTS, **USER, epsilon=20.0, num_blocks=2, num_steps=3, radius=0.6
        ),
        localized_sgd.solve,
        _worst(lambda plan: plan.parts),
    ),
    Row(
        "phased SGD",
        lambda: planned(
            phased_sgd.plan,
            POINTS,
            **USER,
            epsilon=8.0,
            num_groups=16,
            num_phases=2,
            step_size=0.1,
            radius=(0.05, 4.5),
        ),
        phased_sgd.solve,
        _phased_sgd,
    ),
    Row(
        "phased ERM",
        lambda: planned(phased_erm.plan, POINTS, **USER, epsilon=2.0, form="clipped", most_steps=3),
        phased_erm.solve,
        _phased_erm,
    ),
    Row(
        "private ERM by restarts",
        lambda: planned(erm.plan, POINTS, **ITEM, epsilon=4.0, method="restarts", num_stages=2),
        erm.solve,
        _composite,
    ),
    Row(
        "private SCO by localization",
        lambda: planned(
            sco.plan, POINTS, **ITEM, epsilon=4.0, method="localization", num_phases=2, num_stages=1
        ),
        sco.solve,
        _composite,
    ),
    Row(
        "the chosen one",
        lambda: planned(
            auto.plan,
            POINTS,
            **USER,
            epsilon=2.0,
            candidates=tuple(c for c in auto.CANDIDATES if c.name == "sgd"),
            settings={"sgd": {"num_steps": 4}},
        ),
        auto.solve,
        lambda plan, delta: _sgd(plan.chosen, delta),
    ),
]


def _data():
    points = [0.3, -0.1] + 0.1 * np.random.default_rng(0).normal(size=(USERS, ITEMS, DIM))
    return UserData(jnp.asarray(points, jnp.float32))


def _spent(row):
    """The loss of a run; the plan's numbers are traced, and nothing but the loss is computed."""
    data = _data()

    @jax.jit
    def run(plan):
        return row.solve(jax.random.key(0), plan, POINTS, data, jnp.zeros(DIM)).privacy

    return run


def _certified(plan):
    try:
        return plan.certificate()
    except ValueError:
        return None


def _require_cover(row, label, plan, spent):
    known = row.account(plan, DELTA)
    claimed = float(privacy.epsilon(spent, DELTA))
    assert claimed >= (1 - _ROUNDING) * known, f"{label}: the loss says {claimed}, true is {known}"
    certificate = _certified(plan)
    if certificate is None:
        return
    known = row.account(plan, certificate.delta) if 0 < certificate.delta < 1 else 0.0
    claimed = certificate.epsilon
    assert claimed >= (1 - _ROUNDING) * known, f"{label}: certified {claimed}, true is {known}"


# What the others release is released by these as well: they wait for `make test-slow`. Every row of
# `private_table` is edited in `test_contract`, and compared with what its run is charged.
_SIZED_AT_ONCE = {
    *("sgd, full", "multi-pass SGD, tested", "multi-pass SGD, clipped", "phased SGD", "phased ERM"),
    "the chosen one",
}
_AT_ONCE = {"sgd, Poisson", *_SIZED_AT_ONCE}


def _rows(at_once):
    later = [[pytest.mark.slow] * (row.name not in at_once) for row in ROWS]
    rows = zip(ROWS, later, strict=True)
    return pytest.mark.parametrize("row", [pytest.param(r, id=r.name, marks=m) for r, m in rows])


@_rows(_AT_ONCE)
def test_claims_cover_what_edited_numbers_run(row):
    plan, run = row.make_plan(), _spent(row)
    _require_cover(row, "as planned", plan, run(plan))
    as_planned = row.account(plan, DELTA)
    assert 0.3 * float(plan_epsilon(plan)) < as_planned <= float(plan_epsilon(plan)) * 1.01
    lost = 0
    for label, edited in edits.edited_numbers(plan):
        _require_cover(row, label, edited, run(edited))
        lost += row.account(edited, DELTA) > 1.1 * as_planned
    assert lost >= 2, "no edit has cost anything: the account sees nothing"


@_rows(_SIZED_AT_ONCE)
def test_claims_cover_what_edited_sizes_run(row):
    plan = row.make_plan()
    refused = 0
    for label, make in edits.edited_sizes(plan):
        try:
            edited = make()
            spent = _spent(row)(edited)
        except ValueError:
            refused += 1
            continue
        _require_cover(row, label, edited, spent)
    assert refused >= 1, "a wrong number of users runs"


def plan_epsilon(plan):
    """The budget of a plan, or of the plan that ``auto`` has chosen."""
    return getattr(plan, "chosen", plan).epsilon


def test_the_account_of_samples_is_right_where_a_closed_form_is():
    for steps, sigma in ((1, 1.0), (9, 4.0)):
        exact = edits.everybody(sigma, steps, 1e-5)
        assert edits.sampled([(sigma, 1.0, steps)], 1e-5) == pytest.approx(exact, rel=2e-3)
        assert edits.sampled([(sigma, 0.1, steps)], 1e-5) < exact
    assert edits.everybody(math.nan, 1, 1e-5) == math.inf
