"""Section Z of docs/corrections.md: the printed claim fails, ours holds."""

import math

import numpy as np
from scipy import stats

from dpsco_jax import privacy
from dpsco_jax.privacy import ORDERS, resque
from dpsco_jax.privacy.resque import ResqueCall, call_loss, calls_epsilon, calls_loss
from dpsco_jax.privacy.resque._amplification import subsampled_rdp
from dpsco_jax.privacy.resque._drift import drift_factor, log_difference_norm, log_weight_norm
from tests.support import resque as reference


def test_z1_a_start_outside_of_the_ball():
    failure = 1e-6
    largest = drift_factor(1024, 12.0, failure)
    for distance, fits in ((1.0, True), (5.0, False)):
        a = distance / 12.0
        chance = stats.norm.sf(math.log(largest) / a + 0.5 * a)
        assert (chance <= failure) == fits
    assert chance > 0.05
    # Noise of the first phase in 20 dimensions, in radii, at a usual β.
    assert 2 / (4 * math.sqrt(1024)) / 0.02 * math.sqrt(20) > 3


def test_z2_averages_drift_more_than_last_iterates():
    # One dimension, ρ = 4 r, two steps; the second has the loss |x| for both runs.
    rho, step, trials = 4.0, 0.5, 20_000
    xi = rho * np.random.default_rng(0).normal(size=trials)
    first = np.stack([np.full(trials, -step), np.full(trials, step)])
    weight = np.exp(first * xi / rho**2 - first**2 / (2 * rho**2))
    second = np.clip(first - step * weight * np.sign(xi), -1, 1)
    last = np.abs(second[1] - second[0])
    average = np.abs((first + second)[1] - (first + second)[0]) / 2
    assert np.mean(average) > np.mean(last) + 5 * np.std(average - last) / math.sqrt(trials)
    assert np.mean(average**2) ** 0.5 <= 2 * step * drift_factor(4, rho, 1.0)


def test_z3_three_pairs_fail_three_times_as_often():
    # Shifts that are bad for one pair each: every two agree except with probability δ, all three 1 - 3δ.
    failure = 0.1
    shift = np.random.default_rng(0).uniform(size=100_000)
    bad = [(shift >= i * failure) & (shift < (i + 1) * failure) for i in range(3)]
    assert all(abs(np.mean(b) - failure) < 0.01 for b in bad)
    assert np.mean(np.any(bad, axis=0)) > 2.5 * failure
    # The accountant: with ternary moments three times δ, with profiles δ.
    call = ResqueCall(256, 0.1, 12.0, 1000)
    in_phase, uses = 1e-9, 255 / 1000
    triple = call_loss(call, 3 * uses * in_phase, "triple")
    expected = subsampled_rdp(resque.conditional_cost(call, in_phase), uses, np.ones(1))
    np.testing.assert_allclose(triple.rdp[:100], expected[:100], rtol=1e-6)
    assert call_loss(call, 3 * uses * in_phase).rdp[50] < triple.rdp[50]


def test_z4_searches_cost_more_than_iterations():
    # Four searches in each of 50 iterations, one run each: ε of what is counted, and of all.
    call = ResqueCall(256, 0.2, 12.0, 3000)
    assert calls_epsilon([(call, 200)], 1e-5) > 1.9 * calls_epsilon([(call, 50)], 1e-5)
    # The truth grows alike: exact divergences of four queries, of which the first can move what is released.
    law = reference.phase(1.0, 1 / 3, [0.5], 1 / 32, -1.0)
    one = ResqueCall(4, 1.0, 32.0, 3)
    at_two = int(np.argmin(np.abs(ORDERS - 2)))
    truth = reference.rdp(*law, 2.0)
    assert call_loss(one, 1e-9).rdp[at_two] < 4 * truth < calls_loss([(one, 4)], 1e-9).rdp[at_two]


def test_z5_the_first_level_violates_conditions_that_the_last_meets():
    queries, failure = 2**12, 1e-6
    levels = math.ceil(math.log2(math.log2(queries)))
    beta = 0.99 * math.sqrt(1 / 3 / 6000) / math.log(2 / failure)
    last, first = (
        ResqueCall(queries >> levels, factor * beta, 1e7, 10**6, True)
        for factor in (1.0, 2 ** (levels / 2))
    )
    assert resque.violated_preconditions(last, failure) == []
    assert any("6000" in message for message in resque.violated_preconditions(first, failure))
    assert 2**levels >= math.log2(queries)


def test_z6_the_direct_bound_is_below_the_quoted_one():
    for tau, s in ((0.1, 0.01), (1 / 3, 0.02), (0.01, 1e-4)):
        short = math.log(1 / s) / (4 * tau)
        assert short < 3 / tau
        bound = subsampled_rdp(tau, s, np.ones(1))
        inside = (ORDERS >= 2) & (min(short, 250) > ORDERS)
        assert np.all(5 * bound[inside] < 13 * s**2 * ORDERS[inside] * tau)


def test_z7_clipped_gradients_are_not_monotone():
    def clipped(x):
        g = np.array([1.0, 100.0]) * x
        return g / max(1.0, np.linalg.norm(g))

    x, y = np.array([1.0, 0.0]), np.array([2.0, 0.05])
    np.testing.assert_allclose((clipped(x) - clipped(y)) @ (x - y), -0.58, atol=0.01)
    # Growth without monotonicity, at T̂ = 1024.
    a, halves = 1 / 12, np.arange(1, 200)
    step = 2 * a / (4 * math.sqrt(1024))
    growth = 512 * np.log1p(step * np.exp(log_difference_norm(2.0 * halves, a)))
    log_f = growth + log_weight_norm(2.0 * halves, a) + math.log(1e6) / (2 * halves)
    assert np.exp(log_f.min()) > 25 > 10 * drift_factor(1024, 12.0, 1e-6)


def test_z8_constants_and_the_rate():
    # (b) Shift² = 1500 b² (ηL)², noise ηL/β: half of the printed 1500 α β² b².
    beta = 0.01
    half = privacy.gaussian(1 / (math.sqrt(1500) * beta)).rdp
    np.testing.assert_allclose(half, 750 * ORDERS * beta**2, rtol=1e-12)
    # (c)
    for draws, users, most in ((20, 1000, 1), (100, 50, 2), (1000, 60_000, 4)):
        chances = stats.binom.pmf(np.arange(most + 1), draws, 1 / users)
        assert chances[1:].sum() / chances.sum() <= 1 - (1 - 1 / users) ** draws
    # (d)
    batches = [call_loss(ResqueCall(size, 0.05, 12.0, 4 * size), 1e-9) for size in (64, 32, 16)]
    together = privacy.parallel(*batches)
    assert np.all(together.rdp == np.max([loss.rdp for loss in batches], axis=0))
