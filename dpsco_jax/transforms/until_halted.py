"""Until halted: what follows a release that can halt stands still once it has.

What it computes: ``optax.chain(release, rest)``, until the release halts. The update on which it does and all
later ones are zero, and the state of ``rest`` stays what it was before: averages do not go on, a ridge or a
momentum does not move the parameters of a run that is over.

Source: the halting rule of Algorithms 28, 31 and 32 of the thesis.

Formal guarantee: none of privacy of its own: post-processing of what the release returns and of whether it
has halted, which is public. ``halt_when`` around the whole chain would also stop the state of the release;
here the release runs on, since it accounts for its phase by itself.

Cost: none but that of the chain; nothing is skipped once halted.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpsco_jax.transforms import _states
from dpsco_jax.transforms.outlier_removed_mean import halted


class UntilHaltedState(NamedTuple):
    """State of ``until_halted``.

    Attributes:
        release: the state of the release.
        rest: the state of what follows it, of the last update before the halt.
    """

    release: Any
    rest: Any


def until_halted(
    release: optax.GradientTransformation, rest: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
    """Chains a release that can halt with post-processing that then stands still.

    Args:
        release: ``outlier_removed_mean``, or a chain with one.
        rest: any transformation or chain that draws no noise and releases nothing of its own.

    Raises:
        ValueError: at ``init``, if the state of ``rest`` holds a ledger or a key: once halted it would be
            charged no more, although a loss may not depend on when a run has halted.
    """
    _states.require_transformation("release", release)
    _states.require_transformation("rest", rest)
    release, rest = map(optax.with_extra_args_support, (release, rest))

    def init(params: Any) -> UntilHaltedState:
        state = UntilHaltedState(release.init(params), rest.init(params))
        _states.require_free("rest", state.rest)
        return state

    def update(
        updates: Any, state: UntilHaltedState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, UntilHaltedState]:
        updates, released = release.update(updates, state.release, params, **extra_args)
        moves, after = rest.update(updates, state.rest, params, **extra_args)
        over = halted(released)
        moves = jax.tree.map(lambda u: jnp.where(over, jnp.zeros_like(u), u), moves)
        after = jax.tree.map(lambda old, new: jnp.where(over, old, new), state.rest, after)
        return moves, UntilHaltedState(released, after)

    return optax.GradientTransformationExtraArgs(init, update)
