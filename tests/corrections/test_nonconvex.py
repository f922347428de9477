"""Corrections of T, chapters 6 to 8: the printed claim fails, ours holds."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.mechanisms.tree import TreeCorrelation, tree_noise


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
