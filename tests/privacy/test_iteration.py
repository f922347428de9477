"""The last point of noisy iterations: sums, laws that attain the bound, a nonlinear map on a grid."""

import fractions
import math

import numpy as np
import pytest
from scipy import optimize, stats

from dpsco_jax import privacy


@pytest.mark.parametrize("steps", [1, 2, 7, 300])
@pytest.mark.parametrize("c", [0.0, 0.3, 0.9, 0.999, 1 - 1e-9, 1.0])
def test_linear_maps_attain_it(steps, c):
    """x ← c·x + g + N(0, ν²): the means of neighbours drift apart, and the variance grows."""
    shift, stddev = 0.7, 2.5
    mean, variance = 0.0, 0.0
    for _ in range(steps):
        mean, variance = c * mean + shift, c * c * variance + stddev**2
    found = privacy.last_iterate_gdp(steps, c, stddev / shift)
    assert found == pytest.approx(mean / math.sqrt(variance), rel=1e-11)
    assert found >= mean / math.sqrt(variance) * (1 - 1e-14)


@pytest.mark.parametrize("c", [0.5, 0.95, 1.0])
def test_no_other_shifts_are_better(c):
    """min Σ a² with z_{t+1} = c·z_t + 1 - a_{t+1}, all z ≥ 0 and the last 0, solved by a general method."""
    steps = 6

    def distances(a):
        z, found = 0.0, []
        for each in a:
            z = c * z + 1.0 - each
            found.append(z)
        return np.asarray(found)

    solved = optimize.minimize(
        lambda a: a @ a,
        np.ones(steps),
        constraints=[
            {"type": "eq", "fun": lambda a: distances(a)[-1]},
            {"type": "ineq", "fun": lambda a: distances(a)[:-1]},
        ],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert privacy.last_iterate_gdp(steps, c, 1.0) == pytest.approx(math.sqrt(solved.fun), rel=1e-6)


@pytest.mark.parametrize("c", [0.6, 1.0])
def test_a_clipped_and_projected_chain_is_within_it(c):
    """φ(x) = c·soft(x) + g on [-1, 1], soft a 1-Lipschitz bend; laws by transitions on a grid."""
    steps, shift, stddev, cells = 5, 0.3, 0.5, 801
    points = np.linspace(-1.0, 1.0, cells)
    edges = np.concatenate([[-np.inf], 0.5 * (points[1:] + points[:-1]), [np.inf]])

    def law(g):
        now = np.zeros(cells)
        now[cells // 2] = 1.0
        middle = c * (np.abs(points) - np.log1p(np.abs(points))) * np.sign(points) + g
        # What leaves the interval is projected onto its ends, which are the outer cells.
        moves = np.diff(stats.norm.cdf((edges[None, :] - middle[:, None]) / stddev), axis=1)
        for _ in range(steps):
            now = now @ moves
        return now

    p, q = law(shift), law(0.0)
    mu = privacy.last_iterate_gdp(steps, c, stddev / shift)
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        bound = privacy.variation_delta(mu, 0.0, epsilon)
        for first, second in ((p, q), (q, p)):
            found = np.maximum(first - math.exp(epsilon) * second, 0.0).sum()
            assert found <= bound * (1 + 1e-6)
    # The test sees something: a third of the bound's μ is not enough.
    less = privacy.variation_delta(mu / 3, 0.0, 0.0)
    assert np.maximum(p - q, 0.0).sum() > less


def test_long_runs_stay_below_the_limit_and_short_ones_cost_composition():
    c = 0.98
    limit = math.sqrt((1 + c) / (1 - c)) / 3.0
    assert privacy.last_iterate_gdp(10**9, c, 3.0) == pytest.approx(limit, rel=1e-9)
    assert privacy.last_iterate_gdp(5, c, 3.0) == pytest.approx(math.sqrt(5) / 3, rel=1e-2)
    for steps in (1, 10, 1000):
        assert privacy.last_iterate_gdp(steps, c, 3.0) <= math.sqrt(steps) / 3.0 * (1 + 1e-11)


@pytest.mark.parametrize("c", [0.0, 0.9, 1.0])
def test_the_noise_is_the_least_that_meets_a_target(c):
    multiplier = privacy.last_iterate_noise_multiplier(0.4, 50, c)
    assert 0.4 * (1 - 1e-9) < privacy.last_iterate_gdp(50, c, multiplier) <= 0.4


def test_audit_of_a_projected_chain():
    """The last point of 40 steps on [-1, 1], 20,000 runs of each neighbour: how far apart they are."""
    rng, runs, steps, c, shift, stddev = np.random.default_rng(0), 20_000, 40, 0.9, 0.02, 0.2

    def ends(g):
        x = np.zeros(runs)
        for _ in range(steps):
            x = np.clip(c * x + g + stddev * rng.normal(size=runs), -1.0, 1.0)
        return x

    mu = privacy.last_iterate_gdp(steps, c, stddev / (2 * shift))
    above, below = ends(shift), ends(-shift)
    found = abs(above.mean() - below.mean()) / math.sqrt(0.5 * (above.var() + below.var()))
    error = 4 * math.sqrt(2 / runs)
    assert found <= mu + error
    # Little is lost to the projection; composition says 1.47 times as much.
    assert found >= 0.9 * mu
    assert math.sqrt(steps) * 2 * shift / stddev == pytest.approx(1.47 * mu, rel=5e-3)


@pytest.mark.parametrize("bad", [np.full(2, 0.9), np.full(1, 0.9), 1.1, math.nan])
def test_the_contraction_is_one_number(bad):
    with pytest.raises(ValueError, match=r"^contraction must be"):
        privacy.last_iterate_gdp(3, bad, 1.0)
    with pytest.raises(ValueError, match=r"^contraction must be"):
        privacy.last_iterate_noise_multiplier(0.5, 3, bad)
    assert privacy.last_iterate_gdp(3, np.asarray(1), 1.0) == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize("digits", [17, 310, 400, 1000, 5000])
def test_runs_longer_than_a_float_can_say(digits):
    steps = 10**digits + 1
    limit = math.sqrt(1.9 / 0.1)
    assert limit <= privacy.last_iterate_gdp(steps, 0.9, 1.0) <= limit * (1 + 1e-11)
    assert privacy.last_iterate_gdp(steps, 0.0, 2.0) == pytest.approx(0.5, rel=1e-11)
    found = privacy.last_iterate_gdp(steps, 1.0, 4.0)
    if digits < 600:
        # found² ≥ T/16, in rationals.
        assert fractions.Fraction(4 * found) ** 2 >= steps
        assert fractions.Fraction(4 * found * (1 - 1e-11)) ** 2 < steps
    else:
        assert found == math.inf
    sigma = privacy.last_iterate_noise_multiplier(0.5, steps, 0.9)
    assert 0.5 * (1 - 1e-9) < privacy.last_iterate_gdp(steps, 0.9, sigma) <= 0.5
