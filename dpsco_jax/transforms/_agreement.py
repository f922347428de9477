"""Whether an oracle has summed what a release accounts for: bound, draw and bits of the sum are compared.

Clip norm and sampling rate are said twice, to the oracle and to the release, and a stage between the two can
change a sum on its way. The oracles of this library say in their ``extra_args`` what they have done.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation
from jaxtyping import ArrayLike

from dpsco_jax import _compensated
from dpsco_jax._checks import require, require_mask, require_same_rows
from dpsco_jax._redact import described
from dpsco_jax.oracles.sampling import Draw
from dpsco_jax.privacy.sampling import (
    FullBatch,
    Poisson,
    PoissonItems,
    PoissonUsers,
    WithoutReplacement,
    WithReplacement,
)
from dpsco_jax.transforms.aggregate import Aggregate

# Under these names optax's line searches, plateau schedules, Polyak steps and Sophia are handed a loss.
_RAW = ("value", "grad", "value_fn", "loss", "obj_fn", "grad_fn")

_ROUNDED = np.float32(1.0 + 2.0**-23)


def agreed(
    aggregate: Aggregate,
    sampling: Any,
    updates: Any,
    extra_args: dict[str, Any],
    participations: bool = False,
) -> Any:
    """Whether the updates are what the loss of a release was formed for, as far as anybody has said.

    Args:
        aggregate: of the release.
        sampling: its scheme.
        updates: as they come to the release.
        extra_args: of its ``update``. Read are ``clipped_to`` (the norm to which every user's share of a sum
            was clipped), ``draw`` (how users were drawn) and ``checksum`` (of the sum); the last two only
            where they are given. Where users come as rows, ``user_mask``: those who count are no more than
            the scheme takes.
        participations: whether the loss counts in how many steps a user takes part, known beforehand, so that
            it bounds no draw.

    Returns:
        Booleans, for what is traced.

    Raises:
        ValueError: what is concrete does not agree; a sum comes without ``clipped_to``; or numbers of a
            loss are handed over under the names that optimizers behind a release read.
    """
    require_no_raw(extra_args)
    good: Any = True
    if aggregate.clipped_to is not None:
        good = _within_bound(aggregate.clipped_to, extra_args.get("clipped_to"))
    if participations:
        wanted = "absent with noise_correlation: whoever is drawn may take part in more steps than it says"
        require(extra_args.get("draw") is None, "draw", described(extra_args.get("draw")), wanted)
    good &= covered(sampling, extra_args, aggregate.relation)
    if aggregate.clipped_to is None:
        good &= _few_enough(sampling, updates, extra_args.get("user_mask"))
    elif extra_args.get("checksum") is not None:
        good &= _unchanged(updates, extra_args["checksum"])
    return good


def require_no_raw(extra_args: dict[str, Any]) -> None:
    """``ValueError`` if numbers of a loss are handed to a chain with a release: its other stages get them."""
    wanted = (
        "absent: what is behind a release would read it, and it is not private. Update whatever"
    )
    wanted += " needs public or released numbers by itself, with an update of its own"
    for name in _RAW:
        require(name not in extra_args, name, described(extra_args.get(name)), wanted)
    for name, value in extra_args.items():
        # Whoever is handed a function can call it, at points and as often as nobody has accounted for.
        require(not any(map(callable, jax.tree.leaves(value))), name, described(value), wanted)


def shown_only(tree: Any, updates: Any) -> Any:
    """The tree with a masked node wherever the updates have one: what belongs to those that are shown."""
    is_masked = lambda node: isinstance(node, optax.MaskedNode)  # noqa: E731
    return jax.tree.map(
        lambda update, part: update if is_masked(update) else part, updates, tree, is_leaf=is_masked
    )


def _within_bound(bound: ArrayLike, clipped_to: ArrayLike | None) -> Any:
    wanted = "given to update: the extra_args of the oracle that made the sum, all of them, or, of a sum of"
    wanted += " your own, the norm to which each user's share was clipped"
    require(clipped_to is not None, "clipped_to", clipped_to, wanted)
    return _required(_at_most(clipped_to, bound), "clipped_to", clipped_to, f"at most {bound}")


def _few_enough(sampling: Any, rows: Any, user_mask: Any) -> Any:
    """Whether the rows that count are no more than the users whom a scheme of a fixed number takes.

    A Poisson sample may be of any size, and with all users in every step there may be more of them than the
    public divisor of a mean says: both are covered.
    """
    match sampling:
        case WithoutReplacement(_, most) | WithReplacement(_, most):
            pass
        case _:
            return True
    if not jax.tree.leaves(rows):
        return True
    found = require_same_rows("updates", rows)
    wanted = f"of at most {most} users, whom {type(sampling).__name__} of sampling accounts for"
    if user_mask is None:
        return _required(found <= most, "updates", f"{found} rows", wanted)
    counted = jnp.sum(require_mask("user_mask", user_mask, (found,)), dtype=jnp.int32)
    return _required(counted <= most, "user_mask", f"more of {found} rows", wanted)


def _unchanged(updates: Any, checksum: Any) -> Any:
    found, expected = _compensated.checksum(updates), shown_only(checksum, updates)
    same = jax.tree.map(jnp.equal, found, expected)
    every = jax.tree.reduce(jnp.logical_and, same, jnp.asarray(True))
    wanted = (
        "the oracle's sum as it was; take stages that scale, average or clip it out of the chain"
    )
    return _required(every, "updates", described(updates), wanted)


def covered(sampling: Any, extra_args: dict[str, Any], relation: NeighboringRelation) -> Any:
    """Whether the loss of a scheme bounds that of the draw of an oracle, if it says how it drew.

    Raises:
        ValueError: it does not.
    """
    draw: Draw | None = extra_args.get("draw")
    if draw is None:
        return True
    name, added = type(sampling).__name__, relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    same: Any
    match sampling:
        case Poisson() | PoissonUsers() | PoissonItems():
            same = draw.kind == "poisson" and _at_most(draw.taken, sampling.probability)
            wanted = f"poisson of probability at most {sampling.probability}"
        case WithoutReplacement(population, batch):
            same = draw.kind == "without_replacement" and _within(draw, population, batch)
            wanted = f"without replacement, at most {batch} of at least {population}"
        case WithReplacement(population, draws):
            same = draw.kind == "with_replacement" and _within(draw, population, draws)
            wanted = f"with replacement, at most {draws} draws of at least {population}"
        case FullBatch():
            # Where a batch is full by law somebody else is in the place of whoever is taken away.
            same = draw.kind == "poisson" or (draw.kind == "without_replacement" and not added)
            wanted = "poisson, or without replacement if users are replaced"
        case _:
            return True
    found = f"{draw.kind}, {draw.taken} of {draw.population}"
    return _required(same, "draw", found, f"{wanted}, as {name} of sampling accounts for")


def _within(draw: Draw, population: ArrayLike, taken: ArrayLike) -> Any:
    return _at_most(population, draw.population) & _at_most(draw.taken, taken)


def _at_most(number: Any, limit: Any) -> Any:
    """Up to the rounding of one float32; false for NaN."""
    # What is concrete stays so inside of ``jit``, where an operation of JAX would trace it.
    traced = any(isinstance(x, jax.core.Tracer) for x in (number, limit))
    xp: Any = jnp if traced else np
    first, second = (xp.asarray(x, np.float32) for x in (number, limit))
    return first <= second * _ROUNDED


def _required(condition: Any, name: str, value: Any, wanted: str) -> Any:
    require(condition, name, value, wanted)
    return condition
