"""Σ clip(g) over examples or users for any loss, without a gradient of each.

What it computes: the sum of clipped gradients of a batch (``clipped_sum``), and the oracle of a private
solver (``clipped_gradient_sum``), whose users have several items each. See the package for how.

Source: Bu et al. 2023 ("book-keeping"); normalization instead of clipping, Bu et al. 2022 ("automatic
clipping").

Formal guarantee: every example adds factor·g, with factor·‖g‖ ≤ ``clip_norm`` for the g that its stored
activations and cotangents make up, roundings of the product included (``_terms``, ``geometry.norms``);
it adds zero where a norm is not finite, above 1e19 or so, or above 2^43 times its bound. So the sum
moves by at most ``clip_norm`` when an example is added or removed and by twice that when one is
replaced, whatever the loss: an activation or a cotangent of an example is a function of that example and
of the parameters. That is but for the rounding of the sum itself, which is in float32 and not in two
floats as the sums of other oracles are (docs/privacy/sums.md, section 5). A loss that looks at other
examples, as through statistics of a batch, cannot be written here: it is given one at a time.

Cost: one forward and one backward pass over the examples, and what the ways of the leaves cost
(``explain``).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from dpsco_jax import _checks
from dpsco_jax.geometry import clipping
from dpsco_jax.oracles import Estimate, Oracle
from dpsco_jax.oracles.chunks import sum_over_users
from dpsco_jax.oracles.ghost import _parts, _terms
from dpsco_jax.oracles.ghost._program import Program
from dpsco_jax.oracles.gradients import Sampler, count_items
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, user_loss

Loss = Callable[[Any, Any], Any]
"""``(params, example) -> scalar``."""

# Pays for the roundings of the factor and of the product with it; those of norm and sum are in the bound.
_HEAD_ROOM = 1.0 - 2.0**-20


def clipped_sum(
    loss: Loss,
    params: Any,
    examples: Any,
    clip_norm: Any,
    *,
    counted: jax.Array | None = None,
    chunk_size: int | None = None,
    normalize: ArrayLike | None = None,
) -> Any:
    """The sum over examples of their clipped gradients, at about the cost of a gradient of the mean loss.

    ``jax.grad`` of a mean, but private: put ``transforms.summed_contributions(clip_norm, num_examples)``
    behind it. To protect users who have several items, an example is a user, and the loss a mean over items.

    Args:
        loss: ``loss(params, example)``, of one example; a real scalar that JAX can differentiate. Functions
            of flax, equinox or haiku go here after their parameters were taken out of them.
        params: pytree of real floating leaves. What is not to be trained is closed over by the loss.
        examples: pytree of arrays with a leading axis of examples.
        clip_norm: bound on the joint l2 norm of one gradient over all leaves, or a pytree of bounds that is
            a prefix of the parameters, each on the joint norm of its subtree; may be traced.
        counted: bool ``[examples]``, which of them are to be summed; all if ``None``.
        chunk_size: examples whose activations are held at once; all if ``None``.
        normalize: if given, an offset γ > 0: gradients are scaled by C/(norm + γ) whatever their norm
            ("automatic clipping"), so that only the learning rate depends on ``clip_norm``.

    Returns:
        A pytree like ``params``, in float32 at least.

    Raises:
        ValueError: a bound or the offset is not positive, leaves are not real floating, examples have
            different lengths, or the loss returns no real scalar or does not depend on the example.
    """
    _checks.require_callable("loss", loss)
    _checks.require_real_leaves("params", params)
    number = _common_length(examples)
    params, examples = jax.tree.map(jnp.asarray, (params, examples))
    layers = clipping.layers(clip_norm, params)
    if normalize is not None:
        _checks.require_positive("normalize", normalize)
    if chunk_size is not None:
        _checks.require_count("chunk_size", chunk_size)
    if counted is None:
        counted = jnp.ones(number, bool)
    _checks.require_mask("counted", counted, (number,))
    bounds = [bound for bound, _ in layers]
    groups = _groups([layer for _, layer in layers])

    def chunk_sum(rows: Any, there: jax.Array, position: jax.Array) -> Any:
        del position
        given, mask = rows
        return _clipped(loss, params, given, bounds, groups, there & mask, normalize)

    whole = number if chunk_size is None else chunk_size
    return sum_over_users(chunk_sum, (examples, counted), None, max(whole, 1))


def clipped_gradient_sum(
    objective: Objective, clip_norm: Any, sampler: Sampler | None = None, chunk_size: int = 64
) -> Oracle:
    """The oracle that returns Σ_u clip(g_u) over a sample of users, for ``summed_contributions``.

    As ``gradients.clipped_gradient_sum`` of ``user_gradient(objective)``; g_u is the gradient of the mean
    loss over the user's items.

    Args:
        objective: any loss; its regularizer is not part of the sum.
        clip_norm: bound on the joint l2 norm of one user's gradient over all leaves, or a pytree of bounds
            that is a prefix of the parameters; may be traced.
        sampler: draws the users of a step from a key; all users if ``None``.
        chunk_size: users whose activations are held at once.

    Raises:
        ValueError: if ``clip_norm`` or ``chunk_size`` is not positive.
    """
    _checks.require_instance("objective", objective, Objective)
    _checks.require_given(_checks.require_callable, sampler=sampler)
    _checks.require_count("chunk_size", chunk_size)
    clipping.joint_bound(clip_norm)  # refuses what is no bound
    loss = user_loss(objective)

    def of_user(params: Any, user: UserData) -> Any:
        return loss(params, user.items, user.mask)

    def oracle(key: jax.Array, params: Any, data: UserData) -> Estimate:
        sample_key, _ = jax.random.split(key)
        sample = None if sampler is None else sampler(sample_key)

        def chunk_sum(rows: UserData, counted: jax.Array, position: jax.Array) -> Any:
            del position
            total = clipped_sum(of_user, params, rows, clip_norm, counted=counted)
            return total, count_items(rows, counted)

        total, num_gradients = sum_over_users(chunk_sum, data, sample, chunk_size)
        return Estimate(total, {}, num_gradients)

    return oracle


def _clipped(
    loss: Loss,
    params: Any,
    examples: Any,
    bounds: list[ArrayLike],
    groups: list[list[int]],
    counted: jax.Array,
    normalize: ArrayLike | None,
) -> Any:
    leaves, structure = jax.tree.flatten(params)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), examples)
    program = Program(loss, params, one)
    parts = _parts.taken_apart(program, leaves, examples)
    norms = [parts.norm_bounds(group) for group in groups]
    # A bad number in one layer takes the example out of all of them.
    for norm in norms:
        counted = counted & jnp.isfinite(norm)
    totals: list[Any] = [None] * len(leaves)
    for bound, group, norm in zip(bounds, groups, norms, strict=True):
        limit = _HEAD_ROOM * jnp.asarray(bound, norm.dtype)
        factor = jnp.minimum(1, limit / norm) if normalize is None else limit / (norm + normalize)
        factor = jnp.where(counted & (factor >= _terms.LEAST_WEIGHT), factor, 0)
        for leaf in group:
            totals[leaf] = parts.weighted_sum(leaf, factor)
    return jax.tree.unflatten(structure, totals)


def _common_length(examples: Any) -> int:
    leaves = jax.tree.leaves(examples)
    found = sorted({tuple(jnp.shape(leaf)[:1]) for leaf in leaves})
    one = len(found) == 1 and len(found[0]) == 1
    _checks.require(one, "examples", found, "arrays with one leading axis of examples")
    return int(found[0][0])


def _groups(layers: list[Any]) -> list[list[int]]:
    """The numbers of the leaves of each layer."""
    found, first = [], 0
    for layer in layers:
        size = len(jax.tree.leaves(layer))
        found.append(list(range(first, first + size)))
        first += size
    return found
