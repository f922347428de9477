"""The strongest DP-SGD on eight tables: the winner of a search in hindsight, run again with fresh seeds.

What it computes: for each table, ε and seed the excess training risk of the configuration that
``table_search`` finds, and what is measured on the test users (the AUC for classes, else the mean loss).
``report`` writes ``tuned.csv``, what other studies are compared with.

Source: per-user clipping is DP-FedSGD (McMahan et al. 2018).

Formal guarantee: each run is (ε, δ)-DP for users under REPLACE_ONE by the certificate of ``table_dp_sgd``.
The search before it looks at the data without noise and is charged nothing.

Cost: half a minute to three minutes of two cores for the search of a table and an ε.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
import pandas as pd

from dpsco_jax import sweeps
from dpsco_jax.sweeps.cells import Setting, Settings
from experiments.studies import table_dp_sgd, table_search
from experiments.studies.table_search import Config, Found
from experiments.studies.table_tasks import DESIGN, NAMES, load_optimum, load_table

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
TUNED_FILE = Path(__file__).with_name("tuned_tables.csv")


class Job(NamedTuple):
    """What a cell receives: the numbers of its run, and those that decide which program it is."""

    numbers: table_dp_sgd.Settings
    average: Any
    steps: Any


@dataclasses.dataclass(frozen=True)
class TableTuning:
    """The best DP-SGD of a grid that was searched in hindsight, by table and ε.

    Attributes:
        tables: names in ``table_tasks.NAMES``; those to design with by default.
        epsilons: budgets, met by the certificate.
        seeds: number of fresh repetitions of the winner.
        delta: the δ of all budgets.
        thorough: whether the first stage of the search has all combinations of momentum and decay.
    """

    name: ClassVar[str] = "table-tuning"
    version: ClassVar[int] = 1
    tables: tuple[str, ...] = sweeps.axis("table", DESIGN, static=True, choices=NAMES)
    epsilons: tuple[float, ...] = sweeps.axis("epsilon", EPSILONS)
    seeds: int = sweeps.axis("seed", 24)
    delta: float = DELTA
    thorough: bool = False

    def cells(self) -> list[dict[str, Setting]]:
        return sweeps.product(self)

    def build(self, static: Settings) -> sweeps.Program:
        name = str(static["table"])
        ready = table_search.bench(name)
        optimum = load_optimum(name)

        @functools.cache
        def found(epsilon: float) -> Found:
            return table_search.search(name, epsilon, self.delta, self.thorough)

        def inputs(cell: Settings) -> Job:
            config = found(float(cell["epsilon"])).config
            numbers = table_search.settings(ready, config, float(cell["epsilon"]), self.delta)
            return job(numbers, config)

        def known(cell: Settings) -> dict[str, float]:
            winner = found(float(cell["epsilon"]))
            config = winner.config
            return {
                "num_steps": float(config.num_steps),
                "clip": config.clip,
                "clip_norm": config.clip * ready.unit,
                "step": config.step,
                "heavy": config.heavy,
                "decay": config.decay,
                "average": float(table_dp_sgd.AVERAGES.index(config.average)),
                "at_end": float(winner.at_end),
                "tried": float(winner.tried),
                "start": optimum.start,
                "optimum_value": optimum.value,
                "optimum_metric": optimum.metric,
            }

        return sweeps.Program(program(name), shared=ready.flat, inputs=inputs, known=known)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        facts = [
            *("num_steps", "clip", "clip_norm", "step", "heavy", "decay", "average"),
            *("at_end", "tried", "start", "optimum_value", "optimum_metric"),
        ]
        groups = frame.groupby(["table", "epsilon"], sort=False)
        best = groups[facts].first()
        best["average"] = [table_dp_sgd.AVERAGES[int(i)] for i in best["average"]]
        best["excess"] = groups["excess_risk"].mean()
        best["se"] = groups["excess_risk"].sem()
        best["metric"] = groups["metric"].mean()
        best["seeds"] = groups.size()
        best.reset_index().to_csv(folder / "tuned.csv", index=False)
        for table, rows in best.reset_index().groupby("table", sort=False):
            sweeps.show(
                f"{load_table(str(table)).title}: DP-SGD, the best of {rows['tried'].max():.0f}",
                {
                    "ε": rows["epsilon"],
                    "steps": rows["num_steps"],
                    "clip norm": rows["clip_norm"],
                    "step": [
                        f"{step:g}{' (end)' if end else ''}"
                        for step, end in zip(rows["step"], rows["at_end"], strict=True)
                    ],
                    "momentum": rows["heavy"] * 0.9,
                    "decay": rows["decay"],
                    "average": rows["average"],
                    "excess risk": rows["excess"],
                    "± (standard error)": rows["se"],
                    "test": rows["metric"],
                },
            )


def job(numbers: table_dp_sgd.Settings, config: Config) -> Job:
    """What a cell with this configuration receives; the shape of ``steps`` says how many there are."""
    return Job(
        jax.tree.map(np.float32, numbers),
        np.int32(table_dp_sgd.AVERAGES.index(config.average)),
        np.zeros(config.num_steps, bool),
    )


def program(name: str) -> Any:
    """One run of a configuration: ``run(flat, key, job)``."""
    objective = load_table(name).objective

    def run(flat: table_dp_sgd.Flat, key: jax.Array, given: Job) -> dict[str, jax.Array]:
        steps = given.steps.shape[0]
        params = table_dp_sgd.run(flat, key, given.numbers, objective, steps)[given.average]
        return {
            "excess_risk": table_dp_sgd.excess(flat, params, objective),
            "metric": table_dp_sgd.metric(flat, params, objective),
        }

    return run


def tuned() -> dict[tuple[str, float], tuple[Config, float]]:
    """The winners by table and ε, with the mean excess risk that was reported.

    Raises:
        FileNotFoundError: if ``tuned_tables.csv`` is missing: without it there is no baseline.
    """
    if not TUNED_FILE.exists():
        raise FileNotFoundError(
            f"{TUNED_FILE} is missing: it is tuned.csv of `python -m experiments report table-tuning`"
        )
    rows = pd.read_csv(TUNED_FILE).itertuples()
    return {
        (str(r.table), float(r.epsilon)): (  # type: ignore[arg-type]
            Config(int(r.num_steps), r.clip, r.step, r.heavy, r.decay, r.average),  # type: ignore[arg-type]
            float(r.excess),  # type: ignore[arg-type]
        )
        for r in rows
    }
