"""The privacy loss distributions against closed forms, and against ``dp_accounting`` where it applies."""

import itertools
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from scipy import fft, special, stats

from dpsco_jax.privacy import pld
from dpsco_jax.privacy.pld import convolution, pairs, pld_window


def gaussian_delta(epsilon, noise_multiplier):
    """δ(ε) of the Gaussian in 60 digits."""
    with mpmath.workdps(60):
        s, e = mpmath.mpf(noise_multiplier), mpmath.mpf(epsilon)
        return float(
            mpmath.ncdf(1 / (2 * s) - e * s) - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * s) - e * s)
        )


def fixed_size_delta(epsilon, noise_multiplier, q):
    """δ(ε) of one step without replacement under REPLACE_ONE, any sign of ε."""
    if epsilon < 0:
        return -math.expm1(epsilon) + math.exp(epsilon) * fixed_size_delta(
            -epsilon, noise_multiplier, q
        )
    return q * gaussian_delta(math.log1p(math.expm1(epsilon) / q), noise_multiplier)


def law_delta(law, epsilon):
    above = law.losses > epsilon
    return law.infinite - float(law.masses[above] @ np.expm1(epsilon - law.losses[above]))


@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("q", [0.01, 0.3, 1.0])
def test_one_step_without_replacement_is_the_closed_profile(noise_multiplier, q):
    pair = pairs.gaussian_without_replacement(noise_multiplier, q)
    spacing = 0.02 / noise_multiplier
    law = pld_window.discretize(pair, spacing * np.arange(-800, 801))
    for j in (-40, -3, 0, 1, 20, 60):
        exact = fixed_size_delta(j * spacing, noise_multiplier, q)
        # At the points of the grid connect-the-dots is exact, between them it is above.
        assert law_delta(law, j * spacing) == pytest.approx(exact, rel=1e-9, abs=1e-14)
        between = (j + 0.4) * spacing
        assert law_delta(law, between) >= fixed_size_delta(between, noise_multiplier, q) - 1e-15
    for target in (0.3 * q / noise_multiplier, 2.0 / noise_multiplier * q):
        delta = fixed_size_delta(target, noise_multiplier, q)
        found = pld.epsilon([(pair, 1)], delta)
        assert target <= found * (1 + 1e-9) <= target * (1 + 5e-4)


@pytest.mark.parametrize(
    ("noise_multiplier", "steps", "delta"),
    [
        (0.3, 3, 1e-5),
        (1.0, 1, 1e-6),
        (5.0, 100, 1e-9),
        (300.0, 50_000, 1e-5),
        (2.0, 7, 1e-30),
        (1.0, 4, 0.3),
    ],
)
def test_composed_gaussians_are_one_gaussian(noise_multiplier, steps, delta):
    total = noise_multiplier / math.sqrt(steps)
    for pair in (
        pairs.gaussian(noise_multiplier),
        pairs.gaussian_without_replacement(noise_multiplier, 1.0),
    ):
        found = pld.epsilon([(pair, steps)], delta)
        # Never below the truth, and close above it.
        assert gaussian_delta(found, total) <= delta
        assert gaussian_delta(found * (1 - 1e-4), total) > delta


@pytest.mark.parametrize(
    ("q", "noise_multiplier", "steps", "delta"),
    [
        (0.01, 1.0, 1000, 1e-6),
        (0.2, 3.0, 50, 1e-5),
        (1e-4, 0.5, 10, 1e-8),
        (0.5, 0.6, 20, 1e-5),
        (1e-3, 0.7, 100_000, 1e-6),
        (0.9, 20.0, 300, 1e-10),
    ],
)
def test_poisson_sampling_agrees_with_dp_accounting(q, noise_multiplier, steps, delta):
    accountant = PLDAccountant()
    accountant.compose(PoissonSampledDpEvent(q, GaussianDpEvent(noise_multiplier)), steps)
    pair = pairs.poisson_gaussian(noise_multiplier, q)
    found = max(pld.epsilon([(p, steps)], delta) for p in (pair, pairs.reverse(pair)))
    assert found == pytest.approx(accountant.get_epsilon(delta), rel=3e-4)


@pytest.mark.parametrize(("q", "noise_multiplier", "steps"), [(0.02, 0.8, 200), (0.3, 5.0, 50)])
def test_never_below_an_optimistic_discretization(q, noise_multiplier, steps):
    optimistic = privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier, pessimistic_estimate=False, sampling_prob=q, use_connect_dots=False
    ).self_compose(steps)
    pair = pairs.poisson_gaussian(noise_multiplier, q)
    found = pld.epsilon([(pair, steps)], 1e-6)
    assert found >= optimistic.get_epsilon_for_delta(1e-6)


@pytest.mark.parametrize(
    ("pair", "count", "spacing", "tilt"),
    [
        (pairs.poisson_gaussian(1.0, 0.01), 1000, 1e-3, 5.0),
        (pairs.gaussian_without_replacement(0.95, 1e-5), 100_000, 1e-5, 50.0),
        (pairs.gaussian(3.0), 5, 1e-3, 8.0),
    ],
)
def test_the_bound_on_rounding_holds_against_extended_precision(pair, count, spacing, tilt):
    low, high = pair.support(1e-18)
    grid = spacing * np.arange(math.floor(low / spacing), math.ceil(high / spacing) + 1)
    law = pld_window.discretize(pair, grid)
    losses = spacing * np.arange(-(2**15), 2**15)
    masses, errors = convolution._convolve([(law, count)], losses, tilt)

    log_mean = pld_window.log_moments(law, np.array([tilt]))[0]
    tilted = law.masses * np.exp(tilt * law.losses - log_mean)
    folded = np.bincount(np.rint(law.losses / spacing).astype(int) % 2**16, tilted, 2**16)
    transform = fft.rfft(folded.astype(np.longdouble))
    exact = np.roll(fft.irfft(np.exp(count * np.log(transform)), 2**16), 2**15)
    exact = exact * np.exp(np.minimum(count * log_mean - tilt * losses.astype(np.longdouble), 300))
    weights = np.random.default_rng(0).random(2**16) * (exact > 0)
    for start in (2**15 + 500, 2**15 + 5000, 2**15 + 20_000):
        found, true = ((weights * m)[start:].sum() for m in (masses, np.maximum(exact, 0)))
        assert abs(float(found - true)) <= errors[start - 1]


def test_laplace_composition_agrees_with_dp_accounting():
    accountant = PLDAccountant()
    accountant.compose(dp_accounting.LaplaceDpEvent(7.0), 30)
    found = pld.epsilon([(pairs.laplace(7.0), 30)], 1e-6)
    assert found == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-4)
    # One release is pure DP: no δ makes ε larger than 1/scale.
    assert pld.epsilon([(pairs.laplace(2.0), 1)], 1e-12) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize(("epsilon", "failure"), [(0.1, 0.0), (0.5, 1e-8)])
def test_composition_of_black_boxes_is_the_optimal_composition(epsilon, failure):
    # Kairouz, Oh and Viswanath 2015, Theorem 3.3: a sum over how many of the k outcomes are likely.
    k, delta = 20, 1e-5
    found = pld.epsilon([(pairs.approximate_dp(epsilon, failure), k)], delta)

    def exact(target):
        likely = np.arange(k + 1)
        loss = (2 * likely - k) * epsilon
        terms = stats.binom.pmf(likely, k, special.expit(epsilon)) * -np.expm1(
            np.minimum(target - loss, 0)
        )
        survive = (1 - failure) ** k
        return 1 - survive * (1 - terms.sum())

    assert exact(found) <= delta
    assert exact(found - 0.01) > delta


def test_mixed_composition_lies_between_its_parts_and_their_sum():
    gaussian, laplace = (pairs.gaussian(8.0), 10), (pairs.laplace(10.0), 20)
    together = pld.epsilon([gaussian, laplace], 1e-6)
    apart = [pld.epsilon([component], 5e-7) for component in (gaussian, laplace)]
    assert max(pld.epsilon([c], 1e-6) for c in (gaussian, laplace)) < together < sum(apart)
    assert together == pytest.approx(pld.epsilon([laplace, gaussian], 1e-6), rel=1e-12)
    split = pld.epsilon([gaussian, (laplace[0], 5), (laplace[0], 15)], 1e-6)
    assert split == pytest.approx(together, rel=1e-6)


def test_fewer_points_never_give_a_smaller_epsilon():
    pair = pairs.gaussian_without_replacement(1.0, 0.01)
    found = [pld.epsilon([(pair, 3000)], 1e-6, max_points=2**k) for k in (19, 15, 12, 10)]
    assert all(fine <= coarse * (1 + 1e-6) for fine, coarse in itertools.pairwise(found))
    assert found[-1] > found[0]


def test_nothing_costs_nothing_and_certain_failure_everything():
    assert pld.epsilon([], 1e-6) == 0.0
    assert pld.epsilon([(pairs.gaussian(1.0), 0)], 1e-6) == 0.0
    assert pld.epsilon([(pairs.gaussian(1e9), 1)], 1e-6) == 0.0
    assert pld.epsilon([(pairs.approximate_dp(0.1, 1e-3), 1)], 1e-4) == math.inf
