"""Calls of ``dpsco_jax.sweeps`` that work, where the common vocabulary does not say it."""

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console

from dpsco_jax import sweeps
from dpsco_jax.sweeps import store
from dpsco_jax.sweeps._collect import Collected
from dpsco_jax.sweeps.cells import axis, cells_of, product
from dpsco_jax.sweeps.experiment import Program
from tests.support import kinds
from tests.support.kinds import Fresh, Kind


@dataclasses.dataclass(frozen=True)
class Smallest:
    """One cell, the number 1."""

    name: ClassVar[str] = "smallest"
    version: ClassVar[int] = 1
    numbers: tuple[float, ...] = axis("number", (1.0,))

    def cells(self):
        return product(self)

    def build(self, static):
        return Program(lambda shared, key, inputs: {"twice": 2.0 * inputs["number"]})

    def report(self, frame, folder):
        pass


@functools.cache
def _folder() -> Path:
    """A folder with the finished store of ``Smallest``, until the process ends."""
    folder = Path(_temporary().name)
    with store.Store(folder) as opened:
        sweeps.run(Smallest(), opened)
    return folder


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()


@functools.cache
def _panel() -> Any:
    return Figure().subplots()


_EXPERIMENT = {"experiment": kinds.OBJECT(Smallest())}
_STORE = {"store": kinds.OBJECT(Fresh(lambda: store.Store(_folder())))}
_PATH = Kind("path", (7, None))
_TEXT = Kind("text", (7, None))
_TEXTS = Kind("texts", ("nonsense", (7,), 7, None))
_TABLE = kinds.OBJECT(pd.DataFrame({"x": [1.0], "y": [2.0], "y_ci": [0.1], "name": ["a"]}))
_COLUMN = Kind("column", ("nonsense", 7, None))
_VALUES = Kind("values", ("nonsense", 0, None, 1.5, True))
_SAMPLE = Kind("sample", (*kinds.NUMBERS.bad, (), 1.0))((1.0, 2.0))
_CONSOLE = {"console": kinds.OBJECT(Console(quiet=True))}
_TO = {"folder": _PATH(Fresh(_folder))}
_FIGURE = {"figure": kinds.OBJECT(Fresh(lambda: _panel().figure))}

GOOD: dict[str, dict[str, Any]] = {
    "sweeps.cells.axis": {"name": Kind("text", (7, None, ""))("seed"), "default": _VALUES(3)},
    "sweeps.cells.static_settings": {"settings": kinds.OBJECT({"number": 1.0})},
    "sweeps.cells.key_words": {"ids": _TEXTS(("0" * 32,))},
    "sweeps.command.main": {
        "arguments": Kind("words", ("nonsense", (7,), 7))(["--help"]),
        "experiments": kinds.OBJECT({}),
        "program": _TEXT("dpsco-sweep"),
    },
    "sweeps.compile.shape_of": {"inputs": kinds.ANY(1.0)},
    "sweeps.compile.stack": {"inputs": Kind("sequence", ("nonsense", 7, None, ()))([1.0])},
    "sweeps.compile.compile_chunk": {
        "program": kinds.OBJECT(Smallest().build({})),
        "example": kinds.ANY({"number": 1.0}),
        "cells_per_chunk": kinds.COUNT(1),
        "memory_limit": kinds.POSITIVE(1e9),
        "devices": Kind("devices", ((), (7,), "nonsense", 7, None))(Fresh(jax.devices)),
    },
    "sweeps.engine.Options": {"cells_per_chunk": kinds.COUNT, "memory_gb": kinds.POSITIVE},
    "sweeps.engine.run": {
        **_STORE,
        "options": kinds.OBJECT(None),
        "progress": kinds.OBJECT(None),
        "executor": kinds.OBJECT(None),
        "share": kinds.OBJECT(None),
        "known": kinds.OBJECT(None),
        "rerun_changed": kinds.FLAG(False),
    },
    "sweeps.engine.tally": {
        **_STORE,
        "cells": Kind("cells", ("nonsense", (7,), 7, None))(cells_of(Smallest())),
    },
    "sweeps.merging.merge": {
        "sources": Kind("stores", ((), ("nonsense",), (7,), "nonsense", 7, None))(
            Fresh(lambda: [_folder()])
        ),
        "into": _PATH(Fresh(lambda: _folder() / "merged")),
    },
    "sweeps.ray_cluster.Ray": {
        "address": Kind("address or nothing", ("", 7))(None),
        "cpus_per_worker": kinds.COUNT,
        "gpus_per_worker": kinds.COUNT_OR_ZERO,
        "workers": Kind("count or nothing", (0, -1, 1.5, "nonsense", True))(None),
        "patience": kinds.POSITIVE,
    },
    "sweeps.shares.Share": {"number": kinds.COUNT(3), "total": kinds.COUNT(8)},
    "sweeps.shares.parse": {
        "share": Kind("share", ("nonsense", "0/8", "9/8", "3", 7, None))("3/8")
    },
    "sweeps.experiment.check_names": {"settings": _TEXTS(["epsilon"]), "results": _TEXTS(["risk"])},
    "sweeps.figures.panels": {
        "rows": kinds.COUNT(1),
        "columns": kinds.COUNT(1),
        "height": kinds.POSITIVE,
    },
    "sweeps.figures.error_bars": {
        "axes": kinds.OBJECT(Fresh(_panel)),
        "summary": _TABLE,
        "x": _COLUMN("x"),
        "value": Kind("column", ("x", *_COLUMN.bad))("y"),
        "series": _COLUMN("name"),
        "names": Kind("settings", ("nonsense", 7, None, [None], [[1]]))(["a"]),
    },
    "sweeps.figures.log_ticks": {
        "axis": kinds.OBJECT(Fresh(lambda: _panel().xaxis)),
        "ticks": Kind("ticks", (*kinds.NUMBERS.bad, (0.0, 1.0), 1.0))((1.0, 2.0)),
    },
    "sweeps.figures.shared_legend": {
        **_FIGURE,
        "axes": Kind("axes", ("nonsense", (7,), 7, None))(Fresh(lambda: [_panel()])),
    },
    "sweeps.figures.save": {**_FIGURE, "stem": _PATH(Fresh(lambda: _folder() / "figure"))},
    "sweeps.load.load": {
        "target": Kind("target", ("nonsense", 7, None))("smallest"),
        "experiments": kinds.OBJECT({"smallest": Smallest}),
    },
    "sweeps.load.experiments_in": {
        "file": Kind("file", ("nonsense", 7, None))(Path(__file__).with_name("rates.py"))
    },
    "sweeps.load.require_experiment": {"name": _TEXT("Smallest"), "kind": kinds.OBJECT(Smallest)},
    "sweeps.page.write": {**_STORE, **_TO, "collected": kinds.OBJECT(Collected())},
    "sweeps.progress.Progress": {**_CONSOLE, "name": _TEXT("smallest")},
    "sweeps.records.results": {"path": Kind("path", ("nonsense", 7, None))(Fresh(_folder))},
    "sweeps.report.frame": _STORE,
    "sweeps.report.summarize": {
        "table": _TABLE,
        "by": Kind("columns", ((), ("nonsense",), *_TEXTS.bad))(["name"]),
        "values": Kind("columns", (("nonsense",), *_TEXTS.bad))(["y"]),
    },
    "sweeps.report.show": {
        **_CONSOLE,
        "title": _TEXT("title"),
        "columns": Kind("columns", ({"a": 7}, {"a": [1], "b": []}, *kinds.OBJECT.bad))({"a": [1]}),
    },
    "sweeps.report.report": {**_STORE, **_TO, **_CONSOLE, "html": kinds.FLAG(False)},
    "sweeps.statistics.ratio": {"above": _SAMPLE, "below": _SAMPLE},
    "sweeps.statistics.power": {
        "samples": Kind(
            "samples", ({1.0: [1.0]}, {1.0: [1.0], -1.0: [1.0]}, {1.0: [], 2.0: [1.0]}, 7, None)
        )({1.0: [1.0, 2.0], 2.0: [2.0, 3.0]}),
        "typical": kinds.FUNCTION(np.mean),
        "seed": kinds.COUNT_OR_ZERO,
    },
    "sweeps.store.Store": {"folder": _PATH(Fresh(_folder))},
}
GOOD["sweeps.cells.axis"]["choices"] = Kind("values or nothing", ("nonsense", 7, 1.5, True))(None)
GOOD["sweeps.cells.axis"]["static"] = kinds.FLAG(False)
for _name in (
    *("cells.product", "cells.cells_of", "cells.constants", "cells.axes", "cells.needs_x64"),
):
    GOOD[f"sweeps.{_name}"] = _EXPERIMENT
for _name in ("cells.config_hash", "cells.static_settings", "engine.run", "page.write"):
    GOOD[f"sweeps.{_name}"] = GOOD.get(f"sweeps.{_name}", {}) | _EXPERIMENT
for _name in ("report.frame", "report.report"):
    GOOD[f"sweeps.{_name}"] = GOOD[f"sweeps.{_name}"] | _EXPERIMENT

EXEMPT: dict[tuple[str, str], str] = {}
