"""Tables and figures of ``gradients_to_floor``: lines tuned and planned, gradients to the floor, exponents.

What it computes: from the grid of runs, for each number of passes, the entry that is best in hindsight and
the one of least proven bound; the least excess of all as the floor; where a line comes within 1.5 times of
it, by interpolation on logarithms; least-squares exponents of the planners' gradient counts.

Source: T Figure 1.2 and Theorems 1.1.1 and 1.1.2, through ``dpsco_jax.rates.accelerated``.

Formal guarantee: none; looks at measurements only.

Cost: seconds.
"""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpsco_jax.rates import accelerated
from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize

DP_SGD, AC_SA, LOCALIZATION = "DP-SGD", "private AC-SA", "localization"
PLANNERS = {"plan of private AC-SA": "convex ERM", "plan of localization": "convex SCO"}
"""Planners, and the problem whose exponents they should have."""

LINES_SHOWN = (
    *(f"{solver}, {how}" for solver in (DP_SGD, AC_SA) for how in ("tuned", "planned")),
    LOCALIZATION,
)
_NEAR = 1.5


def write_runs(runs: pd.DataFrame, num_users: int, folder: Path) -> None:
    """Lines, gradients to the floor, and the figure of all problems."""
    lines = chosen(runs)
    lines.to_csv(folder / "lines.csv", index=False)
    table = to_floor(lines)
    table.to_csv(folder / "to_floor.csv", index=False)
    shown: dict[str, Any] = {name: table[name] for name in ("loss", "dim")}
    shown["floor"] = [f"{value:.2e}" for value in table["floor"]]
    for name in LINES_SHOWN:
        shown[name] = [
            "-" if np.isnan(x) else f"{x / num_users:.2g}" for x in table[name].astype(float)
        ]
    show(f"passes over the data to come within {_NEAR} times of the floor", shown)
    columns = ["loss", "dim", "line", "gradients", "steps", "policy", "factor", "excess_risk"]
    show("what was run", {name: list(lines[name]) for name in columns})
    _draw_runs(lines, num_users, folder / "gradients_to_floor")


def chosen(runs: pd.DataFrame) -> pd.DataFrame:
    """One row for each problem, line and number of passes, with the entry of the grid behind it."""
    settings = ["loss", "dim", "solver", "passes", "steps", "policy", "factor"]
    # Localization has no grid.
    filled = runs.fillna({"passes": 0.0, "steps": 0, "factor": 1.0})
    means = summarize(filled, settings, ("excess_risk", "gradients", "bound", "trivial"))
    rows = []
    for (_, _, solver, _), group in means.groupby(settings[:4], sort=False):
        if solver == LOCALIZATION:
            rows.append(group.iloc[0].to_dict() | {"line": LOCALIZATION})
            continue
        tuned = group.loc[group["excess_risk"].idxmin()].to_dict()
        unscaled = group[group["factor"] == 1.0]
        planned = unscaled.loc[unscaled["bound"].idxmin()].to_dict()
        rows += [tuned | {"line": f"{solver}, tuned"}, planned | {"line": f"{solver}, planned"}]
    return pd.DataFrame(rows)


def to_floor(lines: pd.DataFrame) -> pd.DataFrame:
    """Gradients at which each line first comes near the floor; not a number if it never does."""
    rows = []
    for (loss, dim), group in lines.groupby(["loss", "dim"], sort=False):
        floor = float(group["excess_risk"].min())
        row: dict[str, Any] = {"loss": loss, "dim": dim, "floor": floor}
        for name in LINES_SHOWN:
            line = group[group["line"] == name].sort_values("gradients")
            row[name] = first_below(
                line["gradients"].to_numpy(float),
                line["excess_risk"].to_numpy(float),
                _NEAR * floor,
            )
        rows.append(row)
    return pd.DataFrame(rows)


def first_below(gradients: np.ndarray, excess: np.ndarray, level: float) -> float:
    """Where the line through the points, straight on logarithms, first reaches the level."""
    below = np.flatnonzero(excess <= level)
    if not len(below):
        return np.nan
    at = below[0]
    if at == 0:
        return float(gradients[0])
    x, y = np.log(gradients[at - 1 : at + 1]), np.log(excess[at - 1 : at + 1])
    return float(np.exp(x[0] + (x[1] - x[0]) * (np.log(level) - y[0]) / (y[1] - y[0])))


def write_plans(plans: pd.DataFrame, epsilon: float, delta: float, folder: Path) -> None:
    """Exponents of the planners, and the figure of them."""
    if plans.empty:
        return
    table = plan_exponents(plans, epsilon, delta)
    table.to_csv(folder / "exponents.csv", index=False)
    show("exponents of T·B in N for d = N^a", {name: list(table[name]) for name in table})
    _draw_plans(table, folder / "planner_exponents")


def plan_exponents(plans: pd.DataFrame, epsilon: float, delta: float) -> pd.DataFrame:
    """For each planner and a: the slope of its plans, of the theorem's closed form, and its limit."""
    rows = []
    for (solver, a), group in plans.groupby(["solver", "exponent"], sort=False):
        problem, sizes = PLANNERS[str(solver)], group["users"].to_numpy(float)
        dims = np.maximum(1, np.round(sizes ** float(a)))  # type: ignore[arg-type]
        setting = accelerated.Setting(sizes, dims, epsilon, delta)
        closed = accelerated.gradient_complexity(accelerated.OURS, problem, setting)
        limit = accelerated.log_exponent(
            accelerated.OURS,
            problem,
            Fraction(float(a)).limit_denominator(1000),  # type: ignore[arg-type]
        )
        rows.append(
            {
                "solver": solver,
                "a": float(a),  # type: ignore[arg-type]
                "plans": _slope(sizes, group["gradients"].to_numpy(float)),
                "closed form": _slope(sizes, closed),
                "exponent": float(limit),
            }
        )
    return pd.DataFrame(rows)


def _slope(sizes: np.ndarray, counts: np.ndarray) -> float:
    return float(np.polyfit(np.log(sizes), np.log(counts), 1)[0])


def _draw_runs(lines: pd.DataFrame, num_users: int, stem: Path) -> None:
    names = list(dict.fromkeys(lines["loss"]))
    dims = sorted(set(lines["dim"]))
    with panels(len(names), len(dims), height=2.3, sharex=True) as (figure, axes):
        for row, loss in zip(axes, names, strict=True):
            for panel, dim in zip(row, dims, strict=True):
                here = lines[(lines["loss"] == loss) & (lines["dim"] == dim)]
                for i, name in enumerate(LINES_SHOWN):
                    line = here[here["line"] == name].sort_values("gradients")
                    style: Any = {"color": PALETTE[i // 2], "marker": MARKERS[i]}
                    style["linestyle"] = LINES[i % 2] if i < 4 else "none"
                    panel.errorbar(
                        line["gradients"] / num_users,
                        line["excess_risk"],
                        yerr=line["excess_risk_ci"],
                        label=name,
                        **style,
                    )
                panel.axhline(here["excess_risk"].min(), color="black", ls=":", label="floor")
                panel.axhline(
                    here["trivial"].iloc[0], color="gray", ls=(0, (1, 3)), label="no training"
                )
                panel.set_xscale("log")
                panel.set_yscale("log")
                panel.set_title(f"{loss} regression, d = {dim:g}", loc="left")
            row[0].set_ylabel("excess empirical risk")
        for panel in axes[-1]:
            panel.set_xlabel("gradients T·B over N")
        shared_legend(figure, axes[0])
        save(figure, stem)


def _draw_plans(table: pd.DataFrame, stem: Path) -> None:
    grid = [Fraction(i, 50) for i in range(101)]
    with panels(1, 2, height=2.4, sharey=True) as (figure, axes):
        for panel, (solver, problem) in zip(axes[0], PLANNERS.items(), strict=True):
            curves = {"thesis": accelerated.OURS, "AFKT21": "AFKT21", "BFGT20": "BFGT20"}
            for i, (label, method) in enumerate(curves.items()):
                exponents = [accelerated.log_exponent(method, problem, a) for a in grid]
                panel.plot(
                    [float(a) for a in grid],
                    [float(e) for e in exponents],
                    color=PALETTE[i],
                    linestyle=LINES[i],
                    label=label,
                )
            rows = table[table["solver"] == solver]
            panel.plot(
                rows["a"], rows["closed form"], "x", color="gray", label="closed form, fitted"
            )
            panel.plot(rows["a"], rows["plans"], "o", color=PALETTE[0], label="plans, fitted")
            panel.set_title(problem, loc="left")
            panel.set_xlabel("a, for d = N^a")
        axes[0, 0].set_ylabel("exponent of gradients in N")
        shared_legend(figure, axes[0])
        save(figure, stem)
