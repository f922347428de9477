"""Spider, and a choice among its points: what both cost together, and what is found."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, privacy
from dpsco_jax.problems import fixtures
from dpsco_jax.solvers.nonconvex import find_sosp


@functools.cache
def _made(users, dim=2):
    return fixtures.two_wells(jax.random.key(0), users, 1, dim, jitter=0.0)


@functools.cache
def _plan(users=2000, **given):
    settings = {"num_steps": 20} | given
    budget = Budget(settings.pop("epsilon", 8.0), 1e-5)
    return find_sosp.plan(_made(users).problem(), budget, **settings)


def _statistics(w):
    """‖∇F‖ and λ_min at a point of the two wells ±1.5, by hand."""
    found = []
    for sign in (-1.5, 1.5):
        away = np.asarray(w, float) - np.array([sign, 0.0])
        weight = np.exp(-0.5 * away @ away)
        found.append((weight * away, weight * (np.eye(2) - np.outer(away, away))))
    gradient, hessian = (sum(part) / 2 for part in zip(*found, strict=True))
    return np.linalg.norm(gradient), np.linalg.eigvalsh(hessian)[0]


@pytest.mark.parametrize("risk", ["empirical", "population"])
def test_costs_of_the_parts_add_up_on_the_same_users_and_the_dearer_counts_on_others(risk):
    with jax.enable_x64(True):
        plan = _plan(risk=risk)
        first, second = plan.search.certificate().epsilon, plan.choice.certificate().epsilon
        whole = plan.certificate().epsilon
        if risk == "empirical":
            assert plan.search.num_users == plan.choice.num_users == plan.num_users == 2000
            assert (first, second) == (pytest.approx(6.4, rel=0.01), pytest.approx(1.6))
            assert whole == pytest.approx(first + second, rel=1e-12)
        else:
            assert (plan.search.num_users, plan.choice.num_users) == (1000, 1000)
            assert plan.search.releases.sampling == "one_pass"
            assert whole == max(first, second) == pytest.approx(8.0, rel=1e-3)
        assert whole <= 8.0
        parts = [np.asarray(part.loss().rdp) for part in (plan.search, plan.choice)]
        joint = sum(parts) if risk == "empirical" else np.maximum(*parts)
        np.testing.assert_allclose(np.asarray(plan.loss().rdp), joint, rtol=1e-5)
        assert privacy.epsilon(plan.loss(), 1e-5) >= whole * 0.99


def test_a_point_that_is_found_is_no_saddle_and_has_the_guarantee():
    """Of 100 seeds from the saddle itself, with every point a candidate, at most five fail."""
    with jax.enable_x64(True):
        plan, made = _plan(num_steps=25, epsilon=20.0), _made(2000)
        run = jax.jit(
            lambda keys: jax.lax.map(
                lambda key: find_sosp.solve(key, plan, made.objective, made.data, jnp.zeros(2)),
                keys,
            )
        )
        found = run(jax.random.split(jax.random.key(0), 100))
        good = 0
        for w, success in zip(found.params, found.released["found"], strict=True):
            norm, least = _statistics(w)
            inside = norm <= plan.guaranteed_norm and least >= plan.guaranteed_curvature
            good += bool(success) and inside
        assert good >= 95
        assert np.mean(np.abs(np.asarray(found.params)[:, 0]) > 1) >= 0.95


def test_the_last_point_is_reported_where_none_is_found():
    with jax.enable_x64(True):
        plan, made = _plan(num_candidates=3, stationarity=1e-9, epsilon=200.0), _made(2000)
        start = jnp.asarray([0.7, 0.7])
        run = jax.jit(lambda key: find_sosp.solve(key, plan, made.objective, made.data, start))
        solution = run(jax.random.key(0))
        assert not bool(solution.released["found"])
        assert int(solution.status) == 1
        assert int(solution.released["index"]) == plan.search.num_steps
        assert _statistics(solution.params)[0] < _statistics(start)[0]


def test_halves_are_by_position_and_each_part_sees_its_own():
    """Users of the second half who are not finite change nothing but the choice."""
    with jax.enable_x64(True):
        plan, made = _plan(risk="population"), _made(2000)
        run = jax.jit(
            lambda data: find_sosp.solve(
                jax.random.key(0), plan, made.objective, data, jnp.asarray([0.5, 0.1])
            )
        )
        rows = np.array(made.data.items)
        rows[1000:] = np.nan
        broken = run(made.data._replace(items=rows))
        # The choice sees no gradient at all: everything is stationary, and the last point is taken.
        whole = run(made.data)
        assert bool(broken.released["found"])
        if bool(whole.released["found"]) and int(whole.released["index"]) == 20:
            np.testing.assert_array_equal(whole.params, broken.params)
        rows = np.array(made.data.items)
        rows[:1000] = np.nan
        np.testing.assert_array_less(
            1e-6, np.abs(run(made.data._replace(items=rows)).params - broken.params)
        )


def test_the_choice_does_not_see_the_users_of_the_run():
    """Of users who are not finite everything is stationary; by those of the run the last point is not."""
    with jax.enable_x64(True):
        plan, made = _plan(risk="population", stationarity=0.2), _made(2000)
        start = jnp.asarray([0.5, 0.1])
        run = jax.jit(
            lambda data: find_sosp.solve(jax.random.key(0), plan, made.objective, data, start)
        )
        rows = np.array(made.data.items)
        assert int(run(made.data).released["index"]) < 20
        rows[1000:] = np.nan
        assert int(run(made.data._replace(items=rows)).released["index"]) == 20


def test_the_parts_have_keys_of_their_own(monkeypatch):
    """Otherwise the noise of the choice would be some of that of the run, which is released."""
    seen = []
    for part in (find_sosp.first_order, find_sosp.select_sosp):

        def solve(key, *args, solve=part.solve, **options):
            seen.append(jax.random.key_data(jax.random.clone(key)))
            return solve(key, *args, **options)

        monkeypatch.setattr(part, "solve", solve)
    with jax.enable_x64(True):
        plan, made = _plan(), _made(2000)
        find_sosp.solve(jax.random.key(0), plan, made.objective, made.data, jnp.zeros(2))
    first, second = map(np.asarray, seen)
    assert not np.array_equal(first, second)


def test_what_is_said_of_a_population_pays_for_the_sample():
    """By hand; of the users at hand nothing is added, and α of a population has room for the sample."""
    with jax.enable_x64(True):
        whole, apart = _plan(), _plan(risk="population")
    assert whole.sampling_errors == (0.0, 0.0)
    assert whole.guaranteed_norm == whole.choice.guaranteed_norm
    slope, bend, points = math.exp(-0.5), 2 * math.exp(-1.5), 21
    steep, bent = apart.sampling_errors
    hand = slope / math.sqrt(1000) * (1 + math.sqrt(2 * math.log(2 * points / 0.05)))
    level, half = math.log(2 * 2 * points / 0.05) / 1000, (1 + bend) / 2
    assert steep == pytest.approx(hand, rel=1e-6)
    hand = half * (math.sqrt(2 * level + 4 * level**2 / 9) + 2 * level / 3)
    assert bent == pytest.approx(hand, rel=1e-6)
    assert apart.guaranteed_norm == apart.choice.guaranteed_norm + steep
    assert apart.guaranteed_curvature == apart.choice.guaranteed_curvature - bent
    # Not shorter than what is proven of the population and what the sample may add.
    search = apart.search
    proven = search.threshold + search.estimate_error_bound
    assert apart.choice.stationarity == pytest.approx(proven + steep, rel=1e-6)
    assert any("independently" in each for each in apart.assumes)
    assert not any("independently" in each for each in whole.assumes)
    assert f"{float(apart.guaranteed_norm):.4g}" in str(apart)


@pytest.mark.parametrize("points", [1, 8])
def test_samples_deviate_by_more_no_more_often_than_is_said_and_half_is_too_little(points):
    """Users who are ±1 in one dimension, slopes and curvatures alike: the widest of all that are bounded.

    Half of the bounds does not hold as often: without them a population is promised what only a sample has.
    """
    users, failure, trials = 400, 0.2, 20_000
    bounds = find_sosp.deviations(users, points, 1, 1.0, 2.0, failure)
    rng = np.random.default_rng(0)
    means = 2 * rng.binomial(users, 0.5, size=(trials, points)) / users - 1
    for found, bound in zip((np.abs(means), means), bounds, strict=True):
        most = np.max(found, axis=1)
        assert np.mean(most > bound) <= failure / 2
        assert np.mean(most > bound / 2) > failure / 2


def test_in_more_dimensions_samples_deviate_by_less_than_is_said():
    """Users who push and bend along one of eight axes: the mean of all is zero, that of a sample is not."""
    users, dim, trials = 200, 8, 4000
    steep, bent = find_sosp.deviations(users, 1, dim, 1.0, 2.0, 0.2)
    rng = np.random.default_rng(1)
    drawn = rng.multinomial(users, np.full(2 * dim, 1 / (2 * dim)), size=trials) / users
    means = drawn[:, :dim] - drawn[:, dim:]
    assert np.mean(np.linalg.norm(means, axis=1) > steep) <= 0.1
    assert np.mean(np.max(means, axis=1) > bent) <= 0.1
