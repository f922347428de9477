"""Tables from finished cells: a frame, summaries over seeds, a table in the terminal, CSV files.

Guarantee: nothing is dropped in silence. A mean over seeds of which one is not finite is itself not
finite, and the counts of failed and missing cells are printed above every report.

Cost: reads the whole store of the experiment once.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

from dpsco_jax._checks import (
    require,
    require_flag,
    require_instance,
    require_instances,
)
from dpsco_jax._extra import needs
from dpsco_jax.sweeps import _code, _failures, page
from dpsco_jax.sweeps._collect import Shown, collecting, note
from dpsco_jax.sweeps.cells import cells_of
from dpsco_jax.sweeps.experiment import BOOKKEEPING, CODE, Experiment
from dpsco_jax.sweeps.store import Store

with needs("sweeps"):
    import pandas as pd
    from rich.console import Console
    from rich.table import Table


def frame(experiment: Experiment, store: Store) -> pd.DataFrame:
    """One row for each stored cell of the experiment, failed ones included.

    Columns: the settings, the results, then those of ``BOOKKEEPING``.
    """
    require_instance("store", store, Store)
    rows = store.rows(cells_of(experiment))
    return pd.DataFrame(
        [
            row["settings"] | row["results"] | {name: row[name] for name in BOOKKEEPING}
            for row in rows
        ]
    )


def summarize(table: pd.DataFrame, by: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    """Mean, standard error and 95 % interval over whatever the columns ``by`` leave open.

    Returns:
        One row for each combination of ``by``, in order of appearance, with ``count`` and, for every value,
        ``<value>``: the mean, ``<value>_se``: the sample standard deviation over the square root of the
        count, and ``<value>_ci``: half the width of Student's 95 % interval of the mean.

    Raises:
        ValueError: ``by`` or ``values`` name what is no column of ``table``.
    """
    require_instance("table", table, pd.DataFrame)
    for argument, names in (("by", by), ("values", values)):
        require_instances(argument, names, str)
        require(
            all(name in table for name in names), argument, names, f"columns: {[*table.columns]}"
        )
    require(bool(by), "by", by, "at least one column")
    grouped = table.groupby(list(by), sort=False)
    summary = pd.DataFrame({"count": grouped.size()})
    student = scipy.stats.t.ppf(0.975, summary["count"] - 1)
    for value in values:
        summary[value] = grouped[value].agg(lambda column: column.mean(skipna=False))
        summary[f"{value}_se"] = grouped[value].agg(_standard_error)
        summary[f"{value}_ci"] = student * summary[f"{value}_se"]
    return summary.reset_index()


def _standard_error(column: pd.Series) -> float:
    finite = np.isfinite(column).all() and len(column) > 1
    return float(np.std(column, ddof=1)) / len(column) ** 0.5 if finite else np.nan


def show(title: str, columns: Mapping[str, Sequence[Any]], console: Console | None = None) -> None:
    """Prints a table: strings as they are, numbers to four significant digits.

    Args:
        title: printed above.
        columns: heading to values, in order.
        console: where to, by default standard output.
    """
    require_instance("title", title, str)
    require_instance("columns", columns, Mapping)
    listed = all(np.ndim(values) == 1 and isinstance(name, str) for name, values in columns.items())
    even = listed and len({len(values) for values in columns.values()}) <= 1
    require(even, "columns", columns, "headings with as many values each")
    if console is not None:
        require_instance("console", console, Console)
    table = Table(title=title, title_justify="left", header_style="bold")
    words = [all(isinstance(value, str) for value in values) for values in columns.values()]
    for heading, text in zip(columns, words, strict=True):
        table.add_column(heading, justify="left" if text else "right", no_wrap=True)
    rows = [
        [value if isinstance(value, str) else f"{value:.4g}" for value in row]
        for row in zip(*columns.values(), strict=True)
    ]
    for row in rows:
        table.add_row(*row)
    note(Shown(title, list(columns), rows, [not text for text in words]))
    (console or output()).print(table)


def report(
    experiment: Experiment, store: Store, folder: Path, console: Console, html: bool = False
) -> None:
    """Prints how the cells stand, writes ``cells.csv``, lets the experiment report.

    Args:
        experiment: an instance, its fields the configuration.
        store: where its cells are.
        folder: where files go.
        console: where texts go.
        html: whether all of it is written as one page, too: ``report.html``.
    """
    require_instance("folder", folder, str | Path)
    folder = Path(folder)
    require_instance("console", console, Console)
    require_flag("html", html)
    table = frame(experiment, store)
    total = len(cells_of(experiment))
    if table.empty:
        console.print(f"{experiment.name}: none of {total} cells has been run")
        return
    table.to_csv(folder / "cells.csv", index=False)
    failed = table[table["status"] == "failed"]
    console.print(
        f"{experiment.name}: {len(table) - len(failed)} of {total} cells finished, "
        f"{(table['status'] == 'nonfinite').sum()} of them not finite, {len(failed)} failed; "
        f"{table['seconds'].sum():.1f} s of computing",
        highlight=False,
    )
    for text in _failures.counted(failed["traceback"]):
        console.print(text, markup=False, highlight=False)
    rows = store.rows(cells_of(experiment))
    software = {
        tuple(sorted((name, of) for name, of in row["versions"].items() if name != CODE))
        for row in rows
    }
    if len(software) > 1:
        console.print(f"the cells come from {len(software)} different sets of library versions")
    finished = table[table["status"] != "failed"].drop(columns=[*BOOKKEEPING])
    with collecting() as collected:
        _show_codes(experiment, rows, console)
        if not finished.empty:
            experiment.report(finished.reset_index(drop=True), folder)
    if html:
        page.write(experiment, store, folder, collected)
    console.print(f"written to {folder}", highlight=False)


def _show_codes(
    experiment: Experiment, rows: Sequence[Mapping[str, Any]], console: Console
) -> None:
    """Which codes of the experiment the results are by, unless all are by that of now."""
    now = _code.own(type(experiment))
    runs: dict[str | None, list[str]] = {}
    for row in rows:
        if row["status"] != "failed":
            runs.setdefault(row["versions"].get(CODE), []).append(row["started"])
    if now is None or {*runs} <= {now}:
        return
    names = {now: f"{now}, that of now", None: "unknown: noted by no run"}
    show(
        "WARNING: results are not all by the code of the experiment as it is now",
        {
            "code": [names.get(code, code) for code in runs],
            "results": [str(len(started)) for started in runs.values()],
            "from runs started": [f"{min(of)} to {max(of)}" for of in runs.values()],
        },
        console,
    )
    if any(code not in names for code in runs):
        console.print("run with --rerun-changed computes those of other codes again")


def output() -> Console:
    """Standard output; as wide as needed where it is not a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=160)
