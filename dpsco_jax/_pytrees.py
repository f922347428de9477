"""Dataclasses as pytrees: every field is a leaf, or a tree of leaves, unless it says that it is static.

``pytree`` makes a frozen dataclass and registers it with JAX; ``static()`` marks a field as part of the
structure. Sizes and names are static: they decide what is compiled. Numbers are leaves: they may be traced,
mapped over and differentiated. A static field holds what its annotation says, whoever makes the object or
edits it: an integer of at least 1, unless it has another ``least``, where it says ``int``, a number of at
least 0, perhaps infinite, where it says ``float``, one of its words where it has ``choices``. The same holds
of named tuples and of tuples, where integers may be 0 in the latter.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax

from dpsco_jax import _checks

__all__ = ["Number", "Signed", "padded", "pytree", "static"]

_Class = TypeVar("_Class", bound=type[Any])

Signed = typing.NewType("Signed", float)
"""Annotation of a static number of either sign; what says ``float`` is at least 0."""

Number: TypeAlias = Any
"""A leaf of a plan: a number on the host, an array of one under ``jit``, or of several under ``vmap``."""


def static(
    default: Any = dataclasses.MISSING,
    kw_only: bool = False,
    choices: tuple[str, ...] = (),
    least: int = 1,
    joined: Callable[[list[Any]], Any] | None = None,
) -> Any:
    """A field of a dataclass that belongs to the structure of the pytree; its value must be hashable.

    Args:
        default: value of the field where none is given.
        kw_only: whether the field is given by name only, as fields with defaults that others inherit must be.
        choices: the words that work, of a field of text; any if there are none.
        least: the smallest integer that works, of a field of integers.
        joined: what ``_stacking.stacked`` takes where values differ in this field: ``max`` for a room, in
            which the largest of them has place; if left out, they must not differ.
    """
    metadata = {"static": True, "choices": choices, "least": least, "joined": joined}
    return dataclasses.field(default=default, kw_only=kw_only, metadata=metadata)


def padded() -> Any:
    """A field that is a leaf, an entry for each step of a run: ``_stacking.stacked`` fills up shorter ones.

    Whoever runs reads no entries beyond those of the steps that it makes.
    """
    return dataclasses.field(metadata={"padded": True})


@typing.dataclass_transform(frozen_default=True, field_specifiers=(static, padded))
def pytree(cls: _Class) -> _Class:
    """A frozen dataclass whose fields made by ``static()`` are structure, and all others children.

    Making one raises ``ValueError``, by the name of the field, where a static field does not hold what its
    annotation says; only then the ``__post_init__`` of the class is called, if it has one.
    """
    own: Callable[[Any], None] = getattr(cls, "__post_init__", lambda self: None)

    @functools.wraps(own)
    def checked(self: Any) -> None:
        # What a class inherits from another one calls this again, with fewer fields.
        if type(self) is made:
            for field in kept:
                value, rule = getattr(self, field.name), field.metadata
                _require_kind(field.name, value, field.type, rule["least"])
                if rule["choices"]:
                    _checks.require_choice(field.name, value, rule["choices"])
        own(self)

    cls.__post_init__ = checked
    made: Any = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(made)
    kept = [field for field in fields if field.metadata.get("static", False)]
    leaves = [field.name for field in fields if field not in kept]
    structure = [field.name for field in kept]
    jax.tree_util.register_dataclass(made, data_fields=leaves, meta_fields=structure)
    return made  # type: ignore[no-any-return]


def _require_kind(name: str, value: Any, kind: Any, least: int = 0) -> None:
    """``ValueError``, by the name, unless the value is what a static field of this annotation holds."""
    if kind is int:
        _checks.require_integer(name, value, least)
    elif kind is float:
        _checks.require_within(name, value, 0.0, math.inf)
    elif kind is Signed:
        _checks.require_within(name, value, -math.inf, math.inf)
    elif kind is bool:
        _checks.require_flag(name, value)
    elif typing.get_origin(kind) is tuple:
        _checks.require_instance(name, value, tuple)
        kinds = typing.get_args(kind)
        kinds = kinds[:1] * len(value) if kinds[-1] is ... else kinds
        _checks.require(len(value) == len(kinds), name, value, f"{len(kinds)} values")
        for place, (one, its_kind) in enumerate(zip(value, kinds, strict=True)):
            _require_kind(f"{name}[{place}]", one, its_kind)
    elif isinstance(kind, types.UnionType):
        some = [one for one in typing.get_args(kind) if one is not types.NoneType]
        if value is None and len(some) < len(typing.get_args(kind)):
            return
        if len(some) == 1:
            _require_kind(name, value, some[0], least)
        else:
            _checks.require_instance(name, value, kind)
    elif kind is not Any:
        _checks.require_instance(name, value, kind)
        for field, its_kind in _named_fields(kind):
            _require_kind(f"{name}.{field}", getattr(value, field), its_kind, least)


@functools.cache
def _named_fields(kind: type) -> list[tuple[str, Any]]:
    """Names and annotations of a named tuple; of another class there are none."""
    hints = typing.get_type_hints(kind) if hasattr(kind, "_fields") else {}
    return [(name, hints[name]) for name in getattr(kind, "_fields", ())]
