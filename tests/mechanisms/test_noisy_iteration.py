"""The last point of a noisy iteration: its law on a linear map, its noise, its keys, its refusals."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.mechanisms import noisy_iteration


def _line(key, pull, steps=30):
    return noisy_iteration.last_point(
        key, jnp.zeros(2), lambda t, x: pull - 0.2 * x, lambda x: x, steps, 0.05, 3.0
    )


def test_the_law_on_a_linear_map():
    keys = jax.random.split(jax.random.key(0), 20_000)
    found = np.asarray(jax.jit(jax.vmap(lambda k: _line(k, 0.1)))(keys), float)
    powers = 0.8 ** np.arange(30)
    spread = 0.15 * math.sqrt(np.sum(powers**2))
    assert np.all(np.abs(found.mean(0) - 0.1 * powers.sum()) <= 4 * spread / math.sqrt(20_000))
    np.testing.assert_allclose(found.std(0), spread, rtol=4 / math.sqrt(40_000))
    assert abs(np.corrcoef(found.T)[0, 1]) <= 4 / math.sqrt(20_000)


def test_every_step_is_projected_and_has_noise_of_its_own():
    ends = [
        noisy_iteration.last_point(
            jax.random.key(1), {"a": jnp.zeros(1)}, lambda t, x: x, lambda x: x, steps, 1.0, 1.0
        )["a"][0]
        for steps in (1, 2)
    ]
    # The second step adds noise to twice the first: were it the same, it would be three times the first.
    assert abs(float(ends[1] - 3 * ends[0])) > 1e-3
    inside = noisy_iteration.last_point(
        jax.random.key(2),
        jnp.zeros(3),
        lambda t, x: x + 10.0,
        lambda x: jnp.clip(x, -1, 1),
        5,
        1.0,
        1.0,
    )
    np.testing.assert_array_equal(inside, 1.0)


def test_params_are_real():
    with pytest.raises(ValueError, match="params must be"):
        noisy_iteration.last_point(
            jax.random.key(0), jnp.zeros(2, int), lambda t, x: x, lambda x: x, 2, 1.0, 1.0
        )
