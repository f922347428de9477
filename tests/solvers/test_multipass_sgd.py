"""Multi-pass SGD on outlier-removed means: the recursion, the halt, what is learned of the data, the plan."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax import Budget, Problem, privacy, transforms
from dpsco_jax.geometry import domains
from dpsco_jax.oracles import user_gradients
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import Status, loop
from dpsco_jax.solvers.means import Clipped, OutlierRemoved
from dpsco_jax.solvers.user_level import multipass_sgd
from tests.support.planned import planned

USERS, ITEMS, DIM, STEPS, DELTA = 64, 4, 3, 5, 1e-3
LOGISTIC = losses.logistic(feature_bound=1.0, domain=domains.ball(2.0), ridge=0.1)
POINTS = losses.squared_distance(point_bound=1.0, radius=1.0)
SIZES = {"num_users": USERS, "items_per_user": ITEMS, "dim": DIM, "delta": DELTA}


def _plan(objective=LOGISTIC, epsilon=8.0, **changes):
    settings = {"num_steps": STEPS, "radius": 0.75, "epsilon": epsilon} | SIZES
    return planned(multipass_sgd.plan, objective, **(settings | changes))


def _quiet(plan):
    """No noise, and a test that everything passes: the optimizer alone."""
    releases = dataclasses.replace(plan.releases, noise_stddev=0.0, threshold=-1e9)
    return plan.replace(releases=releases)


def _examples(seed=0, scale=0.5):
    rng = np.random.default_rng(seed)
    features = scale * rng.normal(size=(USERS, ITEMS, DIM)).astype(np.float32)
    labels = rng.integers(0, 2, (USERS, ITEMS)).astype(np.float32)
    mask = np.arange(ITEMS) < rng.integers(1, ITEMS + 1, USERS)[:, None]
    return UserData(Example(jnp.asarray(features), jnp.asarray(labels)), jnp.asarray(mask))


def _points(seed=0, spread=0.1):
    rng = np.random.default_rng(seed)
    return UserData(jnp.asarray(spread * rng.normal(size=(USERS, ITEMS, DIM)), jnp.float32))


@jax.jit
def _run(key, plan, data, start):
    """One compilation for all tests with this objective and these sizes; leaves a trace of the path."""
    return multipass_sgd.solve(key, plan, LOGISTIC, data, start, lambda w, s, e: w)


def test_the_solver_is_its_chain():
    """Oracle rows, the outlier-removed mean, ridge, step, projection, average."""
    plan, data, start = _plan(), _examples(), jnp.zeros(DIM)
    oracle_key, noise_key = jax.random.split(jax.random.key(3))
    chain = transforms.until_halted(
        transforms.outlier_removed_mean(
            plan.releases, plan.score_radius, noise_key, anchor=None, reach=plan.reach
        ),
        optax.chain(
            optax.stateless(lambda g, p: g + LOGISTIC.ridge * p),
            optax.scale(-plan.step_size),
            transforms.project(LOGISTIC.domain),
            transforms.average(),
        ),
    )
    oracle, rows = user_gradients.user_rows_oracle(LOGISTIC, data, start, 1.0, None, 64)
    end = jax.jit(lambda rows: loop.run(oracle_key, oracle, chain, start, rows, STEPS))(rows)
    solution = _run(jax.random.key(3), plan, data, start)
    average = transforms.average_eval_params(end.opt_state, end.params)
    np.testing.assert_allclose(solution.params, average, rtol=1e-5)


def test_noise_of_the_average_has_the_law_of_the_recursion():
    """Quadratic, no domain: bias and variance of the average in closed form."""
    everywhere = POINTS._replace(domain=domains.whole_space())
    plan = _plan(everywhere, radius=0.25, distance=1.0)
    releases = dataclasses.replace(plan.releases, threshold=-1e9)
    plan = plan.replace(releases=releases, step_size=0.3)
    data, start = _points(), jnp.asarray([0.5, -1.0, 0.0])
    keys = jax.random.split(jax.random.key(1), 3000)
    run = jax.vmap(lambda k: multipass_sgd.solve(k, plan, everywhere, data, start).params)
    ends = np.asarray(jax.jit(run)(keys), np.float64)
    center, powers = np.asarray(data.items, np.float64).mean((0, 1)), 0.7 ** np.arange(1, STEPS + 1)
    expected = center + (np.asarray(start) - center) * powers.mean()
    variance = float(plan.noise_stddev) ** 2 * np.sum((1 - powers) ** 2) / STEPS**2
    error = np.sqrt(variance / len(ends))
    assert np.all(np.abs(ends.mean(0) - expected) < 5 * error)
    np.testing.assert_allclose(ends.var(0), variance, rtol=5 * np.sqrt(2 / len(ends)))


MEDIAN = losses.geometric_median(domains.ball(1.0))
LONG = 20


@jax.jit
def _run_median(plan, data, start):
    return multipass_sgd.solve(jax.random.key(2), plan, MEDIAN, data, start, lambda w, s, e: w)


def test_one_item_moves_the_iterates_as_stability_says():
    """2Gγ√T + 4GγT/(nm) for any convex loss; 2GγT/(nm) for smooth ones, even with fewer items."""
    gamma = 0.05
    plan = _plan(MEDIAN, num_steps=LONG, radius=0.95, step_size=gamma)
    releases = dataclasses.replace(plan.releases, threshold=-1e9)
    plan, data = plan.replace(releases=releases), _points(spread=0.3)
    other = data._replace(items=data.items.at[7, 1].set(5.0))
    paths = [_run_median(plan, d, jnp.zeros(DIM)).unprivate["trace"] for d in (data, other)]
    moved = np.linalg.norm(paths[0] - paths[1], axis=-1).max()
    share = gamma * LONG / (USERS * ITEMS)
    assert 0 < moved <= 2 * gamma * np.sqrt(LONG) + 4 * share

    quiet, data = _quiet(_plan()).replace(step_size=gamma), _examples()
    user = int(np.argmax(np.sum(data.mask, 1)))
    features = data.items.features.at[user, 0].multiply(-1.0)
    other = data._replace(items=data.items._replace(features=features))
    paths = [
        _run(jax.random.key(2), quiet, d, jnp.ones(DIM)).unprivate["trace"] for d in (data, other)
    ]
    moved = np.linalg.norm(paths[0] - paths[1], axis=-1).max()
    assert 0 < moved <= 2 * gamma * STEPS / (USERS * ITEMS) * (1 + 1e-4)


def test_two_camps_halt_the_run_where_it_stands():
    """Nobody agrees from the start: the start is returned, and a ridge does not move it."""
    camps = jnp.where(jnp.arange(USERS)[:, None, None] % 2 == 0, 1.0, -1.0)
    features = camps * jnp.ones((USERS, ITEMS, DIM)) / np.sqrt(DIM)
    data = UserData(Example(features, jnp.ones((USERS, ITEMS))), jnp.ones((USERS, ITEMS), bool))
    plan, start = _plan(radius=0.25), jnp.asarray([0.3, -0.2, 0.1])
    for seed in range(3):
        solution = _run(jax.random.key(seed), plan, data, start)
        assert solution.status == Status.HALTED
        np.testing.assert_array_equal(solution.params, start)
        np.testing.assert_array_equal(solution.unprivate["trace"], jnp.stack([start] * STEPS))
    # It has cost what it would have cost to the end.
    spent, planned = (privacy.epsilon(x, DELTA) for x in (solution.privacy, plan.loss()))
    np.testing.assert_allclose(spent, planned, rtol=1e-3)


@pytest.mark.parametrize("on_halt", ["start", "average"])
def test_a_halt_on_the_way(on_halt):
    """Two camps ahead agree on the way until one of them is passed."""
    plan = _plan(MEDIAN, num_steps=LONG, radius=0.5, step_size=0.15, on_halt=on_halt)
    sure = dataclasses.replace(plan.releases, noise_stddev=0.0, test_epsilon=1e6)
    plan = plan.replace(releases=sure)
    place = jnp.where(jnp.arange(USERS) % 2 == 0, 0.15, 0.6)
    data = UserData(jnp.zeros((USERS, ITEMS, DIM)).at[:, :, 0].set(place[:, None]))
    start = jnp.asarray([-0.75, 0.0, 0.0])
    solution = _run_median(plan, data, start)
    assert solution.status == Status.HALTED
    # Steps of 0.15 from -0.75: past 0.15 after seven.
    steps = np.minimum(np.arange(1, LONG + 1), 7)
    path = -0.75 + 0.15 * steps
    np.testing.assert_allclose(solution.unprivate["trace"][:, 0], path, atol=1e-5)
    expected = -0.75 if on_halt == "start" else path[:7].mean()
    np.testing.assert_allclose(solution.params, [expected, 0.0, 0.0], atol=1e-5)


def test_a_radius_that_tests_nothing_is_replaced_by_a_clip():
    plan = _plan(radius=1.0)
    assert isinstance(plan.mean, Clipped)
    assert "tests nothing" in str(plan)
    full = plan.releases.noise_multiplier * 2 / USERS
    np.testing.assert_allclose(plan.noise_stddev, full)
    assert 0.999 * 8.0 < plan.certificate().epsilon <= 8.0
    solution = _run(jax.random.key(0), plan, _examples(scale=50.0), jnp.ones(DIM))
    assert solution.status == Status.OK
    spent = privacy.epsilon(solution.privacy, DELTA)
    np.testing.assert_allclose(spent, privacy.epsilon(plan.loss(), DELTA), rtol=1e-3)
    # A few items: users differ as much as their gradients can.
    assert isinstance(_plan(radius=None).mean, Clipped)
    tested = _plan(radius=None, items_per_user=10**5, num_users=99)
    assert isinstance(tested.mean, OutlierRemoved)


def test_break_even_is_where_both_means_have_the_same_noise():
    plan = _plan()
    even = _plan(radius=float(plan.break_even_radius))
    np.testing.assert_allclose(even.noise_stddev, _plan(radius=1.0).noise_stddev, rtol=0.02)
    assert "more than" in str(_plan(radius=1.1 * float(plan.break_even_radius)))
    assert "less than" in str(_plan(radius=0.9 * float(plan.break_even_radius)))
    # No radius is useful beyond a quarter of the clip norm: the mean moves by more than 8 radii over n.
    large = _plan(num_users=50_000, epsilon=8.0, allow_large_delta=True)
    assert 0.125 < large.break_even_radius < 0.25


def test_the_table_names_the_users_needed():
    plan = _plan()
    needed = dict(plan.remarks)["users needed"]()
    assert ["users", "needed", str(needed)] in [line.split() for line in str(plan).split("\n")]
    assert 30 < needed <= USERS
    with pytest.raises(ValueError, match=f"num_users must be .*at least {needed}"):
        _plan(num_users=needed - 1, failure=2 * float(plan.failure))
    assert _plan(num_users=needed, failure=2 * float(plan.failure)).num_users == needed
    assert "users needed" not in str(_plan(radius=1.0))  # what is clipped has no test


def test_noise_is_never_more_than_that_of_a_simpler_proof():
    """Two plans by hand: sensitivity of the mean and budget split at one half each."""
    for users, steps, epsilon, radius, noise in (
        (5000, 1000, 1.0, 1.0, 0.433922),
        (1000, 60, 2.0, 0.3, 0.127312),
        (1000, 60, 8.0, 0.3, 0.0192961),
    ):
        settings = {"num_users": users, "num_steps": steps, "delta": 1e-6, "failure": 0.1}
        plan = _plan(POINTS, epsilon=epsilon, radius=radius / 2, **settings)
        head = plan.noise_stddev / (plan.releases.noise_stddev * radius)
        assert plan.releases.noise_stddev * radius <= noise
        assert 1 <= head < 1.002
        assert plan.failure <= 0.0501


def test_excess_bound_pays_for_what_can_go_wrong():
    settings = {"num_users": 20_000, "items_per_user": 10_000, "dim": 20, "epsilon": 2.0}
    settings["allow_large_delta"] = True
    plan = _plan(POINTS, radius=None, num_steps=None, **settings)
    assert isinstance(plan.mean, OutlierRemoved)
    assert plan.concentration_failure <= 1e-8
    assert plan.failure <= 1e-8
    nothing_private = POINTS.lipschitz * 2.0 / np.sqrt(2e8)
    private = np.sqrt(20 / plan.num_steps) * plan.noise_stddev * 2.0
    assert private < plan.excess_bound < 4 * (private + nothing_private)
    assert 0 < plan.stability_bound < plan.excess_bound
    smaller = _plan(POINTS, radius=plan.radius / 3, num_steps=plan.num_steps, **settings)
    assert "all user gradients are within" in smaller.assumes[-1]
    assert smaller.excess_bound < plan.excess_bound
    ridge = _plan(losses.hinge(1.0, domains.ball(1.0), ridge=0.1))
    assert ridge.excess_bound == np.inf


def test_paper_constants_are_the_printed_ones():
    n, m, d, epsilon, delta = 3000, 100, 5, 2.0, 1e-5
    objective = losses.geometric_median(domains.ball(0.5))
    settings = {"num_users": n, "items_per_user": m, "dim": d, "delta": delta, "radius": None}
    plan = _plan(objective, epsilon=epsilon, constants="paper", num_steps=50, **settings)
    tau = np.log(n * d * m * np.exp(epsilon) * 50 / delta) / np.sqrt(m)
    problem = Problem(objective, num_users=n, items_per_user=m, dim=d, distance=1.0)
    printed = multipass_sgd._printed(problem, Budget(epsilon, delta), 50)
    np.testing.assert_allclose(printed.radius / 2, tau, rtol=1e-12)
    assert f"the radius {tau:.4g} is at least G" in str(plan)
    assert isinstance(plan.mean, Clipped), "the printed radius is far beyond the Lipschitz constant"
    assert dict(plan.remarks)["smoothing"] == "per_item"
    np.testing.assert_allclose(plan.smoothing_radius, d**0.25 / np.sqrt(50))
    eta = min(
        np.sqrt(m) * n * epsilon / (50 * np.sqrt(d) * np.log(m * n * d / delta)),
        50**-0.75,
        np.sqrt(n * m) / 50,
    )
    curvature = 1.875 / plan.smoothing_radius
    np.testing.assert_allclose(plan.step_size, 1 / (curvature + 1 / eta), rtol=1e-3)
    huge = _plan(objective, epsilon=epsilon, constants="paper", num_steps=None, **settings)
    assert huge.num_steps == (m * n) ** 2 + int(np.ceil(m * n * np.sqrt(d)))
    small = _plan(
        objective,
        epsilon=epsilon,
        constants="paper",
        **(settings | {"radius": 0.25, "num_users": 20_000}),
    )
    assert isinstance(small.mean, OutlierRemoved)
    inner = delta / (2 * STEPS * m * 20_000 * d)
    assert small.certificate().delta == pytest.approx(inner)


@pytest.mark.parametrize("smoothing", ["per_item", "per_round"])
def test_smoothed_runs_find_the_median(smoothing):
    objective = MEDIAN
    plan = _plan(objective, radius=0.95, smoothing=smoothing, num_steps=200, step_size=0.02)
    assert ["smoothing", smoothing] in [line.split() for line in str(plan).split("\n")]
    plan = _quiet(plan)
    target = jnp.asarray([0.4, 0.0, -0.2])
    data = UserData(_points(spread=0.05).items + target)
    solution = jax.jit(
        lambda: multipass_sgd.solve(jax.random.key(0), plan, objective, data, jnp.zeros(DIM))
    )()
    assert solution.status == Status.OK
    assert np.linalg.norm(solution.params - target) < 0.15
