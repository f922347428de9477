"""Figures that a paper can print: one style, a palette for every eye, reproducible files.

The palette is that of Okabe and Ito (2008), told apart with the common kinds of colour blindness;
every series also has its own marker and line style, so nothing rests on colour alone.

Cost: about a second for a figure of a few panels.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dpsco_jax._checks import (
    require,
    require_count,
    require_instance,
    require_instances,
    require_positive,
    require_real,
)
from dpsco_jax._extra import needs
from dpsco_jax.sweeps._collect import note
from dpsco_jax.sweeps.cells import Setting

with needs("sweeps"):
    import matplotlib
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe-Ito, without its yellow, which is too light for lines on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1)), (0, (5, 1)), (0, (1, 1)))
COLUMN_INCHES = 3.35
PAGE_INCHES = 6.9

_STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "errorbar.capsize": 2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 300,
    "svg.hashsalt": "dpsco_jax",
}


def panels(
    rows: int, columns: int, height: float = 2.2, **options: Any
) -> AbstractContextManager[tuple[Any, Any]]:
    """A figure that is as wide as its number of columns calls for; use in a ``with``.

    Args:
        rows: rows of panels, at least 1.
        columns: columns of panels; one makes a figure of column width, more a figure of page width.
        height: positive inches of one row.
        options: for ``matplotlib.figure.Figure.subplots``.

    Returns:
        A context manager that gives the figure and its axes as an array ``[rows, columns]``. Neither
        matplotlib's settings nor its backend are changed: no figure of yours is touched.
    """
    rows, columns = require_count("rows", rows), require_count("columns", columns)
    height = require_real("height", height, 0.0)
    return _panels(rows, columns, height, options)


@contextmanager
def _panels(
    rows: int, columns: int, height: float, options: dict[str, Any]
) -> Iterator[tuple[Any, Any]]:
    width = COLUMN_INCHES if columns == 1 else PAGE_INCHES
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height * rows))
        yield figure, figure.subplots(rows, columns, squeeze=False, **options)


def error_bars(
    axes: Any, summary: pd.DataFrame, x: str, value: str, series: str, names: Sequence[Setting]
) -> None:
    """Draws means against ``x``, a line for each series, with 95 % confidence intervals.

    Args:
        axes: a matplotlib axes.
        summary: as ``report.summarize`` returns it, with columns ``x``, ``value``, ``series``.
        x: column of the horizontal axis.
        value: column of the vertical axis; its ``_ci`` column gives the bars.
        series: column that tells the lines apart.
        names: the values of ``series``, texts or numbers, in the order that fixes colours and markers.

    Raises:
        ValueError: ``x``, ``value`` (with its ``_ci``) or ``series`` is no column of ``summary``.
    """
    require_instance("axes", axes, Axes)
    require_instance("summary", summary, pd.DataFrame)
    for argument, column in (("x", x), ("value", value), ("series", series)):
        known = isinstance(column, str) and column in summary
        require(known, argument, column, f"one of the columns {[*summary.columns]}")
    require(
        f"{value}_ci" in summary, "value", value, "a column that has a column of intervals, _ci"
    )
    require_instances("names", names, Setting)
    for i, name in enumerate(names):
        line = summary[summary[series] == name].sort_values(x)
        if line.empty:
            continue
        axes.errorbar(
            line[x],
            line[value],
            yerr=line[f"{value}_ci"],
            label=str(name),
            color=PALETTE[i % len(PALETTE)],
            marker=MARKERS[i % len(MARKERS)],
            linestyle=LINES[i % len(LINES)],
        )


def log_ticks(axis: Any, ticks: Sequence[float] | None = None) -> None:
    """Makes an axis logarithmic, with plain numbers at its ticks.

    Args:
        axis: ``axes.xaxis`` or ``axes.yaxis``.
        ticks: where, positive; 1, 2 and 5 times powers of ten if left out.
    """
    require_instance("axis", axis, Axis)
    if ticks is not None:
        require_positive("ticks", ticks)
        require(np.ndim(ticks) == 1, "ticks", ticks, "a sequence of numbers")
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if ticks is None else FixedLocator([*ticks]))
    axis.set_major_formatter(lambda value, position: f"{value:g}")
    axis.set_minor_locator(NullLocator())


def shared_legend(figure: Any, axes: Sequence[Any]) -> None:
    """One legend above all panels, with each label of these axes once.

    Args:
        figure: a matplotlib figure.
        axes: those of its axes whose labels are wanted, a sequence or an array of one dimension.
    """
    require_instance("figure", figure, Figure)
    require_instances("axes", list(axes) if isinstance(axes, np.ndarray) else axes, Axes)
    pairs = [panel.get_legend_handles_labels() for panel in axes]
    handles = {label: handle for pair in pairs for handle, label in zip(*pair, strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)


def save(figure: Any, stem: Path) -> None:
    """Writes ``stem.png`` (300 dpi) and ``stem.svg``; equal data give equal files.

    Args:
        figure: a matplotlib figure.
        stem: path without an ending.
    """
    require_instance("figure", figure, Figure)
    require_instance("stem", stem, str | Path)
    stem = Path(stem)
    figure.savefig(stem.with_suffix(".png"), metadata={"Software": None})
    figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None, "Creator": None})
    note(stem.with_suffix(".svg"))
