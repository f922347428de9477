"""Lanes of a batch that have one key, and release different things, cost infinity; lanes that have keys of
their own, or release one thing, cost what they would alone.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax.mechanisms import correlated_noise

ADDED = NeighboringRelation.ADD_OR_REMOVE_ONE
START = jnp.zeros(2)
ROWS = jnp.stack([jnp.zeros((10, 2)), jnp.ones((10, 2))])


def _keys():
    return jax.random.split(jax.random.key(0), 2)


def _release(key, multiplier=5.0, correlation=None):
    mean = transforms.clipped_mean(1.0, 10, ADDED)
    return transforms.privatize(mean, key, multiplier, noise_correlation=correlation)


def _run(key, rows, multiplier=5.0, steps=2, correlation=None):
    """What is spent, rows being scaled by what was released, so that lanes that differ go on to."""
    release = _release(key, multiplier, correlation)

    def step(carry, _):
        point, state = carry
        update, state = release.update(rows + point, state)
        return (point - 0.1 * update, state), None

    (_, state), _ = jax.lax.scan(step, (START, release.init(START)), None, length=steps)
    return privacy.privacy_spent(state).rdp


ALONE = np.asarray(_run(_keys()[0], ROWS[0]))
LANES = {
    "data": lambda: jax.vmap(_run, (None, 0))(_keys()[0], ROWS),
    "data, jitted": lambda: jax.vmap(jax.jit(_run), (None, 0))(_keys()[0], ROWS),
    "data of one step": lambda: jax.vmap(functools.partial(_run, steps=1), (None, 0))(
        _keys()[0], ROWS
    ),
    "sizes of the noise": lambda: jax.vmap(_run, (None, None, 0))(_keys()[0], ROWS[0], jnp.ones(2)),
    "data, around keys": lambda: jax.vmap(jax.vmap(_run, (0, None)), (None, 0))(_keys(), ROWS),
    "data, inside of keys": lambda: jax.vmap(jax.vmap(_run, (None, 0)), (0, None))(_keys(), ROWS),
    "data, correlated noise": lambda: jax.vmap(
        functools.partial(_run, correlation=correlated_noise.banded_square_root(3, 1)), (None, 0)
    )(_keys()[0], ROWS),
}


@pytest.mark.parametrize("way", LANES)
def test_lanes_that_differ_by_data_alone_cost_infinity(way):
    with jax.debug_key_reuse(False):
        spent = np.asarray(LANES[way]())
    assert spent.shape[0] == 2
    assert np.all(np.isinf(spent))


APART = {
    "a key each": lambda: jax.vmap(_run)(_keys(), ROWS),
    "a key each of the same data": lambda: jax.vmap(_run, (0, None))(_keys(), ROWS[0]),
    "a key for each of two batches": lambda: jax.vmap(jax.vmap(_run))(
        jax.random.split(_keys()[0], (2, 2)), jnp.stack([ROWS, ROWS])
    ),
    "in turn": lambda: jax.lax.map(lambda both: _run(*both), (_keys(), ROWS)),
    "one release in all lanes": lambda: jax.vmap(lambda x: x + _run(_keys()[0], ROWS[0]))(
        jnp.zeros((2, 1))
    ),
}


@pytest.mark.parametrize("way", APART)
def test_lanes_that_have_a_key_each_cost_what_they_cost_alone(way):
    with jax.debug_key_reuse(False):
        spent = np.asarray(APART[way]())
    np.testing.assert_allclose(spent, np.broadcast_to(ALONE, spent.shape), rtol=1e-6)


def test_one_state_for_all_lanes_has_no_ledger_of_one_run():
    release = _release(_keys()[0])
    state = release.init(START)
    with jax.debug_key_reuse(False):
        with pytest.raises(ValueError, match="out_axes"):
            jax.vmap(release.update, (0, None), (0, None))(ROWS, state)
        after = jax.vmap(release.update, (0, None))(ROWS, state)[1]
    assert np.all(np.isinf(after.ledger.total.rdp))
