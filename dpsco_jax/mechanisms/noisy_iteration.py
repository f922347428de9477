"""The last point of a noisy iteration, and nothing else of it: one release, made in many steps.

What it computes: x ← Π(x + move(t, x) + N(0, ν²·I)) for t = 0, ..., T - 1, and the last x.

Source: Altschuler and Talwar 2022; Bok, Su and Altschuler 2024.

Formal guarantee: with φ(x) = x + move(t, x) c-Lipschitz for every t on every data set, c ≤ 1, moves of
neighbours nowhere more than Δ apart, Π bringing no two points farther apart and a start that knows no data,
the last point costs ``privacy.last_iterate_loss(T, 1 - c, ν/Δ)`` (docs/theory/iteration.md). Nothing here
checks the move. An error of E in computing it is one of 2E in Δ; that noised points are rounded to the grid
of their dtype is outside of the guarantee, as for all noise of this room. The points on the way, and averages
of them, are not covered: they do not leave.

Cost: T moves, T draws of noise, memory of one point.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.mechanisms import noisy_iteration
    >>> point = noisy_iteration.last_point(
    ...     jax.random.key(0), jnp.zeros(2), lambda t, x: -0.1 * x, lambda x: x, 50, 0.1, 2.0)
    >>> point.shape
    (2,)
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax import _keys
from dpsco_jax._checks import (
    require_callable,
    require_count,
    require_key,
    require_nonnegative,
    require_positive,
    require_real_leaves,
)
from dpsco_jax.mechanisms import additive


def last_point(
    key: jax.Array,
    params: Any,
    move: Callable[[Any, Any], Any],
    project: Callable[[Any], Any],
    num_steps: int,
    sensitivity: jax.typing.ArrayLike,
    noise_multiplier: jax.typing.ArrayLike,
) -> Any:
    """Runs the iteration. Pure JAX; one loop, compiled once.

    Args:
        key: a typed key; step t draws under ``fold_in(key, t)``, split before and after if it is one of
            ``unsafe_rbg``, which folds by exclusive or.
        params: the start, real floating leaves.
        move: ``move(t, params)``, a tree like params: where step t goes, before noise.
        project: onto a convex set.
        num_steps: T, at least 1, static.
        sensitivity: Δ, how far apart the moves of neighbours are at most, at any point; nonnegative, may be
            traced.
        noise_multiplier: ν/Δ, positive; may be traced.

    Returns:
        The last point, in the structure and dtypes of ``params``.
    """
    require_key(key)
    require_real_leaves("params", params)
    require_callable("move", move)
    require_callable("project", project)
    num_steps = require_count("num_steps", num_steps)
    require_nonnegative("sensitivity", sensitivity)
    require_positive("noise_multiplier", noise_multiplier)
    stddev = jnp.asarray(noise_multiplier, float) * jnp.asarray(sensitivity, float)

    def step(t: Any, point: Any) -> Any:
        # The move is small against the point, and is rounded together with its noise.
        noised = additive.gaussian(_keys.of_part(key, t), move(t, point), stddev)
        return project(jax.tree.map(lambda x, y: (x + y).astype(x.dtype), point, noised))

    return jax.lax.fori_loop(0, num_steps, step, jax.tree.map(jnp.asarray, params))
