"""Edited plans of private ReSQue: loss and certificate cover what then runs, or say that nothing does.

Every leaf of a plan is multiplied, divided, negated and made NaN, every static size doubled and halved. The
run is instrumented: what draws users reports each localized call with the numbers that it runs with, and its
answers make every search run to its end. A fresh call of the accountant on what was seen is the least that
the charged loss and the certificate may say.
"""

import collections
import dataclasses
import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.privacy import resque
from dpsco_jax.privacy.resque import ResqueCall
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.resque import (
    _calls,
    ball_accelerated_erm,
    ball_accelerated_regularized_erm,
    ball_accelerated_sco,
    resque_erm,
    resque_erm_high_probability,
    resque_prox,
)
from tests.support.planned import planned

USERS, DIM, DELTA = 40, 2, 1e-3
ABSOLUTE = losses.absolute(1.0)
SMALL = {"num_users": USERS, "dim": DIM, "epsilon": 2.0, "delta": DELTA, "ball_radius": 0.1}
STRONG = SMALL | {"regularization": 5.0}
SIZES = {
    "num_users": USERS,
    "dim": DIM,
    "epsilon": 2.0,
    "delta": DELTA,
    "condition": 2.0,
    "radius_ratio": 4.0,
    "num_queries": 4,
    "num_iterations": 2,
    "max_searches": 2,
    "largest_error": math.inf,
}
DISTANCE = {"distance": 1.0}
MULTILEVEL = {"prox": "mlmc", "reuse": False, "search_runs": 3}

SOLVERS = {
    "localized": (resque_erm, SMALL | {"num_queries": 8}),
    "strongly_convex": (
        resque_erm,
        STRONG | {"num_queries": 8, "sampling": "with_replacement"},
    ),
    "prox": (resque_prox, STRONG | {"num_queries": 4}),
    "high probability": (resque_erm_high_probability, STRONG | {"num_queries": 4, "num_runs": 3}),
    "erm": (ball_accelerated_erm, SIZES | DISTANCE),
    "erm, multilevel": (ball_accelerated_erm, SIZES | DISTANCE | MULTILEVEL),
    "erm, fixed": (
        ball_accelerated_erm,
        SIZES | DISTANCE | {"search": "fixed", "max_searches": None},
    ),
    "regularized erm": (
        ball_accelerated_regularized_erm,
        SIZES | {"num_queries": 8, "regularization": 0.5, "num_rounds": 2},
    ),
    "sco": (ball_accelerated_sco, SIZES | DISTANCE | {"num_blocks": 2}),
}
NAMES = tuple(SOLVERS)


@functools.cache
def made(name):
    solver, arguments = SOLVERS[name]
    return solver, planned(solver.plan, ABSOLUTE, **arguments)


def data_of(num_users):
    num_users = num_users if isinstance(num_users, int) and num_users > 0 else USERS
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((num_users, 1, DIM)), rng.standard_normal((num_users, 1))
    return UserData(Example(jnp.asarray(rows, jnp.float32), jnp.asarray(labels, jnp.float32)))


SEEN: list[tuple] = []
TRACED: list = []  # the labels of every data set that a program was traced with: a block has its own


def report(_, setting, sizes, far, center, start, beta, regularization, anchor):
    """In place of ``_run``: tells what would be released, and answers from the far end of the ball.

    A block in a program of its own has data of its own; one of several in a program is where its users start,
    with sizes as they run.
    """
    del far, start, anchor
    labels = setting.data.labels
    if not any(labels is other for other in TRACED):
        TRACED.append(labels)
    block = next(i for i, other in enumerate(TRACED) if other is labels)
    for level in range(sizes.drawn.shape[0]):
        # Where there is no such level, no user is drawn for it.
        phases = jnp.sum((sizes.phase_level == level) & (sizes.phase_count > 0))
        static = setting.first, sizes.drawn[level] + 1, sizes.num_users, phases
        numbers = beta * sizes.beta_factor[level], setting.smoothing_radius, setting.radius
        numbers += setting.lipschitz, regularization
        see = functools.partial(_see, block, sizes.replacement)
        jax.debug.callback(see, static, numbers)
    return center + setting.radius * jnp.zeros(DIM).at[0].set(0.9)


def _see(block, again, static, numbers):
    first, queries, users, phases = map(int, static)
    if phases:
        SEEN.append(((f"{block} from {first}", queries, users, again), *map(float, numbers)))


@functools.cache
def compiled(solver):
    return jax.jit(lambda key, plan, data: solver.solve(key, plan, ABSOLUTE, data, jnp.zeros(DIM)))


def run(solver, plan):
    """The loss that is charged, and the calls that were made: how many of each, by block."""
    SEEN.clear()
    with mock.patch.object(_calls, "_run", report):
        solution = compiled(solver)(jax.random.key(0), plan, data_of(plan_users(plan)))
        jax.effects_barrier()
    made = collections.defaultdict(collections.Counter)
    for (block, queries, users, replacement), beta, smoothing, radius, lipschitz, weight in SEEN:
        proven = lipschitz > 0 and weight >= 0 and beta > 0 and 0 < 2 * radius <= smoothing
        if not proven or not math.isfinite(beta + smoothing + lipschitz + weight):
            made[block][None] += 1  # nothing is known of such a call
            continue
        # A little less is charged for, as the program divides and multiplies in float32.
        ratio = smoothing / radius * (1 + 1e-6)
        made[block][ResqueCall(queries, beta * (1 - 1e-6), ratio, users, replacement)] += 1
    return solution.privacy, made


def plan_users(plan):
    return plan.base.num_users if hasattr(plan, "base") else plan.num_users


@functools.cache
def fresh_spent(calls):
    return float(privacy.epsilon(resque.calls_loss(list(calls), 0.25 * DELTA), 2 * DELTA))


@functools.cache
def fresh_epsilon(calls, delta):
    return resque.calls_epsilon(list(calls), delta)


def require_coverage(solver, plan, parallel):
    """Refusal, or loss and certificate at least those of the calls that were made; which ones, as text."""
    try:
        loss, made = run(solver, plan)
    except ValueError:
        return "refused"
    spent = float(privacy.epsilon(loss, 2 * DELTA))
    try:
        certificate = plan.certificate()
    except ValueError:
        certificate = None
    blocks = made.values() if parallel else [sum(made.values(), collections.Counter())]
    for counts in blocks:
        if None in counts:
            assert math.isinf(spent), counts
            assert certificate is None or math.isinf(certificate.epsilon)
            continue
        if math.isfinite(spent):
            # Rounds share the failures in another way, which is of no weight here.
            assert spent >= 0.99 * fresh_spent(frozenset(counts.items())), (counts, plan)
        if certificate is not None and math.isfinite(certificate.epsilon):
            fresh = fresh_epsilon(frozenset(counts.items()), certificate.delta)
            # Fewer calls share the failures among them in another way: 1 % was seen.
            assert certificate.epsilon >= 0.97 * fresh, (counts, plan)
    return "charged" if math.isfinite(spent) else "unbounded"


def leaves(plan):
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(plan)]


EDITS = {
    "x 10": lambda x: 10.0 * np.asarray(x, np.float32),
    "/ 10": lambda x: np.asarray(x, np.float32) / 10,
    "negative": lambda x: -np.asarray(x, np.float32),
    "nan": lambda x: np.full(np.shape(x), np.nan, np.float32),
}
PROOFS = ("beta", "ball_radius", "smoothing_radius", "lipschitz", "regularization")


# The others are made of these, and wait for `make test-slow`; blocks have the sizes of one run each.
AT_ONCE, SIZED_AT_ONCE = ("localized", "erm"), ("localized",)


def every_name(at_once):
    later = lambda name: () if name in at_once else pytest.mark.slow  # noqa: E731
    return pytest.mark.parametrize("name", [pytest.param(n, marks=later(n)) for n in NAMES])


@pytest.mark.parametrize("edit", EDITS)
@every_name(AT_ONCE)
def test_every_edited_leaf_is_covered(name, edit):
    solver, plan = made(name)
    # In one dtype, so that one program runs all of them.
    plan = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), plan)
    assert require_coverage(solver, plan, name == "sco") == "charged"
    assert len(SEEN) > 0, "nothing was seen"
    flat, tree = jax.tree.flatten(plan)
    for i, path in enumerate(leaves(plan)):
        edited = [*flat]
        edited[i] = EDITS[edit](flat[i])
        found = require_coverage(solver, tree.unflatten(edited), name == "sco")
        bad = edit == "nan" or (edit == "negative" and np.any(flat[i] != 0))
        if bad and any(path.endswith(word) for word in PROOFS):
            assert found != "charged", path
        if (edit, path.split(".")[-1]) in (("x 10", "beta"), ("/ 10", "smoothing_radius")):
            assert found == "unbounded", path  # both numbers are traced


def static_edits(plan, path=()):
    """Every static field, at any depth, that is a number or consists of numbers: doubled, halved, cut."""
    if isinstance(plan, tuple):
        for i, part in enumerate(plan):
            for where, edited in static_edits(part, (*path, i)):
                yield where, (*plan[:i], edited, *plan[i + 1 :])
        return
    if not dataclasses.is_dataclass(plan):
        return
    for field in dataclasses.fields(plan):
        value, where = getattr(plan, field.name), (*path, field.name)
        if dataclasses.is_dataclass(value) or field.name == "parts":
            for deeper, edited in static_edits(value, where):
                yield deeper, dataclasses.replace(plan, **{field.name: edited})
            continue
        if field.type is not int and field.type != "int":
            changes = others(field.name, value)
        else:
            changes = [2 * value, value // 2, value + 1, -1, value + 0.5]
        for change in changes:
            try:
                edited = dataclasses.replace(plan, **{field.name: change})
            except ValueError:
                continue  # refused where it is edited
            yield (*where, change), edited


def others(name, value):
    match name:
        case "method":
            return ["localized", "strongly_convex", "nonsense"]
        case "sampling":
            return ["with_replacement", "without_replacement", "nonsense"]
        case "search":
            return ["doubling", "bisection", "fixed", "none", "adaptive", "multiplier"]
        case "reuse":
            return [not value]
        case "drawn":
            return [(*value, *value), value[:-1], tuple(j + 1 for j in value), (-1,)]
        case "prox_levels":
            more = tuple(tuple(j + 1 for j in row) for row in value)
            twice = tuple((*row, *row) for row in value)
            return [twice, (*value, *value), more, value[:-1]] if value else [((0,), (1,))]
        case "proven" if value is not None:
            scaled = [value._replace(beta=2 * value.beta), value._replace(radius_ratio=8.0)]
            return [*scaled, value._replace(radius_ratio=2.5), value._replace(beta=math.nan), None]
    return []


@every_name(SIZED_AT_ONCE)
def test_every_edited_size_is_covered(name):
    solver, plan = made(name)
    outcomes = {}
    for where, edited in static_edits(plan):
        outcomes[where] = require_coverage(solver, edited, name == "sco")
    found = {str(where[-2]): outcome for where, outcome in outcomes.items() if outcome == "charged"}
    assert "num_queries" in found or name == "sco", outcomes
    for where, outcome in outcomes.items():
        if where[-1] == -1 or (isinstance(where[-1], float) and where[-2] != "constant"):
            assert outcome != "charged" or where[-2] in ("dim", "max_level", "max_searches"), where


def test_the_joint_certificate_of_blocks_has_the_largest_epsilon_and_the_largest_delta():
    plan = made("sco")[1]
    first, second = plan.parts
    edited = dataclasses.replace(
        plan, parts=(dataclasses.replace(first, delta=1e-5), second)
    ).certificate()
    members = [dataclasses.replace(first, delta=1e-5).certificate(), second.certificate()]
    assert members[0].epsilon > members[1].epsilon
    assert edited.epsilon == members[0].epsilon
    assert edited.delta == members[1].delta == DELTA
