"""Private chain: a release, with stages before and behind it that cannot undo it.

What it computes: ``before`` of each user's contribution by itself, the release of all of them, ``after`` of
what was released. Parameters that are not trained keep their values.

Source: the order of every private first-order method; ``optax.chain`` has the same, and checks nothing.

Formal guarantee: that of the release. A stage in front of it sees one user at a time and remembers nothing,
so that a contribution stays a function of its own user. What is behind it is given the released values and
the parameters, and nothing else: it is post-processing. What a stage closes over is the caller's part of the
proof.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import _record_keys, privacy
from dpsco_jax._checks import require, require_given
from dpsco_jax.transforms import _states


class PrivateChainState(NamedTuple):
    """State of ``private_chain``.

    Attributes:
        release: the state of the release, with its ledger and its key.
        after: the state of what is behind it, a function of what was released.
    """

    release: Any
    after: Any


def private_chain(
    before: optax.GradientTransformation | None,
    release: optax.GradientTransformation,
    after: optax.GradientTransformation,
    trainable: Any = True,
) -> optax.GradientTransformationExtraArgs:
    """Chains a release with a stage of single users before it and an optimizer behind it.

    Args:
        before: of one user's contribution, a tree like the parameters, without the axis of users; it is
            called for each user with its initial state. ``None`` where there is no such stage, and where
            updates are sums.
        release: ``privatize(...)`` or another transformation with a ledger. It gets all extra arguments of
            ``update``.
        after: any optimizer. It gets what was released and the parameters, and no extra argument.
        trainable: booleans, a tree that is a prefix of the parameters: which of them are trained. Others are
            not shown to any of the three, and their updates are zero.

    Raises:
        ValueError: by ``init``, if ``before`` has an array in its state, ``release`` no ledger, or
            ``trainable`` is no prefix of the parameters; by ``update``, if there is a stage before a sum, no
            ``params`` are given and some are not trained, or ``after`` asks for another argument.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from dp_accounting import NeighboringRelation
        >>> from dpsco_jax import privacy, transforms
        >>> mean = transforms.clipped_mean(1.0, 10, NeighboringRelation.ADD_OR_REMOVE_ONE)
        >>> release = transforms.privatize(mean, jax.random.key(0), 5.0)
        >>> chain = transforms.private_chain(
        ...     optax.clip(1.0), release, optax.adam(0.1), {"body": False, "head": True}
        ... )
        >>> params = {"body": jnp.ones(4), "head": jnp.ones(3)}
        >>> rows = jax.tree.map(lambda p: jnp.ones((10, *p.shape)), params)
        >>> updates, state = chain.update(rows, chain.init(params), params)
        >>> updates["body"].tolist(), round(float(privacy.epsilon(privacy.privacy_spent(state), 1e-5)), 2)
        ([0.0, 0.0, 0.0, 0.0], 0.94)
    """
    require_given(_states.require_transformation, before=before)
    for name, value in (("release", release), ("after", after)):
        _states.require_transformation(name, value)
    flags = jax.tree.leaves(trainable)
    good = bool(flags) and all(isinstance(flag, bool) for flag in flags)
    require(good, "trainable", trainable, "True or False, or a tree of them")
    releasing = optax.with_extra_args_support(release)

    def shown(tree: Any) -> Any:
        try:
            return jax.tree.map(
                lambda flag, part: (
                    part if flag else jax.tree.map(lambda _: optax.MaskedNode(), part)
                ),
                trainable,
                tree,
            )
        except (ValueError, TypeError) as error:
            raise ValueError(f"trainable must be a prefix of the parameters: {error}") from None

    def init(params: Any) -> PrivateChainState:
        params = shown(params)
        if before is not None:
            held = jax.tree.leaves(before.init(params))
            wanted = "a transformation without arrays in its state, which would remember what is not private"
            require(not held, "before", f"one with {len(held)} of them", wanted)
        state = releasing.init(params)
        spends = bool(_states.found(state, privacy.Ledger))
        require(spends, "release", "none in its state", "a transformation with a ledger")
        return PrivateChainState(state, after.init(params))

    def update(
        updates: Any, state: PrivateChainState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, PrivateChainState]:
        everything = all(flags) or params is not None
        require(everything, "params", params, "given to update where some are not trained")
        whole = params
        updates, params = shown(updates), None if params is None else shown(params)
        if before is not None:
            summed = "clipped_to" in extra_args
            require(
                not summed, "before", "a stage in front of a sum", "None: a sum has no users left"
            )
            initial = before.init(params)
            per_user = _record_keys.over_users(lambda user: before.update(user, initial, params)[0])
            updates = per_user(updates)
        released, release_state = releasing.update(updates, state.release, params, **extra_args)
        try:
            moves, after_state = after.update(released, state.after, params)
        except TypeError as error:
            if "required" not in str(error):
                raise
            wanted = "a transformation that needs no other argument than updates and parameters"
            raise ValueError(f"after must be {wanted}: {error}") from None
        if not all(flags):
            moves = jax.tree.map(_or_zeros, moves, whole, is_leaf=_is_masked)
        return moves, PrivateChainState(release_state, after_state)

    return optax.GradientTransformationExtraArgs(init, update)


def _or_zeros(move: Any, param: Any) -> Any:
    return jnp.zeros_like(param) if _is_masked(move) else move


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)
