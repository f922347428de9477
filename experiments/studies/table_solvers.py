"""Solvers and peers on the eight tables: excess training risk as a ratio to that of a tuned DP-SGD.

What it computes: for each table, method, ε and seed the excess of the training objective over its minimum and
what is measured on the test users. The methods are those of ``table_methods``; the winner of ``table-tuning``
runs again, with other seeds, so that the choice does not flatter what is measured here.

Source: see ``table_methods``.

Formal guarantee: each model is (ε, δ)-DP for users under REPLACE_ONE, but for the choices of what is called
"tuned", which looked at the data at no charge. Measurements are functions of the data without noise.

Cost: some seconds for a method, a table and an ε; more for DP-Newton with its search.
"""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pandas as pd

from dpsco_jax import sweeps
from dpsco_jax.sweeps.cells import Setting, Settings
from experiments.studies import table_dp_sgd, table_methods
from experiments.studies.table_methods import METHODS, TUNED
from experiments.studies.table_search import bench
from experiments.studies.table_tasks import DESIGN, NAMES, load_optimum, load_table
from experiments.studies.table_tuning import DELTA, EPSILONS, tuned


@dataclasses.dataclass(frozen=True)
class TableSolvers:
    """Excess risk of solvers and peers on tables, over that of a tuned DP-SGD.

    Attributes:
        tables: names in ``table_tasks.NAMES``; those to design with by default.
        methods: names in ``table_methods.METHODS``; each runs where it applies.
        epsilons: budgets, met by the certificate; those for which DP-SGD was tuned.
        seeds: number of repetitions.
        delta: the δ of all budgets.
    """

    name: ClassVar[str] = "table-solvers"
    version: ClassVar[int] = 1
    tables: tuple[str, ...] = sweeps.axis("table", DESIGN, static=True, choices=NAMES)
    methods: tuple[str, ...] = sweeps.axis("method", METHODS, static=True, choices=METHODS)
    epsilons: tuple[float, ...] = sweeps.axis("epsilon", EPSILONS)
    seeds: int = sweeps.axis("seed", 12)
    delta: float = DELTA

    def cells(self) -> list[dict[str, Setting]]:
        baseline = tuned()
        cells = []
        for cell in sweeps.product(self):
            config = baseline.get((str(cell["table"]), float(cell["epsilon"])))
            applies = table_methods.applies(str(cell["method"]), load_table(str(cell["table"])))
            if applies and config is not None:
                chosen = cell["method"] == TUNED
                settings = ", ".join(map(str, config[0])) if chosen else "plan"
                cells.append(cell | {"config": settings})
        return cells

    def build(self, static: Settings) -> sweeps.Program:
        name, method = str(static["table"]), str(static["method"])
        objective, optimum = bench(name).objective, load_optimum(name)
        run_method = table_methods.runner(name, method)

        def run(data: table_methods.Shared, key: jax.Array, numbers: Any) -> dict[str, jax.Array]:
            params = run_method(data, key, numbers)
            return {
                "excess_risk": table_dp_sgd.excess(data.flat, params, objective),
                "metric": table_dp_sgd.metric(data.flat, params, objective),
            }

        def prepared(cell: Settings) -> table_methods.Prepared:
            return table_methods.prepare(name, method, float(cell["epsilon"]), self.delta)

        return sweeps.Program(
            run,
            shared=table_methods.shared(name),
            inputs=lambda cell: prepared(cell).numbers,
            known=lambda cell: {
                "certified_epsilon": prepared(cell).epsilon,
                "start": optimum.start,
                "optimum_metric": optimum.metric,
            },
        )

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        by = ("table", "method", "epsilon")
        facts = ("certified_epsilon", "start", "optimum_metric")
        summary = sweeps.summarize(frame, by, ("excess_risk", "metric", *facts))
        summary.to_csv(folder / "summary.csv", index=False)
        compared = ratios(frame)
        compared.to_csv(folder / "ratios.csv", index=False)
        for table, rows in summary.groupby("table", sort=False):
            print_results(str(table), rows)
        # Without the tuned DP-SGD among the methods there is nothing to compare with.
        for table, rows in compared.groupby("table", sort=False):
            print_ratios(str(table), rows)
        draw(summary, folder / "table_solvers", self.delta)


def ratios(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean excess risk of each method over that of the tuned DP-SGD, with a 95 % interval."""
    rows = []
    for (table, epsilon), group in frame.groupby(["table", "epsilon"], sort=False):
        runs = {name: list(g["excess_risk"]) for name, g in group.groupby("method", sort=False)}
        for method, values in runs.items():
            if method == TUNED or TUNED not in runs:
                continue
            found = sweeps.ratio(values, runs[TUNED])
            rows.append(
                {
                    "table": table,
                    "epsilon": epsilon,
                    "method": method,
                    "ratio": found.estimate,
                    "low": found.low,
                    "high": found.high,
                }
            )
    return pd.DataFrame(rows, columns=["table", "epsilon", "method", "ratio", "low", "high"])


def print_results(table: str, rows: pd.DataFrame) -> None:
    """Every method at every ε."""
    first = rows.iloc[0]
    pairs = {v: zip(rows[v], rows[f"{v}_ci"], strict=True) for v in ("excess_risk", "metric")}
    sweeps.show(
        f"{load_table(table).title}: w = 0 has excess risk {first['start']:.4g}, the optimum "
        f"{first['optimum_metric']:.4f} on test users (± is a 95 % interval)",
        {
            "method": rows["method"],
            "ε": rows["epsilon"],
            "ε, certificate": rows["certified_epsilon"],
            "excess risk": [f"{mean:.3g} ± {half:.2g}" for mean, half in pairs["excess_risk"]],
            "test": [f"{mean:.4f} ± {half:.4f}" for mean, half in pairs["metric"]],
            "seeds": rows["count"],
        },
    )


def print_ratios(table: str, rows: pd.DataFrame) -> None:
    """One column for each method, one row for each ε."""
    cells = rows.assign(
        text=[
            f"{r:.3g} [{low:.3g}, {high:.3g}]"
            for r, low, high in zip(rows["ratio"], rows["low"], rows["high"], strict=True)
        ]
    )
    wide = cells.pivot(index="epsilon", columns="method", values="text").fillna("-").sort_index()
    names = [name for name in METHODS if name in wide]
    sweeps.show(
        f"{load_table(table).title}: excess risk over that of the tuned DP-SGD",
        {"ε": list(wide.index)} | {name: list(wide[name]) for name in names},
    )


def draw(summary: pd.DataFrame, stem: Path, delta: float) -> None:
    """A panel for each table: excess risk against ε."""
    tables = list(dict.fromkeys(summary["table"]))
    names = [name for name in METHODS if name in set(summary["method"])]
    epsilons = sorted(set(summary["epsilon"]))
    with sweeps.panels(int(np.ceil(len(tables) / 2)), 2, height=1.9, sharex=True) as (figure, axes):
        for panel, table in zip(axes.flat, tables, strict=False):
            rows = summary[summary["table"] == table]
            sweeps.error_bars(panel, rows, "epsilon", "excess_risk", "method", names)
            panel.axhline(
                rows["start"].iloc[0],
                color="gray",
                linestyle=(0, (1, 3)),
                label="no training (w = 0)",
            )
            panel.set_title(load_table(str(table)).title, loc="left")
            sweeps.log_ticks(panel.yaxis)
            panel.set_ylim(top=3 * rows["start"].iloc[0])
            sweeps.log_ticks(panel.xaxis, epsilons)
        for panel in axes[:, 0]:
            panel.set_ylabel("excess training risk")
        for panel in axes[-1]:
            panel.set_xlabel(f"user-level ε (δ = {delta:g}); bars: 95 % interval")
        sweeps.shared_legend(figure, list(axes.flat))
        sweeps.save(figure, stem)
