"""The regularized exponential mechanism attacked: constants in a second writing, edges, exact chains."""

import dataclasses
import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import (
    _rows,
    alternating_sampler,
    proximal_oracle,
    regularized,
)
from dpsco_jax.solvers.sampling.proximal_oracle import Setting

pytestmark = pytest.mark.usefixtures("float64")

BUDGET = Budget(4.0, 1e-3)


# --- constants ---

SIZES = {
    "small": (Setting(50, 1, 4, 1.0, 0.25, 1.0), 2e3, 0.05, 3.0, 40, 400),
    "rows": (Setting(2**20, 3, 2, 2.0, 1.0, 2.0), 1e7, 0.5, 1.0, 80, 600),
    "parameters": (Setting(100, 1, 20_000, 1.0, 1.0, 1.0), 10.0, 0.9, 0.5, 60, 400),
    "strongly convex": (Setting(30, 2, 3, 0.5, 1.0, 1.0), 1e2, 40.0, 2.0, 6, 300),
    "long steps": (Setting(7, 5, 9, 3.0, 2.0, 1.5), 5e2, 0.1, 7.0, 50, 90_000),
}


def documented(setting, k, mu, c, num_steps):
    """Sections 2 to 4 of docs/theory/proximal_sampler.md, line by line, in plain floats."""
    n, slots, d, big_l, big_h, _ = setting
    m, eta = k * mu, c / (k * big_h)
    p_ = m + 1 / eta
    w = big_l / mu + math.sqrt(d / m)
    mixing = (1 + eta * m) ** -(num_steps - 1) * w / (2 * math.sqrt(eta))
    t = math.sqrt(2 * math.log(2 * num_steps / (2.0**-20 * mixing)))
    far = 2 * num_steps * math.exp(-t * t / 2)
    root = math.sqrt(1 + eta * m)
    reach = big_l / mu + (math.sqrt(d) + t) * math.sqrt(eta) * (1 + root) / (eta * m)
    reach += 2 / math.sqrt(p_)
    acceptance = math.exp(-0.625 * c)
    kappa, rho = k * big_l / math.sqrt(p_), m * reach / math.sqrt(p_)
    close = 0.5 - root / 32
    gradients = math.ceil(math.log(2 * kappa * (1 + c) / close) / math.log((2 + c) / c))
    sums = slots * 2.0 ** (2 * math.ceil(math.log2(n * slots)) - 33)
    tilts = (13 + 0.5 * sums) * kappa + 5 * rho + 4 + math.sqrt(d)
    tests = 32 + 2 * c + 6.5 * c * math.sqrt(d + 1) + c * d**2 * 2.0**-22
    tests += 2.0 ** (2 * math.ceil(math.log2(n * slots)) - 44)
    anchors = 2.0 ** math.floor(math.log2(math.sqrt(eta / d) / (16 * (1 + c) * (2 + c))))
    released = 2.0 ** math.floor(math.log2(max(1 / (32 * math.sqrt(p_)), anchors)))
    last = (8 * d + 2 * math.sqrt(d)) / (math.sqrt(p_) * released * acceptance)
    rounding = 2.0**-53 * (num_steps * (tilts + tests / acceptance) + last)
    return mixing, far, reach, acceptance, gradients, rounding


@pytest.mark.parametrize("name", SIZES)
def test_the_numbers_are_those_of_the_documentation(name):
    setting, k, mu, c, num_steps, num_trials = SIZES[name]
    found = proximal_oracle.numbers(setting, k, mu, c, num_steps, num_trials)
    mixing, far, reach, acceptance, gradients, rounding = documented(setting, k, mu, c, num_steps)
    assert found.valid
    assert float(found.variation.mixing) == pytest.approx(mixing, rel=1e-9)
    assert float(found.variation.far) == pytest.approx(far, rel=1e-9)
    assert float(found.variation.rounding) == pytest.approx(rounding, rel=1e-5)
    assert float(found.reach) == pytest.approx(reach, rel=1e-9)
    assert (1 - 1e-5) * acceptance <= float(found.acceptance) <= acceptance
    # The first point, and as many steps as are enough.
    assert gradients + 1 <= float(found.most_gradients) <= gradients + 2
    capped = stats.binom.cdf(num_steps - 1, num_trials, acceptance)
    assert capped <= float(found.variation.capped)
    total = mixing + far + rounding + float(found.variation.capped)
    assert total <= float(found.variation.total) <= (1 + 1e-5) * total
    # Grids: powers of two within a factor two of what is asked.
    eta = c / (k * setting.smoothness)
    deviation = (k * mu + 1 / eta) ** -0.5
    widest = math.sqrt(eta / setting.dim) / (16 * (1 + c) * (2 + c))
    for unit, most in ((found.anchor_unit, widest), (found.offset_unit, deviation / 2**22)):
        assert math.frexp(float(unit))[0] == 0.5
        assert most / 2 < float(unit) <= most


@pytest.mark.parametrize("name", SIZES)
def test_points_and_offsets_on_their_grids_have_exact_margins(name):
    # Rows and points of the greatest norms that are allowed, in one direction: no sum is larger.
    setting, k, mu, c, num_steps, num_trials = SIZES[name]
    found = proximal_oracle.numbers(setting, k, mu, c, num_steps, num_trials)
    dim = min(setting.dim, 64)
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(dim)
    direction /= np.linalg.norm(direction)
    unit = _rows.feature_unit(setting.feature_bound)
    row = np.trunc(direction * setting.feature_bound * (1 - 2.0**-40) / unit) * unit
    rows = _rows.Rows(jnp.asarray(row)[None], None, jnp.zeros(1), jnp.ones(1))
    longest = 512.0 / math.sqrt(float(found.precision))
    for grid, length in ((found.anchor_unit, found.reach), (found.offset_unit, longest)):
        point = np.trunc(direction * float(length) / float(grid)) * float(grid)
        margin = float(_rows.margins(rows, jnp.asarray(point)[:, None])[0, 0])
        true = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(row, point, strict=True))
        assert Fraction(margin) == true
        assert abs(true) <= 2**52 * Fraction(float(grid)) * Fraction(unit)


@pytest.mark.parametrize("scale", [2.0**-power for power in range(8, 50, 3)])
def test_terms_of_any_size_are_summed_to_one_rounding(scale):
    # The finest grid on which all sums below 2^10 are exact.
    assert proximal_oracle._TERM_UNIT * 2**53 == 2**10
    # All of one sign and size: what is off the grid has large sums too, unless it is below 2^-44.
    terms = np.random.default_rng(4).uniform(0.5, 1.0, 100_000) * scale
    found = float(jax.jit(proximal_oracle._exact_sum)(jnp.asarray(terms)))
    true = math.fsum(terms)
    rests = min(len(terms) * 2.0**-44, true)
    assert abs(found - true) <= 2.0**-53 * (2 * true + len(terms) * rests)


OUTSIDE = {
    "steps so long that anchors are on too coarse a grid": {"relative_step": 6.0, "mu": 45.0},
    "more parameters than offsets are proven for": {"dim": 2**17 + 1},
    "more rows than sums are exact for": {"num_users": 2**32 + 1},
    "points beyond the grid": {"mu": 1e-3},
    "fewer trials than steps": {"num_trials": 39},
    "more trials than are counted": {"num_trials": 2**31},
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_is_not_proven_is_not_valid(name):
    inside = {"num_users": 2**16, "dim": 2**16, "mu": 1.0, "relative_step": 1.0, "num_trials": 400}

    def valid(num_users, dim, mu, relative_step, num_trials):
        setting = Setting(num_users, 1, dim, 1.0, 1.0, 1.0)
        return bool(proximal_oracle.numbers(setting, 1e2, mu, relative_step, 40, num_trials).valid)

    assert valid(**inside)
    assert not valid(**inside | OUTSIDE[name])


# --- plans ---


@functools.cache
def planned(ridge=0.0, **settings):
    problem = Problem(losses.huber(1.0, ridge=ridge), num_users=4, dim=2, distance=2.0)
    return regularized.plan(problem, BUDGET, **settings)


@pytest.mark.parametrize(
    ("ridge", "changes"),
    [
        # η·m is 360: anchors are on too coarse a grid, while s and τ are small.
        (0.0, {"regularization": 120.0, "inverse_temperature": 1.0}),
        # A ridge hides it; all else is as for a smaller positive one.
        (2.0, {"regularization": -0.5, "inverse_temperature": 1.0}),
    ],
)
def test_small_numbers_that_are_not_proven_cost_infinity(ridge, changes):
    plan = dataclasses.replace(planned(ridge, regularization=1.0), **changes)
    assert float(plan.gdp) < 1.0
    assert float(plan.numbers.variation.total) < 1e-4
    assert plan.certificate().epsilon == math.inf
    assert float(privacy.epsilon(plan.loss(), 1e-3)) == math.inf
    proven = dataclasses.replace(plan, regularization=1.0)
    assert proven.certificate().epsilon < 10.0


def test_passes_are_those_of_all_steps_and_trials():
    plan = planned()
    most = plan.num_steps * float(plan.numbers.most_gradients) + plan.num_trials
    assert float(plan.user_gradients) == 4 * most


# --- runs ---


def users(labels, mask=None):
    labels = np.asarray(labels, float)[:, None]
    features = np.tile(np.eye(2)[0], (len(labels), 1, 1))
    return UserData(Example(jnp.asarray(features), jnp.asarray(labels)), mask)


@pytest.mark.parametrize("remembered", [True, False])
def test_another_ridge_than_planned_is_refused(remembered):
    plan = planned() if remembered else dataclasses.replace(planned(), made_for=None)
    other = losses.huber(1.0, ridge=1e-3)
    with pytest.raises(ValueError, match="objective must be"):
        regularized.solve(jax.random.key(0), plan, other, users([0.0] * 4), jnp.zeros(2))


def test_a_run_costs_what_its_plan_says_to_the_last_digits():
    plan = planned()
    data = users([0.0] * 4)
    spent = jax.jit(
        lambda key: regularized.solve(key, plan, losses.huber(1.0), data, jnp.zeros(2)).privacy
    )(jax.random.key(0))
    np.testing.assert_allclose(spent.rdp, plan.loss().rdp, rtol=1e-13)


def test_constant_time_takes_all_gradients_and_makes_all_trials(monkeypatch):
    # Nothing pulls: each first anchor is near enough, and one gradient would do.
    plan = dataclasses.replace(planned(), constant_time=True)
    data = users([0.0] * 4, jnp.zeros((4, 1), bool))
    asked, run = [], alternating_sampler.run

    def spy(*arguments, **settings):
        asked.append(settings["constant_time"])
        return run(*arguments, **settings)

    monkeypatch.setattr(alternating_sampler, "run", spy)
    solution = jax.jit(
        lambda key: regularized.solve(key, plan, losses.huber(1.0), data, jnp.zeros(2, float))
    )(jax.random.key(0))
    assert asked == [True]
    gradients = int(solution.unprivate["gradients"]) // 4 - int(solution.unprivate["trials"])
    assert gradients == plan.num_steps * float(plan.numbers.most_gradients)


@pytest.mark.parametrize("constant_time", [False, True])
def test_the_loop_makes_the_trips_that_it_says(constant_time):
    made = []

    def trial(key, state):
        jax.debug.callback(lambda: made.append(1))
        return state + 1.0, jnp.array(True)

    oracle = alternating_sampler.Oracle(lambda x: x, lambda _, s: s, trial, lambda s: s)
    draw = alternating_sampler.run(
        jax.random.key(0), oracle, jnp.zeros(()), 3, 11, constant_time=constant_time
    )
    jax.effects_barrier()
    assert (float(draw.params), int(draw.num_accepted), int(draw.num_trials)) == (3.0, 3, 3)
    assert len(made) == (11 if constant_time else 3)


HOSTILE = {
    "labels": ([1e308, -1.7e308, math.inf, math.nan], 1.0),
    "small labels": ([-0.0, 5e-324, -math.inf, 1e-300], 1.0),
    "huge rows": ([1.0, 0.0, 1.0, 0.0], 1e300),
    "tiny rows": ([1.0, 0.0, 1.0, 0.0], 1e-300),
    "rows that are no numbers": ([1.0, 0.0, 1.0, 0.0], math.nan),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_data_make_a_draw_that_is_no_number(name):
    labels, factor = HOSTILE[name]
    data = users(labels)
    data = UserData(Example(data.items.features.at[0].multiply(factor), data.items.label))
    plan = planned()
    solution = regularized.solve(
        jax.random.key(3), plan, losses.huber(1.0), data, jnp.array([1.0, -2.0])
    )
    assert np.all(np.isfinite(solution.params))
    assert int(solution.status) == 0
    assert int(solution.unprivate["steps"]) == plan.num_steps
    np.testing.assert_allclose(solution.privacy.rdp, plan.loss().rdp, rtol=1e-13)


# --- an inexact chain, in closed form ---


def chain(num_steps, k, mu, eta, pull):
    """Mean and variance of x_T along the pull: F = pull·x, from the centre. Gaussian in each step."""
    m, mean, variance = k * mu, 0.0, 0.0
    for _ in range(num_steps):
        mean = (mean - eta * k * pull) / (1 + eta * m)
        variance = (variance + eta) / (1 + eta * m) ** 2 + eta / (1 + eta * m)
    return mean, variance


def distance(one, other):
    """Total variation of two normal laws, by quadrature."""
    laws = [stats.norm(mean, variance**0.5) for mean, variance in (one, other)]
    low = min(law.mean() - 12 * law.std() for law in laws)
    high = max(law.mean() + 12 * law.std() for law in laws)
    return integrate.quad(
        lambda x: 0.5 * abs(laws[0].pdf(x) - laws[1].pdf(x)), low, high, limit=400
    )[0]


@pytest.mark.parametrize(("num_steps", "mu"), [(1, 2.0), (2, 2.0), (3, 0.2), (12, 0.05)])
def test_a_chain_that_is_too_short_is_as_far_off_as_is_said(num_steps, mu):
    k, c, count = 8.0, 3.0, 20_000
    plan = dataclasses.replace(
        planned(),
        inverse_temperature=k,
        regularization=mu,
        num_steps=float(num_steps),
        num_trials=60.0 * num_steps,
        relative_step=c,
    )
    data = users([1e9] * 4)  # F = -x on all of the line that is ever seen
    mean, variance = chain(num_steps, k, mu, c / k, -1.0)

    def draw(key):
        return regularized.solve(key, plan, losses.huber(1.0), data, jnp.zeros(2)).params[0]

    draws = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(5), count)))
    assert np.mean(draws) == pytest.approx(mean, abs=4 * math.sqrt(variance / count))
    assert np.var(draws) == pytest.approx(variance, rel=4 * math.sqrt(2 / count))
    true = distance((mean, variance), (1.0 / mu, 1.0 / (k * mu)))
    claimed = float(plan.numbers.variation.mixing)
    assert true <= claimed <= 20 * true or claimed == 1.0
    assert true > 1e-3
