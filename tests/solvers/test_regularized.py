"""The regularized exponential mechanism: its plan, what it costs under edits, and draws in closed form."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from dpsco_jax import Budget, Infeasible, Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses, synthetic
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import regularized
from tests.support.edited_plans import gaussian_curve

pytestmark = pytest.mark.usefixtures("float64")

BUDGET = Budget(1.0, 1e-6)
LOGISTIC = losses.logistic(1.0)


def problem(objective=LOGISTIC, num_users=2000, dim=5, distance=3.0, **sizes):
    return Problem(objective, num_users=num_users, dim=dim, distance=distance, **sizes)


@functools.cache
def planned(**settings):
    return regularized.plan(problem(), BUDGET, **settings)


def spent(plan, epsilon):
    """δ at an ε, from the numbers of the plan and the formulas of the thesis, corrected."""
    s = 2.0 * 1.0 / 2000 * math.sqrt(float(plan.inverse_temperature) / float(plan.regularization))
    return gaussian_curve(s, epsilon) + (1 + math.exp(epsilon)) * float(
        plan.numbers.variation.total
    )


@pytest.mark.parametrize(
    "settings", [{}, {"regularization": 0.05}, {"relative_step": 1.5}, {"max_steps": 60}]
)
def test_plans_spend_the_budget_and_no_more(settings):
    plan = planned(**settings)
    assert 0.975 * 1e-6 <= spent(plan, 1.0) <= 1e-6
    certificate = plan.certificate()
    assert 0.995 <= certificate.epsilon <= 1.0
    assert abs(spent(plan, certificate.epsilon) - 1e-6) <= 1e-9
    assert certificate.delta == 1e-6
    assert certificate.relation.name == "REPLACE_ONE"
    assert 1.0 <= float(privacy.epsilon(plan.loss(), 1e-6)) <= 1.3


def test_the_parts_of_the_distance_are_what_is_asked_of_them():
    plan = planned()
    parts, room = plan.numbers.variation, 1e-6 / (1 + math.e)
    assert 0.005 * room <= float(parts.mixing) <= 0.02 * room
    assert 0.005 * room <= float(parts.capped) <= 0.02 * room
    assert float(parts.far) <= 1e-6 * float(parts.mixing)
    steps, trials = int(plan.num_steps), int(plan.num_trials)
    exact = stats.binom.cdf(steps - 1, trials, float(plan.numbers.acceptance))
    assert exact <= float(parts.capped)
    # W/(2√η)·(1 + ηm)^{-(T-1)}, in a second writing.
    eta, k, mu = (
        float(x) for x in (plan.numbers.step_size, plan.inverse_temperature, plan.regularization)
    )
    distance = 1.0 / mu + math.sqrt(5 / (k * mu))
    assert float(parts.mixing) == pytest.approx(
        distance / (2 * eta**0.5 * (1 + eta * k * mu) ** (steps - 1)), 1e-9
    )


EDITS = {
    "colder": ({"inverse_temperature": 2.0, "num_steps": 1.1, "num_trials": 1.2}, "more"),
    "less regularization": ({"regularization": 0.5, "num_steps": 2.5, "num_trials": 3.0}, "more"),
    "half of the steps": ({"num_steps": 0.5}, "none"),
    "half of the trials": ({"num_trials": 0.5}, "none"),
    "longer steps": ({"relative_step": 2.0}, "none"),
    "shorter steps": ({"relative_step": 0.5}, "none"),
    "warmer": ({"inverse_temperature": 0.25}, "less"),
    "more trials": ({"num_trials": 2.0}, "less"),
    "no regularization": ({"regularization": 0.0}, "none"),
    "negative": ({"regularization": -1.0}, "none"),
    "nan": ({"inverse_temperature": math.nan}, "none"),
    "nan steps": ({"num_steps": math.nan}, "none"),
    "no step": ({"num_steps": 0.0}, "none"),
    "nan trials": ({"num_trials": math.nan}, "none"),
    "infinite steps": ({"relative_step": math.inf}, "none"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_plans_are_accounted_as_they_are(name):
    factors, expected = EDITS[name]
    plan = planned()
    changes = {field: getattr(plan, field) * factor for field, factor in factors.items()}
    for field in {"num_steps", "num_trials"} & changes.keys():
        changes[field] = np.ceil(changes[field])
    edited = dataclasses.replace(plan, **changes)
    found = edited.certificate().epsilon
    losses_found = [edited.loss(), jax.jit(lambda plan: plan.loss())(edited)]
    epsilons = [float(privacy.epsilon(loss, 1e-6)) for loss in losses_found]
    if expected == "none":
        assert found == math.inf
        assert epsilons == [math.inf, math.inf]
        return
    assert epsilons[1] == pytest.approx(epsilons[0], rel=2e-3)
    assert all(found <= epsilon <= 1.4 * found for epsilon in epsilons)
    if expected == "more":
        assert 1.3 < found < 1.6
    else:
        assert found <= 1.0
    assert spent(edited, float(found)) == pytest.approx(1e-6, rel=1e-3)


def test_the_least_delta_is_named():
    with pytest.raises(Infeasible, match=r"delta = .* would do") as refused:
        regularized.plan(problem(), Budget(1.0, 1e-12), regularization=0.01)
    least = refused.value.needed["delta"]
    plan = regularized.plan(problem(), Budget(1.0, 1.001 * least), regularization=0.01)
    assert plan.certificate().epsilon <= 1.0


def test_steps_depend_on_neither_users_nor_parameters():
    steps = [
        regularized.plan(problem(num_users=n, dim=d), BUDGET, regularization=0.05).num_steps
        for n, d in ((1000, 3), (100_000, 3), (1000, 300), (100_000, 300))
    ]
    assert max(steps) <= 1.4 * min(steps)
    half = regularized.plan(problem(), BUDGET, regularization=0.001).num_steps
    whole = regularized.plan(problem(), BUDGET, regularization=0.002).num_steps
    assert half / whole == pytest.approx(2.0, rel=0.1)


def test_the_regularization_of_a_plan_is_the_best_of_many():
    best = planned().predicted_excess
    for regularization in np.geomspace(1e-3, 1.0, 12):
        other = regularized.plan(problem(), BUDGET, regularization=float(regularization))
        assert other.predicted_excess >= 0.97 * best


def test_a_loss_with_a_kink_is_drawn_from_by_its_envelope():
    # One column, labels of both kinds: the law of the plan against quadrature.
    rng = np.random.default_rng(3)
    features, labels = rng.uniform(-1, 1, 30), rng.integers(0, 2, 30).astype(float)
    objective = losses.hinge(1.0)
    plan = regularized.plan(
        problem(objective, num_users=30, dim=1),
        Budget(6.0, 1e-3),
        smoothing=0.5,
        regularization=0.3,
    )
    assert plan.excess_bound == pytest.approx(
        float(plan.regularization) * 9 / 2 + 1 / float(plan.inverse_temperature) + 0.25
    )
    data = UserData(Example(jnp.asarray(features)[:, None, None], jnp.asarray(labels)[:, None]))

    def draw(key):
        return regularized.solve(key, plan, objective, data, jnp.zeros(1)).params[0]

    draws = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 3_000)))
    k, mu = float(plan.inverse_temperature), float(plan.regularization)
    spread = 1 / math.sqrt(k * mu)
    grid = np.linspace(-8 * spread, 8 * spread, 20_001)
    away = 1.0 - (2 * labels - 1) * features * grid[:, None]
    # The envelope of max(0, x), by cases.
    bent = np.where(away < 0, 0.0, np.where(away < 0.5, away**2, away - 0.25))
    signs = 2 * labels - 1
    assert set(signs) == {-1.0, 1.0}
    density = np.exp(-k * (bent.mean(1) + mu / 2 * grid**2))
    law = np.append(0.0, np.cumsum(0.5 * (density[1:] + density[:-1])))
    at = np.interp(np.sort(draws), grid, law / law[-1])
    places = np.arange(len(draws) + 1) / len(draws)
    assert max(np.max(places[1:] - at), np.max(at - places[:-1])) <= 1.95 / math.sqrt(len(draws))


@functools.cache
def of_the_population(regularization=None):
    return regularized.plan(
        problem(losses.huber(1.0), num_users=60),
        BUDGET,
        risk="population",
        regularization=regularization,
    )


def test_the_risk_of_the_population_asks_for_more_regularization():
    best = of_the_population()
    k, mu = float(best.inverse_temperature), float(best.regularization)
    assert best.excess_bound == pytest.approx(mu * 9 / 2 + 5 / k + 2 / (60 * mu))
    empirical = regularized.plan(problem(losses.huber(1.0), num_users=60), BUDGET)
    assert mu > float(empirical.regularization)
    for factor in (0.5, 0.8, 1.25, 2.0):
        assert of_the_population(factor * mu).predicted_excess >= 0.97 * best.predicted_excess


def test_what_is_overfitted_is_half_of_its_bound_on_coins():
    # Linear losses ±⟨u, x⟩ by a fair coin: an exact draw overfits by L²/(nμ), the bound says 2L²/(nμ).
    n, k, mu = 4, 8.0, 2.0
    objective = losses.huber(1.0)
    plan = dataclasses.replace(
        regularized.plan(problem(objective, num_users=n, dim=1), Budget(8.0, 1e-3)),
        **{"inverse_temperature": k, "regularization": mu, "num_steps": 9.0, "num_trials": 200.0},
    )

    def overfitted(key):
        coin_key, key = jax.random.split(key)
        signs = jnp.where(jax.random.bernoulli(coin_key, 0.5, (n, 1)), 1.0, -1.0)
        data = UserData(Example(jnp.ones((n, 1, 1)), 1e9 * signs))
        draw = regularized.solve(key, plan, objective, data, jnp.zeros(1)).params[0]
        # Of the population the slope is zero; of these users it is minus the mean of the signs.
        return draw * jnp.mean(signs)

    found = np.asarray(jax.jit(jax.vmap(overfitted))(jax.random.split(jax.random.key(2), 20_000)))
    assert np.mean(found) == pytest.approx(1 / (n * mu), abs=4 * np.std(found) / math.sqrt(20_000))


def test_max_steps_lowers_what_is_released_and_not_the_guarantee():
    few = planned(max_steps=60)
    assert few.num_steps <= 60
    assert few.certificate().epsilon <= 1.0
    assert few.predicted_excess > planned().predicted_excess
    with pytest.raises(Infeasible, match="max_steps must be at least") as refused:
        regularized.plan(problem(), BUDGET, regularization=0.05, max_steps=5)
    assert refused.value.needed["max_steps"] > 5


def opposed(second):
    """Two users with losses that are linear: one pulls in a direction, the other there or back."""
    features = np.array([[1.0, 0.0], [1.0, 0.0]])[:, None]
    labels = 1e9 * np.array([1.0, second])[:, None]
    return UserData(Example(jnp.asarray(features), jnp.asarray(labels)))


@functools.cache
def linear_draws(second, count):
    """Draws with k = 8, μ = 2, L = 1, n = 2: s = 2."""
    plan = dataclasses.replace(
        regularized.plan(problem(losses.huber(1.0), num_users=2, dim=2), Budget(8.0, 1e-3)),
        inverse_temperature=8.0,
        regularization=2.0,
        num_steps=9.0,
        num_trials=200.0,
        relative_step=3.0,
    )
    objective, data = losses.huber(1.0), opposed(second)

    def draw(key):
        return regularized.solve(key, plan, objective, data, jnp.zeros(2)).params

    keys = jax.random.split(jax.random.key(int(second) + 2), count)
    return np.asarray(jax.jit(jax.vmap(draw))(keys)), plan


def test_neighbours_are_as_far_apart_as_is_said():
    # F is linear on each data set, so that draws are Gaussian: the pair for which s is attained.
    count = 8_000
    (one, plan), (other, _) = linear_draws(1.0, count), linear_draws(-1.0, count)
    assert float(plan.gdp) == pytest.approx(2.0, rel=1e-9)
    deviations = [np.std(draws[:, 0], ddof=1) for draws in (one, other)]
    np.testing.assert_allclose(deviations, 1 / math.sqrt(16.0), rtol=4 / math.sqrt(2 * count))
    apart = (np.mean(one[:, 0]) - np.mean(other[:, 0])) / np.sqrt(np.mean(np.square(deviations)))
    assert apart == pytest.approx(2.0, abs=4 * math.sqrt(2 / count) + 0.04)
    # The other direction is untouched, and the draws are those of a normal law.
    assert abs(np.mean(one[:, 1])) <= 4 / math.sqrt(16.0 * count)
    for draws in (one, other):
        assert stats.kstest(
            (draws[:, 0] - draws[:, 0].mean()) * 4.0, "norm"
        ).statistic <= 1.95 / math.sqrt(count)


@pytest.mark.slow
def test_an_audit_finds_what_is_claimed_and_no_more():
    # s = 1, attained: k = 2, μ = 2, L = 1, n = 2. The best test of means against each other is a threshold.
    count, objective = 100_000, losses.huber(1.0)
    plan = dataclasses.replace(
        regularized.plan(problem(objective, num_users=2, dim=1), Budget(8.0, 1e-3)),
        **{"inverse_temperature": 2.0, "regularization": 2.0},
        **{"num_steps": 14.0, "num_trials": 400.0},
    )
    assert float(plan.gdp) == pytest.approx(1.0, rel=1e-9)
    assert float(plan.numbers.variation.total) < 1e-5

    def draws(second):
        data = UserData(Example(jnp.ones((2, 1, 1)), 1e9 * jnp.array([[1.0], [second]])))

        def draw(key):
            return regularized.solve(key, plan, objective, data, jnp.zeros(1)).params[0]

        keys = jax.random.split(jax.random.key(int(second) + 40), count)
        return np.asarray(jax.jit(jax.vmap(draw))(keys))

    one, other = draws(1.0), draws(-1.0)
    apart = (one.mean() - other.mean()) / np.sqrt((one.var() + other.var()) / 2)
    assert apart == pytest.approx(1.0, abs=0.02)
    # Means are ½ and 0. Upper ends of both errors, at 99.9 % together.
    errors = [int(np.sum(other > 0.25)), int(np.sum(one <= 0.25))]
    above = [stats.beta.ppf(1 - 5e-4, wrong + 1, count - wrong) for wrong in errors]
    learned = special.ndtri(1 - above[0]) - special.ndtri(above[1])
    assert 0.95 <= learned <= 1.0


def test_the_regularizer_is_centred_at_the_start():
    # Without labels there is no loss: N(start, 1/(kμ)).
    plan = linear_draws(1.0, 8_000)[1]
    data = UserData(Example(jnp.ones((2, 1, 2)), jnp.ones((2, 1))), jnp.zeros((2, 1), bool))
    start = jnp.array([3.0, -2.0])

    def draw(key):
        return regularized.solve(key, plan, losses.huber(1.0), data, start).params

    draws = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(9), 4_000)))
    assert np.all(np.abs(draws.mean(0) - start) <= 4 / math.sqrt(16 * 4_000))


def test_a_ridge_moves_the_centre_and_counts_as_regularization():
    objective = losses.huber(1.0, ridge=1.0)
    plan = dataclasses.replace(
        regularized.plan(
            problem(objective, num_users=2, dim=2), Budget(8.0, 1e-3), regularization=1.0
        ),
        inverse_temperature=8.0,
        num_steps=9.0,
        num_trials=200.0,
    )
    assert float(plan.gdp) == pytest.approx(2.0, rel=1e-9)
    data = opposed(-1.0)  # whose losses cancel

    def draw(key):
        return regularized.solve(key, plan, objective, data, jnp.array([3.0, -2.0])).params

    draws = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(9), 4_000)))
    assert np.all(np.abs(draws.mean(0) - [1.5, -1.0]) <= 4 / math.sqrt(16 * 4_000))


@functools.cache
def small():
    made = synthetic.logistic_regression(jax.random.key(0), num_users=60, items_per_user=2, dim=3)
    plan = regularized.plan(made.problem(distance=2.0), Budget(4.0, 1e-3))
    return made, plan


@functools.cache
def of_small():
    """Runs on that data: of a key, a plan and a start."""
    made, _ = small()
    return jax.jit(
        lambda key, plan, start: regularized.solve(key, plan, made.objective, made.data, start)
    )


ORIGIN = np.zeros(3)


def test_a_run_says_the_plans_numbers_and_hides_its_own():
    _, plan = small()
    first, second = (of_small()(jax.random.key(seed), plan, ORIGIN) for seed in (0, 1))
    assert int(first.gradients) == int(second.gradients) == int(plan.user_gradients) * 2
    assert int(first.unprivate["trials"]) != int(second.unprivate["trials"])
    assert first.released is None
    assert int(first.unprivate["steps"]) == plan.num_steps
    assert int(first.status) == 0


def test_a_capped_run_returns_its_last_point_and_says_nothing():
    _, plan = small()
    cut = dataclasses.replace(plan, num_trials=plan.num_steps)
    solution = of_small()(jax.random.key(0), cut, ORIGIN)
    assert int(solution.unprivate["steps"]) < cut.num_steps
    assert int(solution.status) == 0
    assert np.all(np.isfinite(solution.params))
    assert float(privacy.epsilon(solution.privacy, 1e-3)) == math.inf


def test_a_start_too_far_away_for_exact_margins_costs_infinity():
    _, plan = small()
    solution = of_small()(jax.random.key(0), plan, np.full(3, 1e12))
    assert float(privacy.epsilon(solution.privacy, 1e-3)) == math.inf


REFUSED = [
    (losses.geometric_median(), {}, "with one kink"),
    (losses.hinge(1.0), {"smoothing": 0.0}, "smoothing"),
    (LOGISTIC, {"smoothing": 0.1}, "smoothing must be None for a smooth loss"),
    (losses.softmax(1.0, 3), {}, "linear model on vectors"),
    (losses.squared(1.0, 1.0, 1.0), {}, "globally_convex_lipschitz"),
    (losses.logistic(1.0, domain=domains.ball(1.0)), {}, "objective.domain"),
    (LOGISTIC._replace(smoothness=0.01), {}, "claim no more"),
    (LOGISTIC._replace(lipschitz=0.5), {}, "claim no more"),
]


@pytest.mark.parametrize(("objective", "settings", "message"), REFUSED)
def test_what_nothing_is_proven_of_is_refused(objective, settings, message):
    with pytest.raises(ValueError, match=message):
        regularized.plan(problem(objective), BUDGET, **settings)


def test_more_items_than_planned_are_refused():
    made, plan = small()
    wide = UserData(
        jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf], axis=1), made.data.items)
    )
    with pytest.raises(ValueError, match="item slots"):
        regularized.solve(jax.random.key(0), plan, made.objective, wide, jnp.zeros(3))


def test_float32_is_refused():
    made, plan = small()
    with jax.enable_x64(False):
        with pytest.raises(ValueError, match="jax_enable_x64"):
            regularized.plan(problem(), BUDGET)
        start = jnp.zeros(3, jnp.float32)
        with pytest.raises(ValueError, match="jax_enable_x64"):
            regularized.solve(jax.random.key(0), plan, made.objective, made.data, start)
