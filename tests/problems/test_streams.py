"""Streams of losses: their laws, and that they are functions of the round alone."""

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.problems import hard_instances, streams


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


def test_the_adversary_of_rare_switches_has_the_epochs_of_the_theorem():
    made = hard_instances.low_switching_adversary(jax.random.key(0), 10**6, 20, 1e-3)
    assert (made.num_epochs, made.length) == (10**4, 100)
    assert made.num_epochs == round((1e6 * 1e-3) ** (4 / 3))
    found = table(made.losses, 300)
    assert np.all(found[:100] == found[0])
    assert np.any(found[100] != found[0])
    # The best of 20 experts on 200 streams, of epochs that are drawn once each.
    epochs = np.random.default_rng(0).integers(0, 2, (200, 1000, 20))
    below = (500 - epochs.sum(axis=1).min(axis=1)) * 100 * np.sqrt(10.0)
    error = below.std() / np.sqrt(200)
    assert abs(below.mean() - made.advantage) < 4 * error
