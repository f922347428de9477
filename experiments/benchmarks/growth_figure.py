"""Draws what a run costs against users, parameters, steps and seeds: ``docs/figures/growth``.

python -m experiments.benchmarks growth --output growth.json
python -m experiments.benchmarks.growth_figure growth.json docs/figures/growth
"""

import json
import sys
from pathlib import Path

from dpsco_jax.sweeps import figures

AXES = ("users", "parameters", "steps", "seeds")
COST = ": run"


def draw(measured: Path, stem: Path) -> None:
    """Writes ``stem.png`` and ``stem.svg``: a panel for each axis, a line for each case.

    Args:
        measured: JSON of the benchmarks, with the suite ``growth``.
        stem: path without an ending.

    Raises:
        ValueError: if the file has no fits of runs.
    """
    rows = json.loads(measured.read_text(encoding="utf-8"))["suites"].get("growth", [])
    runs = [row for row in rows if row["work"].endswith(COST)]
    if not runs:
        raise ValueError(f"measured must hold the suite growth, got {measured}")
    names = list(dict.fromkeys(row["work"].removesuffix(COST) for row in runs))
    with figures.panels(2, 2, 2.4) as (figure, axes):
        for axis, panel in zip(AXES, axes.ravel(), strict=True):
            mine = [row for row in runs if row["ours"].endswith(axis)]
            for row in mine:
                i = names.index(row["work"].removesuffix(COST))
                sizes, costs = zip(*row["points"], strict=True)
                panel.plot(
                    sizes,
                    costs,
                    label=names[i],
                    color=figures.PALETTE[i % len(figures.PALETTE)],
                    marker=figures.MARKERS[i % len(figures.MARKERS)],
                    linestyle=figures.LINES[i % len(figures.LINES)],
                )
            panel.set_xscale("log")
            panel.set_yscale("log")
            panel.set_xlabel(axis)
        for panel in axes[:, 0]:
            panel.set_ylabel("processor seconds of a run")
        figures.shared_legend(figure, list(axes.ravel()))
        figures.save(figure, stem)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
