"""Perturb when small: a random push where a gradient is small, to leave saddles.

What it computes: with u the update, such as an estimate of a gradient,

    u + s·N(0, I)   if ‖u‖ ≤ threshold and the last push was at least ``wait`` updates ago,
    u               otherwise.

The push is in the step alone: whoever carries an estimate from step to step carries it without.

Source: Jin et al. 2017; thesis, Algorithms 17 and 21, lines 7 to 10 and 9 to 11, where a push also asks for a
gradient of all data, or ends the drift; corrections C6-2 and C7-4 in docs/corrections/nonconvex.md.

Formal guarantee: none of privacy; post-processing. None that a saddle is left either: Lemmas 6.3.4 and 7.3.3
of the thesis, which say so for any small errors of the gradient, are false (C6-5).

Cost: one Gaussian draw a number and update.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from dpsco_jax import _checks, _keys
from dpsco_jax.geometry.norms import global_norm

__all__ = ["PerturbState", "perturb_when_small"]


class PerturbState(NamedTuple):
    """State of ``perturb_when_small``.

    Attributes:
        made: how many updates.
        frozen: updates until the next push is allowed.
        pushes: how many pushes there were.
    """

    made: jax.Array
    frozen: jax.Array
    pushes: jax.Array


def perturb_when_small(
    key: jax.Array, threshold: ArrayLike, stddev: ArrayLike, wait: ArrayLike
) -> optax.GradientTransformation:
    """Adds Gaussian noise to updates whose norm is at most ``threshold``, not too often.

    Args:
        key: a typed key; update t = 0, 1, ... draws by ``fold_in(key, t)``. It is not in the state, so that
            what follows a release may hold the transformation.
        threshold: of the norm of all leaves together, nonnegative.
        stddev: s ≥ 0, of the push on each coordinate.
        wait: updates from a push to the next, at least; a positive number, rounded up.
    """
    _checks.require_key(key)
    _checks.require_nonnegative("threshold", threshold)
    _checks.require_nonnegative("stddev", stddev)
    _checks.require_positive("wait", wait)

    def init(params: Any) -> PerturbState:
        del params
        return PerturbState(*(jnp.zeros([], jnp.int32) for _ in range(3)))

    def update(updates: Any, state: PerturbState, params: Any = None) -> tuple[Any, PerturbState]:
        del params
        push = (global_norm(updates) <= threshold) & (state.frozen <= 0)
        draw = _keys.alone(jax.random.fold_in(key, state.made))
        noise = optax.tree.random_like(draw, updates, dtype=jnp.zeros([]).dtype)
        pushed = jax.tree.map(
            lambda u, z: u + jnp.where(push, stddev * z, 0.0).astype(u.dtype), updates, noise
        )
        waiting = jnp.ceil(jnp.asarray(wait, float)).astype(jnp.int32) - 1
        frozen = jnp.where(push, waiting, jnp.maximum(state.frozen - 1, 0))
        return pushed, PerturbState(state.made + 1, frozen, state.pushes + push)

    return optax.GradientTransformation(init, update)
