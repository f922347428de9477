"""The report of ``query-depth``: exponents beside theory, crossovers, the figure.

What it computes: least-squares exponents of the rounds in κ and in d, and the κ at which the fitted lines of
two methods meet.

Source: thesis, chapter 2, Table 2.1.

Formal guarantee: none; measurements for a study. A crossover outside of the measured range is an
extrapolation.

Cost: seconds.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize

CHAIN, SUPPORT, ABSOLUTE = "chain", "support vectors", "l1 regression"
BALLS, ACCELERATED, SGD = "ball acceleration", "accelerated smoothing", "SGD"
SAMPLED_BALLS, SAMPLED = f"{BALLS}, sampled", f"{ACCELERATED}, sampled"


class Law(NamedTuple):
    """Exponents of a method's rounds in κ and in d by theory, and whether its runs are random."""

    in_condition: float
    in_dim: float
    random: bool


METHODS = {
    BALLS: Law(2 / 3, 1 / 3, False),
    ACCELERATED: Law(1, 1 / 4, False),
    SGD: Law(2, 0, True),
    SAMPLED_BALLS: Law(2 / 3, 1 / 3, True),
    SAMPLED: Law(1, 1 / 4, True),
}


def write(frame: pd.DataFrame, folder: Path, base_dim: int, base_condition: float) -> None:
    """Prints tables, writes CSV files and the figure."""
    by = ("instance", "method", "condition", "dim")
    summary = summarize(frame, by, ("rounds", "reached", "proved_rounds"))
    summary.to_csv(folder / "summary.csv", index=False)
    table = exponents(summary, base_dim, base_condition)
    table.to_csv(folder / "exponents.csv", index=False)
    show("exponents of rounds, theory in brackets", _readable(table))
    crossings = crossovers(table, summary, base_dim)
    crossings.to_csv(folder / "crossovers.csv", index=False)
    show(
        f"κ from which on fewer rounds, and the ratio at the largest, d = {base_dim}", {**crossings}
    )
    missed = summary[summary["reached"] < 1]
    if not missed.empty:
        show("not reached within the proved rounds", {name: missed[name] for name in by})
    _draw(summary, base_dim, base_condition, folder / "query_depth")


def exponents(summary: pd.DataFrame, base_dim: int, base_condition: float) -> pd.DataFrame:
    """Least-squares exponents of mean rounds in κ and d, and the level at κ = 1 of the line in κ.

    Points at which the start is accurate enough (no rounds) are left out.
    """
    rows = []
    for (name, method), group in summary.groupby(["instance", "method"], sort=False):
        law, line = METHODS[str(method)], group[group["dim"] == base_dim]
        in_condition, level = _power(line, "condition", "rounds")
        rows.append(
            {
                "instance": name,
                "method": method,
                "in_condition": in_condition,
                "theory_condition": law.in_condition,
                "proved_condition": _power(line, "condition", "proved_rounds")[0],
                "in_dim": _power(group[group["condition"] == base_condition], "dim", "rounds")[0],
                "theory_dim": law.in_dim,
                "level": level,
                "largest": float(line["condition"].max()),
                "smallest": float(line["condition"].min()),
            }
        )
    return pd.DataFrame(rows)


def _power(rows: pd.DataFrame, x: str, y: str) -> tuple[float, float]:
    rows = rows[rows["rounds"] > 0]
    if rows[x].nunique() < 2:
        return math.nan, math.nan
    slope, level = np.polyfit(np.log(rows[x].to_numpy(float)), np.log(rows[y].to_numpy(float)), 1)
    return float(slope), float(np.exp(level))


def crossovers(table: pd.DataFrame, summary: pd.DataFrame, base_dim: int) -> pd.DataFrame:
    """Ball acceleration against the others, along κ.

    Returns:
        The κ above which its fitted line is the lower one (infinite if the other one grows more slowly),
        whether that is within the measured range, and the ratio of rounds at the largest common κ.
    """
    line = summary[summary["dim"] == base_dim]
    lines = line.pivot(index="condition", columns=["instance", "method"], values="rounds")
    rows = []
    pairs = ((BALLS, ACCELERATED), (BALLS, SGD), (SAMPLED_BALLS, SAMPLED), (SAMPLED_BALLS, SGD))
    for name, group in table.groupby("instance", sort=False):
        fits = group.set_index("method")
        for ours, theirs in pairs:
            if not {ours, theirs} <= set(fits.index):
                continue
            gain = fits.loc[theirs, "in_condition"] - fits.loc[ours, "in_condition"]
            ratio = fits.loc[ours, "level"] / fits.loc[theirs, "level"]
            meets = ratio ** (1 / gain) if gain > 0 else math.nan if gain != gain else math.inf
            inside = fits.loc[ours, "smallest"] <= meets <= fits.loc[ours, "largest"]
            pair = lines[[(name, ours), (name, theirs)]].dropna()
            rows.append(
                {
                    "instance": name,
                    "fewer": ours,
                    "than": theirs,
                    "from": meets,
                    "": "measured" if inside else "extrapolated",
                    "largest": float(pair.index[-1]),
                    "ratio": float(pair.iloc[-1, 0] / pair.iloc[-1, 1]),
                }
            )
    return pd.DataFrame(rows)


def _readable(table: pd.DataFrame) -> dict[str, Any]:
    def beside(measured: str, theory: str) -> list[str]:
        pairs = zip(table[measured], table[theory], strict=True)
        return ["" if math.isnan(found) else f"{found:.2f} ({law:.2f})" for found, law in pairs]

    return {
        "instance": table["instance"],
        "method": table["method"],
        "in κ": beside("in_condition", "theory_condition"),
        "of the proved number": table["proved_condition"],
        "in d": beside("in_dim", "theory_dim"),
    }


def _draw(summary: pd.DataFrame, base_dim: int, base_condition: float, stem: Path) -> None:
    instances = [*dict.fromkeys(summary["instance"])]
    lines = {
        "condition": summary[summary["dim"] == base_dim],
        "dim": summary[summary["condition"] == base_condition],
    }
    with panels(2, len(instances), height=2.2) as (figure, axes):
        for row, (x, data) in enumerate(lines.items()):
            for panel, name in zip(axes[row], instances, strict=True):
                for i, method in enumerate(METHODS):
                    line = data[(data["instance"] == name) & (data["method"] == method)]
                    line = line.sort_values(x)
                    if line[x].nunique() < 2:
                        continue
                    panel.plot(
                        line[x], line["rounds"], label=method,
                        color=PALETTE[i], marker=MARKERS[i], linestyle=LINES[i],
                    )  # fmt: skip
                log_ticks(panel.xaxis, sorted(set(data[x])))
                log_ticks(panel.yaxis)
                panel.set_xlabel("κ = LR/ε" if x == "condition" else "dimension d")
                fixed = f"d = {base_dim}" if row == 0 else f"κ = {base_condition:g}"
                panel.set_title(f"{name}, {fixed}", loc="left")
            axes[row, 0].set_ylabel("rounds of queries")
        shared_legend(figure, axes[0])
        save(figure, stem)
