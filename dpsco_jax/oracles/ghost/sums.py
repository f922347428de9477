"""Σ clip(g) over examples or users for any loss, without a gradient of each.

What it computes: the sum of clipped gradients of a batch (``clipped_sum``), and the oracle of a private
solver (``clipped_gradient_sum``), whose users have several items each. See the package for how.

Source: Bu et al. 2023 ("book-keeping"); normalization instead of clipping, Bu et al. 2022 ("automatic
clipping").

Formal guarantee: every example adds factor·g, with factor·‖g‖ ≤ ``clip_norm`` for the g that its stored
activations and cotangents make up, roundings of the product included (``_terms``, ``geometry.norms``); it
adds zero where a norm is not finite, above 1e19 or so, or above 2^43 times its bound. So the sum moves by at
most ``clip_norm`` when an example is taken away and by twice that when one is replaced while all others stay
in their places, whatever the loss: an activation or a cotangent of an example is a function of that example
and of the parameters. The rounding of the sum is included: examples are added up as ``_adding`` says, and
``clip_norm`` is made smaller by what that may lose (docs/theory/ghost.md). A loss that reduces over a named
axis, as for statistics of a batch, is refused, as is one with side effects (``dpsco_jax._effects``), and one
that draws by keys of the example by which JAX would draw for all examples (``dpsco_jax._record_keys``); else
it is given one example alone. What it closes over is taken to be public. (A callback that asks for whole
batches is not seen through.) Convolutions of which a compiled batch would mix examples that are not finite,
and rules of its own for batches, run one example after the other (``oracles._convolutions``).

Cost: one forward and one backward pass over the examples, and what the ways of the leaves cost (``explain``).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from dpsco_jax import _checks, _compensated, _sharding
from dpsco_jax._given import require_held
from dpsco_jax.geometry import clipping
from dpsco_jax.oracles import Oracle
from dpsco_jax.oracles._summed import Parts, SumOracle, two_keys
from dpsco_jax.oracles.chunks import most_rows, split_sum_over_users
from dpsco_jax.oracles.ghost import _adding, _backward, _parts, _terms
from dpsco_jax.oracles.ghost._program import Program
from dpsco_jax.oracles.gradients import Sampler, count_items
from dpsco_jax.oracles.sampling import UserSample
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, user_loss

Loss = Callable[[Any, Any], Any]
"""``(params, example) -> scalar``."""

# Pays for the roundings of the factor and of the product with it; those of norm and sum are paid elsewhere.
_HEAD_ROOM = 1.0 - 2.0**-20


@functools.partial(_sharding.automatic, data="examples")
def clipped_sum(
    loss: Loss,
    params: Any,
    examples: Any,
    clip_norm: Any,
    *,
    counted: jax.Array | None = None,
    chunk_size: int | None = None,
    normalize: ArrayLike | None = None,
    in_parts: bool = False,
) -> Any:
    """The sum over examples of their clipped gradients, at about the cost of a gradient of the mean loss.

    ``jax.grad`` of a mean, but private: put ``transforms.summed_contributions(clip_norm, num_examples)``
    behind it. To protect users who have several items, an example is a user, and the loss a mean over items.

    Args:
        loss: ``loss(params, example)``, of one example; a real scalar that JAX can differentiate. Functions
            of flax, equinox or haiku go here after their parameters were taken out of them.
        params: pytree of real floating leaves. What is not to be trained is closed over by the loss.
        examples: pytree of arrays with a leading axis of examples.
        clip_norm: positive bound on the joint l2 norm of one gradient over all leaves, or a pytree of bounds
            that is a prefix of the parameters, each on the joint norm of its subtree; may be traced.
        counted: bool ``[examples]``, which of them are to be summed; all if ``None``.
        chunk_size: examples whose activations are held at once; all if ``None``.
        normalize: if given, an offset γ > 0: gradients are scaled by C/(norm + γ) whatever their norm
            ("automatic clipping"), so that only the learning rate depends on ``clip_norm``. Each is shorter
            than C, so the sensitivity is that of clipping. May be traced; if it is not positive then, the sum
            is zero.
        in_parts: whether to return what rounding to one float takes from the sum, too, for the argument
            ``remainder`` of ``summed_contributions``. If not, bounds are smaller by 1.2e-7 of themselves for
            each example, which pays for that rounding.

    Returns:
        A pytree like ``params``, in float32 at least; or two of them, the sum and its remainder.

    Raises:
        ValueError: examples have different lengths or are not held by JAX as they are (see
            ``users.num_users``), there are so many of them that rounding takes half of the bound, or the loss
            returns no real scalar, does not depend on the example, has side effects, or draws by keys of the
            example that are not of threefry.
    """
    _checks.require_callable("loss", loss)
    _checks.require_real_leaves("params", params)
    number = _checks.require_same_rows("examples", examples)
    require_held("examples", examples)
    params, examples = jax.tree.map(jnp.asarray, (params, examples))
    layers = clipping.layers(clip_norm, params)
    _require_offset(normalize)
    _checks.require_given(_checks.require_count, chunk_size=chunk_size)
    _checks.require_flag("in_parts", in_parts)
    if counted is None:
        counted = jnp.ones(number, bool)
    counted = _checks.require_mask("counted", counted, (number,))
    size = max(number if chunk_size is None else chunk_size, 1)
    how = _How(layers, normalize, number, size, 0 if in_parts else 1)

    def chunk_sum(rows: Any, there: jax.Array, position: jax.Array) -> Any:
        del position
        given, mask = rows
        return _clipped(loss, _sharding.here(params), given, there & mask, how)

    # Left to itself a compiler sends halves of every product around; each device adds up its own.
    if number <= size and _sharding.found(examples) is None:
        total = chunk_sum((examples, counted), jnp.ones(number, bool), jnp.arange(number))
    else:
        total = split_sum_over_users(chunk_sum, (examples, counted), None, size)
    whole = _compensated.rounded(total)
    return (whole, _compensated.remainder(total)) if in_parts else whole


def clipped_gradient_sum(
    objective: Objective,
    clip_norm: Any,
    sampler: Sampler | None = None,
    chunk_size: int = 64,
    normalize: ArrayLike | None = None,
) -> Oracle:
    """The oracle that returns Σ_u clip(g_u) over a sample of users, for ``summed_contributions``.

    As ``gradients.clipped_gradient_sum`` of ``user_gradient(objective)``; g_u is the gradient of the mean
    loss over the user's items.

    Args:
        objective: any loss; its regularizer is not part of the sum.
        clip_norm: positive bound on the joint l2 norm of one user's gradient over all leaves, or a pytree of
            bounds that is a prefix of the parameters; may be traced.
        sampler: draws the users of a step from a key; all users if ``None``.
        chunk_size: how many users, at least 1, whose activations are held at once.
        normalize: γ, as for ``clipped_sum``: gradients are scaled to C·g/(‖g‖ + γ) whatever their norm.
    """
    _checks.require_instance("objective", objective, Objective)
    _checks.require_given(_checks.require_callable, sampler=sampler)
    _checks.require_count("chunk_size", chunk_size)
    clipping.joint_bound(clip_norm)  # refuses what is no bound
    _require_offset(normalize)
    loss = user_loss(objective)

    def of_user(params: Any, user: UserData) -> Any:
        return loss(params, user.items, user.mask)

    def parts(key: jax.Array, params: Any, data: UserData, sample: UserSample | None) -> Parts:
        del key
        _checks.require_real_leaves("params", params)
        params = jax.tree.map(jnp.asarray, params)
        how = _How(
            clipping.layers(clip_norm, params),
            normalize,
            most_rows(data.items, sample),
            chunk_size,
            0,
        )

        def chunk_sum(rows: UserData, counted: jax.Array, position: jax.Array) -> Any:
            del position
            total = _clipped(of_user, _sharding.here(params), rows, counted, how)
            return total, count_items(rows, counted)

        return Parts(chunk_sum, chunk_size)

    return SumOracle(sampler, clip_norm, two_keys, parts)


def _require_offset(normalize: ArrayLike | None) -> None:
    if normalize is not None:
        _checks.require_positive("normalize", normalize)
        _checks.require(jnp.ndim(normalize) == 0, "normalize", normalize, "one number")


class _How(NamedTuple):
    """How gradients are clipped and added up.

    Attributes:
        layers: bounds, each with the parameters that it is for.
        normalize: as ``clipped_sum``.
        num_rows: examples or users, at most; draws, if with replacement.
        chunk_size: of them that are taken apart at once.
        roundings: of the whole sum to one float.
    """

    layers: list[tuple[ArrayLike, Any]]
    normalize: ArrayLike | None
    num_rows: int
    chunk_size: int
    roundings: int


def _clipped(loss: Loss, params: Any, examples: Any, counted: jax.Array, how: _How) -> Any:
    leaves, structure = jax.tree.flatten(params)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), examples)
    program = Program(loss, params, one)
    parts = _backward.taken_apart(program, leaves, examples)
    # As ``taken_apart``: ranks of ours are no mistakes of the user's.
    with jax.numpy_rank_promotion("allow"):
        totals = _added(parts, counted, how)
    return jax.tree.unflatten(structure, totals)


def _added(parts: _parts.Parts, counted: jax.Array, how: _How) -> list[Any]:
    """The sums of all leaves, each in two parts."""
    room = _adding.room(parts.plans, how.num_rows, how.chunk_size, how.roundings)
    groups = _groups([layer for _, layer in how.layers])
    norms = [parts.norm_bounds(group) for group in groups]
    # A bad number in one layer takes the example out of all of them.
    for norm in norms:
        counted = counted & jnp.isfinite(norm)
    totals: list[Any] = [None] * sum(len(group) for group in groups)
    for (bound, _), group, norm in zip(how.layers, groups, norms, strict=True):
        limit = _HEAD_ROOM * room * jnp.asarray(bound, norm.dtype)
        factor = jnp.where(counted, _factors(limit, norm, how.normalize), 0)
        factor = jnp.where(factor >= _terms.LEAST_WEIGHT, factor, 0)
        # Without the barrier factors are computed again for every number that they multiply.
        factor, longest = jax.lax.optimization_barrier((factor, limit))
        for leaf in group:
            totals[leaf] = parts.weighted_sum(leaf, factor, longest)
    return totals


def _factors(limit: jax.Array, norm: jax.Array, normalize: ArrayLike | None) -> jax.Array:
    if normalize is None:
        return jnp.minimum(1, limit / norm)
    offset = jnp.asarray(normalize, norm.dtype)
    return jnp.where(offset > 0, limit / (norm + offset), 0)


def _groups(layers: list[Any]) -> list[list[int]]:
    """The numbers of the leaves of each layer."""
    found, first = [], 0
    for layer in layers:
        size = len(jax.tree.leaves(layer))
        found.append(list(range(first, first + size)))
        first += size
    return found
