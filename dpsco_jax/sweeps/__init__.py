"""Sweeps: jitted runs over seeds, budgets and solvers, resumable, stored, with tables and figures.

What is an experiment: ``experiment``. How it is run: ``dpsco-sweep`` (``command``) or ``run`` (``engine``).
``docs/sweeps.md`` has a complete example.

Tables, figures and the command need the extra ``sweeps``; what runs and stores cells does not.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dpsco_jax._extra import there
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.engine import Options, Tally, run
from dpsco_jax.sweeps.executors import Here
from dpsco_jax.sweeps.experiment import Experiment, Program
from dpsco_jax.sweeps.merging import merge
from dpsco_jax.sweeps.ray_cluster import Ray
from dpsco_jax.sweeps.shares import Share
from dpsco_jax.sweeps.statistics import Interval, power, ratio
from dpsco_jax.sweeps.store import Store

if TYPE_CHECKING:
    from dpsco_jax.sweeps.figures import error_bars, log_ticks, panels, save, shared_legend
    from dpsco_jax.sweeps.progress import Progress
    from dpsco_jax.sweeps.records import results
    from dpsco_jax.sweeps.report import show, summarize

__all__ = [
    "Experiment",
    "Here",
    "Interval",
    "Options",
    "Program",
    "Progress",
    "Ray",
    "Setting",
    "Settings",
    "Share",
    "Store",
    "Tally",
    "axis",
    "error_bars",
    "log_ticks",
    "merge",
    "panels",
    "power",
    "product",
    "ratio",
    "results",
    "run",
    "save",
    "shared_legend",
    "show",
    "summarize",
]

# Imported when they are asked for: their files need what the extra brings.
_WITH_EXTRA = {
    "Progress": "progress",
    "error_bars": "figures",
    "log_ticks": "figures",
    "panels": "figures",
    "results": "records",
    "save": "figures",
    "shared_legend": "figures",
    "show": "report",
    "summarize": "report",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_EXTRA:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WITH_EXTRA[name]}"), name)


def __dir__() -> list[str]:
    # ``help`` asks for all that is named here.
    complete = there("matplotlib", "pandas", "rich", "tyro")
    return sorted(__all__ if complete else set(__all__) - set(_WITH_EXTRA))
