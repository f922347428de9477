"""Section A of docs/corrections.md: the printed claim fails, ours holds. Reference values are exact."""

import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from scipy import optimize, stats

from dpsco_jax import privacy, transforms
from dpsco_jax.privacy.curves import tcdp
from tests.support.gaussians import gaussian_delta

REPLACE_ONE = NeighboringRelation.REPLACE_ONE


def largest_distance(epsilon, delta):
    return optimize.brentq(lambda m: gaussian_delta(epsilon, m) - delta, 1e-4, 10)


def test_a1_replacing_a_record_moves_a_sum_by_twice_the_bound():
    aggregate = transforms.clipped_sum(clip_norm=1.0, relation=REPLACE_ONE)
    worst = [
        aggregate.update(jnp.full((1, 1), x), aggregate.init(jnp.zeros(1)))[0] for x in (1.0, -1.0)
    ]
    np.testing.assert_allclose(abs(worst[0] - worst[1]), 2.0, rtol=3e-5)
    assert aggregate.sensitivity == 2.0
    # Full batch, one step: the printed noise of (1, 1e-5) is for a shift of G and meets one of 2G.
    multiplier = 1 / largest_distance(1.0, 1e-5)
    assert gaussian_delta(1.0, aggregate.sensitivity / multiplier) > 0.01
    assert gaussian_delta(1.0, aggregate.sensitivity / (2 * multiplier)) < 1.0001e-5


def test_a1_the_slip_is_not_hidden_by_a_tight_accountant():
    # All other records at -g: a step is N(0, σ²) against the mixture with N(2G, σ²), here from below.
    multiplier, fraction, num_steps, delta = 2.955, 0.01, 1000, 1e-6
    pair = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier / 2,
        pessimistic_estimate=False,
        sampling_prob=fraction,
        use_connect_dots=False,
    )
    truth = pair.self_compose(num_steps).get_epsilon_for_delta(delta)
    assert truth > 1.03

    def certified(noise_multiplier):
        sampling = privacy.WithoutReplacement(10_000, 100)
        event = privacy.events.repeated(sampling.gaussian_event(noise_multiplier), num_steps)
        return privacy.certificate(event, delta, REPLACE_ONE).epsilon

    assert certified(multiplier) < 0.51  # as printed: σ over G
    assert truth < certified(multiplier / 2) < 1.3
    loss = privacy.subsampled_gaussian_without_replacement(multiplier / 2, 10_000, 100, REPLACE_ONE)
    assert privacy.epsilon(privacy.scale(loss, num_steps), delta) > truth


def test_a1_constants_that_make_the_printed_theorem_true():
    # σ = 12 G B sqrt(T log(1/δ))/(εN) under ε ≤ q²T, over the sensitivity 2G; half of it is not enough.
    for epsilon, delta, fraction in ((0.5, 0.5, 0.1), (0.5, 1e-6, 0.01), (0.01, 1e-10, 0.001)):
        num_steps = int(np.ceil(epsilon / fraction**2))
        sigma = 12 * fraction * np.sqrt(num_steps * np.log(1 / delta)) / epsilon
        step = tcdp.subsampled(tcdp.gaussian(sigma / 2), fraction)
        assert tcdp.epsilon(tcdp.scale(step, num_steps), delta) <= epsilon


def test_a2_the_truncation_of_a_subsampled_step():
    inner = tcdp.gaussian(noise_multiplier=7.0)
    omega = tcdp.subsampled(inner, 0.1).omega
    np.testing.assert_allclose(omega, np.log(10) / (4 * inner.rho))
    assert omega < 0.6 / inner.rho  # printed: 1/rho


def test_a3_sampling_with_replacement_costs_more():
    # One user contributes 0 or Δ = 1, all others 0; the noise is (1, 1e-6)-DP for a change of 1.
    num_users = 1000
    sigma = 1 / largest_distance(1.0, 1e-6)
    copies = np.arange(60)
    x = np.linspace(-12 * sigma, 40 + 12 * sigma, 40_001)
    density = stats.norm.pdf(x, copies[:, None], sigma)
    for batch_size, amplified in ((1000, np.e - 1), (1000, 1.0), (500, np.log1p((np.e - 1) / 2))):
        weights = stats.binom.pmf(copies, batch_size, 1 / num_users)
        gap = np.maximum(weights @ density - np.exp(amplified) * density[0], 0)
        truth = np.trapezoid(gap, x)
        assert truth > 1.3 * (batch_size / num_users) * 1e-6
        loss = privacy.subsampled_gaussian_with_replacement(sigma, num_users, batch_size)
        assert privacy.delta(loss, amplified) >= truth


def test_a4_poisson_sampling_refuses_replacement():
    # The size of the sample, and randomized response on the bit of the one user if sampled.
    epsilon, q = 1.0, 0.1
    keeps, flips = np.exp(epsilon) / (1 + np.exp(epsilon)), 1 / (1 + np.exp(epsilon))
    outputs = np.array([1 - q, q * keeps, q * flips]), np.array([1 - q, q * flips, q * keeps])
    assert np.max(outputs[0] / outputs[1]) > 2 * (1 + q * (np.exp(epsilon) - 1))
    # A Gaussian has a curve of its own under replacement, above the amplified one.
    ours = privacy.Poisson(q).gaussian_loss(1.0, REPLACE_ONE).rdp
    assert np.all(ours[:100] > 0)
    with pytest.raises(ValueError, match="relation"):
        privacy.poisson_subsampled_gaussian(1.0, q, REPLACE_ONE)


def test_a5_composition_keeps_every_delta():
    # Publishes everything with probability δ, else nothing: k times, it fails with 1 - (1 - δ)^k.
    delta, count = 1e-3, 50
    loss = privacy.scale(privacy.approximate_dp(0.0, delta), count)
    fails = -np.expm1(count * np.log1p(-delta))
    assert privacy.epsilon(loss, fails * 0.99) == np.inf
    assert privacy.delta(loss, 20.0) >= fails
    assert count * delta / 2 < fails  # printed, with δ₀ → 0


def test_a6_the_classical_gaussian_formula_fails_for_large_epsilon():
    def printed(epsilon, delta):
        return np.sqrt(2 * np.log(2 / delta)) / epsilon

    assert gaussian_delta(10.0, 1 / printed(10.0, 1e-6)) > 1.1e-6
    for epsilon in (0.1, 1.0, 2 * np.log(4)):
        for delta in (1e-9, 1e-2, 0.9):
            assert gaussian_delta(epsilon, 1 / printed(epsilon, delta)) <= delta
    ours = privacy.calibrate_noise_multiplier(10.0, 1e-6, num_steps=1)
    assert gaussian_delta(10.0, 1 / ours) <= 1e-6


def test_a7_the_gaussian_curve_is_inverted_exactly():
    for epsilon, delta in ((10.0, 1e-6), (5.0, 0.01)):
        a = np.sqrt(2 * np.log(1 / (2 * delta)))
        printed, fact = epsilon / a, np.sqrt(a**2 + 2 * epsilon) - a
        assert gaussian_delta(epsilon, printed) > 1.15 * delta
        assert gaussian_delta(epsilon, fact) <= delta
        assert privacy.delta(privacy.gdp(printed), epsilon) > delta
