"""Calibration ends on the private side, close to the best value, on the host and in one program."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy

_rng = np.random.default_rng(1)
_CASES = [
    (float(eps), float(delta), int(steps), float(q))
    for eps, delta, steps, q in zip(
        np.exp(_rng.uniform(np.log(0.05), np.log(20), 25)),
        10.0 ** _rng.uniform(-10, -2, 25),
        np.exp(_rng.uniform(0, np.log(1e6), 25)),
        np.exp(_rng.uniform(np.log(1e-5), 0, 25)),
        strict=True,
    )
] + [(1e-3, 1e-10, 10**6, 1.0), (100.0, 1e-2, 1, 1e-5), (1e-6, 1e-9, 10, 0.5), (1e5, 0.5, 1, 1.0)]


def _spent(sigma, q, steps, delta):
    loss = privacy.poisson_subsampled_gaussian(sigma, q)
    return privacy.epsilon(privacy.scale(loss, steps), delta)


@pytest.mark.parametrize("case", _CASES)
def test_the_least_noise_on_the_host(case):
    eps, delta, steps, q = case
    sigma = privacy.calibrate_noise_multiplier(eps, delta, steps, q)
    assert isinstance(sigma, float)
    assert _spent(sigma, q, steps, delta) <= eps
    assert sigma < 0.0101 or _spent(sigma * (1 - 1e-6), q, steps, delta) > eps


@pytest.mark.slow
def test_the_least_noise_in_one_program():
    calibrate = jax.jit(chex.assert_max_traces(privacy.calibrate_noise_multiplier, n=1))
    cases = np.asarray([case for case in _CASES if case[0] > 1e-3], np.float32)
    eps, delta, steps, q = (jnp.asarray(column) for column in cases.T)
    sigma = calibrate(eps, delta, steps, q)
    assert np.all(jax.jit(_spent)(sigma, q, steps, delta) <= eps)
    for found, case in zip(np.float64(sigma), np.float64(cases), strict=True):
        eps, delta, steps, q = case
        assert _spent(found, q, steps, delta) <= eps, "float32 is on the safe side of float64"
        # ε falls in places so slowly with noise that the last digit of a float32 moves it.
        best = privacy.calibrate_noise_multiplier(eps, delta, steps, q)
        assert found <= best * 1.01 + 1e-6
    assert np.all(calibrate(*map(jnp.asarray, 0.9 * cases.T)) > 0)


def test_the_most_steps_and_the_largest_probability():
    for eps, delta, sigma, q in [
        (1.0, 1e-6, 1.5, 0.01),
        (0.3, 1e-5, 4.0, 0.2),
        (8.0, 1e-9, 0.7, 1e-4),
    ]:
        steps = privacy.calibrate_num_steps(eps, delta, sigma, q)
        assert isinstance(steps, int)
        assert _spent(sigma, q, steps, delta) <= eps < _spent(sigma, q, steps + 1, delta)
        rate = privacy.calibrate_sampling_probability(eps, delta, sigma, max(steps, 1))
        assert _spent(sigma, rate, steps, delta) <= eps
        assert _spent(sigma, rate * (1 + 1e-6), steps, delta) > eps
        assert rate >= q * (1 - 1e-6)
    assert privacy.calibrate_num_steps(0.1, 1e-6, 0.5) == 0
    assert privacy.calibrate_sampling_probability(10.0, 1e-6, 10.0, 1) == 1.0


@pytest.mark.slow
def test_steps_and_probability_in_a_program():
    steps = jax.jit(privacy.calibrate_num_steps)(1.0, 1e-6, 1.5, 0.01)
    assert jnp.issubdtype(steps.dtype, jnp.integer)
    assert 0.999 < int(steps) / privacy.calibrate_num_steps(1.0, 1e-6, 1.5, 0.01) <= 1
    # Only the noise is traced here.
    rate = jax.jit(lambda sigma: privacy.calibrate_sampling_probability(1.0, 1e-6, sigma, 1000))(
        1.5
    )
    host = privacy.calibrate_sampling_probability(1.0, 1e-6, 1.5, 1000)
    assert host * 0.999 <= rate <= host


def test_any_monotone_loss_falling_or_rising():
    falling = privacy.calibrate(
        lambda s: privacy.scale(privacy.laplace(s), 3), 2.0, 1e-6, 0.1, 100.0
    )
    assert privacy.epsilon(privacy.scale(privacy.laplace(falling), 3), 1e-6) <= 2.0
    assert privacy.epsilon(privacy.scale(privacy.laplace(falling * (1 - 1e-6)), 3), 1e-6) > 2.0
    rising = privacy.calibrate(privacy.pure_dp, 2.0, 1e-6, 0.1, 100.0)
    assert privacy.epsilon(privacy.pure_dp(rising), 1e-6) <= 2.0
    assert privacy.epsilon(privacy.pure_dp(rising * (1 + 1e-6)), 1e-6) > 2.0


def test_a_useful_end_that_is_private_enough_is_the_answer():
    assert privacy.calibrate(privacy.gaussian, 100.0, 1e-3, 1.0, 10.0) == 1.0
    assert privacy.calibrate(privacy.pure_dp, 100.0, 1e-3, 1.0, 10.0) == 10.0


def test_what_cannot_be_met_raises_on_the_host_and_is_nan_in_a_program():
    with pytest.raises(ValueError, match="epsilon"):
        privacy.calibrate(privacy.gaussian, 0.1, 1e-6, 0.1, 1.0)
    with pytest.raises(ValueError, match="epsilon"):
        privacy.calibrate_sampling_probability(1e-9, 1e-30, 0.1, 10**9)
    found = jax.jit(lambda e: privacy.calibrate(privacy.gaussian, e, 1e-6, 0.1, 1.0))(
        jnp.asarray([0.1, 10.0])
    )
    assert np.isnan(found[0])
    assert np.isfinite(found[1])


def test_ends_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match="upper"):
        privacy.calibrate(privacy.gaussian, 1.0, 1e-6, 2.0, 1.0)
