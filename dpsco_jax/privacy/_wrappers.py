"""What stands around and before a ledger in a tree of optimizer states, and whether its charges stay true.

Whatever wraps a release may skip it after a look at raw sums, let leaves pass beside it, or begin it anew. A
list of those that do would never be whole. So it is the other way round: a wrapper is known here, or its
user vouches for it by name.
"""

import collections
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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
    for place, found in enumerate(inside):
        earlier = zip(children[:place], inside, strict=False)
        stages = [stage for stage, spent in earlier if not spent and type(stage) not in trust]
        # Whoever keeps a ledger of its own charges what it releases itself, and is no wrapper of it.
        around = () if isinstance(children[place], kind) else doubts
        for one in found:
            before = _remembering(stages) if type(tree) is tuple and one.releases else ()
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


def _remembering(stages: list[Any]) -> tuple[str, ...]:
    """Doubts about the stages of a chain in front of a release: a memory there holds raw numbers."""
    doubt = "stands before a release and remembers what is not private yet"
    return tuple(
        f"{name_of(type(stage))} {doubt}"
        for stage in stages
        if hasattr(stage, "_fields") and _holds_floats(stage)
    )


def _holds_floats(tree: Any) -> bool:
    kinds = (getattr(leaf, "dtype", None) for leaf in jax.tree.leaves(tree))
    return any(kind is not None and jnp.issubdtype(kind, np.floating) for kind in kinds)
