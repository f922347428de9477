"""Values of several sizes as one value, each of whose leaves has an axis of them in front, for a scan."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dpsco_jax import _checks
from dpsco_jax._numerics import array_namespace

__all__ = ["alike", "fit", "stacked"]


def alike(values: Sequence[Any]) -> list[Any]:
    """The values with the room of all: fields that are ``joined`` are those of all of them together.

    Schedules, fields that are ``padded``, end in zeros where another one is longer.
    """
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        return list(values)
    if dataclasses.is_dataclass(first):
        changes: list[dict[str, Any]] = [{} for _ in values]
        for field in dataclasses.fields(first):
            each = [getattr(value, field.name) for value in values]
            if field.metadata.get("joined") is not None:
                each = [field.metadata["joined"](each)] * len(each)
            elif field.metadata.get("padded", False):
                each = _padded(each)
            elif not field.metadata.get("static", False):
                each = alike(each)
            for change, one in zip(changes, each, strict=True):
                change[field.name] = one
        pairs = zip(values, changes, strict=True)
        return [dataclasses.replace(value, **change) for value, change in pairs]
    if isinstance(first, tuple) and first and len({len(value) for value in values}) == 1:
        rows = zip(*(alike(column) for column in zip(*values, strict=True)), strict=True)
        made = getattr(type(first), "_make", tuple)
        return [made(row) for row in rows]
    return list(values)


def fit(values: Sequence[Any]) -> bool:
    """Whether the values can be stacked: they differ in numbers and in room alone."""
    each = alike(values)
    structures = {jax.tree.structure(value) for value in each}
    shapes = {tuple(np.shape(leaf) for leaf in jax.tree.leaves(value)) for value in each}
    return len(structures) == 1 and len(shapes) == 1


def stacked(values: Sequence[Any]) -> Any:
    """One value of the room of all, each of whose leaves has an axis of the values in front.

    Integers of Python become int32.

    Raises:
        ValueError: there is no value, or they do not ``fit``.
    """
    _checks.require(len(values) >= 1, "values", values, "at least one")
    _checks.require(fit(values), "values", f"{len(values)} of them", "of one structure")
    return jax.tree.map(_column, *alike(values))


def _column(*leaves: Any) -> Any:
    xp = array_namespace(*leaves)
    return xp.stack([xp.asarray(x, np.int32 if isinstance(x, int) else None) for x in leaves])


def _padded(schedules: list[Any]) -> list[Any]:
    longest = max(len(schedule) for schedule in schedules)
    xp = array_namespace(*schedules)
    return [xp.pad(xp.asarray(each), (0, longest - len(each))) for each in schedules]
