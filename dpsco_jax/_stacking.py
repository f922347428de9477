"""Values of several sizes as one value, each of whose leaves has an axis of them in front, for a scan."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dpsco_jax import _checks
from dpsco_jax._numerics import array_namespace

__all__ = ["alike", "stacked"]


def alike(values: Sequence[Any]) -> list[Any]:
    """The values with the same room: fields that are ``joined`` are those of all of them together."""
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        return list(values)
    if dataclasses.is_dataclass(first):
        changes: list[dict[str, Any]] = [{} for _ in values]
        for field in dataclasses.fields(first):
            each = [getattr(value, field.name) for value in values]
            if field.metadata.get("joined") is not None:
                each = [field.metadata["joined"](each)] * len(each)
            elif not field.metadata.get("static", False):
                each = alike(each)
            for change, one in zip(changes, each, strict=True):
                change[field.name] = one
        return [
            dataclasses.replace(value, **change)
            for value, change in zip(values, changes, strict=True)
        ]
    if isinstance(first, tuple) and len({len(value) for value in values}) == 1:
        rows = zip(*(alike(column) for column in zip(*values, strict=True)), strict=True)
        made = getattr(type(first), "_make", tuple)
        return [made(row) for row in rows] if first else list(values)
    return list(values)


def stacked(values: Sequence[Any]) -> Any:
    """One value of the room of all, each of whose leaves has an axis of the values in front.

    Where leaves are lists of several lengths the shorter ones end in zeros. Integers of Python become int32.

    Raises:
        ValueError: the values differ in their structure, or in the number of axes of a leaf.
    """
    _checks.require(len(values) >= 1, "values", values, "at least one")
    each = alike(values)
    structures = {jax.tree.structure(value) for value in each}
    _checks.require(len(structures) == 1, "values", len(structures), "of one structure")
    return jax.tree.map(_column, *each)


def _column(*leaves: Any) -> Any:
    xp = array_namespace(*leaves)
    rows = [xp.asarray(x, np.int32 if isinstance(x, int) else None) for x in leaves]
    ranks = {row.ndim for row in rows}
    _checks.require(len(ranks) == 1, "values", ranks, "of leaves with the same number of axes")
    shape = [max(lengths) for lengths in zip(*(row.shape for row in rows), strict=True)]
    padded = [
        xp.pad(row, [(0, most - here) for most, here in zip(shape, row.shape, strict=True)])
        if list(row.shape) != shape
        else row
        for row in rows
    ]
    return xp.stack(padded)
