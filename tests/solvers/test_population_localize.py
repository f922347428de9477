"""Copies of clipped descent and localization: disjoint users, the agreed point, phases, bounds, risk."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers import copies, first_order
from dpsco_jax.solvers._schedules import clipped_descent
from dpsco_jax.solvers.heavy_tailed import (
    _phases,
    _terms,
    aggregate_erm,
    clipped_gd,
    localized_erm,
    population_localize,
)

DIM, USERS, STEPS, TAIL = 3, 60, 20, 4.5
OBJECTIVE = losses.absolute(1e4, domains.ball(2.0))
BUDGET = Budget(2.0, 1e-6)
# Of lengths whose tail is t^-4.5: E L^k = 4.5/(4.5 - k).
MOMENTS = Moments(4.0, 9**0.25, 1.8**0.5, 4.5 / 3.5)
TRUTH = np.array([1.0, 0.0, 0.0])


def problem_of(users=USERS):
    return Problem(OBJECTIVE, num_users=users, dim=DIM, distance=1.0)


def rows(seed, users=USERS):
    """Pareto features of all directions, labels around a line."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((users, DIM))
    a *= rng.uniform(size=(users, 1)) ** (-1 / TAIL) / np.linalg.norm(a, axis=1, keepdims=True)
    return np.float32(a), np.float32(a @ TRUTH + 0.5 * rng.standard_normal(users))


def users_of(a, y):
    return UserData(Example(a[:, None], y[:, None]), None)


@functools.cache
def aggregated(num_copies=3, **settings):
    given = {"moments": MOMENTS, "regularization": 0.5, "num_steps": STEPS} | settings
    return aggregate_erm.plan(problem_of(), BUDGET, num_copies=num_copies, **given)


@functools.cache
def solver(module):
    def run(key, plan, a, y):
        return module.solve(key, plan, OBJECTIVE, users_of(a, y), jnp.zeros(DIM))

    return jax.jit(run)


def test_a_copy_is_a_run_on_its_block_and_one_of_them_is_chosen():
    plan, (a, y), key = aggregated(), rows(0), jax.random.key(3)
    found = solver(aggregate_erm)(key, plan, a, y)
    keys = jax.random.split(jax.random.key(3), 3)
    each = [
        solver(clipped_gd)(own, plan.base, a[20 * j : 20 * j + 20], y[20 * j : 20 * j + 20])
        for j, own in enumerate(keys)
    ]
    points = np.stack([one.params for one in each])
    gaps = np.linalg.norm(points[:, None] - points[None], axis=-1)
    # Of three, two have to agree: the one whose second nearest is the nearest.
    chosen = points[np.argmin(np.sort(gaps, axis=1)[:, 1])]
    np.testing.assert_allclose(found.params, chosen, atol=1e-6)
    assert int(found.gradients) == int(found.unprivate["gradients"]) == 60 * STEPS
    np.testing.assert_array_equal(found.privacy.rdp, each[0].privacy.rdp)
    assert plan.certificate() == plan.base.certificate()


def test_one_copy_is_the_run_itself():
    plan, (a, y) = aggregated(1), rows(1)
    (own,) = jax.random.split(jax.random.key(3), 1)
    found = solver(aggregate_erm)(jax.random.key(3), plan, a, y).params
    alone = solver(clipped_gd)(own, plan.base, a, y).params
    np.testing.assert_allclose(found, alone, atol=1e-6)


def test_garbage_in_one_copy_moves_the_point_by_no_more_than_the_agreed_distance():
    """The two others are within r of their middle; the chosen one within 3r of it."""
    plan, (a, y) = aggregated(), rows(2)
    keys = jax.random.split(jax.random.key(3), 3)
    honest = np.stack(
        [
            solver(clipped_gd)(keys[j], plan.base, a[s : s + 20], y[s : s + 20]).params
            for j, s in enumerate((0, 20))
        ]
    )
    middle, radius = honest.mean(0), np.linalg.norm(honest[0] - honest[1]) / 2
    for worst in (1e3, -1e3, np.nan):
        bad_a, bad_y = a.copy(), y.copy()
        bad_a[40:], bad_y[40:] = [0, 0, worst], 1e6
        found = solver(aggregate_erm)(jax.random.key(3), plan, bad_a, bad_y)
        assert np.linalg.norm(found.params - middle) <= 3 * radius * (1 + 1e-5)
        assert int(found.status) == 0


def test_a_replaced_user_changes_one_copy_of_one_phase_alone():
    """With the same keys the answers of all others are the same to the bit."""
    plan, (a, y) = aggregated(), rows(4)

    @jax.jit
    def traced(a, y):
        found = copies.solve(
            jax.random.key(0), plan, OBJECTIVE, users_of(a, y), jnp.zeros(DIM), lambda p, *_: p
        )
        return found.unprivate["trace"]

    before = np.asarray(traced(a, y))
    for user in (0, 19, 20, 59):
        other = y.copy()
        other[user] = -100 * np.sign(y[user])
        moved = np.any(np.asarray(traced(a, other)) != before, axis=(1, 2))
        assert np.all(moved == (np.arange(3) == user // 20))


def test_copies_refuse_what_they_cannot_run():
    plan = aggregated()
    a, y = rows(0)
    with pytest.raises(ValueError, match="copies"):
        solver(aggregate_erm)(jax.random.key(0), plan.replace(copies=4), a, y)
    with pytest.raises(ValueError, match="num_users"):
        aggregate_erm.plan(problem_of(4), BUDGET, moments=MOMENTS, regularization=1.0)


def test_the_distance_of_the_aggregate_is_that_of_its_proof():
    plan = aggregated(5, failure=0.05)
    share = clipped_descent.share_that_may_fail(5, 0.05)
    rho = _terms.rho_of(12, BUDGET, "tight", "pld")
    one = clipped_descent.in_most_runs(MOMENTS, 12, STEPS, 2 * DIM * STEPS / (144 * rho), share)
    np.testing.assert_allclose(plan.distance_bound, 3 * one.distance / 0.5)
    np.testing.assert_allclose(plan.clip_norm, one.clip_norm)
    assert aggregated(1, failure=0.05).distance_bound < aggregated(1, failure=0.01).distance_bound
    # The thesis, mended: J = 400·log(1/failure) of 0.55, and 25.3, 16.8, 90.
    many = Problem(OBJECTIVE, num_users=5000, dim=DIM)
    printed = aggregate_erm.plan(
        many, Budget(2.0, 1e-6), moments=MOMENTS, regularization=0.5, constants="paper"
    )
    assert printed.copies == math.ceil(400 * math.log(10))
    users = 5000 // printed.copies
    noise = math.sqrt(DIM / _terms.rho_of(users, BUDGET, "paper", "pld")) / users
    wanted = 25.298 * MOMENTS.highest * noise**0.75
    wanted += (16.733 * MOMENTS.first + 90 * MOMENTS.second) / math.sqrt(users)
    np.testing.assert_allclose(printed.distance_bound, 3 * wanted / 0.5, rtol=1e-4)


@functools.cache
def localized(users=400, **settings):
    given = {"moments": MOMENTS, "num_steps": 100} | settings
    return population_localize.plan(problem_of(users), BUDGET, **given)


def test_phases_halve_and_their_pulls_grow():
    plan = localized(num_phases=3, num_copies=2)
    assert [part.num_users for part in plan.parts] == [229, 114, 57]
    assert [part.base.num_users for part in plan.parts] == [114, 57, 28]
    pulls = [float(part.base.strength) for part in plan.parts]
    ratios = np.array(pulls[1:]) / pulls[:-1]
    np.testing.assert_allclose(ratios, ratios[0])
    assert 8 <= ratios[0] <= 32
    kept = localized(num_phases=3, num_copies=2, strength=0.01)
    np.testing.assert_allclose(
        [p.base.strength for p in kept.parts], 0.01 * 32.0 ** np.arange(1, 4)
    )
    for part in plan.parts:
        np.testing.assert_allclose(part.base.radius, MOMENTS.first / part.base.strength)
    assert plan.certificate().epsilon <= BUDGET.epsilon


def test_one_copy_shares_a_program_and_is_a_first_order_run():
    plan = localized(num_phases=3)
    assert all(isinstance(part, first_order.FirstOrder) for part in plan.parts)


def test_the_bound_is_that_of_its_numbers():
    for settings in ({"num_copies": 3}, {"constants": "tight"}, {"constants": "practical"}):
        plan = localized(num_phases=2, **settings)
        parts = [(getattr(part, "base", part), getattr(part, "copies", 1)) for part in plan.parts]
        distances = []
        for base, count in parts:
            share = clipped_descent.share_that_may_fail(count, 0.05)
            rho = _terms.rho_of(base.num_users, BUDGET, "tight", "pld")
            v = 2 * DIM * 100 / (base.num_users**2 * rho)
            clip = float(base.clip_norm)
            one = clipped_descent.in_most_runs(MOMENTS, base.num_users, 100, v, share, clip)
            distances.append(one.distance * (3 if count > 1 else 1))
        (first, second), g = [float(base.strength) for base, _ in parts], MOMENTS.first
        wanted = first / 2 + second / 2 * (distances[0] / first) ** 2 + g * distances[1] / second
        np.testing.assert_allclose(plan.high_probability_bound, wanted, rtol=1e-6)
    best = localized(constants="tight")
    assert (
        best.high_probability_bound
        <= localized(constants="tight", num_phases=2).high_probability_bound
    )
    assert best.high_probability_bound <= localized().high_probability_bound
    assert best.excess_bound == min(best.high_probability_bound + 0.4 * g, 4 * g)


def test_the_paper_s_numbers():
    plan = population_localize.plan(
        problem_of(10**6), Budget(2.0, 1e-7), moments=MOMENTS, constants="paper"
    )
    copies_of = plan.parts[0].copies
    phases = len(plan.parts)
    assert copies_of == math.ceil(400 * math.log(phases / 0.1))
    assert phases == int(math.log2(10**6 // copies_of))
    pulls = np.array([part.base.strength for part in plan.parts])
    np.testing.assert_allclose(pulls[1:] / pulls[:-1], 32.0)
    with pytest.raises(ValueError, match="num_users"):
        population_localize.plan(problem_of(100), BUDGET, moments=MOMENTS, constants="paper")
    with pytest.raises(ValueError, match="num_copies"):
        population_localize.plan(
            problem_of(10**6), Budget(2.0, 1e-7), moments=MOMENTS, constants="paper", num_copies=2
        )


def test_a_start_that_is_as_good_as_the_bound_is_said_so():
    assert "no better than that of the start" in str(localized())


@pytest.mark.parametrize("settings", [{}, {"num_copies": 3}])
def test_the_risk_falls_with_the_users_and_is_below_the_bound(settings):
    """Absolute loss on Pareto features; slope at most -0.3 from 2^9 to 2^12 users."""
    risks = []
    rng = np.random.default_rng(9)
    fresh_a, fresh_y = rows(99, 20_000)
    for users in (2**9, 2**12):
        plan = localized(users, **settings)
        risk = []
        for seed in range(5):
            a, y = rows(rng.integers(10**6), users)
            point = np.asarray(solver(population_localize)(jax.random.key(seed), plan, a, y).params)
            loss = lambda w: np.mean(np.abs(fresh_a @ w - fresh_y))  # noqa: E731
            risk.append(loss(point) - loss(TRUTH))
        assert max(risk) <= plan.high_probability_bound
        risks.append(np.median(risk))
    assert math.log2(risks[1] / risks[0]) / 3 <= -0.3


def test_the_setting_of_phases():
    setting = _phases.Setting(problem_of(400), BUDGET, MOMENTS, None, "pld", 64)
    assert setting.steps(10) == clipped_descent.paper_steps(10, DIM, setting.rho)
    assert setting.steps(10**5) == 1000
    one = setting.typical(100)
    noise = math.sqrt(2 * DIM / setting.rho) / 100
    bias = lambda c: float(clipped_descent._biases(MOMENTS, c))  # noqa: E731
    stray = MOMENTS.second / 10
    np.testing.assert_allclose(one.distance, one.clip_norm * noise + bias(one.clip_norm) + stray)
    for factor in (0.8, 1.25):
        c = factor * one.clip_norm
        assert c * noise + bias(c) + stray > one.distance


def test_bounded_slopes_have_a_bound_in_expectation_that_holds():
    """Absolute loss on unit features: the mean excess of 40 runs and samples is below it."""
    objective, users = losses.absolute(1.0, domains.ball(2.0)), 300
    problem = Problem(objective, num_users=users, dim=DIM, distance=1.0)
    plan = localized_erm.plan(problem, BUDGET, num_steps=200, num_phases=2)
    assert [float(part.clip_norm) for part in plan.parts] == [1.0, 1.0]
    (first, second), moments = plan.parts, Moments(math.inf, 1.0)
    rho = _terms.rho_of(users, BUDGET, "tight", "pld")
    distances = [
        clipped_descent.in_the_mean(
            moments, part.num_users, 200, 2 * DIM * 200 / (part.num_users**2 * rho), 1.0
        ).distance
        for part in (first, second)
    ]
    a, b = float(first.strength), float(second.strength)
    wanted = a / 2 + b / 2 * (distances[0] / a) ** 2 + distances[1] / b
    np.testing.assert_allclose(plan.excess_bound, wanted, rtol=1e-6)

    @jax.jit
    @jax.vmap
    def points(key, a, y):
        return localized_erm.solve(key, plan, objective, users_of(a, y), jnp.zeros(DIM)).params

    def unit(seed, count):
        a, y = rows(seed, count)
        noise = y - a @ TRUTH
        a = a / np.linalg.norm(a, axis=1, keepdims=True)
        return a, np.float32(a @ TRUTH + noise)

    samples = [unit(seed, users) for seed in range(40)]
    found = points(
        jax.random.split(jax.random.key(0), 40), *(np.stack(x) for x in zip(*samples, strict=True))
    )
    fresh_a, fresh_y = unit(99, 20_000)
    risk = np.abs(fresh_a @ np.asarray(found).T - fresh_y[:, None]).mean(0)
    excess = risk - np.abs(fresh_a @ TRUTH - fresh_y).mean()
    assert excess.mean() + 3 * excess.std() / math.sqrt(40) <= plan.excess_bound
    assert excess.mean() < 0.3
    clipped = localized_erm.plan(problem, BUDGET, num_steps=200, clip_norm=0.5)
    assert clipped.excess_bound == math.inf


RIDGED = OBJECTIVE._replace(ridge=0.5)


def ridged(users, distance=1.0):
    return Problem(RIDGED, num_users=users, dim=DIM, distance=distance)


def test_a_round_starts_where_the_excess_of_the_one_before_lets_it():
    """Every round is the plan for its own block, at √(2E/μ), for a share of what may fail."""
    many = {"moments": MOMENTS, "num_steps": 10**5, "constants": "tight", "num_phases": 3}
    plan = population_localize.plan(ridged(70_000), BUDGET, num_rounds=3, failure=0.3, **many)
    assert [part.num_users for part in plan.parts] == [10_000, 20_000, 40_000]
    distance = 1.0
    for part in plan.parts:
        alone = population_localize.plan(
            ridged(part.num_users, distance), BUDGET, num_rounds=1, failure=0.1, **many
        )
        np.testing.assert_allclose(part.excess_bound, alone.high_probability_bound, rtol=1e-6)
        for phase, other in zip(part.parts, alone.parts, strict=True):
            one, wanted = getattr(phase, "base", phase), getattr(other, "base", other)
            np.testing.assert_allclose(one.strength, wanted.strength, rtol=1e-6)
            assert one.num_users == wanted.num_users
            # The ridge is 0.5·2 steep, on a ball of radius 2.
            reach = min((MOMENTS.first + 1.0) / one.strength, 4.0)
            np.testing.assert_allclose(one.radius, reach)
        distance = min(math.sqrt(2 * part.excess_bound / 0.5), 2 * (MOMENTS.first + 1.0) / 0.5)
    assert plan.high_probability_bound == plan.parts[-1].excess_bound
    assert "rounds" in str(plan)
    assert plan.certificate().epsilon <= BUDGET.epsilon


def test_rounds_are_for_what_is_strongly_convex():
    assert len(localized(num_rounds=1).parts) == len(localized().parts)
    with pytest.raises(ValueError, match="num_rounds"):
        localized(num_rounds=2)
    with pytest.raises(ValueError, match="num_users"):
        population_localize.plan(ridged(20), BUDGET, moments=MOMENTS, num_rounds=3)
    endless = OBJECTIVE._replace(ridge=0.5, domain=domains.whole_space())
    plan = population_localize.plan(
        Problem(endless, num_users=400, dim=DIM, distance=1.0), BUDGET, moments=MOMENTS
    )
    assert plan.high_probability_bound == math.inf


def test_the_bound_of_rounds_falls_as_one_over_n_and_that_of_phases_as_its_root():
    """Bounded slopes, no noise to speak of, and steps without end: G²/(μn) against GD/√n."""
    steep = losses.absolute(1.0, domains.ball(2.0))
    bounds = {}
    for ridge in (0.0, 0.5):
        for users in (10**5, 10**7):
            problem = Problem(steep._replace(ridge=ridge), num_users=users, dim=1, distance=1.0)
            plan = localized_erm.plan(
                problem, Budget(50.0, 1e-12), num_steps=10**9, constants="tight"
            )
            bounds[ridge, users] = plan.excess_bound
    fall = {ridge: bounds[ridge, 10**5] / bounds[ridge, 10**7] for ridge in (0.0, 0.5)}
    assert 7 < fall[0.0] < 13
    assert 60 < fall[0.5] < 140


def test_the_risk_of_rounds_falls_as_one_over_n():
    """½‖x - s‖² with the lengths of Pareto: strongly convex by itself; slope about -1."""
    objective, risks = losses.squared_distance(1e6, 2.0), []
    rng = np.random.default_rng(3)
    for users in (2**9, 2**12):
        problem = Problem(objective, num_users=users, dim=DIM, distance=2.0)
        moments = Moments(4.0, 4.0, 2.5, 2.4)
        plan = population_localize.plan(
            problem, Budget(8.0, 1e-6), moments=moments, num_steps=100, num_rounds=2
        )

        @jax.jit
        @jax.vmap
        def points(key, rows, plan=plan):
            data = UserData(rows[:, None], None)
            return population_localize.solve(key, plan, objective, data, jnp.zeros(DIM)).params

        rows = rng.standard_normal((10, users, DIM))
        lengths = rng.uniform(size=(10, users, 1)) ** (-1 / TAIL)
        rows *= lengths / np.linalg.norm(rows, axis=-1, keepdims=True)
        truth = np.array([1.0, 0.0, 0.0])
        found = points(jax.random.split(jax.random.key(users), 10), np.float32(rows + truth))
        risks.append(np.median(0.5 * np.sum((np.asarray(found) - truth) ** 2, axis=1)))
        assert max(risks) <= plan.high_probability_bound
    assert math.log2(risks[1] / risks[0]) / 3 <= -0.75


def test_the_bound_of_phases_with_a_ridge_has_its_slope():
    plan = population_localize.plan(
        ridged(400), BUDGET, moments=MOMENTS, num_steps=100, num_phases=2, num_rounds=1
    )
    rho = _terms.rho_of(400, BUDGET, "tight", "pld")
    ends = []
    for part in plan.parts:
        v = 2 * DIM * 100 / (part.num_users**2 * rho)
        share, clip = 0.05, float(part.clip_norm)
        one = clipped_descent.in_most_runs(MOMENTS, part.num_users, 100, v, share, clip, known=1.0)
        ends.append(one.distance)
    first, second = (float(part.strength) for part in plan.parts)
    wanted = first / 2 + second / 2 * (ends[0] / first) ** 2
    wanted += (MOMENTS.first + 1.0) * ends[1] / second
    np.testing.assert_allclose(plan.high_probability_bound, wanted, rtol=1e-6)
