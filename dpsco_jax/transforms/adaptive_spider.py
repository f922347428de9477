"""Adaptive Spider: a running estimate of a gradient, begun anew now and then, under the noise of a stream.

What it computes: with r_t the noised sum of the users' shares at step t, in units of the length c of a share,

    v_t = c·r_t              where it begins anew,
    v_t = v_{t-1} + c·r_t    elsewhere.

Whoever asks users (``solvers.nonconvex.adaptive_spider``) says which, how many there are of them, and whether
the run is over, by an ``AdaptiveStep``, a function of what was released.

Source: thesis, Algorithms 21 and 22. They keep the exact sum, and cover it by TREE(t) of one tree that goes
on when the sum begins anew; here each beginning has a stream of its own (C7-5), whose first step has noise
(C7-1), and the estimate is a sum of releases, the same in law: docs/corrections/nonconvex.md.

Formal guarantee: that of the release; all else is post-processing. Once halted nothing that is drawn leaves.

Cost: that of the release, and two vectors of the size of the parameters.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpsco_jax.transforms import _states

__all__ = ["AdaptiveSpiderState", "AdaptiveStep", "adaptive_spider", "adaptive_state"]


class AdaptiveStep(NamedTuple):
    """What is public of a step before it is made.

    Attributes:
        fresh: whether the estimate begins anew.
        size: users of the step; none once halted.
        drift: Σ M·‖x_s - x_{s-1}‖ of the steps s since the estimate began, this one included.
        halted: whether the run is over, as too few users are left.
    """

    fresh: jax.Array
    size: jax.Array
    drift: jax.Array
    halted: jax.Array


class AdaptiveSpiderState(NamedTuple):
    """State of ``adaptive_spider``.

    Attributes:
        release: of ``privatize``, with the ledger.
        estimate: the sum of what was released since it began.
        previous: the point of the last step.
        made: t, how many steps.
        taken: users who have taken part.
        position: steps since the estimate began.
        last: the step before.
    """

    release: Any
    estimate: Any
    previous: Any
    made: jax.Array
    taken: jax.Array
    position: jax.Array
    last: AdaptiveStep

    @property
    def halted(self) -> jax.Array:
        """Whether the run is over: what was released does not allow a further step."""
        return self.last.halted


def adaptive_spider(
    release: optax.GradientTransformationExtraArgs, share_norm: jax.typing.ArrayLike
) -> optax.GradientTransformationExtraArgs:
    """Sums what is released, from one beginning to the next; ``update`` takes the ``step``.

    Args:
        release: of sums of shares of norm at most one, such as ``privatize`` with correlated noise, whose
            ``update`` takes ``new_stream``.
        share_norm: c, of a user's share.
    """
    _states.require_transformation("release", release)

    def init(params: Any) -> AdaptiveSpiderState:
        zeros = jax.tree.map(
            lambda x: jnp.zeros(jnp.shape(x), jnp.promote_types(x.dtype, jnp.float32)), params
        )
        none, no = jnp.zeros([], jnp.int32), jnp.zeros([], bool)
        last = AdaptiveStep(no, none, jnp.zeros([]), no)
        begun = AdaptiveSpiderState(release.init(params), zeros, params, none, none, none, last)
        # Copies: no two leaves of a state that may be donated are one array.
        return jax.tree.map(jnp.copy, begun)

    def update(
        updates: Any,
        state: AdaptiveSpiderState,
        params: Any = None,
        *,
        step: AdaptiveStep,
        **extra_args: Any,
    ) -> tuple[Any, AdaptiveSpiderState]:
        released, inner = release.update(
            updates, state.release, params, new_stream=step.fresh, **extra_args
        )

        def moved(old: Any, new: Any) -> Any:
            changed = jnp.where(step.fresh, 0.0, old) + (share_norm * new.astype(old.dtype))
            # Nothing that is drawn after the halt leaves.
            return jnp.where(step.halted, old, changed).astype(old.dtype)

        estimate = jax.tree.map(moved, state.estimate, released)
        after = AdaptiveSpiderState(
            inner,
            estimate,
            jax.tree.map(jnp.asarray, params),
            state.made + 1,
            state.taken + step.size,
            jnp.where(step.fresh, 1, state.position + 1),
            step,
        )
        return jax.tree.map(lambda v, u: v.astype(jnp.result_type(u)), estimate, updates), after

    return optax.GradientTransformationExtraArgs(init, update)


def adaptive_state(opt_state: Any) -> AdaptiveSpiderState:
    """The one state of ``adaptive_spider`` in any nesting of optimizer states."""
    (state,) = _states.found(opt_state, AdaptiveSpiderState)
    return state
