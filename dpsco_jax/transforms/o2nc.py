"""O2NC: online learning turned into stationary points of losses that are neither convex nor smooth.

What it computes: from gradients g_t at the points z_t that the caller holds,

    Δ_{t+1} = clip_D(Δ_t - η·g_t),   x_{t+1} = x_t + Δ_{t+1},   z_{t+1} = x_t + s_{t+1}·Δ_{t+1},

with Δ_1 = 0, z_1 = x_1 the start, and s_t uniform in [0, 1]. The points of one block of M steps in a row, of
K blocks all equally likely, are averaged; that is the point to report. Which block it is does not depend on
the gradients, so it is drawn first, and only its average is kept.

Source: Cutkosky, Mehta and Orabona 2023; thesis, Algorithm 23 and Proposition 8.2.6.

Formal guarantee: none of privacy; it is post-processing of the gradients that it is given. For h that is
differentiable almost everywhere and on almost every line, E‖g_t - ∇h(z_t)‖² ≤ G_0² and E‖g_t‖² ≤ G_1² (both
on average over t), T = K·M and η = 2D/(G_1·√M),

    E ‖mean of ∇h over the points of the block‖ ≤ (h(x_1) - inf h)/(D·T) + 2·G_1/√M + 2·G_0.

The points of a block are within M·D of its average, so that the left side bounds the length of the shortest
vector of Goldstein's ∂_{M·D} h there. Proof: h(x_{t+1}) - h(x_t) = E_s⟨∇h(z_{t+1}), Δ_{t+1}⟩. Add and take
away ⟨g, Δ - u⟩ with u the vector of length D against the mean of ∇h over the block: Σ⟨∇h, u⟩ = -D·M·‖mean‖,
the regret Σ⟨g, Δ - u⟩ of a block is at most ‖Δ - u‖²/(2η) + (η/2)·Σ‖g‖² with ‖Δ - u‖ ≤ 2D where it begins, as
after the first block Δ is anywhere in the ball, and ⟨∇h - g, Δ - u⟩ ≤ 2D·‖∇h - g‖ (docs/corrections, C8-6:
the print has D in both places). With η = D/(G_1·√M) the 2 is a 5/2.

Cost: some copies of the parameters.

Example:
    >>> import jax, optax
    >>> from dpsco_jax import transforms
    >>> steps = transforms.o2nc(jax.random.key(0), 0.01, 0.001, block_length=10, num_blocks=5)
    >>> params = jax.numpy.array([1.0, -2.0])
    >>> state, update = steps.init(params), jax.jit(steps.update)
    >>> for _ in range(50):
    ...     updates, state = update(jax.numpy.sign(params), state, params)
    ...     params = optax.apply_updates(params, updates)
    >>> found = transforms.o2nc_eval_params(state, params)
    >>> bool(0.5 < found[0] < 1.0), bool(-2.0 < found[1] < -1.5)
    (True, True)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpsco_jax._checks import require_integer, require_key, require_positive
from dpsco_jax.geometry.norms import clip_to_norm
from dpsco_jax.transforms import _states

__all__ = ["O2ncState", "o2nc", "o2nc_eval_params"]


class O2ncState(NamedTuple):
    """State of ``o2nc``, points in at least float32.

    Attributes:
        point: x_t.
        move: Δ_t.
        query: z_t.
        average: of the points of the block to report so far; before it the start.
        block: which block is reported, from 0.
        steps: the number of updates so far.
    """

    point: Any
    move: Any
    query: Any
    average: Any
    block: jax.Array
    steps: jax.Array


def o2nc_eval_params(state: Any, params: Any) -> Any:
    """The point to report, the average of a block, in the dtypes of the parameters.

    Args:
        state: an optimizer state that holds the state of ``o2nc``, at any depth of nesting.
        params: the parameters that the caller holds.

    Raises:
        ValueError: the state holds no ``O2ncState``, or two of them move one parameter.
    """
    return _states.point_in(state, O2ncState, lambda found: found.average, params)


def o2nc(
    key: jax.Array,
    radius: jax.typing.ArrayLike,
    step_size: jax.typing.ArrayLike,
    block_length: int,
    num_blocks: int,
) -> optax.GradientTransformationExtraArgs:
    """Online learning in a ball as a method for rough losses; the last transformation of a chain.

    The caller evaluates gradients at the parameters, applies the updates as usual, and reports
    ``o2nc_eval_params(state, params)`` after ``block_length * num_blocks`` updates; further ones do not
    change it.

    Args:
        key: a typed key, of one run; it is in no state.
        radius: D > 0, which no move is longer than; α/M, for a stationary point within α. May be traced.
        step_size: η > 0 of the online learner. May be traced.
        block_length: M ≥ 1.
        num_blocks: K ≥ 1.

    Raises:
        ValueError: an argument is out of its range.
    """
    require_key(key)
    require_positive("radius", radius)
    require_positive("step_size", step_size)
    length = require_integer("block_length", block_length, 1)
    blocks = require_integer("num_blocks", num_blocks, 1)
    shares_key, block_key = jax.random.split(key)
    block = jax.random.randint(block_key, (), 0, blocks)

    def init(params: Any) -> O2ncState:
        # Copies: the buffers of a state may be donated, and then none may be shared.
        start, query, average = (_states.wide_copy(params) for _ in range(3))
        move = jax.tree.map(jnp.zeros_like, start)
        none = jnp.zeros([], jnp.int32)
        return O2ncState(start, move, query, average, jnp.copy(block), none)

    def update(
        updates: Any, state: O2ncState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, O2ncState]:
        del extra_args
        if params is None:
            raise ValueError("params must be given to the update of o2nc, got None")
        place = state.steps % length
        reported = state.steps // length == state.block
        average = jax.tree.map(
            lambda a, z: jnp.where(reported, a + (z - a) / (place + 1), a),
            state.average,
            state.query,
        )
        against = jax.tree.map(
            lambda d, g: (d - step_size * g.astype(d.dtype)).astype(d.dtype), state.move, updates
        )
        move = jax.tree.map(
            lambda new, old: new.astype(old.dtype), clip_to_norm(against, radius), state.move
        )
        share = jax.random.uniform(jax.random.fold_in(shares_key, state.steps))
        query = jax.tree.map(lambda x, d: x + (share * d).astype(x.dtype), state.point, move)
        point = jax.tree.map(jnp.add, state.point, move)
        moves = jax.tree.map(lambda z, p: (z - p).astype(jnp.result_type(p)), query, params)
        steps = optax.safe_increment(state.steps)
        return moves, O2ncState(point, move, query, average, state.block, steps)

    return optax.GradientTransformationExtraArgs(init, update)
