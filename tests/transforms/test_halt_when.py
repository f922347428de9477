"""Halting: what stops, what goes on, and what a halted run says that it has cost."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax import privacy, transforms


def counting(limit):
    """A private chain that halts on its update number ``limit``."""
    inner = optax.chain(
        transforms.privatize(transforms.clipped_sum(1.0), jax.random.key(0), 3.0),
        optax.trace(0.5),
        transforms.average(),
    )
    return transforms.halt_when(inner, lambda state, updates: state[2].steps >= limit)


@pytest.fixture(scope="module")
def runs():
    """All states and updates of eight steps, halting on the fourth or never, from one compilation."""

    @jax.jit
    def run(limit):
        transformation = counting(limit)
        params = jnp.ones(2)

        def step(carry, updates):
            params, state = carry
            moves, state = transformation.update(updates, state, params)
            return (params + moves, state), (moves, state, jax.random.key_data(state.inner[0].key))

        updates = jnp.ones((8, 4, 2)).at[6].set(jnp.nan)
        (params, _), trace = jax.lax.scan(step, (params, transformation.init(params)), updates)
        return params, trace

    return run(4), run(100)


def test_updates_stop_with_the_one_that_meets_the_condition(runs):
    (params, (moves, state, _)), (_, (free_moves, _, _)) = runs
    np.testing.assert_allclose(moves[:3], free_moves[:3], rtol=1e-6)
    assert np.all(moves[3:] == 0)
    np.testing.assert_array_equal(state.halted, np.arange(8) >= 3)
    np.testing.assert_array_equal(state.steps, [1, 2, 3, 3, 3, 3, 3, 3])
    np.testing.assert_allclose(params, 1 + np.sum(moves, axis=0), rtol=1e-5)


def test_state_is_that_of_the_last_applied_update(runs):
    (params, (_, state, _)), _ = runs
    for leaf in jax.tree.leaves((state.inner[1], state.inner[2])):
        for later in range(3, 8):
            np.testing.assert_array_equal(leaf[later], leaf[2])
    averaged = transforms.average_eval_params(jax.tree.map(lambda leaf: leaf[-1], state), params)
    assert np.all(np.isfinite(averaged))


def test_ledger_does_not_tell_when_the_chain_halted(runs):
    (_, (_, state, _)), (_, (_, free_state, _)) = runs
    for spent in (privacy.privacy_spent(state), privacy.privacy_spent(free_state)):
        for step in range(8):
            np.testing.assert_allclose(spent.rdp[step], (step + 1) * privacy.ORDERS / 18, rtol=1e-5)


def test_keys_advance_after_the_halt(runs):
    (_, (_, _, keys)), (_, (_, _, free_keys)) = runs
    np.testing.assert_array_equal(keys, free_keys)
    assert len(np.unique(keys, axis=0)) == 8


def test_halts_on_updates_that_are_not_finite():
    transformation = transforms.halt_when(
        optax.sgd(1.0), lambda state, updates: ~jnp.all(jnp.isfinite(updates))
    )
    state = transformation.init(jnp.zeros(2))
    for updates, expected in [([1.0, 2.0], [-1.0, -2.0]), ([jnp.nan, 1.0], 0), ([1.0, 1.0], 0)]:
        moves, state = transformation.update(jnp.array(updates), state)
        np.testing.assert_array_equal(moves, np.broadcast_to(expected, 2))
    assert state.halted
