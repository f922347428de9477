"""Tables and the figure of ``sampling-risk``: means, predictions over them, ratios, and which route won.

What it computes: nothing but arithmetic on finished cells.

Formal guarantee: none; a hindsight comparison.

Cost: seconds.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize
from experiments.studies import sampling_formulas as formulas

_FACTS = ("nominal", "laplace", "bound", "trivial", "named")
_LAST = "DP-GD, last"
_SHOWN = 10.0
_PURE = (20_000, 58)


def write(frame: pd.DataFrame, folder: Path, delta: float, routes: Sequence[str]) -> None:
    """Writes ``sampling_risk.csv``, prints the tables and draws the figure.

    Args:
        frame: of ``sampling-risk``.
        folder: where files go.
        delta: δ, for the label.
        routes: names by their number in ``named``.
    """
    for name in _FACTS:
        if name not in frame:
            frame[name] = math.nan
    by = ("task", "method", "radius", "epsilon")
    table = summarize(frame, by, ("excess_risk",))
    facts = frame.groupby(list(by), sort=False)[list(_FACTS)].first().reset_index()
    table = table.merge(facts, on=list(by))
    table["over_nominal"] = table["excess_risk"] / table["nominal"]
    table["over_laplace"] = table["excess_risk"] / table["laplace"]
    peer = table[table["method"] == _LAST].set_index(["task", "epsilon"])["excess_risk"]
    table["over_last"] = [
        row.excess_risk / peer.get((row.task, row.epsilon), math.nan) for row in table.itertuples()
    ]
    table.to_csv(folder / "sampling_risk.csv", index=False)
    for task, rows in table.groupby("task", sort=False):
        columns = ("method", "radius", "epsilon", "count", "excess_risk", "excess_risk_se")
        ratios = ("nominal", "laplace", "over_nominal", "over_laplace", "over_last", "bound")
        title = f"{task}: excess risk, w = 0 has {rows['trivial'].iloc[0]:.4g}"
        show(title, {name: rows[name].tolist() for name in (*columns, *ratios)})
    _show_routes(table, routes)
    _show_formulas(table, folder, delta)
    _draw(table, folder, delta)


def _show_routes(table: pd.DataFrame, routes: Sequence[str]) -> None:
    """Where all routes have been run for one radius: named before, and best afterwards."""
    chosen = table[table["method"].isin(routes)]
    lines = []
    for (task, radius, epsilon), rows in chosen.groupby(["task", "radius", "epsilon"], sort=False):
        if len(rows) < len(routes):
            continue
        named = routes[int(rows["named"].iloc[0])]
        best = rows.loc[rows["excess_risk"].idxmin()]
        taken = rows.set_index("method")["excess_risk"][named]
        lines.append((task, radius, epsilon, named, best["method"], taken / best["excess_risk"]))
    if not lines:
        return
    hits = sum(line[3] == line[4] for line in lines)
    names = ("task", "radius", "epsilon", "named", "best", "named over best")
    columns = dict(zip(names, map(list, zip(*lines, strict=True)), strict=True))
    show(f"routes: the one that is named is the best in {hits} of {len(lines)}", columns)


def _show_formulas(table: pd.DataFrame, folder: Path, delta: float) -> None:
    """Users as records, and pure privacy: by plans and formulas alone."""
    tasks, epsilons = list(table["task"].unique()), sorted(table["epsilon"].unique())
    users = formulas.users_as_records(tasks, (4.0, 10.0), epsilons, delta)
    users.to_csv(folder / "users_as_records.csv", index=False)
    title = f"a user as the record: a plan beats w = 0 in {users['beats'].sum()} of {len(users)}"
    show(title, {str(name): users[name].tolist() for name in users})
    pure = pd.DataFrame(
        {"radius": radius, "epsilon": epsilon} | formulas.pure_privacy(*_PURE, radius, epsilon)
        for radius in (4.0, 10.0)
        for epsilon in epsilons
    )
    pure.to_csv(folder / "pure_privacy.csv", index=False)
    title = "pure privacy, {:,} rows of {} columns, by formulas".format(*_PURE)
    show(title, {str(name): pure[name].tolist() for name in pure})


def _draw(table: pd.DataFrame, folder: Path, delta: float) -> None:
    tasks = list(table["task"].unique())
    series = list(dict.fromkeys(zip(table["method"], table["radius"], strict=True)))
    # One distance for all that have one: seven series can be told apart.
    shown = [(m, r) for m, r in series if r in (0.0, _SHOWN)]
    with panels(1, max(2, len(tasks)), height=2.8) as (figure, axes):
        for panel, task in zip(axes[0], tasks, strict=False):
            rows = table[table["task"] == task]
            for i, (method, radius) in enumerate(shown):
                points = rows[(rows["method"] == method) & (rows["radius"] == radius)]
                points = points.sort_values("epsilon")
                label = f"{method}, R = {radius:g}" if radius else method
                style = {
                    "color": PALETTE[i % len(PALETTE)],
                    "marker": MARKERS[i % len(MARKERS)],
                    "ls": LINES[i % len(LINES)],
                }
                panel.errorbar(
                    points["epsilon"],
                    points["excess_risk"],
                    points["excess_risk_ci"].fillna(0.0),
                    label=label,
                    **style,
                )
                predicted = points.dropna(subset=["laplace"])
                panel.plot(predicted["epsilon"], predicted["laplace"], color="black", lw=0.5)
            panel.axhline(rows["trivial"].iloc[0], color="black", lw=0.6)
            panel.set(xscale="log", yscale="log", title=task, xlabel=f"ε (δ = {delta:g})")
            log_ticks(panel.xaxis, sorted(rows["epsilon"].unique()))
        axes[0, 0].set_ylabel("excess risk")
        shared_legend(figure, axes[0, : len(tasks)])
        save(figure, folder / "sampling_risk")
