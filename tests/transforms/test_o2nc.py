"""O2NC against a plain transcription, its distances, its report, its bound; behind a release."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from dpsco_jax import privacy, transforms


@functools.partial(jax.jit, static_argnames=("gradient", "length", "blocks"))
def run(key, gradient, start, radius, step_size, length, blocks):
    """States before each update, all points z, and the point to report."""
    method = transforms.o2nc(key, radius, step_size, length, blocks)

    def step(carry, t):
        params, state = carry
        updates, after = method.update(gradient(params, t), state, params)
        return (optax.apply_updates(params, updates), after), (state, params)

    begin = (start, method.init(start))
    (params, state), seen = jax.lax.scan(step, begin, jnp.arange(length * blocks))
    return *seen, state, transforms.o2nc_eval_params(state, params)


def _towards(params, t):
    return jnp.sign(params) * (1 + 0.5 * jnp.sin(t * 1.0))


def _constant(params, t):
    return jnp.asarray([0.6, -0.8])


def _huber(params, t):
    return params / jnp.maximum(1.0, jnp.linalg.norm(params))


def test_follows_the_algorithm_step_by_step():
    radius, step_size, length, blocks = 0.1, 0.03, 4, 5
    start = jnp.asarray([0.5, -0.2, 1.0])
    settings = radius, step_size, length, blocks
    states, queries, _, reported = run(jax.random.key(1), _towards, start, *settings)
    x, move, previous = np.asarray(start, float), np.zeros(3), None
    for t, query in enumerate(np.float64(queries)):
        if t:
            # z = x_{t-1} + s·Δ_t, with some s in [0, 1].
            share = np.dot(query - previous, move) / np.dot(move, move)
            assert -1e-5 <= share <= 1 + 1e-5
            np.testing.assert_allclose(query, previous + share * move, atol=1e-5)
        np.testing.assert_allclose(states.point[t], x, atol=1e-5)
        previous = x
        against = move - step_size * np.sign(query) * (1 + 0.5 * math.sin(t))
        move = against * min(1.0, radius / np.linalg.norm(against))
        x = x + move
    block = int(states.block[0])
    mean = np.float64(queries)[block * length : (block + 1) * length].mean(axis=0)
    np.testing.assert_allclose(reported, mean, atol=1e-5)


def test_points_of_a_block_are_near_each_other():
    radius, length = 0.05, 8
    start = jnp.asarray([0.1, 0.02])
    _, queries, _, _ = run(jax.random.key(2), _towards, start, radius, 0.04, length, 20)
    queries = np.float64(queries)
    assert np.linalg.norm(np.diff(queries, axis=0), axis=1).max() <= 2 * radius * (1 + 1e-4)
    for block in queries.reshape(20, length, 2):
        apart = np.linalg.norm(block[:, None] - block[None], axis=2)
        assert apart.max() <= radius * length * (1 + 1e-4)
        assert np.linalg.norm(block - block.mean(axis=0), axis=1).max() <= radius * length


def test_shares_and_blocks_are_uniform():
    lengths, blocks = 2, 5
    made = jax.vmap(lambda key: run(key, _constant, jnp.zeros(2), 0.1, 1.0, lengths, blocks)[:2])(
        jax.random.split(jax.random.key(3), 2000)
    )
    states, queries = made
    counts = np.bincount(np.asarray(states.block[:, 0]), minlength=blocks)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    moved = np.float64(queries[:, 2] - states.point[:, 1])
    shares = np.linalg.norm(moved, axis=1) / 0.1
    assert scipy.stats.kstest(shares, "uniform").pvalue > 1e-3
    again = np.linalg.norm(np.float64(queries[:, 3] - states.point[:, 2]), axis=1) / 0.1
    assert abs(np.corrcoef(shares, again)[0, 1]) < 4 / math.sqrt(2000)


def test_along_a_slope_every_step_is_as_long_as_it_may_be():
    length, radius = 25, 0.02
    step_size = radius / math.sqrt(length)
    states, _, _, _ = run(jax.random.key(4), _constant, jnp.zeros(2), radius, step_size, length, 4)
    lengths = np.linalg.norm(np.float64(states.move), axis=1)
    np.testing.assert_allclose(lengths[int(math.sqrt(length)) :], radius, rtol=1e-5)
    assert lengths.max() <= radius * (1 + 1e-5)


def test_with_room_it_is_momentum_without_damping():
    start = jnp.asarray([0.5, -0.2])
    states, queries, _, _ = run(jax.random.key(5), _towards, start, 1e3, 0.01, 10, 2)
    gradients = np.sign(queries) * (1 + 0.5 * np.sin(np.arange(20)))[:, None]
    moves = np.diff(np.float64(states.point), axis=0)
    np.testing.assert_allclose(moves, -0.01 * np.cumsum(gradients, axis=0)[:-1], atol=1e-4)


def test_the_mean_gradient_of_a_block_is_below_its_bound():
    """Huber's loss in two dimensions with gradients under noise: over all blocks, as the report is drawn."""
    radius, length, blocks, spread = 0.02, 25, 40, 0.2
    first = math.sqrt(1.0 + 2 * spread**2)
    step_size = 2 * radius / (first * math.sqrt(length))
    noises = spread * jax.random.normal(jax.random.key(6), (length * blocks, 2))

    def noisy(params, t):
        return _huber(params, t) + noises[t]

    start = jnp.asarray([3.0, 0.0])
    _, queries, _, _ = run(jax.random.key(7), noisy, start, radius, step_size, length, blocks)
    exact = np.asarray(jax.vmap(lambda z: _huber(z, 0))(queries)).reshape(blocks, length, 2)
    found = np.linalg.norm(exact.mean(axis=1), axis=1).mean()
    bound = 2.5 / (radius * length * blocks) + 2 * first / math.sqrt(length)
    assert 0.05 * bound < found <= bound + 2 * spread * math.sqrt(2)


def test_behind_a_release_it_is_post_processing():
    chain = optax.chain(
        transforms.privatize(transforms.clipped_mean(1.0, 4), jax.random.key(8), 2.0),
        transforms.o2nc(jax.random.key(9), 0.1, 0.05, 2, 2),
    )
    params = jnp.zeros(3)
    state = chain.init(params)
    for _ in range(4):
        updates, state = chain.update(jnp.ones((4, 3)), state, params)
        params = optax.apply_updates(params, updates)
    assert transforms.o2nc_eval_params(state, params).shape == (3,)
    np.testing.assert_allclose(
        privacy.privacy_spent(state).rdp, 4 * privacy.ORDERS / (2 * 2.0**2), rtol=1e-5
    )


def test_refuses():
    good = {"radius": 0.1, "step_size": 0.1, "block_length": 2, "num_blocks": 2}
    for name, bad in [
        ("radius", 0.0), ("step_size", -1.0), ("block_length", 0), ("num_blocks", 1.5),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=name):
            transforms.o2nc(jax.random.key(0), **good | {name: bad})
    method = transforms.o2nc(jax.random.key(0), **good)
    with pytest.raises(ValueError, match="params"):
        method.update(jnp.zeros(2), method.init(jnp.zeros(2)))
