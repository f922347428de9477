"""Draws by value queries against what they are to be: quadrature, grids, closed forms, the other sampler."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import _user_losses, value_queries
from tests.support.compiled import OPTIMIZED

pytestmark = pytest.mark.usefixtures("float64")

CRITICAL = 1.95  # of Kolmogorov's statistic times the root of the number of draws: 1 in 1000


def planned(objective, num_users, dim, epsilon=1.0, distance=1.0, items=1, **settings):
    asked = Problem(
        objective, num_users=num_users, dim=dim, distance=distance, items_per_user=items
    )
    return value_queries.plan(asked, Budget(epsilon, 1e-2), **settings)


def drawn(plan, objective, data, start, count, seed=0):
    def draw(key):
        return value_queries.solve(key, plan, objective, data, jnp.asarray(start)).params

    run = jax.jit(jax.vmap(draw), compiler_options=OPTIMIZED)
    return np.asarray(run(jax.random.split(jax.random.key(seed), count)))


def rows_1d(num_users, items=2, seed=1):
    """One column, two items a user, of which the last user has one."""
    rng = np.random.default_rng(seed)
    features, labels = rng.uniform(-1.5, 1.5, (2, num_users, items))
    labels = np.where(labels > 0, 1.0, 0.0)
    mask = np.ones((num_users, items), bool)
    mask[-1, 1] = False
    return features, labels, mask


def mean_of(link, features, labels, mask):
    """F on a grid, in NumPy: rows within norm 1, items averaged by user."""
    rows = np.clip(features, -1, 1)
    shares = mask / mask.sum(1, keepdims=True)

    def value(points):
        each = link(rows * points[:, None, None], labels)
        return np.mean(np.sum(shares * each, axis=2), axis=1)

    return value


LINKS = {
    "hinge": (losses.hinge, lambda m, y: np.maximum(0, 1 - (2 * y - 1) * m)),
    "absolute": (losses.absolute, lambda m, y: np.abs(m - y)),
}
SETS = {  # the domain, the start, and where the density is
    "everywhere": (None, 0.3, (-np.inf, np.inf)),
    "ball": (domains.ball(0.6, jnp.array([0.2])), 0.2, (-0.4, 0.8)),
    "box": (domains.box(np.array([-0.1]), np.array([0.9])), 0.7, (-0.1, 0.9)),
}


def law_1d(plan, value, start, ends):
    k, mu = float(plan.inverse_temperature), float(plan.regularization)
    low, high = (
        np.clip(end, start - 40 / math.sqrt(k * mu), start + 40 / math.sqrt(k * mu)) for end in ends
    )
    grid = np.linspace(low, high, 40_001)
    heights = -k * (value(grid) + mu / 2 * (grid - start) ** 2)
    mass = np.exp(heights - heights.max())
    law = np.append(0.0, np.cumsum(0.5 * (mass[1:] + mass[:-1])))
    return lambda at: np.interp(at, grid, law / law[-1])


def off_on_grid(draws, law, start):
    """Kolmogorov's statistic of draws that were moved towards the start, onto a grid."""
    found, counts = np.unique(draws, return_counts=True)
    unit = np.median(np.diff(found))
    # What is at or after the start has come from the cell beyond, what is before it from the cell before.
    below = law(np.where(found >= start - unit / 2, found + unit, found))
    return np.abs(np.cumsum(counts) / len(draws) - below).max()


def check_1d(link, where, num_users, count, seed, epsilon=1.0):
    make, exact = LINKS[link]
    domain, start, ends = SETS[where]
    features, labels, mask = rows_1d(num_users)
    objective = make(1.0, domain)
    plan = planned(objective, num_users, 1, epsilon, items=2, distance=0.5)
    data = UserData(Example(jnp.asarray(features)[..., None], jnp.asarray(labels)), mask)
    draws = drawn(plan, objective, data, [start], count, seed)[:, 0]
    assert np.all((ends[0] <= draws) & (draws <= ends[1]))
    law = law_1d(plan, mean_of(exact, features, labels, mask), start, ends)
    assert off_on_grid(draws, law, start) <= CRITICAL / math.sqrt(count)
    # And the losses matter: without them the law is another one.
    flat = law_1d(plan, lambda grid: 0 * grid, start, ends)
    return stats.kstest(draws, flat).statistic * math.sqrt(count)


def test_the_temperature_of_draws_in_one_dimension():
    # Cold, so that losses tell: numbers of our own, with c = 0.1. The limit of F alone would be at 3.
    count, k, mu, objective = 800, 5.0, 1.0, losses.absolute(1.0)
    plan = short(objective, dim=1, k=k, mu=mu, steps=140.0, trials=460.0, eta=0.004, items=2)
    features = np.array([[1.0, 0.8], [0.9, 7.0]])
    labels, mask = np.array([[3.0, 0.5], [2.0, 4.0]]), np.array([[True, True], [True, False]])
    data = UserData(Example(jnp.asarray(features)[..., None], jnp.asarray(labels)), mask)
    draws = drawn(plan, objective, data, [0.3], count, 3)[:, 0]
    value = mean_of(LINKS["absolute"][1], features, labels, mask)
    law = law_1d(plan, value, 0.3, SETS["everywhere"][2])
    assert off_on_grid(draws, law, 0.3) <= CRITICAL / math.sqrt(count)
    # At 0.6 of the temperature for the losses alone, or for both, or for the regularizer, one would see it.
    grid = np.linspace(-4.0, 5.0, 4001)
    for cold, bent in ((0.6, 1.0), (1.0, 0.6)):
        other = dataclasses.replace(
            plan, inverse_temperature=cold * k, regularization=bent * mu / cold
        )
        apart = law_1d(other, value, 0.3, SETS["everywhere"][2])(grid) - law(grid)
        assert np.abs(apart).max() > 2 * CRITICAL / math.sqrt(count)
    mean, square = (np.diff(law(grid)) @ grid[1:] ** power for power in (1, 2))
    assert abs(draws.mean() - mean) <= 4 * math.sqrt((square - mean**2) / count)


@pytest.mark.slow
@pytest.mark.parametrize("where", SETS)
@pytest.mark.parametrize("link", LINKS)
def test_many_draws_in_one_dimension_against_quadrature(link, where):
    # On a ball trials near the sphere fail, and on a box tails are drawn anew.
    apart = check_1d(link, where, 2, 100_000 if where == "everywhere" else 40_000, 4, epsilon=0.5)
    assert where == "ball" or apart > 2 * CRITICAL


def short(objective, num_users=2, dim=2, k=8.0, mu=2.0, steps=60.0, trials=400.0, eta=0.01, **kw):
    """A plan with numbers of our own."""
    made = planned(objective, num_users, dim, **kw)
    return dataclasses.replace(
        made,
        inverse_temperature=k,
        regularization=mu,
        num_steps=steps,
        num_trials=trials,
        step_size=eta,
    )


def nobody(num_users, dim):
    """Users whose items are all missing: no loss."""
    items = Example(jnp.ones((num_users, 1, dim)), jnp.ones((num_users, 1)))
    return UserData(items, np.zeros((num_users, 1), bool))


def test_without_losses_the_law_is_that_of_the_regularizer_about_the_start():
    start, count = np.array([3.0, -2.0]), 2_000
    plan = short(HINGE, steps=160.0, trials=600.0, eta=0.05)
    draws = drawn(plan, HINGE, nobody(2, 2), start, count)
    for i in range(2):
        exact = stats.norm(start[i], 1 / math.sqrt(16.0)).cdf
        assert stats.kstest(draws[:, i], exact).statistic <= CRITICAL / math.sqrt(count)
    # On a public grid about the start, with some units in a deviation of a proposal.
    unit = 2.0 ** math.floor(math.log2(math.sqrt(0.05 / 1.8) / 32))
    steps = (draws - start) / unit
    np.testing.assert_array_equal(steps, np.round(steps))


def test_a_ridge_has_its_own_centre():
    objective = losses.hinge(1.0, ridge=2.0)
    plan = short(objective, mu=2.0, steps=100.0, eta=0.05)
    draws = drawn(plan, objective, nobody(2, 2), [3.0, -2.0], 1_000)
    assert np.all(np.abs(draws.mean(0) - [1.5, -1.0]) <= 4 / math.sqrt(32 * 1_000))
    np.testing.assert_allclose(draws.std(0), 1 / math.sqrt(32), rtol=4 / math.sqrt(2_000))


@pytest.mark.slow
def test_without_losses_the_law_in_another_norm_is_a_gamma_law():
    # exp(-(a/2)·‖x‖_q²): a·‖x‖_q² is χ² of d degrees, and |x_1|^q/‖x‖_q^q a beta variable.
    dim, count = 9, 4_000
    objective = losses.hinge(3.0)
    made = planned(objective, 2, dim, norm=1.0, row_bound=1.0, epsilon=0.3)
    plan = dataclasses.replace(
        made,
        inverse_temperature=4.0,
        regularization=0.5,
        step_size=0.004,
        num_steps=300.0,
        num_trials=2e4,
    )
    q, scale = plan.setting.exponent, 4.0 * 0.5 * plan.setting.weight
    assert q < 1.6
    draws = drawn(plan, objective, nobody(2, dim), np.ones(dim), count) - 1.0
    powers = np.abs(draws) ** q
    radial = scale * np.sum(powers, 1) ** (2 / q)
    assert stats.kstest(radial, stats.chi2(dim).cdf).statistic <= CRITICAL / math.sqrt(count)
    shares = powers[:, 0] / powers.sum(1)
    exact = stats.beta(1 / q, (dim - 1) / q).cdf
    assert stats.kstest(shares, exact).statistic <= CRITICAL / math.sqrt(count)


HINGE = losses.hinge(1.0)


@functools.cache
def _one_run():
    plan = short(HINGE, trials=500.0)
    data = UserData(Example(jnp.ones((2, 1, 2)), jnp.ones((2, 1))))
    run = jax.jit(lambda key, plan, start: value_queries.solve(key, plan, HINGE, data, start))
    return plan, run


def test_a_run_says_the_plans_numbers_and_hides_its_own():
    plan, run = _one_run()
    first, second = (run(jax.random.key(seed), plan, jnp.zeros(2)) for seed in (0, 1))
    assert int(first.gradients) == int(second.gradients) == math.ceil(float(plan.value_queries))
    assert float(plan.value_queries) == pytest.approx(500 * 2 * (math.e - 1))
    assert int(first.unprivate["trials"]) != int(second.unprivate["trials"])
    assert int(first.unprivate["gradients"]) < int(first.gradients)
    assert first.released is None
    assert int(first.unprivate["steps"]) == 60
    # Capped, it returns its last point and says nothing.
    cut = run(jax.random.key(0), dataclasses.replace(plan, num_trials=70.0), jnp.zeros(2))
    assert int(cut.unprivate["steps"]) < 60
    assert int(cut.status) == 0
    assert np.all(np.isfinite(cut.params))
    constant = dataclasses.replace(plan, constant_time=True)
    assert float(constant.value_queries) == 500 * 2 * plan.num_terms


def test_a_start_that_is_not_covered_costs_infinity():
    plan = planned(HINGE, 2, 2)
    data = nobody(2, 2)

    @functools.cache
    def charged(objective):
        return jax.jit(
            lambda plan, start: (
                value_queries.solve(jax.random.key(0), plan, objective, data, start).privacy
            )
        )

    def cost(plan, objective, start):
        spent = charged(objective)(plan, np.array(start))
        return float(privacy.epsilon(jax.tree.map(np.asarray, spent), 1e-2))

    assert cost(plan, HINGE, [0.0, 900.0]) < 1.1
    assert cost(plan, HINGE, [0.0, 1100.0]) == math.inf
    on_ball = losses.hinge(1.0, domains.ball(2.0, jnp.zeros(2)))
    there = planned(on_ball, 2, 2)
    assert cost(there, on_ball, [0.0, 0.0]) < 1.1
    assert cost(there, on_ball, [0.0, 0.01]) == math.inf


def test_matrices_points_and_one_hot_rows_run():
    many = losses.softmax(1.0, 3)
    plan = short(many, dim=6, steps=3.0, trials=30.0)
    rows = Example(np.ones((2, 1, 2)), np.array([[0], [2]]))
    found = jax.jit(
        lambda key: value_queries.solve(key, plan, many, UserData(rows), np.zeros((2, 3)))
    )(jax.random.key(0))
    assert found.params.shape == (2, 3)
    median = losses.geometric_median()
    other = short(median, dim=3, steps=3.0, trials=30.0)
    points = {"a": np.ones((2, 1, 2)), "b": np.array([[1.0], [np.nan]])}
    start = {"a": np.zeros(2), "b": np.zeros(())}
    found = jax.jit(lambda key: value_queries.solve(key, other, median, UserData(points), start))(
        jax.random.key(0)
    )
    assert jax.tree.map(jnp.shape, found.params) == {"a": (2,), "b": ()}
    assert int(found.status) == 0


SIZES = _user_losses.Sizes(1000.0, 8.0)


def values_of(objective, data, start, move, norm=2.0, row_bound=None):
    """Each user's loss at start + move, as the chain reads it."""
    model = objective.linear_model

    @jax.jit
    def values(data, start, move):
        made = _user_losses.user_losses(objective, model, data, start, SIZES, norm, row_bound)
        return jax.vmap(made.loss, in_axes=(None, 0))(move, made.records)

    return np.asarray(values(data, start, move))


def test_users_losses_are_those_of_rows_and_labels_within_their_bounds():
    objective = losses.absolute(10.0)
    features = np.array([[[4.0, -2.0], [0.3, 0.2]], [[0.5, -0.5], [np.nan, 1.0]]])
    labels = np.array([[1.0, -20.0], [np.nan, 0.25]])
    start, move = np.array([0.5, 1.0]), np.array([-0.25, 2.0])
    at = start + move

    def value(row, label):
        return abs(np.array(row) @ at - label)

    data = UserData(Example(jnp.asarray(features), jnp.asarray(labels)))
    # At p = 1 the largest entry is bounded; labels end at 8, a row with NaN is zero, a label NaN no loss.
    expected = [
        (value([1.0, -0.5], 1.0) + value([0.3, 0.2], -8.0)) / 2,
        value([0.0, 0.0], 0.25) / 2,
    ]
    np.testing.assert_allclose(values_of(objective, data, start, move, 1.0, 1.0), expected)
    expected[0] = (value([4.0, -2.0], 1.0) + value([0.3, 0.2], -8.0)) / 2
    np.testing.assert_allclose(values_of(objective, data, start, move), expected)
    masked = data._replace(mask=np.array([[True, False], [False, False]]))
    expected = [value([1.0, -0.5], 1.0), 0.0]
    np.testing.assert_allclose(values_of(objective, masked, start, move, 1.0, 1.0), expected)


def test_dense_and_one_hot_rows_have_the_same_losses():
    columns = np.array([[[0, 2]], [[1, 1]]])
    dense = np.array([[[1.0, 0.0, 1.0]], [[0.0, 1.0, 0.0]]]) / math.sqrt(2)
    labels = jnp.array([[1.0], [0.0]])
    found = [
        values_of(HINGE, UserData(Example(f, labels)), np.zeros(3), np.array([0.3, 0.2, -0.9]))
        for f in (jnp.asarray(dense), OneHot(jnp.asarray(columns)))
    ]
    np.testing.assert_allclose(*found, rtol=1e-14)


def test_points_far_away_or_not_finite_are_put_within_their_distance():
    median, start = losses.geometric_median(), np.array([1.0, 0.0])
    points = np.array([[[1.0, 3.0]], [[1.0, 1e9]], [[np.inf, 0.0]]])
    found = values_of(median, UserData(jnp.asarray(points)), start, np.array([0.0, 1.0]))
    np.testing.assert_allclose(found, [2.0, 7.0, 0.0])


def test_a_box_holds_the_point_whatever_the_start():
    objective = losses.hinge(1.0, domains.box(np.array([-0.1, 0.0]), np.array([0.2, 0.4])))
    plan = short(objective, steps=20.0, trials=100.0)
    data = UserData(Example(jnp.ones((2, 1, 2)), jnp.ones((2, 1))))
    run = jax.jit(lambda key, start: value_queries.solve(key, plan, objective, data, start).params)
    for seed, start in enumerate(([9.0, 9.0], [0.0, -5.0], [0.1, 0.1])):
        point = np.asarray(run(jax.random.key(seed), jnp.array(start)))
        assert np.all((point >= [-0.1, 0.0]) & (point <= [0.2, 0.4]))


def linear_pair(second):
    """One or two users whose losses are linear: ±⟨e_1, x⟩."""
    return UserData(Example(jnp.ones((1, 1, 1)), second * jnp.full((1, 1), 64.0)))


@pytest.mark.slow
def test_an_audit_finds_what_is_claimed_and_no_more():
    # n = 1, G = 1, G_Δ = 2, k = 1, μ = 4: s = 1, attained by linear losses of slopes ±1.
    count, objective = 100_000, losses.absolute(1.0)
    made = planned(objective, 1, 1, epsilon=3.0, regularization=4.0)
    plan = dataclasses.replace(made, inverse_temperature=1.0, regularization=4.0)
    eta = 1 / 160.0
    plan = dataclasses.replace(plan, step_size=eta, num_steps=300.0, num_trials=900.0)
    assert float(plan.gdp) == pytest.approx(1.0, rel=1e-9)
    assert float(plan.chain.variation) < 1e-2
    assert plan.sizes.label_bound >= 64.0
    one, other = (
        drawn(plan, objective, linear_pair(sign), [0.0], count, seed)[:, 0]
        for sign, seed in ((1.0, 41), (-1.0, 42))
    )
    apart = (one.mean() - other.mean()) / np.sqrt((one.var() + other.var()) / 2)
    assert apart == pytest.approx(1.0, abs=0.02)
    errors = [int(np.sum(other > 0.0)), int(np.sum(one <= 0.0))]
    above = [stats.beta.ppf(1 - 5e-4, wrong + 1, count - wrong) for wrong in errors]
    learned = special.ndtri(1 - above[0]) - special.ndtri(above[1])
    assert 0.95 <= learned <= 1.0
