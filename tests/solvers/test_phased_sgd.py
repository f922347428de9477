"""Phased SGD: the pass of a group in closed form, chained phases, halts, accounting, sizes, the bound."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import Status
from dpsco_jax.solvers.user_level import _phased_plan, phased_sgd
from tests.support.planned import planned

USERS, ITEMS, DIM, GROUPS, DELTA, EPSILON = 110, 3, 2, 16, 1e-3, 8.0
QUADRATIC = Objective(
    loss=lambda w, z: 0.5 * jnp.sum((w - z) ** 2),
    lipschitz=2.0,
    smoothness=1.0,
    domain=domains.ball(2.0),
    loss_strong_convexity=1.0,
)
SIZES = {"num_users": USERS, "items_per_user": ITEMS, "dim": DIM, "delta": DELTA}


def _plan(objective=QUADRATIC, **changes):
    settings = {"epsilon": EPSILON, "num_groups": GROUPS, "num_phases": 2, "step_size": 0.1}
    return planned(
        phased_sgd.plan, objective, **(settings | {"radius": (0.2, 0.1)} | SIZES | changes)
    )


def _quiet(plan):
    releases = dataclasses.replace(plan.releases, noise_stddev=0.0, threshold=-1e9)
    return dataclasses.replace(plan, releases=releases, noise_multiplier=0.0)


def _data(seed=0, spread=0.3):
    rng = np.random.default_rng(seed)
    points = [0.5, -0.4] + spread * rng.normal(size=(USERS, ITEMS, DIM))
    return UserData(jnp.asarray(points, jnp.float32))


@jax.jit
def _run(key, plan, data, start):
    return phased_sgd.solve(key, plan, QUADRATIC, data, start)


def _pass(points, start, step):
    """One pass of SGD on ½‖x - z‖² and the average of the points where gradients were taken."""
    x, total = np.asarray(start, np.float64), 0.0
    for z in points:
        total, x = total + x, x - step * (x - z)
    return total / len(points)


def _by_hand(plan, data, start):
    """Averages of the groups' averages, chained; items first, then users."""
    at, first, points = np.asarray(start, np.float64), 0, np.asarray(data.items, np.float64)
    for users, step in zip(plan.group_users, plan.step_sizes, strict=True):
        block = points[first : first + plan.num_groups * users]
        groups = block.reshape(plan.num_groups, users, ITEMS, DIM).swapaxes(1, 2)
        at = np.mean([_pass(g.reshape(-1, DIM), at, step) for g in groups], axis=0)
        first += plan.num_groups * users
    return at


def test_without_noise_it_is_a_chain_of_averaged_passes():
    plan, data, start = _quiet(_plan()), _data(), jnp.asarray([1.0, 1.0])
    assert plan.group_users == (4, 2)
    solution = _run(jax.random.key(0), plan, data, start)
    assert solution.status == Status.OK
    np.testing.assert_allclose(solution.params, _by_hand(plan, data, start), rtol=1e-5)
    # Users left over, at the end, take no part.
    assert solution.gradients == GROUPS * (4 + 2) * ITEMS == plan.item_gradients
    other = data._replace(items=data.items.at[GROUPS * 6 :].set(99.0))
    again = _run(jax.random.key(0), plan, other, start)
    np.testing.assert_array_equal(again.params, solution.params)


def test_a_group_is_the_recursion_in_closed_form_and_missing_items_are_steps_of_length_zero():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(6, 4, DIM)).astype(np.float32)
    mask = np.ones((6, 4), bool)
    start, step = jnp.asarray([0.2, 0.1]), 0.05
    everywhere = QUADRATIC._replace(domain=domains.whole_space())
    averages = jax.jit(
        lambda items, mask: phased_sgd.group_averages(
            everywhere, UserData(items, mask), 2, start, step
        )
    )
    found = averages(points, mask)
    for group in range(2):
        z = points[3 * group : 3 * group + 3].swapaxes(0, 1).reshape(-1, DIM)
        t = np.arange(12)
        path = [
            0.95**s * np.asarray(start) + step * sum(0.95 ** (s - 1 - k) * z[k] for k in range(s))
            for s in t
        ]
        np.testing.assert_allclose(found[group], np.mean(path, axis=0), rtol=1e-5)
    mask[0] = False
    moved = averages(points, mask)
    z = points[:3].swapaxes(0, 1)
    x, total = np.asarray(start, np.float64), 0.0
    for item in range(4):
        for user in range(3):
            total = total + x
            x = x - step * (x - z[item, user]) * mask[user, item]
    np.testing.assert_allclose(moved[0], total / 12, rtol=1e-5)
    np.testing.assert_array_equal(moved[1], found[1])


def _disagreement(phase):
    """Half of the users of a phase pull one way, half the other."""
    plan, items = _plan(radius=0.025), np.asarray(_data(spread=0.0).items).copy()
    first = sum(plan.phase_users[:phase])
    half = first + plan.phase_users[phase] // 2
    items[first:half], items[half : first + plan.phase_users[phase]] = 1.0, -1.0
    return plan, UserData(jnp.asarray(items))


def test_a_halt_returns_where_the_last_phase_has_ended():
    start = jnp.asarray([0.1, 0.2])
    plan, data = _disagreement(0)
    solution = _run(jax.random.key(0), plan, data, start)
    assert solution.status == Status.HALTED
    np.testing.assert_array_equal(solution.params, start)
    plan, data = _disagreement(1)
    solution = _run(jax.random.key(0), plan, data, start)
    assert solution.status == Status.HALTED
    # The same as where nobody disagrees, but no two averages of the second phase are near enough.
    narrow = dataclasses.replace(plan, radii=(plan.radii[0], 1e-9))
    first = plan.phase_users[0]
    calm = UserData(_data(spread=0.3).items.at[:first].set(data.items[:first]))
    calm = _run(jax.random.key(0), narrow, calm, start)
    np.testing.assert_array_equal(solution.params, calm.params)
    assert np.any(solution.params != start)


def test_honest_users_do_not_halt_within_the_proven_radius():
    """Linear losses, which concentrate least; 200 runs with fresh data."""
    linear = Objective(
        loss=lambda w, z: jnp.vdot(z, w),
        lipschitz=1.0,
        smoothness=0.0,
        domain=domains.whole_space(),
    )
    plan = _plan(linear, radius=None, num_users=40, items_per_user=400, num_phases=1, distance=1.0)
    assert plan.clipped == (False,)
    assert plan.concentration_failure <= 1 / (40 * 400)

    @jax.jit
    @jax.vmap
    def run(key):
        data_key, key = jax.random.split(key)
        signs = jax.random.rademacher(data_key, (40, 400, DIM), dtype=jnp.float32)
        data = UserData(signs / np.sqrt(DIM))
        return phased_sgd.solve(key, plan, linear, data, jnp.zeros(DIM)).status

    assert not np.any(run(jax.random.split(jax.random.key(7), 200)))


def test_a_radius_that_tests_nothing_is_replaced_by_a_clip():
    plan = _plan(radius=None)
    assert plan.clipped == (True, True)
    assert "tests nothing" in str(plan)
    for clip, step, users, noise in zip(
        plan.clip_norms, plan.step_sizes, plan.group_users, plan.noise_stddevs, strict=True
    ):
        assert clip == pytest.approx(step * 2.0 * (users * ITEMS - 1) / 2)
        assert noise == pytest.approx(plan.noise_multiplier * 2 * clip / GROUPS)
    assert 0.999 * EPSILON < plan.certificate().epsilon <= EPSILON
    solution = _run(jax.random.key(0), plan, _data(spread=100.0), jnp.zeros(DIM))
    assert solution.status == Status.OK
    spent, planned = (privacy.epsilon(x, DELTA) for x in (solution.privacy, plan.loss()))
    np.testing.assert_allclose(spent, planned, rtol=1e-3)
    quiet = _run(jax.random.key(0), _quiet(plan), _data(), jnp.zeros(DIM))
    np.testing.assert_allclose(quiet.params, _by_hand(plan, _data(), jnp.zeros(DIM)), rtol=1e-4)


def test_the_plan_searches_for_the_least_bound():
    settings = {"num_users": 20_000, "items_per_user": 20_000, "dim": 5, "epsilon": 4.0}
    # Without a domain: in a small one the farthest that averages can be apart is less than the radius.
    linear = QUADRATIC._replace(loss_strong_convexity=0.0, domain=domains.whole_space())
    free = {
        "distance": 4.0,
        "num_groups": None,
        "num_phases": None,
        "step_size": None,
        "radius": None,
    }
    best = planned(phased_sgd.plan, linear, delta=1e-6, **settings, **free)
    assert not best.clipped[0]
    assert best.concentration_failure + best.failure <= 1e-8
    fixed = {"num_groups": best.num_groups, "num_phases": len(best.group_users)}
    near = [
        planned(phased_sgd.plan, linear, delta=1e-6, **settings, **(free | fixed | change))
        for change in (
            {"step_size": 2 * best.step_sizes[0]},
            {"step_size": best.step_sizes[0] / 2},
            {"num_groups": int(0.7 * best.num_groups)},
            {"num_phases": 1},
        )
    ]
    assert all(best.excess_bound <= other.excess_bound for other in near)
    # Linear time: the statistical error of a group, times what privacy costs.
    assert best.item_gradients <= 20_000 * 20_000
    alone = 2.0 * 4.0 / np.sqrt(best.group_users[0] * 20_000)
    assert alone / 4 < best.excess_bound < 20 * alone
    # Strong convexity draws the groups together.
    strong = linear._replace(loss_strong_convexity=1.0)
    strong = planned(phased_sgd.plan, strong, delta=1e-6, **settings, **(free | fixed))
    assert strong.excess_bound < best.excess_bound


def test_the_bound_holds_on_a_worst_case_without_privacy():
    """|x| from the edge of the domain, steps and lengths of two phases, no noise."""
    median = losses.geometric_median(domains.ball(1.0))
    problem = Problem(median, num_users=100, items_per_user=10, dim=1, distance=1.0)
    for first in (0.02, 0.1, 0.5):
        found = [
            _phased_plan.Phase(50, first, 1.0, 1.0, False, 0.0),
            _phased_plan.Phase(25, first / 4, 1.0, 1.0, False, 0.0),
        ]
        x = 1.0
        for phase in found:
            total = 0.0
            for _ in range(phase.num_steps):
                total, x = total + x, x - phase.step_size * np.sign(x)
            x = total / phase.num_steps
        bound = _phased_plan.excess_bound(problem, found, 0.0)
        assert 0 < abs(x) <= bound
    noisy = [phase._replace(stddev=0.1) for phase in found]
    expected = 0.1**2 / (2 * found[1].step_size * 25) + 0.1
    np.testing.assert_allclose(_phased_plan.excess_bound(problem, noisy, 0.0) - bound, expected)
    assert _phased_plan.excess_bound(problem, found, 0.3) == pytest.approx(bound + 0.3 * 2.0)


def test_paper_constants_and_how_many_users_they_need():
    """The smallest n for which the last phase fills the groups, for m = 10, δ = 1e-6."""
    needed = {1.0: 154_574, 4.0: 35_660, 10.0: 15_147}  # with n^-q for the last of ⌊log₂ n⌋ phases
    for epsilon, expected in needed.items():
        settings = {"epsilon": epsilon, "delta": 1e-6, "constants": "paper", "radius": None}
        with pytest.raises(ValueError, match=r"num_users must be .*at least") as error:
            _plan(num_users=1000, items_per_user=10, **settings)
        found = int(str(error.value).split("at least ")[1].split(" ")[0])
        assert 0.92 * expected < found <= expected
    plan = _plan(num_users=found, items_per_user=10, **settings)
    n, m, epsilon = found, 10, 10.0
    level = np.log(20 * n * m * np.exp(epsilon) / 1e-6)
    assert plan.num_groups == np.ceil(100 * level / epsilon)
    assert len(plan.group_users) == int(np.log2(n))
    assert plan.group_users[-1] >= 1
    for i, (step, radius, users) in enumerate(
        zip(plan.step_sizes, plan.radii, plan.group_users, strict=True), start=1
    ):
        eta = 4.0 / (2.0 * np.sqrt(DIM * m * n * epsilon)) * 2.0 ** (-2.5 * i)
        assert step == pytest.approx(eta)
        printed = 1000 * eta * 2.0 * np.sqrt(users * m) * np.log(n * DIM * m)
        assert 2 * radius == pytest.approx(printed), "the print compares pairs"
    # The printed radii are far beyond what two averages can differ by.
    assert all(plan.clipped)
    assert plan.user_gradients <= n


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_groups": 3}, "num_groups must be at least"),
        ({"num_groups": None, "num_users": 4, "epsilon": 1.0}, "num_users must be at least"),
        ({"num_groups": 200}, r"num_groups must be an integer in \[1, 110\]"),
        (
            {"num_phases": 5, "radius": 0.2},
            "num_users must be enough for 5 phases of 16 groups, got 110",
        ),
        ({"radius": (0.1,)}, "radius must be one number or 2"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        _plan(**changes)


def test_other_data_are_refused():
    data = _data()
    for bad, message in (
        (UserData(data.items[:-1]), r"plan\.num_users = 110 users, got 109"),
        (UserData(data.items[:, :2]), r"plan\.items_per_user = 3 slots, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            phased_sgd.solve(jax.random.key(0), _plan(), QUADRATIC, bad, jnp.zeros(DIM))


@pytest.mark.parametrize("name", ["radii", "clip_norms", "step_sizes"])
def test_numbers_of_fewer_phases_than_run_are_refused(name):
    plan = _plan(num_phases=2)
    edited = dataclasses.replace(plan, **{name: getattr(plan, name)[:1]})
    with pytest.raises(ValueError, match=rf"plan\.{name} must be 2 numbers"):
        phased_sgd.solve(jax.random.key(0), edited, QUADRATIC, _data(), jnp.zeros(2))


def test_a_linear_model_with_a_ridge_and_missing_items():
    """The general path: examples, masks, a ridge in every step; the risk falls."""
    objective = losses.logistic(feature_bound=1.0, domain=domains.ball(3.0), ridge=0.05)
    rng = np.random.default_rng(3)
    features = rng.normal(size=(USERS, ITEMS, DIM)).astype(np.float32)
    labels = (features[..., 0] > 0).astype(np.float32)
    mask = jnp.asarray(rng.random((USERS, ITEMS)) < 0.8)
    data = UserData(Example(jnp.asarray(features), jnp.asarray(labels)), mask)
    plan = _quiet(_plan(objective, step_size=1.0, radius=1.0))
    assert plan.excess_bound == np.inf
    solution = jax.jit(
        lambda d: phased_sgd.solve(jax.random.key(0), plan, objective, d, jnp.zeros(DIM))
    )(data)
    assert solution.status == Status.OK
    assert solution.params[0] > 0.3
    assert solution.unprivate["gradients"] == int(np.sum(mask[: GROUPS * 6]))
