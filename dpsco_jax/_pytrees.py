"""Dataclasses as pytrees: every field is a leaf, or a tree of leaves, unless it says that it is static.

What it computes: ``pytree`` makes a frozen dataclass and registers it with JAX; ``static()`` marks a field as
part of the structure. Sizes and names are static: they decide what is compiled. Numbers are leaves: they may
be traced, mapped over and differentiated.

Formal guarantee: none.

Cost: none.
"""

import dataclasses
import typing
from typing import Any, TypeAlias, TypeVar

import jax

__all__ = ["Number", "pytree", "static"]

_Class = TypeVar("_Class", bound=type[Any])

Number: TypeAlias = Any
"""A leaf of a plan: a number on the host, an array of one under ``jit``, or of several under ``vmap``."""


def static(default: Any = dataclasses.MISSING, kw_only: bool = False) -> Any:
    """A field of a dataclass that belongs to the structure of the pytree; its value must be hashable.

    Args:
        default: value of the field where none is given.
        kw_only: whether the field is given by name only, as fields with defaults that others inherit must be.
    """
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"static": True})


@typing.dataclass_transform(frozen_default=True, field_specifiers=(static,))
def pytree(cls: _Class) -> _Class:
    """A frozen dataclass whose fields made by ``static()`` are structure, and all others children."""
    made: Any = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(made)
    leaves = [field.name for field in fields if not field.metadata.get("static", False)]
    structure = [field.name for field in fields if field.metadata.get("static", False)]
    jax.tree_util.register_dataclass(made, data_fields=leaves, meta_fields=structure)
    return made  # type: ignore[no-any-return]
