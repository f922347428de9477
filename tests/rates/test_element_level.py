"""Element-level rates: golden values of noise, moments by simulation, Proposition 1 on Zipf items."""

import math

import numpy as np
import pytest

from dpsco_jax.mechanisms import heavy_hitters
from dpsco_jax.privacy import accountants
from dpsco_jax.rates import element_level

# ε, δ, E (1) as printed, with 1/ε always, exact.
NOISE = [
    (0.5, 1e-5, 9.59705182, 9.70069089, 7.03182668),
    (1, 1e-5, 4.79852591, 4.90161717, 3.73063163),
    (1, 1e-6, 5.25652177, 5.35079631, 4.22467889),
    (2, 1e-6, 2.72171918, 2.72171918, 2.23047627),
    (3, 1e-5, 1.70051793, 1.70051793, 1.39059346),
    (8, 1e-6, 0.74614657, 0.74614657, 0.652935384),
]


def test_noise_to_all_digits():
    for epsilon, delta, printed, always, exact in NOISE:
        found = element_level.gaussian_sigma_paper(epsilon, delta)
        assert found == pytest.approx(printed, abs=6e-9)
        found = element_level.gaussian_sigma_paper(epsilon, delta, 3.0, always=True)
        assert found / 3.0 == pytest.approx(always, abs=6e-9)
        found = accountants.gaussian_noise_multiplier(epsilon, delta)
        assert found == pytest.approx(exact, abs=6e-9)


def test_without_the_first_term_the_noise_is_too_small_for_a_large_epsilon():
    """δ at ε = 10 of the form with 2 ln(1/δ)/ε² alone, from the exact curve in mpmath."""
    mpmath = pytest.importorskip("mpmath")
    sigma = mpmath.sqrt(2 * mpmath.log(1e5)) / 10
    half, shift = 1 / (2 * sigma), 10 * sigma
    delta = mpmath.ncdf(half - shift) - mpmath.exp(10) * mpmath.ncdf(-half - shift)
    assert float(delta / 1e-5) == pytest.approx(2.9, abs=0.05)
    # With it, as printed for ε > 1, it holds.
    assert element_level.gaussian_sigma_paper(10, 1e-5) > accountants.gaussian_noise_multiplier(
        10, 1e-5
    )


def test_moments_of_indicators():
    rng, m, p, draws = np.random.default_rng(0), 20, (0.03, 0.01), 100_000
    seen = rng.multinomial(m, [*p, 1 - sum(p)], draws)[:, :2] > 0
    for j in range(2):
        q = element_level.presence(p[j], m)
        assert abs(seen[:, j].mean() - q) < 4 * math.sqrt(q * (1 - q) / draws)
    both = element_level.joint_presence(*p, m)
    assert abs(seen.all(axis=1).mean() - both) < 4 * math.sqrt(both / draws)
    # Not the product: draws of one user are tied.
    assert both < 0.99 * element_level.presence(p[0], m) * element_level.presence(p[1], m)
    assert element_level.presence(1.0, 3) == 1.0
    assert element_level.presence(0.0, 3) == 0.0


def test_proposition_1_holds_on_zipf_items():
    rng, n, m, d, sigma, t = np.random.default_rng(0), 20_000, 50, 200, 40.0, 4.0
    p = 1 / (np.arange(d) + 100.0)
    p /= p.sum()
    gaps = {
        constants: element_level.ordering_gap(n, m, d, p[0], sigma, t, constants)
        for constants in ("tight", "theorem")
    }
    assert gaps["tight"] < gaps["theorem"] < p[0] - p[-1], "there must be pairs to get wrong"
    wrong = []
    for _ in range(8):
        seen = np.zeros(d)
        for _ in range(0, n, 5000):
            seen += np.sum(rng.multinomial(m, p, 5000) > 0, axis=0)
        noisy = seen + sigma * rng.standard_normal(d)
        wrong.append([heavy_hitters.ordering_loss(noisy, p, gap) for gap in gaps.values()])
    assert np.all(np.mean(wrong, axis=0) <= t**2)
    below = heavy_hitters.ordering_loss(noisy, p, gaps["tight"] / 20)
    assert below > t**2, "the loss that is bounded is not zero everywhere"


def test_theorem_and_tight_are_the_paper_s_chernoff_bound():
    n, m, d, t, p = 10_000, 100, 1000, 3.0, 0.004
    log = math.log(d / t)
    for sigma in (0.0, 5.0, 500.0):
        gap = element_level.ordering_gap(n, m, d, p, sigma, t)
        mean = n * m * gap / 2
        exponent = min(5 * mean**2 / (12 * n * 3 * m * p + 20 * sigma**2), mean / 8)
        assert exponent == pytest.approx(2 * log)
        assert gap <= element_level.ordering_gap(n, m, d, p, sigma, t, "theorem") <= 1.5 * gap


def test_radius():
    assert element_level.projection_radius(400, 0.01, 3.0) == pytest.approx(
        12 + 4 * math.log2(400) + 3
    )
    assert element_level.projection_radius(400, 0.9, 3.0) == 400.0
    printed = element_level.projection_radius(400, 0.01, 3.0, "printed")
    assert printed == pytest.approx(15 + 3 * math.log(400))


def test_proposition_2_bias_is_within_its_bound():
    """P(Y > ρ)·m for Y binomial, exactly: what the projection can take from a cluster."""
    import scipy.stats

    for m in (3, 20, 400, 4000):
        for share in (1e-5, 1e-3, 0.05, 0.2):
            for t in (0.0, 3.0, 8.0):
                radius = element_level.projection_radius(m, share, t)
                if radius < m:
                    bias = m * scipy.stats.binom.sf(math.floor(radius), m, share)
                    assert bias <= 2 ** (2 - t) * share


def test_covariance_of_averaged_sgd_in_one_dimension():
    q, sigma, gamma, batch, noise = 2.0, 3.0, 0.5, 10.0, 4.0
    found = element_level.averaged_sgd_covariance([[q]], [[sigma]], gamma, batch, noise)
    assert found.item() == pytest.approx(
        (sigma + (sigma / batch + noise**2 / batch**2) / gamma) / q**2
    )
    hessian = np.array([[1.0, 0.3], [0.3, 0.7]])
    users, steps = np.array([[2.0, 0.5], [0.5, 1.0]]), np.eye(2)
    found = element_level.averaged_sgd_covariance(
        hessian, users, 2.0, 5.0, 0.0, step_second_moment=steps
    )
    inverse = np.linalg.inv(hessian)
    np.testing.assert_allclose(found, inverse @ (users + steps / 10) @ inverse)


def test_averaged_sgd_has_this_covariance():
    """A quadratic with a known minimum, steps with noise: the variance over runs of √n(mean - θ*)."""
    rng, n, gamma, batch, noise, runs = np.random.default_rng(0), 100, 4.0, 10.0, 10.0, 2000
    q, spread, theta, total = 1.0, 1.0, np.zeros(2000), np.zeros(2000)
    centre = spread * rng.standard_normal((runs, n))
    steps = int(gamma * n)
    for k in range(1, steps + 1):
        sampled = rng.random((runs, n)) < batch / n
        slope = np.sum(sampled * (theta[:, None] - centre), axis=1)
        slope = (slope + noise * rng.standard_normal(runs)) / batch
        theta = theta - 0.5 * k**-0.6 * slope
        total += theta
    found = n * np.var(total / steps)
    # Poisson samples vary by 1 - q less than S says, 10 % here; the steps are few.
    expected = element_level.averaged_sgd_covariance([[q]], [[spread]], gamma, batch, noise).item()
    assert expected == pytest.approx(1 + (1 / 10 + 100 / 100) / 4)
    assert found == pytest.approx(expected, rel=0.12)  # misplaced brackets divide Σ too: 0.53


def test_arguments():
    good = {"num_users": 10, "items_per_user": 5, "num_items": 4, "largest_probability": 0.1,
            "stddev": 1.0, "mistakes": 1.0}  # fmt: skip
    for changes, named in [
        ({"largest_probability": 0.2}, "largest_probability"),
        ({"mistakes": 4.0}, "mistakes"),
        ({"stddev": -1.0}, "stddev"),
        ({"constants": "loose"}, "constants"),
    ]:
        with pytest.raises(ValueError, match=named):
            element_level.ordering_gap(**(good | changes))
    with pytest.raises(ValueError, match="smaller"):
        element_level.misorder_probability(0.1, 0.2, 10, 5, 1.0)
    with pytest.raises(ValueError, match="items_per_user"):
        element_level.projection_radius(2, 0.1, 0.0)
    with pytest.raises(ValueError, match="hessian"):
        element_level.averaged_sgd_covariance([[1.0, 2.0]], [[1.0]], 1.0, 1.0, 1.0)
