"""SGD over units: what it equals, how far one element moves it, and what its plans say of a user whole."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from scipy import stats

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import elements, losses
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import methods
from dpsco_jax.solvers.element_level import _releases
from dpsco_jax.solvers.element_level import sgd as element_sgd
from dpsco_jax.solvers.element_level._releases import ElementReleases
from dpsco_jax.solvers.element_level._unit_updates import UnitUpdates, _user_sums
from dpsco_jax.solvers.user_level import sgd
from tests.support import independent_account as account
from tests.support.edited_plans import everybody

USERS, SLOTS, ITEMS, DIM, STEPS = 6, 3, 2, 4, 4
LOSS = losses.huber(1.0)
BUDGET = Budget(2.0, 1e-3)
ORIGIN = jnp.zeros(DIM)
# Calibrated in milliseconds; what is certified is asked for where it is looked at.
SIZES = {"num_steps": STEPS, "elements_per_user": SLOTS, "step_size": 0.3, "accountant": "rdp"}
# Of a point z per item: the gradient is z, so that every update is known.
LINEAR = Objective(lambda w, z: jnp.vdot(z, w), 1.0, 1e-3, domains.whole_space())


def _plan(objective=LOSS, num_users=USERS, **changes):
    problem = Problem(objective, num_users=num_users, dim=DIM)
    return element_sgd.plan(problem, BUDGET, **SIZES | changes)


def _data(seed=0, slots=SLOTS):
    """Features within the unit ball, some empty elements, and a user without any."""
    rng = np.random.default_rng(seed)
    shape = (USERS, slots, ITEMS)
    rows = rng.standard_normal((*shape, DIM))
    rows /= 1.01 * np.linalg.norm(rows, axis=-1, keepdims=True)
    mask = rng.random(shape) < 0.7
    mask[0] = False
    rows, labels = rows * mask[..., None], 3 * rng.standard_normal(shape) * mask
    return ElementData(Example(rows.astype(np.float32), labels.astype(np.float32)), mask)


def _solve(plan, objective, data, start=ORIGIN, solver=element_sgd, key=1):
    run = jax.jit(lambda plan: solver.solve(jax.random.key(key), plan, objective, data, start))
    return run(plan).params


def _silent(plan, **changes):
    return plan.replace(noise_multiplier=0.0, **changes)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"batch_size": 3}, {"batch_size": 3, "relation": NeighboringRelation.REPLACE_ONE}),
        pytest.param(
            {"batch_size": 3, "relation": "zero_out"}, {"batch_size": 3}, marks=pytest.mark.slow
        ),
        pytest.param(
            {"batch_size": 3, "sampling": "fixed"},
            {"batch_size": 3, "sampling": "fixed"},
            marks=pytest.mark.slow,
        ),
        ({"sampling": "full"}, {"sampling": "full"}),
    ],
    ids=["poisson replaced", "poisson", "fixed", "full"],
)
def test_with_one_element_it_is_user_level_sgd_bit_for_bit(ours, theirs):
    data = _data(slots=1)
    plan = _plan(elements_per_user=1, averaging="uniform", **ours)
    problem = Problem(LOSS, num_users=USERS, dim=DIM)
    other = sgd.plan(problem, BUDGET, num_steps=STEPS, step_size=0.3, accountant="rdp", **theirs)
    # Of an element replaced by nothing the curve is that of a user who is not there.
    assert plan.noise_multiplier == other.noise_multiplier
    units = elements.as_units(data)
    np.testing.assert_array_equal(_solve(plan, LOSS, data), _solve(other, LOSS, units, solver=sgd))


def _reference(data, domain_radius, clip_norm, step_sizes):
    """Algorithm 1 with descent, by NumPy in float64: all units, no noise; the last point."""
    x, y = (np.asarray(leaf, float) for leaf in data.items)

    def project(w):
        return w * min(1.0, domain_radius / max(np.linalg.norm(w), 1e-300))

    point = np.zeros(DIM)
    for eta in step_sizes:
        total = np.zeros(DIM)
        for u in range(USERS):
            for k in range(x.shape[1]):
                there = data.mask[u, k]
                if not there.any():
                    continue
                slopes = np.clip(x[u, k][there] @ point - y[u, k][there], -1, 1)
                gradient = (slopes[:, None] * x[u, k][there]).mean(0)
                update = (point - project(point - eta * gradient)) / eta
                total += update * min(1.0, clip_norm / max(np.linalg.norm(update), 1e-300))
        point = project(point - eta * total / USERS)
    return point


@pytest.mark.parametrize("step_decay", ["none", "sqrt"])
def test_steps_are_those_of_the_algorithm(step_decay):
    objective, data = losses.huber(1.0, domain=domains.ball(0.15)), _data()
    plan = _silent(
        _plan(objective, sampling="full", step_decay=step_decay, averaging="last", clip_norm=0.4)
    )
    sizes = 0.3 / np.sqrt(np.arange(STEPS) + 1) if step_decay == "sqrt" else np.full(STEPS, 0.3)
    expected = _reference(data, 0.15, 0.4, sizes)
    # Projected and clipped: elements by themselves end elsewhere.
    assert np.linalg.norm(expected - _reference(data, 1e9, 0.4, sizes)) > 0.01
    assert np.linalg.norm(expected - _reference(data, 0.15, 1e9, sizes)) > 1e-3
    np.testing.assert_allclose(_solve(plan, objective, data), expected, atol=2e-6)


def test_empty_slots_leave_no_trace():
    """Neither the divisor nor the sample shows which elements are there: more slots change nothing."""
    data = _data()
    wider = jax.tree.map(lambda x: np.concatenate([x, np.zeros_like(x)], 1), data)
    runs = []
    for each, slots in ((data, SLOTS), (wider, 2 * SLOTS)):
        plan = _plan(losses.huber(1.0, domain=domains.ball(1.0)), sampling="full")
        plan = plan.replace(elements_per_user=slots)
        runs.append(_solve(plan, losses.huber(1.0, domain=domains.ball(1.0)), each))
    np.testing.assert_allclose(*runs, atol=1e-7)


def _sums(plan, data, keys, objective=LINEAR, point=ORIGIN):
    """What the oracle of a step returns, for many keys: before the division and the noise."""
    mean = plan.mean
    units = elements.as_units(data)
    oracle, rows, _, _ = mean.open(jax.random.key(9), objective, units, point)
    ask = getattr(oracle, "at", lambda t: oracle)(jnp.int32(0))
    return np.asarray(
        jax.jit(jax.vmap(lambda key: ask(key, point, rows).gradient))(keys), np.float64
    )


WAYS = [
    {"batch_size": 3},
    {"batch_size": 3, "sampling": "user"},
    {"batch_size": 3, "sampling": "fixed"},
]


@pytest.mark.parametrize("way", WAYS, ids=["element", "user", "fixed"])
def test_the_expected_sum_of_a_sample_is_its_share_of_the_whole(way):
    rng = np.random.default_rng(2)
    data = ElementData(rng.standard_normal((USERS, SLOTS, 1, DIM)).astype(np.float32), None)
    plan = _plan(LINEAR, **way)
    sums = _sums(plan, data, jax.random.split(jax.random.key(3), 4000))
    rows = np.asarray(data.items, float).reshape(-1, DIM)
    whole = (rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))).sum(0)
    errors = sums.std(0) / math.sqrt(len(sums))
    assert np.all(errors > 0)
    assert np.all(np.abs(sums.mean(0) - 0.5 * whole) < 4 * errors)


@pytest.mark.parametrize(
    "way",
    [
        {"sampling": "full"},
        {"sampling": "user", "batch_size": USERS},
        {"sampling": "user", "batch_size": USERS, "cap": 1.5},
    ],
    ids=["element", "user", "user, capped"],
)
def test_no_pair_of_element_neighbours_is_further_apart_than_twice_the_clip_norm(way):
    """Random pairs and the worst that is known: an element turned round, with others across it or none."""
    plan, rho = _plan(LINEAR, clip_norm=0.7, **way), 0.7
    rng = np.random.default_rng(4)
    moved, removed = [], []
    for trial in range(60):
        rows = rng.standard_normal((USERS, SLOTS, 1, DIM)) * 10.0 ** rng.integers(-2, 4)
        if trial % 3 == 0:
            rows[1] = 0.0
            rows[1, 0, 0, 0] = 5.0
        if trial % 3 == 1:
            rows[1] = 0.0
            rows[1, 1:, 0, 1], rows[1, 0, 0, 0] = 5.0, 5.0  # the others pull across
        other, gone = rows.copy(), rows.copy()
        other[1, 0] = -rows[1, 0] if trial % 2 else 1e3 * rng.standard_normal((1, DIM))
        if trial % 6 == 3:
            other[1, 0] = -rows[1, 0]
        if trial % 10 == 9:
            other[1, 0, 0, 0] = [np.nan, np.inf, 1e30][trial % 3]
        gone[1, 0] = 0.0
        base, replaced, without = (
            _cached(plan, way)(r.astype(np.float32)) for r in (rows, other, gone)
        )
        moved.append(np.linalg.norm(base - replaced))
        removed.append(np.linalg.norm(base - without))
    assert 0.99 * 2 * rho < max(moved) <= 2 * rho * (1 + 1e-5)
    assert 0.99 * rho < max(removed) <= rho * (1 + 1e-5)


_COMPILED = {}


def _cached(plan, way):
    name = str(way)
    if name not in _COMPILED:
        mean = plan.mean

        def run(rows):
            units = elements.as_units(ElementData(rows, None))
            oracle, data, _, _ = mean.open(jax.random.key(9), LINEAR, units, ORIGIN)
            ask = getattr(oracle, "at", lambda t: oracle)(jnp.int32(0))
            return ask(jax.random.key(1), ORIGIN, data).gradient

        _COMPILED[name] = jax.jit(run)
    return lambda rows: np.asarray(_COMPILED[name](rows), float)


def test_a_user_protected_whole_moves_the_sum_by_twice_the_cap_and_no_more():
    plan = _plan(LINEAR, protects="user", sampling="full", cap=2.0)
    rng, moved = np.random.default_rng(5), []
    for _ in range(10):
        rows = rng.standard_normal((USERS, SLOTS, 1, DIM)).astype(np.float32)
        rows[1] = 9.0 * np.eye(DIM)[0]
        other = rows.copy()
        other[1] *= -1
        run = _cached(plan, "whole")
        moved.append(np.linalg.norm(run(rows) - run(other)))
    assert 0.99 * 4.0 < max(moved) <= 4.0 * (1 + 1e-5)
    assert plan.releases.per_clip_norm == pytest.approx(4.0 / USERS)


EDITS = {
    "element": ({"batch_size": 3}, {"batch_size": 6}, {"elements_per_user": 5}),
    "zero_out": ({"batch_size": 3, "relation": "zero_out"}, {"relation_name": "replace"}),
    "user": (
        {"batch_size": 3, "sampling": "user", "cap": 2.0},
        {"cap": math.inf},
        {"sampling": "fixed", "cap": math.inf},
    ),
    "whole": (
        {"batch_size": 3, "sampling": "user", "cap": 2.0, "protects": "user"},
        {"cap": 3.0},
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_plan_is_certified_for_the_noise_that_it_adds(name):
    """The noise of a step is measured on empty data; what it is worth is counted by other means."""
    first, *edits = EDITS[name]
    planned = _plan(LINEAR, num_steps=1, averaging="last", **first)
    numbers = {"clip_norm": 0.5, "noise_multiplier": 0.9 * planned.noise_multiplier}
    for edit in (numbers, *edits):
        plan = planned.replace(**edit)
        units = ElementData(jnp.zeros((USERS, plan.elements_per_user, 1, DIM)), None)
        keys = jax.random.split(jax.random.key(2), 1000)
        solve = lambda key: element_sgd.solve(key, plan, LINEAR, units, ORIGIN).params  # noqa: E731, B023
        noise = np.asarray(jax.jit(jax.vmap(solve))(keys)) / 0.3
        stddev = math.sqrt(np.mean(np.square(noise, dtype=float)))
        assert stddev == pytest.approx(plan.noise_stddev, rel=0.06)
        rate = plan.batch_size / USERS
        # In clip norms, on the sum over users.
        sigma = plan.noise_stddev * plan.batch_size / plan.clip_norm
        longest = min(plan.cap, plan.elements_per_user)
        whole = plan.protects == "user"
        scheme = {
            "element": ("poisson", rate, "replaced"),
            "user": ("poisson_users", rate, longest),
            "fixed": ("without_replacement", USERS, plan.batch_size),
        }[plan.sampling]
        sensitivity = 2.0
        if plan.relation_name == "zero_out":
            scheme, sensitivity = ("poisson", rate), 1.0
        elif whole:
            scheme, sensitivity = ("poisson", rate, "replaced"), 2.0 * longest
        if rate == 1.0 and plan.sampling != "user":
            scheme = None
        least = account.epsilon([(sigma / sensitivity, scheme)], 1e-3)
        assert 0.99 * least <= plan.certificate().epsilon <= 1.05 * least + 0.02


def test_what_is_said_of_a_user_is_no_less_than_what_aligned_elements_give_away():
    """k units that point one way, against the other: mixtures over how many of them are drawn.

    With little noise and a δ between the chance that one of them is drawn and that some are, too.
    """
    zero_out, clear = {"relation": "zero_out"}, {"noise_multiplier": 0.1, "delta": 0.15}
    for way, k, changes in (({}, 2, {}), (zero_out, 3, {}), ({}, 2, clear)):
        plan = _plan(num_users=20, num_steps=1, batch_size=2, **way)
        plan = plan.replace(releases=dataclasses.replace(plan.releases, **changes))
        delta = plan.releases.delta
        replaced = plan.relation_name == "replace"
        sigma = plan.noise_multiplier * (2.0 if replaced else 1.0)
        counts = np.arange(k + 1)
        chances = tuple(stats.binom(k, 0.1).pmf(counts))
        ahead, behind = (
            account.Law(chances, tuple(s * counts / sigma))
            for s in (1.0, -1.0 if replaced else 0.0)
        )
        least = max(account._epsilon((pair,), delta) for pair in ((ahead, behind), (behind, ahead)))
        said = plan.user_certificate(k).epsilon
        assert 0.99 * least <= said <= everybody(plan.noise_multiplier / k, 1, delta)
        assert plan.certificate().epsilon < said
    # Of everybody it is the Gaussian of k times the length, which group privacy bounds from above.
    full = _plan(sampling="full", num_steps=1, elements_per_user=5).replace(noise_multiplier=2.0)
    exact = everybody(0.4, 1, 1e-3)
    assert full.user_certificate().epsilon == pytest.approx(exact, rel=1e-3)
    assert exact < _releases._group(full.releases.steps, 2.0, 1e-3, 5)[0] < 3 * exact
    plan = _plan(num_users=20, num_steps=1, batch_size=2)
    assert plan.user_certificate(1) == plan.certificate()
    ordered = [plan.user_certificate(k).epsilon for k in (1, 2, 3)]
    assert ordered == sorted(ordered)
    assert "3 elements" in str(plan)


def test_of_a_fixed_number_of_units_no_less_is_said_than_what_data_sets_give_away():
    """Two elements turn round, and all other units point to where they turn: one step of 6 units of 60."""
    plan = _plan(num_users=20, num_steps=1, batch_size=2, sampling="fixed")
    plan = plan.replace(noise_multiplier=0.8)
    for k in (2, 3):
        chances = tuple(stats.hypergeom(60, k, 6).pmf(np.arange(k + 1)))
        ahead, behind = (
            account.Law(chances, tuple(np.arange(k + 1) / 0.8)),
            account.Law((1.0,), (0.0,)),
        )
        least = max(account._epsilon((pair,), 1e-3) for pair in ((ahead, behind), (behind, ahead)))
        assert 0.99 * least <= plan.user_certificate(k).epsilon <= 1.1 * least
    assert plan.certificate().epsilon < plan.user_certificate(2).epsilon


def test_of_sampled_users_the_elements_that_stay_show_the_coin():
    """Two of three elements turn round; the third has its full length in both data sets."""
    plan = _plan(num_users=20, num_steps=1, batch_size=2, sampling="user")
    plan = plan.replace(noise_multiplier=0.8)
    ahead, behind = (account.Law((0.9, 0.1), (0.0, place / 1.6)) for place in (3.0, -1.0))
    least = max(account._epsilon((pair,), 1e-3) for pair in ((ahead, behind), (behind, ahead)))
    assert 0.99 * least <= plan.user_certificate(2).epsilon <= everybody(0.4, 1, 1e-3)


def test_of_users_who_are_sampled_the_user_level_is_that_of_capped_sums():
    plan = _plan(num_users=20, batch_size=2, sampling="user", cap=2.0)
    whole = plan.replace(protects="user", noise_multiplier=plan.noise_multiplier / 2.0)
    assert plan.user_certificate().epsilon <= whole.certificate().epsilon
    np.testing.assert_allclose(whole.noise_stddev, plan.noise_stddev)


def test_signal_to_noise_is_that_of_the_paper_and_is_warned_of():
    """E section 4.4: 62,006 parameters, q = 0.01, n = 8000, σ = 5.14 clip norms."""
    problem = Problem(LINEAR, num_users=8000, dim=62_006)
    for slots, noise in ((30, 0.53), (5, 3.2), (1, 16.0)):
        plan = element_sgd.plan(
            problem,
            Budget(2.0, 1e-5),
            **SIZES | {"num_steps": 1, "elements_per_user": slots},
            batch_size=80,
        )
        plan = plan.replace(noise_multiplier=5.14 / 2)
        assert 1 / plan.signal_to_noise == pytest.approx(noise, rel=0.02)
        if slots != 30:
            assert ("BELOW 1" in str(plan)) == (noise > 1)
    assert "BELOW 1" not in str(_plan(batch_size=3, num_steps=1))


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ("batch_size", {}),
        ("batch_size", {"batch_size": USERS + 1}),
        ("batch_size", {"batch_size": 3, "sampling": "full"}),
        ("cap", {"batch_size": 3, "cap": 2.0}),
        ("cap", {"batch_size": 3, "sampling": "user", "cap": 0.5}),
        ("cap", {"batch_size": 3, "sampling": "user", "cap": math.nan}),
        ("relation", {"batch_size": 3, "sampling": "user", "relation": "zero_out"}),
        ("relation", {"batch_size": 3, "sampling": "fixed", "relation": "zero_out"}),
        ("sampling", {"batch_size": 3, "protects": "user"}),
    ],
)
def test_what_has_no_proof_is_refused_by_name(named, given):
    with pytest.raises(ValueError, match=rf"^{named} must be"):
        _plan(**given)


def test_data_of_other_sizes_than_planned_are_refused():
    plan, data = _plan(batch_size=3), _data()
    turned = jax.tree.map(lambda x: np.swapaxes(x, 0, 1), data)
    fewer = jax.tree.map(lambda x: x[1:], elements.as_units(data))
    for wrong in (turned, fewer):
        with pytest.raises(ValueError, match="data must"):
            element_sgd.solve(jax.random.key(0), plan, LOSS, wrong, ORIGIN)
    np.testing.assert_array_equal(
        _solve(plan, LOSS, data), _solve(plan, LOSS, elements.as_units(data))
    )


def test_another_method_runs_on_the_same_releases():
    """On a ball, where updates of SGD are gradient mappings, and of methods without a length gradients."""
    objective, data = losses.huber(1.0, domain=domains.ball(0.15)), _data()
    plan = _plan(objective, sampling="full", averaging="last")
    other = plan.with_method("AC-SA on units", methods.AcSa(20.0, 0.0))
    assert other.certificate() == plan.certificate()
    assert other.user_certificate() == plan.user_certificate()
    ends = [_solve(_silent(each), objective, data) for each in (plan, other)]
    loss = elements.mean_element_loss(objective)
    assert all(loss(end, data) < loss(ORIGIN, data) for end in ends)
    assert not np.array_equal(*ends)


@pytest.mark.parametrize("platform", ["cpu", "default"])
def test_an_element_moves_the_rounded_sum_of_its_user_by_no_more(platform, monkeypatch):
    """On the grid of a user's sum, whose steps are wide for an element, all entries may round away."""
    slots, dim, clip_norm = 16, 2**18, 1.0097
    sizes = (1, slots, 1, 1, "user", "replace", "element", math.inf)
    mean = UnitUpdates(slots, ElementReleases(*sizes, noise_multiplier=1.0, delta=1e-3), clip_norm)
    oracle = _user_sums(mean, lambda step, params, items, mask: items[0], jnp.int32(0))

    def chosen(*given, cpu, default):
        return (cpu if platform == "cpu" else default)(*given)

    monkeypatch.setattr(jax.lax, "platform_dependent", chosen)

    @jax.jit
    def total(first, second):
        rows = jnp.zeros((slots, 1, 1)).at[0].set(first).at[1].set(second) * jnp.ones(dim)
        found = oracle(jax.random.key(0), jnp.zeros(dim), UserData(rows, None))
        return found.gradient[0], found.extra_args["remainder"][0]

    def moved(other):
        first, second = (sum(map(float, total(sign, other))) for sign in (1.0, -1.0))
        return (first - second) * dim**0.5 / (2 * clip_norm)

    step = 2.0**-24 * 2 ** math.ceil(math.log2(slots * clip_norm))
    ratios = [moved(share * step) for share in np.linspace(0, 1, 16)]

    assert 0.99 < max(ratios) <= 1
