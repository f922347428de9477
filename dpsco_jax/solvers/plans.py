"""Plans as text: every number by the name that it has in code, then what the plan costs and assumes.

What it computes: ``describe`` reads a plan's fields, plans within it with an indentation, plans in order side
by side, one column a part. A plan's ``__str__`` gives it a title and, where numbers alone do not say enough,
remarks.

Formal guarantee: none. The certificate is computed when it is printed.

Cost: that of the certificate, about a second where it needs privacy loss distributions.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpsco_jax import _checks

__all__ = ["Remarks", "aligned", "describe"]

_SHOWN = 8
_SIZES = ("num_users", "num_steps")
_WORK = ("user_gradients", "item_gradients", "floating_point_operations")
_DERIVED = (*_SIZES, "noise_stddev", "excess_bound", *_WORK)
# In the budget, the first line and the remarks, and in what is assumed.
_ELSEWHERE = ("epsilon", "delta", "made_for", "title", "remarks", "premises")

Rows = list[tuple[str, Any]]


class Remarks(tuple[Any, ...]):
    """Lines that a plan has for people. Plans that differ in these alone share a compiled program.

    So a plan that a compiled function returns has the lines of the one for which it was compiled: print plans
    before they go through ``jit``.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remarks)

    def __ne__(self, other: object) -> bool:
        # That of tuples would say that remarks which are equal are not.
        return not self == other

    def __hash__(self) -> int:
        return hash(Remarks)


def describe(title: str, plan: Any, remarks: Sequence[tuple[str, Any]] = ()) -> str:
    """A plan as a table of names and values.

    Args:
        title: the first line.
        plan: a dataclass; ``assumes``, ``certificate()`` and properties as ``num_steps``, ``excess_bound``
            ``user_gradients`` and ``floating_point_operations`` are shown if it has them.
        remarks: further lines, as (name, value); a function is called when the table is printed.

    Returns:
        One line for each name, floats to five digits; of long tuples and arrays the first eight entries.
    """
    said = [(name, value() if callable(value) else value) for name, value in remarks]
    rows = [*_fields(plan, ""), *said, *_costs(plan)]
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows)])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, with columns one below the other; ``ValueError`` for no rows of cells."""
    _checks.require_instances("rows", rows, tuple | list)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _fields(plan: Any, indent: str) -> Rows:
    rows: Rows = []
    for field in dataclasses.fields(plan):
        value, name = getattr(plan, field.name), f"{indent}{field.name}"
        if field.name in _ELSEWHERE:
            continue
        if isinstance(value, Mapping):
            shown_items = ((f"{indent}{key}", _text(item)) for key, item in value.items())
            rows += [(key, shown) for key, shown in shown_items if shown is not None]
        elif dataclasses.is_dataclass(value):
            rows += [(name, type(value).__name__), *_fields(value, indent + "  ")]
        elif _is_parts(value):
            rows += [(name, f"{len(value)} in order"), *_columns(value, indent + "  ")]
        elif (shown := _text(value)) is not None:
            rows.append((name, shown))
    return rows


def _is_parts(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(map(dataclasses.is_dataclass, value))


def _columns(parts: Sequence[Any], indent: str) -> Rows:
    """The fields of several plans: one value if all agree, else one for each part."""
    tables = [dict([*_sizes(part, indent), *_fields(part, indent)]) for part in parts]
    rows: Rows = []
    for name in dict.fromkeys(name for table in tables for name in table):
        values = [str(table.get(name, "-")) for table in tables]
        rows.append((name, values[0] if len(set(values)) == 1 else " | ".join(values)))
    return rows


def _sizes(part: Any, indent: str) -> Rows:
    """The sizes of a part that are no fields of its own, but of what it releases."""
    fields = {field.name for field in dataclasses.fields(part)}
    found = {name: _text(getattr(part, name, None)) for name in _SIZES if name not in fields}
    return [(f"{indent}{name}", shown) for name, shown in found.items() if shown is not None]


def _costs(plan: Any) -> Rows:
    rows: Rows = [
        (name, shown)
        for name in _DERIVED
        if name not in {field.name for field in dataclasses.fields(plan)}
        and (shown := _text(getattr(plan, name, None))) is not None
    ]
    vacuous = getattr(plan, "vacuous", False)
    if isinstance(vacuous, bool | np.bool_) and vacuous:
        idle = _text(plan.made_for.idle)
        rows.append(("vacuous", f"the start is known to have an excess of at most {idle}"))
    rows += [("assumes", line) for line in getattr(plan, "assumes", ())]
    if hasattr(plan, "epsilon") and hasattr(plan, "delta"):
        rows.append(("budget", f"({_text(plan.epsilon)}, {_text(plan.delta)})"))
    if hasattr(plan, "certificate"):
        try:
            rows.append(("certificate", ",".join(str(plan.certificate()).split("\n"))))
        except ValueError as refusal:  # of numbers that were edited, or of a batch of plans
            rows.append(("certificate", f"none: {refusal}"))
    return rows


def _text(value: Any) -> str | None:
    """What is shown of a value; ``None`` of what is no number, text or tuple of these."""
    if isinstance(value, bool | int | str):
        return str(value)
    if isinstance(value, tuple | list):
        shown = [text for text in map(_text, value[:_SHOWN]) if text is not None]
        return ", ".join(shown) + (", ..." if len(value) > _SHOWN else "") if shown else None
    if value is None or callable(value):
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        return None
    if array.ndim == 0:
        return f"{array.item():.5g}"
    return _text(tuple(array.ravel().tolist())) if array.ndim == 1 else f"array {array.shape}"
