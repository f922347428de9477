"""The ledger: a running privacy loss that an optimizer state carries.

A ``Ledger`` is where a transformation writes what each of its steps has cost. Steps are added with
compensated (Kahan) summation, so that a million float32 additions lose no more than one does.
``privacy_spent`` finds every ledger in any nesting of optax states and composes them. What the sum needs to
know is part of the ledger and static: the neighbouring relation, and whether its charges count on a secret
draw of users.

Formal guarantee: the loss returned bounds everything that the transformations of the state have released
so far, under the neighbouring relation of their ledgers, which is the same for all. A charge that is
amplified by a draw of users supposes that nothing else looks at that draw; what else may is proven in
docs/privacy/ledger.md, and where nothing is proven the loss is unbounded. Assumed: each update is made with a
draw of its own, independent of all others: a state cannot know whether it was updated twice on one draw. And
what is charged, and after which update the ledger is read, does not depend on what was released, but for
stopping at a budget that was fixed beforehand (section 7 there).
"""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from dp_accounting import NeighboringRelation

from dpsco_jax._checks import require, require_flag, require_instance, require_relation
from dpsco_jax._numerics import Array, array_namespace, round_up
from dpsco_jax.privacy.loss import PrivacyLoss, compose, unbounded_unless
from dpsco_jax.privacy.orders import ORDERS

_ROUNDING_ULPS = 8.0
# What these wrap is skipped in some steps or begins anew, and then they forget its charge, or pass on what is
# not private.
_SKIPPING = (
    optax.ApplyIfFiniteState,
    optax.ConditionallyTransformState,
    optax.LookaheadState,
    optax.contrib.SAMState,
)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("total", "residue"),
    meta_fields=("relation", "sampled", "shareable"),
)
@dataclasses.dataclass(frozen=True)
class Ledger:
    """A privacy loss under accumulation, made by ``open_ledger``.

    A pytree whose leaves are those of ``total`` and ``residue``; the other attributes are static.

    Attributes:
        total: the sum so far, as rounded.
        residue: what rounding has left out of ``total``, to be added at the next entry.
        relation: which data sets are neighbours, for all charges.
        sampled: whether the charges count on a secret draw of users (amplification by sampling).
        shareable: whether releases that are charged without amplification may look at the same draws.
    """

    total: PrivacyLoss
    residue: PrivacyLoss
    relation: NeighboringRelation
    sampled: bool
    shareable: bool


def open_ledger(
    relation: NeighboringRelation, sampled: bool = False, shareable: bool = False
) -> Ledger:
    """A ledger with no entry, in the default floating dtype of JAX.

    Args:
        relation: the neighbouring relation under which every charge holds.
        sampled: whether a charge counts on a secret draw of users, so that it is less than what the release
            would cost if the draw were known.
        shareable: whether docs/privacy/ledger.md proves that releases charged without amplification may look
            at the same draws as well: so for Gaussian releases on Poisson samples. Of no effect unless
            ``sampled``.

    Raises:
        ValueError: ``relation`` is no ``NeighboringRelation``, or ``sampled`` or ``shareable`` no boolean.
    """
    require_relation("relation", relation)
    sampled = require_flag("sampled", sampled)
    shareable = require_flag("shareable", shareable)
    empty = PrivacyLoss(jnp.zeros(len(ORDERS)), jnp.zeros(()))
    return Ledger(
        total=empty,
        residue=jax.tree.map(jnp.copy, empty),
        relation=relation,
        sampled=sampled,
        shareable=shareable,
    )


def charge(ledger: Ledger, loss: PrivacyLoss) -> Ledger:
    """The ledger with one more entry: ``loss``, the cost of one release. Jit-safe, dtype-preserving.

    Args:
        ledger: of ``open_ledger`` or of an earlier charge.
        loss: under the relation of the ledger. A traced loss that is negative or NaN anywhere is charged as
            an unbounded one: no entry can lower the sum. So is any loss if the ledger is no sum of charges:
            negative or NaN anywhere.

    Raises:
        ValueError: ``ledger`` is no ``Ledger`` or ``loss`` no ``PrivacyLoss``; a concrete loss is negative or
            NaN; or the ledger was cast to less than float32, in which small charges vanish.
    """
    require_instance("ledger", ledger, Ledger)
    require_instance("loss", loss, PrivacyLoss)
    kind = jnp.result_type(ledger.total.rdp)
    wide = jnp.promote_types(kind, jnp.float32) == kind
    require(wide, "ledger", kind, "of real floating arrays, at least float32")
    xp = array_namespace(loss)
    good = xp.all(loss.rdp >= 0, axis=-1) & (loss.delta >= 0)
    require(good, "loss", loss, "nonnegative at every order, with a nonnegative delta")

    def add(total: Array, residue: Array, entry: Array) -> tuple[Array, Array]:
        term = jnp.asarray(entry, total.dtype) + residue
        new = total + term
        # An infinite entry must stay infinite: its residue would be inf - inf.
        left = jnp.where(jnp.isfinite(new), term - (new - total), 0.0)
        return new, left.astype(total.dtype)

    entry = unbounded_unless(good & _is_sum(ledger), loss)
    pairs = [add(*leaves) for leaves in zip(ledger.total, ledger.residue, entry, strict=True)]
    return dataclasses.replace(
        ledger,
        total=PrivacyLoss(*(new for new, _ in pairs)),
        residue=PrivacyLoss(*(left for _, left in pairs)),
    )


def privacy_spent(opt_state: Any, *, independent_draws: bool = False) -> PrivacyLoss:
    """The privacy loss of everything released so far by the transformations in an optimizer state.

    The composition of all ledgers found, if that is proven, and ``unbounded()`` in these cases:

    - there is a ledger that is ``sampled`` and not ``shareable``, and any other: each charge that is
      amplified supposes that nothing else looks at its draw of users;
    - there are several ``sampled`` ledgers: of releases on one draw (``optax.partition`` on one Poisson
      sample, say) only the first look is amplified;
    - a ledger is negative or NaN anywhere, so that it is no sum of charges. Of one that was scaled by a
      factor in [0, 1) this cannot be noticed: do no arithmetic on an optimizer state;
    - two typed keys in the state are equal, so that two transformations draw the same noise, and the
      difference of what they release has none. Keys that were equal once and have been split differently
      often since cannot be told: start every transformation with a key of its own;
    - a ``sampled`` ledger is inside of ``optax.MultiSteps``, which joins the draws of several updates;
    - a ledger is inside of ``optax.apply_if_finite`` or ``optax.conditionally_transform``, which forget
      charges or pass on updates without noise, or of ``optax.lookahead`` or ``optax.contrib.sam``, which may
      begin its state anew (chain a privatizer before them).

    For layers of their own clip norms on one draw see ``transforms.clipped_mean``. States of several
    optimizers on the same users go into one call, ``privacy_spent((first, second))``: what two calls return
    has lost sight of the draws. The loss holds for charges, and a last update, that were fixed without
    looking at what was released; stopping when a budget fixed beforehand is reached is fixed in that sense.

    Args:
        opt_state: any pytree that holds ledgers: the state of ``optax.chain``, ``masked``, ``partition``,
            ``inject_hyperparams``, or of a batch of optimizers under ``vmap``.
        independent_draws: the caller vouches that no two transformations with a ledger here have looked at
            the same draw of users, in no update: all ledgers then compose. It helps in the first two cases
            alone.

    Returns:
        The loss, rounded up, of the batch shape of the ledgers.

    Raises:
        ValueError: ``opt_state`` holds no ledger (so that nothing is known of it), or ledgers of different
            neighbouring relations; or ``independent_draws`` is no boolean.
    """
    require_flag("independent_draws", independent_draws)
    found = list(_ledgers(opt_state))
    held = f"{type(opt_state).__name__} of {jax.tree.structure(opt_state)}"
    require(
        bool(found), "opt_state", held, "a tree that holds a ledger of a private transformation"
    )
    ledgers = [ledger for ledger, _ in found]
    relations = sorted({ledger.relation.name for ledger in ledgers})
    together = " and ".join(relations)
    require(len(relations) == 1, "opt_state", together, "a tree whose ledgers have one relation")
    sampled = [ledger for ledger in ledgers if ledger.sampled]
    alone = len(ledgers) == 1
    shared = len(sampled) == 1 and sampled[0].shareable
    proven = not sampled or alone or shared or independent_draws
    proven = proven and all(sound for _, sound in found)
    total = compose(*(compose(ledger.total, ledger.residue) for ledger in ledgers))
    xp = array_namespace(total)
    spent = PrivacyLoss(*(round_up(xp.maximum(x, 0.0), _ROUNDING_ULPS) for x in total))
    sums = functools.reduce(operator.and_, map(_is_sum, ledgers))
    sums &= _keys_differ(opt_state, spent.delta.shape)
    return unbounded_unless(np.full(spent.delta.shape, proven) & sums, spent)


def _keys_differ(tree: Any, shape: tuple[int, ...]) -> Any:
    """Whether no two typed keys in a tree are equal: for each of a batch if all of them have its shape."""
    keys = [
        leaf
        for leaf in jax.tree.leaves(tree)
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    ]
    differ = np.full(shape, True)
    for first, second in itertools.combinations(keys, 2):
        if first.dtype != second.dtype:
            continue
        a, b = (jax.random.key_data(key) for key in (first, second))
        if first.shape == second.shape == shape:
            differ = differ & (a != b).any(axis=-1)
        else:  # of batches that do not fit, every pair
            a, b = (bits.reshape(-1, bits.shape[-1]) for bits in (a, b))
            differ = differ & (a[:, None] != b[None]).any(axis=-1).all()
    return differ


def _is_sum(ledger: Ledger) -> Any:
    """Whether a ledger can be a sum of charges: nowhere negative or NaN, with residues of rounding only."""

    def good(total: Any, residue: Any) -> Any:
        # What one addition rounds off is at most two of these, in the dtype in which it was added: a wider
        # one may be that to which the ledger was cast. Infinite totals leave nothing.
        kinds = [jnp.finfo(kind) for kind in (total.dtype, jnp.float32)]
        eps, tiny = (max(float(getattr(k, name)) for k in kinds) for name in ("eps", "tiny"))
        left = _ROUNDING_ULPS * eps * total + tiny
        return (total >= 0) & (abs(residue) <= left)

    rdp = good(ledger.total.rdp, ledger.residue.rdp)
    return rdp.all(axis=-1) & good(ledger.total.delta, ledger.residue.delta)


def _ledgers(tree: Any) -> Iterator[tuple[Ledger, bool]]:
    """Each ledger in a tree, and whether the wrappers around it leave its charges true."""
    wrappers = (*_SKIPPING, optax.MultiStepsState)
    for node in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, (Ledger, *wrappers))):
        if isinstance(node, Ledger):
            yield node, True
        elif isinstance(node, _SKIPPING):
            yield from ((ledger, False) for ledger, _ in _ledgers(tuple(node)))
        elif isinstance(node, optax.MultiStepsState):
            for ledger, sound in _ledgers(tuple(node)):
                yield ledger, sound and not ledger.sampled
