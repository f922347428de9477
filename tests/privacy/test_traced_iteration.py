"""The last point of noisy iterations for traced numbers: 60 digits, limits, numbers that are none."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpsco_jax import privacy

STEPS = (1, 2, 7, 100, 1000, 10**6)
SHARES = (0.0, 1e-35, 1e-20, 1e-9, 1e-6, 1e-4, 0.01, 0.3, 0.9, 0.999999, 1.0)


def _exact(steps, share):
    with mpmath.workdps(60):
        c = 1 - mpmath.mpf(share)
        if c == 1:
            return mpmath.sqrt(steps)
        return mpmath.sqrt((1 - c**steps) * (1 + c) / ((1 + c**steps) * (1 - c)))


@pytest.mark.parametrize("steps", STEPS)
def test_it_is_above_the_exact_value_by_roundings_in_both_precisions(steps):
    traced = jax.jit(lambda q: privacy.last_iterate_mu(steps, q, 0.5))
    for share in SHARES:
        found = float(privacy.last_iterate_mu(steps, share, 0.5))
        assert 0 <= found / float(2 * _exact(steps, share)) - 1 <= 64 * 2.0**-52
        narrow = np.float32(share)
        found = float(traced(jnp.float32(share)))
        assert 0 <= found / float(2 * _exact(steps, float(narrow))) - 1 <= 64 * 2.0**-23


def test_it_is_the_function_of_the_host_and_its_loss_that_of_gaussian_privacy():
    mu = privacy.last_iterate_mu(300, 0.02, 4.0)
    assert mu == pytest.approx(privacy.last_iterate_gdp(300, 0.98, 4.0), rel=1e-10)
    loss = privacy.last_iterate_loss(300, 0.02, 4.0)
    np.testing.assert_allclose(loss.rdp, privacy.gdp(mu).rdp, rtol=1e-12)
    batched = privacy.last_iterate_loss(300, jnp.asarray([0.0, 0.02]), jnp.asarray([4.0, 4.0]))
    assert batched.rdp.shape == (2, len(privacy.ORDERS))
    assert np.all(batched.rdp[0] > 2 * batched.rdp[1])


@pytest.mark.parametrize(
    "numbers",
    [
        (3, -0.1, 1.0), (3, 1.1, 1.0), (3, math.nan, 1.0), (3, 0.5, 0.0), (3, 0.5, -1.0),
        (3, 0.5, math.nan), (2.5, 0.5, 1.0), (0, 0.5, 1.0), (math.inf, 0.5, 1.0), (math.nan, 0.5, 1.0),
    ],
)  # fmt: skip
def test_what_is_no_number_of_an_iteration_costs_infinity(numbers):
    traced = [jnp.float32(x) for x in numbers]
    assert jax.jit(privacy.last_iterate_mu)(*traced) == math.inf
    assert np.all(np.isinf(jax.jit(privacy.last_iterate_loss)(*traced).rdp))
    if numbers[2] != 0.0:
        with pytest.raises(ValueError, match="must be"):
            privacy.last_iterate_loss(*numbers)
