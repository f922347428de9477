"""The ledger: a running privacy loss that an optimizer state carries.

A ``Ledger`` is where a transformation writes what each of its steps has cost. Steps are added with
compensated (Kahan) summation, so that a million float32 additions lose no more than one does.
``privacy_spent`` finds every ledger in any nesting of optax states and composes them. What the sum needs to
know is part of the ledger and static: the neighbouring relation, and whether its charges count on a secret
draw of users.

Formal guarantee: the loss returned bounds everything that the transformations of the state have released
so far, under the neighbouring relation of their ledgers, which is the same for all. A charge that is
amplified by a draw of users supposes that nothing else looks at that draw; what else may is proven in
docs/theory/ledger.md, and where nothing is proven the loss is unbounded. Assumed: each update is made with a
draw of its own, independent of all others: a state cannot know whether it was updated twice on one draw. And
what is charged, and after which update the ledger is read, does not depend on what was released, but for
stopping at a budget that was fixed beforehand (section 7 there).
"""

import dataclasses
import functools
import math
import operator
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpsco_jax._checks import require, require_flag, require_instance, require_relation
from dpsco_jax._numerics import Array, array_namespace, round_up
from dpsco_jax.privacy import _wrappers
from dpsco_jax.privacy.loss import PrivacyLoss, compose, unbounded_unless
from dpsco_jax.privacy.orders import ORDERS

_ROUNDING_ULPS = 8.0
_FIXED = "fixed"
_WORDS_OF_KEYS = (2, 4)  # of threefry and philox, and of XLA's generator


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
        shareable: whether docs/theory/ledger.md proves that releases charged without amplification may look
            at the same draws as well: so for Gaussian releases on Poisson samples. Of no effect unless
            ``sampled``.
    """
    require_relation("relation", relation)
    _make_known_to_flax()
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
        ValueError: a concrete loss is negative or NaN, or the ledger was cast to less than float32, in which
            small charges vanish.
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


def privacy_spent(
    opt_state: Any,
    *,
    independent_draws: bool = False,
    trust: type | tuple[type, ...] = (),
) -> PrivacyLoss:
    """The privacy loss of everything released so far by the transformations in an optimizer state.

    The composition of all ledgers found, if that is proven, and ``unbounded()`` in these cases, of which
    ``doubts`` names the first four:

    - there is a ledger that is ``sampled`` and not ``shareable``, and any other: each charge that is
      amplified supposes that nothing else looks at its draw of users;
    - there are several ``sampled`` ledgers: of releases on one draw (``optax.partition`` on one Poisson
      sample, say) only the first look is amplified;
    - a ledger is inside of a state of a type that is not known to hand every update to what it holds, once,
      and to pass on nothing else: ``optax.MultiSteps``, ``optax.masked``, ``optax.apply_if_finite``, a
      wrapper of your own. Name the types for which you vouch in ``trust``. Known are tuples, lists,
      dictionaries, ``inject_hyperparams``, ``optax.contrib.schedule_free``, ``optax.partition`` if all of its
      labels have a release, and all transformations of this library;
    - a stage in front of a release in a chain, at any depth, has anything but a count of updates in its
      state: it remembers raw updates. In a dictionary, as of ``optax.named_chain``, nothing is in front or
      behind, and whatever remembers is doubted;
    - a ledger is negative or NaN anywhere, so that it is no sum of charges. Of one that was scaled by a
      factor in [0, 1) this cannot be noticed: do no arithmetic on an optimizer state;
    - two keys in the state are equal, so that two transformations draw the same noise, and the difference of
      what they release has none. In a batch of states these are the lanes that have a key of another lane, as
      all lanes of ``jax.vmap(init)`` have. Keys are typed ones and, as files keep them
      (``jax.random.key_data``), arrays uint32 ``[..., 2]`` or ``[..., 4]``. Keys that were equal once and
      were split differently often since cannot be told: start every transformation with a key of its own;
    - a ``sampled`` ledger is inside of ``optax.MultiSteps``, which joins the draws of several updates; no
      trust helps.

    For layers of their own clip norms on one draw see ``transforms.clipped_mean``, for parameters that are
    not trained ``transforms.private_chain``. States of several optimizers on the same users go into one call,
    ``privacy_spent((first, second))``: what two calls return has lost sight of the draws. The loss holds for
    charges, and a last update, that were fixed without looking at what was released; stopping when a budget
    fixed beforehand is reached is fixed in that sense.

    Args:
        opt_state: any pytree that holds ledgers: the state of ``optax.chain``, ``partition``,
            ``inject_hyperparams``, of a batch of optimizers under ``vmap``, or of ``flax.nnx.Optimizer``.
        independent_draws: the caller vouches that no two transformations with a ledger here have looked at
            the same draw of users, in no update: all ledgers then compose. It helps in the first two cases
            alone.
        trust: a type of optimizer states, or several, for which the caller vouches in the third and fourth
            case: whatever has this state has handed each update to the release inside, passed on nothing
            that is not private, and decided nothing by it. ``state_certificate`` states it.

    Returns:
        The loss, rounded up, of the batch shape of the ledgers: of each lane, not of all lanes together. Of a
        lane that was taken out of its batch nothing is known of the others: a state that was copied to all
        devices costs what one of the copies costs.

    Raises:
        ValueError: ``opt_state`` holds no ledger (so that nothing is known of it), ledgers of different
            neighbouring relations, an object of a class that is no pytree (in which a ledger would be left
            out), or a ledger as files keep it, which is a dictionary.
    """
    opt_state = _plain(opt_state)
    reasons = doubts(opt_state, independent_draws=independent_draws, trust=trust)
    ledgers = [found.ledger for found in _found(opt_state, trust)]
    total = compose(*(compose(ledger.total, ledger.residue) for ledger in ledgers))
    xp = array_namespace(total)
    spent = PrivacyLoss(*(round_up(xp.maximum(x, 0.0), _ROUNDING_ULPS) for x in total))
    sums = functools.reduce(operator.and_, map(_is_sum, ledgers))
    sums &= _keys_differ(opt_state, spent.delta.shape)
    return unbounded_unless(np.full(spent.delta.shape, not reasons) & sums, spent)


def doubts(
    opt_state: Any,
    *,
    independent_draws: bool = False,
    trust: type | tuple[type, ...] = (),
) -> tuple[str, ...]:
    """Why ``privacy_spent`` is unbounded for a state, as far as the structure of the state says.

    Numbers in the state that no ledger has, and equal keys, are not looked at.

    Args:
        opt_state: any nesting of optimizer states.
        independent_draws: what the caller vouches for in ``privacy_spent``.
        trust: the wrappers that the caller vouches for in ``privacy_spent``.

    Returns:
        Sentences without a full stop; none if nothing is doubtful.

    Raises:
        ValueError: the state is one that ``privacy_spent`` refuses.
    """
    require_flag("independent_draws", independent_draws)
    found = _found(opt_state, trust)
    ledgers = [one.ledger for one in found]
    sampled = [ledger for ledger in ledgers if ledger.sampled]
    shared = len(sampled) == 1 and sampled[0].shareable
    reasons = [doubt for one in found for doubt in one.doubts]
    if sampled and len(ledgers) > 1 and not shared and not independent_draws:
        reasons.append("several releases may have looked at one secret draw of users")
    if any(one.joined and one.ledger.sampled for one in found):
        reasons.append("optax.MultiSteps joins several draws of users in one release")
    return tuple(dict.fromkeys(reasons))


def relation_of(opt_state: Any) -> NeighboringRelation:
    """The neighbouring relation of the ledgers in an optimizer state.

    Raises:
        ValueError: the state holds no ledger, or ledgers of different relations.
    """
    return _found(opt_state, ())[0].ledger.relation


def _found(opt_state: Any, trust: Any) -> list[_wrappers.Found]:
    """All ledgers, which are there, and of one relation."""
    types = _wrappers.require_types("trust", trust)
    _wrappers.require_seen_through("opt_state", _plain(opt_state))
    found = list(_wrappers.ledgers(opt_state, Ledger, types))
    held = f"{type(opt_state).__name__} of {jax.tree.structure(opt_state)}"
    wanted = "a tree that holds a ledger of a private transformation"
    require(bool(found), "opt_state", held, wanted)
    relations = sorted({one.ledger.relation.name for one in found})
    together = " and ".join(relations)
    require(len(relations) == 1, "opt_state", together, "a tree whose ledgers have one relation")
    return found


def _fixed(ledger: Ledger) -> np.ndarray:
    """The attributes that are no leaves, as a file of arrays can hold them."""
    fixed = (ledger.relation.value, ledger.sampled, ledger.shareable)
    return np.asarray(fixed, np.int32)


@functools.cache
def _register_with(serialization: Any) -> None:
    def to_state(ledger: Ledger) -> Any:
        kept = {"total": ledger.total, "residue": ledger.residue, _FIXED: _fixed(ledger)}
        return serialization.to_state_dict(kept)

    def from_state(ledger: Ledger, state: Any) -> Ledger:
        # The losses are of the checkpoint; what they are losses under may not be that of another ledger.
        wanted, found = _fixed(ledger).tolist(), None
        if isinstance(state, Mapping) and _FIXED in state:
            found = np.asarray(state[_FIXED]).tolist()
        what = f"{wanted}: relation {ledger.relation.name} as its number, sampled, shareable"
        require(found == wanted, f"{_FIXED} of the ledger of a checkpoint", found, what)
        kept = {"total": ledger.total, "residue": ledger.residue}
        charged = {name: state[name] for name in kept if name in state}
        return dataclasses.replace(ledger, **serialization.from_state_dict(kept, charged))

    serialization.register_serialization_state(Ledger, to_state, from_state)


def _make_known_to_flax() -> None:
    """``flax.serialization`` writes types that were registered with it, and others not at all.

    It is not imported for that: whoever uses it has done so before a ledger is opened.
    """
    if (serialization := sys.modules.get("flax.serialization")) is not None:
        _register_with(serialization)


def _plain(tree: Any) -> Any:
    """The tree without the boxes in which ``flax.nnx`` keeps each array of an optimizer state."""
    boxed = lambda node: hasattr(node, "get_raw_value")  # noqa: E731
    return jax.tree.map(
        lambda node: node.get_raw_value() if boxed(node) else node, tree, is_leaf=boxed
    )


def _keys_differ(tree: Any, shape: tuple[int, ...]) -> Any:
    """Of each lane of a batch, whether none of its keys is another key in the tree, of any lane."""
    lanes = math.prod(shape)
    differ: Any = np.full(lanes, True)
    for width in _WORDS_OF_KEYS:
        rows, of_lane = [np.zeros((0, width), np.uint32)], [np.zeros(0, int)]
        for words in _key_words(tree, width):
            rows.append(words.reshape(-1, width))
            number = rows[-1].shape[0]
            # The keys of a state that is not in this batch are keys of all lanes, by a place of their own.
            in_batch = words.shape[: len(shape)] == shape and words.ndim > len(shape)
            places = np.arange(number) * lanes // max(number, 1)
            of_lane.append(places if in_batch else np.full(number, lanes))
        places = np.concatenate(of_lane)
        if len(places) < 2:
            continue
        keys = jnp.concatenate(rows)
        order = jnp.lexsort(tuple(keys.T))
        first, second = order[:-1], order[1:]
        same = (keys[first] == keys[second]).all(axis=-1)
        shared = jnp.zeros(lanes + 1, bool)
        for which in (first, second):
            shared = shared.at[jnp.asarray(places)[which]].max(same)
        differ = differ & ~(shared[:-1] | shared[-1])
    return differ.reshape(shape)


def _key_words(tree: Any, width: int) -> list[Any]:
    """Of all keys of so many words, typed or, as files keep them, words already: ``[..., width]``."""
    found = []
    for leaf in jax.tree.leaves(tree):
        kind = getattr(leaf, "dtype", None)
        typed = kind is not None and jnp.issubdtype(kind, jax.dtypes.prng_key)
        words = jax.random.key_data(leaf) if typed else leaf
        if (typed or kind == np.uint32) and words.shape[-1:] == (width,):
            found.append(_whole(words))
    return found


def _whole(array: Any) -> Any:
    """The array on every device, if its mesh has explicit axes, over which nothing could be sorted."""
    mesh = jax.typeof(array).sharding.mesh if isinstance(array, jax.Array) else None
    if mesh is None or mesh.empty or AxisType.Explicit not in mesh.axis_types:
        return array
    return jax.sharding.reshard(array, NamedSharding(mesh, PartitionSpec()))


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
