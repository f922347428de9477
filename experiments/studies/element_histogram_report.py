"""Tables and the figure of ``element-histogram``: ratios of errors by task, elements and ε.

What it computes: means over seeds with intervals of ±1.64 standard errors, as the paper draws them, and how
often finer elements are better.

Formal guarantee: none.

Cost: seconds.
"""

from pathlib import Path

import pandas as pd

from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize

SHOWN = ("oracle", "oracle denoised", "private", "private denoised")
_FACTS = ("oracle radius", "private radius", "base", "items", "certified")


def fineness(clusters: int) -> float:
    """Larger for finer elements: single items, 0, come last."""
    return float("inf") if clusters == 0 else float(clusters)


def named(clusters: int) -> str:
    """What the elements are called in tables and figures."""
    return {0: "items", 1: "users"}.get(clusters, f"{clusters} clusters")


def write(frame: pd.DataFrame, folder: Path) -> None:
    """Writes ``element_histogram.csv``, prints the tables and draws the figure.

    Args:
        frame: of ``element-histogram``.
        folder: where files go.
    """
    by = ("task", "clusters", "epsilon")
    table = summarize(frame, by, (*SHOWN, *_FACTS))
    table["order"] = table["clusters"].map(fineness)
    table = table.sort_values(["task", "order", "epsilon"]).reset_index(drop=True)
    table.to_csv(folder / "element_histogram.csv", index=False)
    for task, part in table.groupby("task", sort=False):
        for value in SHOWN:
            wide = part.pivot(index="order", columns="epsilon", values=value)
            names = [named(0 if order == float("inf") else int(order)) for order in wide.index]
            columns = {f"ε = {epsilon:g}": wide[epsilon].tolist() for epsilon in wide.columns}
            show(
                f"{task}: {value}, error over that without privacy", {"elements": names, **columns}
            )
    _draw(table, folder)


def _draw(table: pd.DataFrame, folder: Path) -> None:
    tasks = list(dict.fromkeys(table["task"]))
    styles = list(dict.fromkeys(table.sort_values("order")["clusters"]))
    with panels(2, len(tasks)) as (figure, axes):
        for column, task in enumerate(tasks):
            part = table[table["task"] == task]
            for row, way in enumerate(("oracle", "private")):
                panel = axes[row, column]
                for clusters, line in part.groupby("clusters"):
                    i = styles.index(clusters) % len(PALETTE)
                    panel.errorbar(
                        line["epsilon"],
                        line[way],
                        1.64 * line[f"{way}_se"],
                        label=named(int(str(clusters))),
                        color=PALETTE[i],
                        marker=MARKERS[i],
                        ls=LINES[i],
                    )
                    denoised = line[f"{way} denoised"]
                    panel.plot(line["epsilon"], denoised, color=PALETTE[i], lw=0.6, alpha=0.7)
                label = "ρ tuned non-privately" if way == "oracle" else "ρ private"
                panel.set(title=f"{task}, {label}", xlabel="ε", yscale="log")
                log_ticks(panel.xaxis, sorted(set(line["epsilon"])))
                log_ticks(panel.yaxis)
            axes[0, 0].set(ylabel="error over that without privacy")
            axes[1, 0].set(ylabel="error over that without privacy")
        shared_legend(figure, list(axes[0]))
        save(figure, folder / "element_histogram")
