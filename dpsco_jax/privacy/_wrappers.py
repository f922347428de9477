"""What stands around and before a ledger in a tree of optimizer states, and whether its charges stay true.

Whatever wraps a release may skip it after a look at raw sums, let leaves pass beside it, or begin it anew. A
list of those that do would never be whole. So it is the other way round: a wrapper is known here, or its
user vouches for it by name.
"""

import collections
import collections.abc
import numbers
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import optax.contrib

from dpsco_jax._checks import require

# A container, or a state whose update hands everything to what is inside, once, and passes on nothing else.
_KNOWN = (
    tuple,
    list,
    dict,
    collections.OrderedDict,
    collections.defaultdict,
    optax.InjectHyperparamsState,
    optax.InjectStatefulHyperparamsState,
    optax.contrib.ScheduleFreeState,
)


# Containers of the states of a chain: JAX sorts the keys of the last two, so that anything in them may stand
# in front of anything else.
_IN_ORDER = (tuple, list, collections.OrderedDict)
_IN_NO_ORDER = (dict, collections.defaultdict)

# Leaves in which no ledger can be.
_LEAVES = (
    jax.Array,
    jax.ShapeDtypeStruct,
    np.ndarray,
    np.generic,
    numbers.Number,
    str,
    bytes,
    np.ufunc,
    types.FunctionType,
    types.BuiltinFunctionType,
    type(jax.jit(abs)),
    jax.custom_jvp,
    jax.custom_vjp,
)

# States of stages that do not look at updates: a count of them, or that and a key.
_COUNTING = (optax.ScaleByScheduleState, optax.AddNoiseState)


class Found(NamedTuple):
    """A ledger in a tree.

    Attributes:
        ledger: as it is there.
        doubts: sentences, each why its charges may be less than what was released.
        joined: whether ``optax.MultiSteps`` is around it.
        releases: whether it belongs to what releases the updates, and does not just pass them through.
    """

    ledger: Any
    doubts: tuple[str, ...]
    joined: bool = False
    releases: bool = True


def require_types(name: str, value: Any) -> tuple[type, ...]:
    """The types that a caller vouches for, given as one or as several; ``ValueError`` for anything else."""
    types = value if isinstance(value, (tuple, list)) else (value,)
    good = all(isinstance(kind, type) for kind in types)
    require(good, name, value, "a type of optimizer states, such as optax.MaskedState, or several")
    return tuple(types)


def require_seen_through(name: str, tree: Any) -> None:
    """``ValueError`` if a tree holds what cannot be looked into, in which a ledger would be left out.

    Leaves are arrays, numbers, texts and functions. An object of a class that is no pytree is none of these,
    nor is the dictionary that a ledger becomes in a file.
    """
    is_written = lambda node: (  # noqa: E731
        isinstance(node, collections.abc.Mapping) and {"total", "residue"} <= set(node)
    )
    for leaf in jax.tree.leaves(tree, is_leaf=is_written):
        wanted = "restored into the state of an optimizer, without ledgers as they are in files"
        require(not is_written(leaf), name, "one with total and residue in a dictionary", wanted)
        objects = isinstance(leaf, np.ndarray) and leaf.dtype.hasobject
        held = f"{name_of(type(leaf))} in it"
        wanted = "of pytrees: register the class with JAX, or give what is inside"
        require(isinstance(leaf, _LEAVES) and not objects, name, held, wanted)


def name_of(kind: type) -> str:
    """A type as its users import it: its module up to the first private part, and its name."""
    public = []
    for part in kind.__module__.split("."):
        if part.startswith("_"):
            break
        public.append(part)
    return ".".join([*public, kind.__qualname__])


def ledgers(tree: Any, kind: type, trust: tuple[type, ...]) -> Iterator[Found]:
    """Each ledger in a tree, with what is doubtful about its place there.

    Args:
        tree: of optimizer states.
        kind: the class of ledgers.
        trust: types of states for which the caller vouches.
    """
    if isinstance(tree, kind):
        yield Found(tree, ())
        return
    children = _children(tree)
    inside = [list(ledgers(child, kind, trust)) for child in children]
    doubts = () if type(tree) in trust else _doubts_about(tree, [bool(found) for found in inside])
    joins = isinstance(tree, optax.MultiStepsState)
    passes = getattr(tree, "passes_updates_through", False)
    raw = [not any(one.releases for one in found) for found in inside]
    for place, found in enumerate(inside):
        stages = [stage for stage, bare in zip(children, raw, strict=True) if bare]
        if type(tree) in _IN_ORDER:
            stages = [stage for stage, bare in zip(children[:place], raw, strict=False) if bare]
        # Whoever keeps a ledger of its own charges what it releases itself, and is no wrapper of it.
        around = () if isinstance(children[place], kind) else doubts
        for one in found:
            asked = one.releases and type(tree) in (*_IN_ORDER, *_IN_NO_ORDER)
            before = _remembering(stages, kind, trust) if asked else ()
            yield Found(
                one.ledger,
                one.doubts + around + before,
                one.joined or joins,
                one.releases and not passes,
            )


def _children(node: Any) -> list[Any]:
    if isinstance(node, optax.PartitionState):
        # A label has a masked state, whose leaves are those that the other labels take.
        of_labels = node.inner_states.values()
        masked = (optax.MaskedState,)
        return [state.inner_state if isinstance(state, masked) else state for state in of_labels]
    one_level = jax.tree_util.default_registry.flatten_one_level(node)
    return [] if one_level is None else list(one_level[0])


def _doubts_about(node: Any, spends: list[bool]) -> tuple[str, ...]:
    if isinstance(node, optax.PartitionState):
        doubt = "optax.partition leaves some parameters to a transformation without a release"
        return () if all(spends) else (doubt,)
    if isinstance(node, optax.MaskedState):
        return ("optax.masked passes on, without noise, the leaves that it keeps from a release",)
    if type(node) in _KNOWN or type(node).__module__.startswith("dpsco_jax."):
        return ()
    doubt = "may skip, repeat or go past the release that it wraps"
    return (f"{name_of(type(node))} {doubt}",)


def _remembering(stages: list[Any], kind: type, trust: tuple[type, ...]) -> tuple[str, ...]:
    """Doubts about the stages of a chain in front of a release: a memory there holds raw numbers."""
    doubt = "stands before a release and remembers what is not private yet"
    found = [memory for stage in stages for memory in _memories(stage, kind, trust)]
    return tuple(f"{name_of(memory)} {doubt}" for memory in found)


def _memories(node: Any, kind: type, trust: tuple[type, ...]) -> Iterator[type]:
    """The types of all states in a tree that hold anything but a count of updates, at any depth.

    What only containers hold has no type of its own, and may be the parameters of a checkpoint.
    """
    if isinstance(node, kind) or type(node) in trust:
        return
    children = _children(node)
    counts = _is_container(node) or type(node) in _COUNTING
    if not counts and any(map(_holds_leaves, children)):
        yield type(node)
    for child in children:
        yield from _memories(child, kind, trust)


def _holds_leaves(node: Any) -> bool:
    """Whether it is a leaf, or a container of some: what the state around it holds itself."""
    if jax.tree_util.default_registry.flatten_one_level(node) is None:
        return True
    return _is_container(node) and any(map(_holds_leaves, _children(node)))


def _is_container(node: Any) -> bool:
    sequence = isinstance(node, (tuple, list)) and not hasattr(node, "_fields")
    return sequence or isinstance(node, collections.abc.Mapping)
