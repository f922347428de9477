"""Posterior means against the truth, the best linear rule, and what they must do in the limits."""

import jax
import numpy as np
import pytest

from dpsco_jax.mechanisms import denoising

RARE = np.random.default_rng(0).exponential(1e-3, 400)
TRUTH = np.concatenate([RARE, np.full(20, 0.1), np.full(4, 0.5)]).astype(np.float32)
NOISE = np.random.default_rng(1).normal(size=len(TRUTH)).astype(np.float32)
ESTIMATE = jax.jit(denoising.posterior_means)


@pytest.mark.parametrize("stddev", [0.005, 0.02])
def test_small_numbers_are_right_on_average_and_large_ones_are_left_alone(stddev):
    noisy = TRUTH + stddev * NOISE
    found = np.asarray(ESTIMATE(noisy, stddev, 1.0))
    assert np.all((found > 0) & (found <= 1.0))
    # The mean of 400 noisy values is known to stddev/20.
    assert abs(found[:400].mean() - RARE.mean()) < 4 * stddev / 20
    np.testing.assert_allclose(found[-4:], 0.5, atol=4 * stddev + 0.02)  # and the atoms
    assert np.sum((found - TRUTH) ** 2) < 0.3 * np.sum((noisy - TRUTH) ** 2)


def test_beats_every_line_through_the_noisy_values():
    stddev = 0.02
    noisy = TRUTH + stddev * NOISE
    slope, intercept = np.polyfit(noisy, TRUTH, 1)  # the best line in hindsight
    line = np.sum((slope * noisy + intercept - TRUTH) ** 2)
    assert np.sum((np.asarray(ESTIMATE(noisy, stddev, 1.0)) - TRUTH) ** 2) < 0.6 * line


def test_exact_values_stay_and_scales_do_not_matter():
    np.testing.assert_allclose(ESTIMATE(TRUTH[400:], 1e-4, 1.0), TRUTH[400:], rtol=0.1)
    noisy = TRUTH + 0.02 * NOISE
    once = ESTIMATE(noisy, 0.02, 1.0)
    np.testing.assert_allclose(ESTIMATE(8 * noisy, 0.16, 8.0), 8 * once, rtol=1e-3)


def test_where_noise_is_less_than_the_distance_of_atoms_it_is_not_made_more(rng):
    truth = rng.uniform(0, 1, 300).astype(np.float32)
    noisy = truth + 1e-3 * rng.normal(size=300).astype(np.float32)
    found = np.asarray(ESTIMATE(noisy, 1e-3, 1.0))
    assert np.all((found > 0) & (found <= 1))
    assert np.sum((found - truth) ** 2) < 1.1 * np.sum((noisy - truth) ** 2)


def test_each_value_may_have_its_own_noise():
    stddev = np.where(np.arange(40) < 20, 0.01, 10.0).astype(np.float32)
    truth = np.full(40, 2.0, np.float32)
    found = np.asarray(ESTIMATE(truth + stddev * NOISE[:40], stddev, 9.0))
    np.testing.assert_allclose(found, 2.0, rtol=0.1)  # those without information follow the others
