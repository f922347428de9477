"""Noise of a tree: which blocks the noise of a sum is that of, how much it is, and what a user can do."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy, transforms
from dpsco_jax.mechanisms import tree
from dpsco_jax.mechanisms.correlated_noise import banded_square_root


def node(t):
    """The blocks (first step, last step) of the sum of the first t steps, longest first."""
    blocks, done = [], 0
    for level in reversed(range(t.bit_length())):
        if t - done >= 2**level:
            blocks.append((done + 1, done + 2**level))
            done += 2**level
    return blocks


def common(s, t):
    return len(set(node(s)) & set(node(t)))


@functools.partial(jax.jit, static_argnames=("steps", "dim", "correlation"))
def stream(key, steps, dim, correlation, multiplier=1.0, sensitivity=1.0, statistic=None):
    """Released steps of a stream of zeros, or of the statistic."""
    keys = jax.random.split(key, steps)
    given = jnp.zeros((steps, dim)) if statistic is None else statistic

    def step(state, at):
        out, state = correlation.add_noise(at[0], at[1], state, multiplier, sensitivity)
        return state, out

    return jax.lax.scan(step, correlation.init(given[0]), (keys, given))[1]


def test_blocks_partition_the_steps_and_a_step_is_in_few_of_them():
    for t in range(1, 301):
        covered = [step for first, last in node(t) for step in range(first, last + 1)]
        assert covered == list(range(1, t + 1))
        assert len(node(t)) == t.bit_count()
    for steps in (1, 2, 3, 4, 7, 8, 100, 128, 300):
        used = {block for t in range(1, steps + 1) for block in node(t)}
        most = max(sum(a <= i <= b for a, b in used) for i in range(1, steps + 1))
        assert most == tree.TreeCorrelation(steps).levels == int(math.log2(steps)) + 1


@pytest.mark.parametrize("steps", [1, 2, 8, 256, 300])
def test_the_noise_of_a_sum_is_that_of_its_blocks(steps):
    """Of every t up to 300 and at powers of two: a block has the draw of the step at which it ends."""
    noise = stream(jax.random.key(1), steps, 2, tree.TreeCorrelation(steps))
    fresh = stream(jax.random.key(1), steps, 2, tree.TreeCorrelation(1))  # of the same keys
    sums = np.cumsum(np.float64(noise), axis=0)
    root = math.sqrt(int(math.log2(steps)) + 1)
    for t in range(1, steps + 1):
        expected = root * sum(np.float64(fresh[last - 1]) for _, last in node(t))
        np.testing.assert_allclose(sums[t - 1], expected, atol=2e-4)


def test_every_sum_has_the_variance_of_its_blocks():
    """Each of 300 sums by itself, from 4,000 numbers: 5 standard errors. None is without noise."""
    steps, dim, sigma = 300, 4000, 0.5
    made = tree.TreeCorrelation(steps)
    sums = np.cumsum(stream(jax.random.key(2), steps, dim, made, sigma, 2.0), axis=0)
    alone = _stateless(jax.random.key(3), steps, dim, sigma * 2.0 * math.sqrt(made.levels))
    counts = np.array([t.bit_count() for t in range(1, steps + 1)])
    for found in (sums, alone):
        variances = np.mean(np.square(np.float64(found)), axis=1)
        expected = counts * made.levels * (sigma * 2.0) ** 2
        assert np.abs(variances / expected - 1).max() < 5 * math.sqrt(2 / dim)
    np.testing.assert_allclose(made.prefix_stddev(), np.sqrt(counts * 9.0))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _stateless(key, steps, dim, stddev, segment=0):
    like = jnp.zeros(dim)
    one = lambda t: tree.tree_noise(key, t, like, stddev, steps, segment)  # noqa: E731
    return jax.lax.map(one, jnp.arange(1, steps + 1))


def test_covariances_of_sixteen_sums():
    steps, dim = 16, 50_000
    sums = np.cumsum(stream(jax.random.key(4), steps, dim, tree.TreeCorrelation(steps)), axis=0)
    alone = _stateless(jax.random.key(5), steps, dim, math.sqrt(5.0))
    expected = 5.0 * np.array([[common(s, t) for t in range(1, 17)] for s in range(1, 17)])
    spread = np.diag(expected)
    # Of a product of two Gaussians.
    errors = np.sqrt((np.outer(spread, spread) + expected**2) / dim)
    for found in (sums, alone):
        covariance = np.float64(found) @ np.float64(found).T / dim
        assert np.abs((covariance - expected) / errors).max() < 4


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 13, 16, 64])
def test_a_user_of_one_step_is_as_far_as_is_charged(steps):
    """In the exact covariance of the released steps the worst user is at the distance 1/σ, none farther."""
    of_sums = np.array([[common(s, t) for t in range(1, steps + 1)] for s in range(1, steps + 1)])
    differences = np.eye(steps) - np.eye(steps, k=-1)
    covariance = tree.TreeCorrelation(steps).stretch() ** 2 * differences @ of_sums @ differences.T
    distances = np.diag(np.linalg.inv(covariance))
    assert distances.max() == pytest.approx(1.0, rel=1e-9)


def test_without_noise_sums_are_exact():
    given = jnp.arange(42.0).reshape(21, 2)
    released = stream(jax.random.key(6), 21, 2, tree.TreeCorrelation(21), 0.0, 1.0, given)
    np.testing.assert_array_equal(released, given)


def test_less_noise_with_bands():
    """Root mean squares of the noise of all sums, in units of Δ·σ."""
    for steps, by_tree, by_bands in [(256, 6.0, 2.7), (1024, 7.4, 4.06)]:
        rms = lambda made: math.sqrt(np.mean(made.prefix_stddev() ** 2))  # noqa: E731
        assert rms(tree.TreeCorrelation(steps)) == pytest.approx(by_tree, abs=0.07)
        assert rms(banded_square_root(steps, 1)) == pytest.approx(by_bands, abs=0.07)


@functools.partial(jax.jit, static_argnames=("correlation", "begin_at"))
def _privatized(correlation, begin_at=(), steps=6, dim=10_000):
    chain = transforms.privatize(
        transforms.clipped_sum(0.5), jax.random.key(7), 2.0, noise_correlation=correlation
    )
    state, found = chain.init(jnp.zeros(dim)), []
    for t in range(steps):
        out, state = chain.update(jnp.zeros((1, dim)), state, new_stream=jnp.asarray(t in begin_at))
        found.append(out)
    return jnp.stack(found), privacy.privacy_spent(state).rdp


@pytest.mark.parametrize("kind", ["tree", "bands"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_streams_of_a_run_are_independent_and_charged_once_if_disjoint(kind, disjoint):
    make = {
        "tree": lambda: tree.TreeCorrelation(4, disjoint),
        "bands": lambda: banded_square_root(4, 1, disjoint=disjoint),
    }[kind]
    one = privacy.ORDERS / (2 * 2.0**2)
    noise, rdp = _privatized(make())  # streams begin at 0 and at 4
    np.testing.assert_allclose(rdp, one * (1 if disjoint else 2), rtol=1e-5)
    again, rdp = _privatized(make(), begin_at=(2, 3))  # at 0, 2 and 3
    np.testing.assert_allclose(rdp, one * (1 if disjoint else 3), rtol=1e-5)
    np.testing.assert_array_equal(noise[:2], again[:2])
    # Where a stream begins, all noise is fresh, of the size of a first step.
    for streams, first in ((noise, 4), (again, 2), (again, 3)):
        found = np.corrcoef(streams)[first, :first]
        assert np.abs(found).max() < 5 / math.sqrt(10_000)
        assert np.std(streams[first]) == pytest.approx(2.0 * make().stretch(), rel=0.04)
    assert np.corrcoef(noise)[4, 5] < -0.2


def test_noise_of_a_step_alone_depends_on_segment_and_index():
    key, like = jax.random.key(8), {"a": jnp.zeros(3), "b": jnp.zeros(())}
    draws = [
        np.asarray(tree.tree_noise(key, t, like, 1.0, 4, segment)["a"])
        for segment in (0, 1)
        for t in (1, 2, 3, 4)
    ]
    assert len({draw.tobytes() for draw in draws}) == 8
    assert all(np.abs(draw).max() > 0 for draw in draws)
    # 3 = 2 + 1: the block of step 3 is not that of step 1, the block of both first steps is the same.
    assert np.abs(draws[2] - draws[1] - draws[0]).max() > 0


def test_refuses():
    key, like = jax.random.key(0), jnp.zeros(2)
    for bad in (0, 5, -1):
        with pytest.raises(ValueError, match="index"):
            tree.tree_noise(key, bad, like, 1.0, 4)
        traced = jax.jit(lambda t: tree.tree_noise(key, t, like, 1.0, 4))(bad)
        assert np.all(np.isnan(traced))
    for bad in (-1, 2**31, 2**32):
        with pytest.raises(ValueError, match="segment"):
            tree.tree_noise(key, 1, like, 1.0, 4, bad)
    for name in ("index", "segment"):
        with pytest.raises(ValueError, match=f"{name} must be an integer"):
            tree.tree_noise(
                key, **{"index": 1, name: jnp.float32(1.0)}, like=like, stddev=1.0, num_steps=4
            )
    with jax.enable_x64(True):
        # Keys are folded with 32 bits: these would have the noise of the segment 0, and of the index 1.
        for t, segment in ((1, 2**32), (1, -(2**32)), (2**32 + 1, 0)):
            wide = (jnp.asarray(number, jnp.int64) for number in (t, segment))
            found = jax.jit(lambda t, s: tree.tree_noise(key, t, like, 1.0, 4, s))(*wide)
            assert np.all(np.isnan(found))
    assert tree.TreeCorrelation(np.int64(4)).levels == 3
    with pytest.raises(ValueError, match="stddev"):
        tree.tree_noise(key, 1, like, -1.0, 4)
    for attributes in ((0,), (2.5,), (4, 1)):
        for use in (
            tree.TreeCorrelation(*attributes).stretch,
            lambda a=attributes: transforms.privatize(
                transforms.clipped_sum(1.0),
                key,
                1.0,
                noise_correlation=tree.TreeCorrelation(*a),
            ),
        ):
            with pytest.raises(ValueError, match=r"num_steps|disjoint"):
                use()
