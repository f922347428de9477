"""Corrections of T, chapters 6 to 8: the printed claim fails, ours holds."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import transforms
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms.tree import TreeCorrelation, tree_noise
from dpsco_jax.oracles import smoothed
from dpsco_jax.problems.objective import Objective


def test_c8_1_no_sum_is_released_without_noise():
    def printed_node(t, steps):
        """Algorithm 20: for each level but the root the block that ends inside of t, if it is an odd one."""
        levels = max(1, math.ceil(math.log2(steps)))
        blocks, done = [], 0
        for level in reversed(range(levels)):
            if t - done >= 2**level:
                blocks.append((done + 1, done + 2**level))
                done += 2**level
        return blocks

    for steps in (2, 4, 8, 64):
        assert (
            printed_node(steps % steps, steps) == []
        )  # Algorithms 24 and 26, at the end of a period
        assert printed_node(steps, steps) == printed_node(steps - 1, steps)  # Algorithm 20
        tree = TreeCorrelation(steps)
        assert tree.prefix_stddev().min() >= tree.stretch()
        draws = [
            tree_noise(jax.random.key(0), t, jnp.zeros(3), 1.0, steps) for t in (steps - 1, steps)
        ]
        assert np.abs(draws[1]).min() > 0
        assert np.abs(draws[1] - draws[0]).min() > 0


def test_c8_6_a_block_may_begin_at_the_other_end_of_the_ball():
    """Regret over D·G·√M of a block against a slope, after one along it: above the printed 3/2, below 5/2."""
    for length in (4, 16, 64):
        radius, step_size = 1.0, 1.0 / math.sqrt(length)
        method = transforms.o2nc(jax.random.key(0), radius, step_size, length, 2)
        slopes = np.repeat([-1.0, 1.0], length)

        def step(state, slope, method=method):
            _, after = method.update(slope[None], state, jnp.zeros(1))
            return after, state.move[0]

        moves = jax.lax.scan(step, method.init(jnp.zeros(1)), jnp.asarray(slopes))[1]
        # Against u = -D, the best in the second block: its first moves are still +D.
        regret = np.sum(np.float64(moves)[length:] + radius) / (radius * math.sqrt(length))
        assert moves[length] > 0.999 * radius
        assert 1.9 < regret <= 2.5
        # Of the same learner begun at 0, as printed.
        assert (
            np.sum(np.float64(-moves)[:length] - -radius) / (radius * math.sqrt(length))
            <= 1.5 + 1e-4
        )


def test_c8_8_the_sphere_for_values_and_the_ball_for_gradients():
    """Of a linear loss: with y in a ball, as printed, the estimate is too short."""
    slope, count = np.array([1.0, -2.0, 0.5]), 40_000
    directions = np.random.default_rng(0).standard_normal((count, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    radii = np.random.default_rng(1).uniform(size=(count, 1)) ** (1 / 3)
    estimate = lambda y: 3 * (y @ slope)[:, None] * y  # noqa: E731
    errors = 4 * 3 * np.linalg.norm(slope) / math.sqrt(count)
    np.testing.assert_allclose(estimate(directions).mean(axis=0), slope, atol=errors)
    np.testing.assert_allclose(estimate(radii * directions).mean(axis=0), 0.6 * slope, atol=errors)
    # First order: of ‖w‖³/3 the slope at the centre's neighbour, averaged over sphere and over ball.
    point, item = jnp.asarray([0.2, 0.0, 0.0]), jnp.zeros((1, 1))
    square = Objective(lambda w, z: jnp.linalg.norm(w) ** 3 / 3, 1.0, None, domains.whole_space())
    ours = smoothed.user_gradient(square, 1.0)
    keys = jax.random.split(jax.random.key(2), count)
    found = np.float64(jax.jit(jax.vmap(lambda k: ours(k, point, item, None)))(keys)).mean(axis=0)
    shifted = lambda y: np.linalg.norm(point + y, axis=1, keepdims=True) * (point + y)  # noqa: E731
    errors = 4 * 1.5 / math.sqrt(count)
    np.testing.assert_allclose(found, shifted(radii * directions).mean(axis=0), atol=errors)
    assert abs(shifted(directions).mean(axis=0)[0] - found[0]) > 2 * errors
