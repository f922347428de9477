"""Streams of losses: their laws, and that they are functions of the round alone."""

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.problems import streams


def table(losses, rounds):
    return np.asarray(jax.jit(jax.vmap(losses))(jnp.arange(rounds)))


def test_coins_have_their_chances_and_are_drawn_by_the_round():
    means = jnp.array([0.1, 0.5, 0.9])
    losses = streams.bernoulli(jax.random.key(0), means)
    found = table(losses, 20_000)
    np.testing.assert_allclose(found.mean(axis=0), means, atol=4 * 0.5 / np.sqrt(20_000))
    np.testing.assert_array_equal(found[7], losses(7))
    assert abs(np.corrcoef(found[1:, 1], found[:-1, 1])[0, 1]) < 0.03


def test_drifting_coins_go_round():
    losses = streams.drifting(jax.random.key(1), jnp.array([0.0, 0.0, 1.0, 1.0]), 40)
    found = table(losses, 80)
    np.testing.assert_array_equal(found[:10], np.tile([0, 0, 1, 1], (10, 1)))
    np.testing.assert_array_equal(found[10:20], np.tile([1, 0, 0, 1], (10, 1)))
    np.testing.assert_array_equal(found[40:50], np.tile([0, 0, 1, 1], (10, 1)))


def test_epochs_repeat_one_vector_and_are_independent():
    found = table(streams.repeated(jax.random.key(2), 50, 10), 1000)
    epochs = found.reshape(100, 10, 50)
    assert np.all(epochs == epochs[:, :1])
    assert abs(epochs[:, 0].mean() - 0.5) < 4 * 0.5 / np.sqrt(5000)
    assert len(np.unique(epochs[:, 0], axis=0)) == 100


def test_rows_are_those_of_the_table_and_another_compiles_nothing():
    run = jax.jit(lambda losses: losses(3))
    for scale in (1.0, 2.0):
        rows = scale * jnp.arange(12.0).reshape(6, 2)
        np.testing.assert_array_equal(run(streams.rows(rows)), rows[3])
    assert run._cache_size() == 1
