"""Proximal steps with a pull to the start, within a ball around it; a weighted average of their points.

What it computes: from the start c, for t = 0, 1, ... and gradients g_t of what is minimized but the pull,

    x_{t+1} = the x of K = X ∩ B(c, r) with the least η_t·⟨g_t, x⟩ + (η_t·λ/2)·‖x - c‖² + ½‖x - x_t‖²
            = the projection onto K of x_t + (η_t·λ·(c - x_t) - η_t·g_t)/(1 + η_t·λ),     η_t = 4/(λ(t + 1)),

and the average of x_0, ..., x_{T-1}, x_t with the weight t + 4; x_T is not in it. The pull is not a part of
the gradient: η_0·λ = 4, with which an explicit step would go to x - 4(x - c), on the other side.

Source: T, Algorithm 36; Lacoste-Julien, Schmidt and Bach 2012.

Formal guarantee: none of privacy; post-processing of the gradients. All points lie in K if the start is in X.

Cost: a projection onto K and two copies of the parameters in at least float32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpsco_jax._checks import require_instance, require_positive
from dpsco_jax.geometry.domains import Domain
from dpsco_jax.geometry.two_balls import cut_with_ball
from dpsco_jax.transforms import _states

__all__ = ["ProxStepState", "prox_step", "prox_step_eval_params"]


class ProxStepState(NamedTuple):
    """State of ``prox_step``.

    Attributes:
        start: c, in at least float32.
        average: of the points at which updates have been made so far; the start before the first.
        steps: how many they are.
    """

    start: Any
    average: Any
    steps: jax.Array


def prox_step(
    strength: jax.typing.ArrayLike, radius: jax.typing.ArrayLike, domain: Domain
) -> optax.GradientTransformationExtraArgs:
    """Takes gradients, without those of the pull, to the steps of the file's docstring; the last in a chain.

    Args:
        strength: λ > 0 of the pull; may be traced.
        radius: r > 0, no point is farther from the start; may be traced.
        domain: X, which holds the start.
    """
    require_positive("strength", strength)
    require_positive("radius", radius)
    require_instance("domain", domain, Domain)

    def init(params: Any) -> ProxStepState:
        start, average = _states.wide_copy(params), _states.wide_copy(params)  # both may be donated
        return ProxStepState(start, average, jnp.zeros([], jnp.int32))

    def update(
        updates: Any, state: ProxStepState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ProxStepState]:
        del extra_args
        if params is None:
            raise ValueError("params must be given to the update of prox_step, got None")
        t = jnp.asarray(state.steps, jnp.result_type(float))
        pull = 4 / (t + 1)  # ηλ, of which η is made: λ may be far from 1

        def moved(x: Any, g: Any, c: Any) -> Any:
            return x + (pull * (c - x) - (pull / strength) * g) / (1 + pull)

        wide = jax.tree.map(lambda x, c: x.astype(c.dtype), params, state.start)
        free = jax.tree.map(moved, wide, updates, state.start)
        kept = cut_with_ball(domain, state.start, radius).project(free)
        share = 2 * (t + 4) / ((t + 1) * (t + 8))  # t + 4 of 4 + 5 + ... + (t + 4)
        average = jax.tree.map(
            lambda a, x: (a + share * (x - a)).astype(a.dtype), state.average, wide
        )
        moves = jax.tree.map(lambda new, x: (new - x).astype(jnp.result_type(x)), kept, params)
        return moves, ProxStepState(state.start, average, optax.safe_increment(state.steps))

    return optax.GradientTransformationExtraArgs(init, update)


def prox_step_eval_params(state: Any, params: Any) -> Any:
    """The weighted average of the points at which updates were made, in the dtypes of the parameters.

    Args:
        state: an optimizer state that holds the state of ``prox_step``, at any depth of nesting.
        params: the parameters that the caller holds.

    Raises:
        ValueError: the state holds no ``ProxStepState``, or two of them for one parameter.
    """
    return _states.point_in(state, ProxStepState, lambda held: held.average, params)
