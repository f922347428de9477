"""Average: the weights of the iterates, and the precision they are kept in."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax import transforms


@pytest.mark.parametrize("power", [0.0, 1.0, 3.0])
def test_average_weights_are_rising_powers(power, rng):
    moves = rng.normal(size=(12, 4))
    transformation = transforms.average(power)
    params = jnp.zeros(4)
    state = transformation.init(params)
    np.testing.assert_array_equal(transforms.average_eval_params(state, params), params)
    for move in jnp.float32(moves):
        passed, state = transformation.update(move, state, params)
        np.testing.assert_array_equal(passed, move)
        params = optax.apply_updates(params, passed)
    steps = np.arange(1, 13)
    weights = np.prod([steps + shift for shift in range(int(power))], axis=0) * np.ones(12)
    expected = weights @ np.cumsum(moves, axis=0) / weights.sum()
    averaged = transforms.average_eval_params((optax.EmptyState(), state), params)
    np.testing.assert_allclose(averaged, expected, atol=1e-5)


def test_average_of_narrow_parameters_is_kept_wide():
    # Uniform average of many equal moves: in bfloat16 the running mean would stand still at 2^-8.
    transformation = transforms.average()
    params = jnp.zeros((), jnp.bfloat16)

    def step(carry, iterate):
        params, state = carry
        state = transformation.update(iterate - params, state, params)[1]
        return (iterate, state), None

    iterates = jnp.asarray(jnp.where(jnp.arange(2000) < 1000, 0.0, 1.0), jnp.bfloat16)
    (params, state), _ = jax.lax.scan(step, (params, transformation.init(params)), iterates)
    averaged = transforms.average_eval_params(state, params)
    assert averaged.dtype == jnp.bfloat16
    assert averaged == pytest.approx(0.5, abs=2e-3)


def test_shares_are_weights_over_their_sums(rng):
    moves, weights = rng.normal(size=(7, 3)), rng.uniform(size=7)
    weights[:2] = 0.0
    shares = weights / np.maximum(np.cumsum(weights), 1e-9)
    transformation = transforms.average(shares=shares)
    params = jnp.ones(3)
    state = transformation.init(params)
    for step, move in enumerate(jnp.float32(moves)):
        _, state = transformation.update(move, state, params)
        params = optax.apply_updates(params, move)
        if step < 2:
            np.testing.assert_array_equal(transforms.average_eval_params(state, params), 1.0)
    points = 1.0 + np.cumsum(moves, axis=0)
    expected = weights @ points / weights.sum()
    found = transforms.average_eval_params(state, params)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
