"""Cells: what one experiment consists of, and the name by which a finished piece is found again.

An experiment is a frozen dataclass. The fields made by ``axis`` span its cells; every other field is a
constant of the experiment. A cell is one point of the product of the axes, and its identity is a hash of

    the experiment's name and version, all its constants, and the cell's own settings,

so that longer axes keep the cells that are already there, and a changed constant makes new ones. That it
runs in float64, which the experiment declares (``needs_x64``), is part of the hash too.

Guarantee: the identity decides the random key (``key_words``), hence a cell's result depends on
neither the order of the cells nor the chunk, the device or the run in which it was computed.
Nothing here is private or public: the engine handles results, the solvers what they cost.

Cost: a SHA-256 of a few hundred bytes for each cell.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax._checks import (
    require,
    require_count,
    require_flag,
    require_instance,
    require_instances,
)

_HEXADECIMAL = re.compile("[0-9a-f]{16}")

Setting = str | int | float | bool
Settings = Mapping[str, Setting]


class Cell(NamedTuple):
    """One point of an experiment.

    Attributes:
        id: hexadecimal name of the cell, 32 characters.
        settings: the value of every axis.
    """

    id: str
    settings: Settings


def axis(
    name: str,
    default: int | Sequence[Setting],
    *,
    static: bool = False,
    choices: Sequence[Setting] | None = None,
) -> Any:
    """A dataclass field whose values are an axis of the experiment.

    Args:
        name: what a single value is called in the settings, the tables and the CSV (``"epsilon"``
            for a field ``epsilons``).
        default: the values, or an integer ``n`` for the values ``0 .. n - 1`` (seeds).
        static: whether cells that differ here run different programs. ``Experiment.build`` is
            called once for each combination of the static settings, and is given those only.
        choices: all values that there are (names of solvers, of data sets). A run with another value
            is refused before anything is computed. ``None`` lets every value pass.
    """
    require(isinstance(name, str) and bool(name), "name", name, "a text that is not empty")
    require_flag("static", static)
    if choices is not None:
        require_instances("choices", choices, Setting)
    value: int | tuple[Setting, ...]
    if isinstance(default, Sequence):
        require_instances("default", default, Setting)
        value = tuple(default)
    else:
        value = require_count("default", default)
    known = None if choices is None else tuple(choices)
    metadata = {"axis": name, "static": static, "choices": known}
    return dataclasses.field(default=value, metadata=metadata)


def product(experiment: Any) -> list[dict[str, Setting]]:
    """Every combination of the values of the axes, the last axis running fastest.

    Args:
        experiment: an instance of a dataclass with fields made by ``axis``.

    Returns:
        One dict from names of axes to values for each combination.
    """
    _require_configured("experiment", experiment)
    axes = {field.metadata["axis"]: _values(experiment, field) for field in _axes(experiment)}
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def cells_of(experiment: Any) -> list[Cell]:
    """The cells of an experiment in the order of ``experiment.cells()``.

    Raises:
        ValueError: the experiment has no cells, or the same cell twice (an axis repeats a value); a setting
            is not a string, a finite number or a boolean, or not among the ``choices`` of its axis, which the
            message lists.
    """
    _require_configured("experiment", experiment)
    for field in _axes(experiment):
        _require_known(field, _values(experiment, field))
    common = _common(experiment)
    cells = [Cell(_digest([*common, _canonical(s)]), s) for s in experiment.cells()]
    if not cells:
        raise ValueError(f"{experiment.name} has no cells: is one of its axes empty?")
    if len({cell.id for cell in cells}) < len(cells):
        raise ValueError(f"{experiment.name} has the same cell twice: does an axis repeat a value?")
    return cells


def constants(experiment: Any) -> dict[str, Any]:
    """The fields that are not axes, by name."""
    _require_configured("experiment", experiment)
    fields = dataclasses.fields(experiment)
    return {f.name: getattr(experiment, f.name) for f in fields if "axis" not in f.metadata}


def axes(experiment: Any) -> dict[str, list[Setting]]:
    """The values of every axis by its name, those of two fields of one axis together."""
    _require_configured("experiment", experiment)
    found: dict[str, list[Setting]] = {}
    for field in _axes(experiment):
        known = found.setdefault(field.metadata["axis"], [])
        known += [value for value in _values(experiment, field) if value not in known]
    return found


def config_hash(experiment: Any) -> str:
    """Identity of all that the cells of an experiment have in common, 32 hexadecimal characters.

    Raises:
        ValueError: a constant is of a kind that no setting may have.
    """
    _require_configured("experiment", experiment)
    return _digest(_common(experiment))


def needs_x64(experiment: Any) -> bool:
    """Whether an experiment declares that it runs in float64, by ``x64: ClassVar[bool] = True``."""
    _require_configured("experiment", experiment)
    return require_flag("x64", getattr(experiment, "x64", False))


def static_settings(experiment: Any, settings: Settings) -> dict[str, Setting]:
    """The part of a cell's settings that decides which program runs it."""
    _require_configured("experiment", experiment)
    require_instance("settings", settings, Mapping)
    names = {field.metadata["axis"] for field in _axes(experiment) if field.metadata["static"]}
    return {name: value for name, value in settings.items() if name in names}


def key_words(ids: Iterable[str]) -> np.ndarray:
    """The first 64 bits of each identity, uint32 ``[cells, 2]``: folded into the random key."""
    named = isinstance(ids, Iterable) and not isinstance(ids, str)
    ids = list(ids) if named else []
    found = all(isinstance(i, str) and _HEXADECIMAL.match(i) for i in ids)
    require(named and found, "ids", ids, "texts of 16 or more hexadecimal characters")
    return np.array([[int(i[:8], 16), int(i[8:16], 16)] for i in ids], np.uint32).reshape(-1, 2)


def _require_configured(name: str, value: Any) -> None:
    configured = dataclasses.is_dataclass(value) and not isinstance(value, type)
    require(configured, name, value, "an instance of a dataclass")


def _require_known(field: dataclasses.Field, values: Iterable[Setting]) -> None:
    """Refuses what cannot be run before anything is."""
    choices = field.metadata["choices"]
    for value in values:
        if choices is not None and value not in choices:
            listed = ", ".join(repr(choice) for choice in choices)
            require(False, field.metadata["axis"], value, f"one of {listed}")


def _axes(experiment: Any) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(experiment) if "axis" in field.metadata]


def _values(experiment: Any, field: dataclasses.Field) -> Sequence[Setting]:
    value = getattr(experiment, field.name)
    if isinstance(value, int):
        return range(require_count(field.name, value))
    listed = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
    require(listed, field.name, value, "a list of values, or a number n of values 0 to n - 1")
    return tuple(value)


def _common(experiment: Any) -> list[Any]:
    """What all cells share; float64 only if it is declared, so that older cells keep their names."""
    shared = [experiment.name, experiment.version, _canonical(constants(experiment))]
    return [*shared, "float64"] if needs_x64(experiment) else shared


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _canonical(value: Any) -> Any:
    """A value in the form that is hashed: 1 and 1.0 are the same, tuples are lists."""
    if isinstance(value, Mapping):
        return {str(name): _canonical(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(entry) for entry in value]
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return int(value) if float(value).is_integer() else float(value)
    if value is None or isinstance(value, str | bool):
        return value
    raise ValueError(f"a setting must be a string, a finite number or a boolean, got {value!r}")
