"""The report of ``gradient-subspaces``: the spectrum with its line, the AUC against the rank, what is proven.

What it computes: means and standard deviations over seeds, the exponent of the mean singular values, and the
figure.

Source: T Figure 11.2.

Formal guarantee: none; measurements for a study. Which runs are private is printed with every number.

Cost: seconds.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpsco_jax import privacy
from dpsco_jax.geometry import subspaces
from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, log_ticks, panels, save
from dpsco_jax.sweeps.report import show

ALL, SPECTRUM = "no projection", "spectrum"
PRIVATE, PUBLIC, HISTORY = "private gradients", "public gradients", "own releases"
KINDS = (ALL, SPECTRUM, PRIVATE, PUBLIC, HISTORY)
PROVENANCE = {
    ALL: "public",
    PRIVATE: "private_nonreleasable",
    PUBLIC: "public",
    HISTORY: "private_history",
}


def sigma(rank: int) -> str:
    """The name of the result that is the singular value at a rank."""
    return f"sigma {rank:03d}"


def write(
    frame: pd.DataFrame,
    folder: Path,
    certificates: Mapping[str, privacy.Certificate],
    largest_rank: int,
) -> None:
    """Prints tables, writes CSV files and the figure."""
    spectrum = _spectrum(frame, largest_rank)
    spectrum.to_csv(folder / "spectrum.csv", index=False)
    line = subspaces.decay(spectrum["sigma"].to_numpy()) if len(spectrum) > 1 else None
    if line is not None:
        show(
            "singular values of gradients without noise (an analysis, ε = inf)",
            {
                "ranks": [f"1 to {largest_rank}"],
                "exponent": [f"{line.exponent:.3f}"],
                "R²": [f"{line.r_squared:.3f}"],
                "share of the ten largest": [_share(spectrum["sigma"].to_numpy(), 10)],
            },
        )
    table = _table(frame, certificates)
    table.to_csv(folder / "auc.csv", index=False)
    show("test AUC, mean and standard deviation over seeds", {c: [*table[c]] for c in table})
    with panels(1, 2) as (figure, axes):
        left, right = axes[0]
        if line is not None:
            ranks = spectrum["rank"].to_numpy()
            left.plot(ranks, spectrum["sigma"], color=PALETTE[0], marker=".", ls="")
            fit = line.level * ranks**line.exponent
            left.plot(ranks, fit, color="black", label=f"rank^{line.exponent:.2f}")
            left.set(xscale="log", yscale="log", xlabel="rank", ylabel="singular value")
            left.set_title("gradients without noise: analysis, ε = inf")
            log_ticks(left.yaxis)
            left.legend()
        _draw(right, table)
        save(figure, folder / "gradient_subspaces")


def _spectrum(frame: pd.DataFrame, largest_rank: int) -> pd.DataFrame:
    rows = frame[frame["kind"] == SPECTRUM]
    ranks = range(1, largest_rank + 1) if len(rows) else range(0)
    means = [float(rows[sigma(rank)].mean()) for rank in ranks]
    return pd.DataFrame({"rank": [*ranks], "sigma": means})


def _share(values: np.ndarray, count: int) -> str:
    return f"{np.sum(values[:count] ** 2) / np.sum(values**2):.2f}"


def _table(frame: pd.DataFrame, certificates: Mapping[str, privacy.Certificate]) -> pd.DataFrame:
    rows = []
    for (kind, rank), part in frame[frame["kind"] != SPECTRUM].groupby(
        ["kind", "rank"], sort=False
    ):
        certificate = certificates[str(kind)]
        charged = float(part["inverse_epsilon"].max())
        private = math.isfinite(certificate.epsilon)
        rows.append(
            {
                "directions": kind,
                "rank": "all" if kind == ALL else int(str(rank)),
                "AUC": round(float(part["auc"].mean()), 4),
                "std": round(float(part["auc"].std()), 4),
                "seeds": len(part),
                "ε certified": round(certificate.epsilon, 3),
                "ε in the ledger": round(1 / charged, 2) if charged > 0 else math.inf,
                "": "" if private else "ANALYSIS, NOT PRIVATE",
            }
        )
    return pd.DataFrame(rows)


def labels(table: pd.DataFrame) -> list[str]:
    """What the figure calls the lines of a table: directions, with what is proven of them."""
    found = []
    for kind, part in table.groupby("directions", sort=False):
        epsilon = float(part["ε certified"].iloc[0])
        proven = "inf, not private" if math.isinf(epsilon) else f"{epsilon:g}"
        found.append(f"{kind}: ε = {proven}")
    return found


def _draw(axes: Any, table: pd.DataFrame) -> None:
    groups = table.groupby("directions", sort=False)
    for i, ((kind, part), label) in enumerate(zip(groups, labels(table), strict=True)):
        mean, spread = part["AUC"], part["std"]
        if kind == ALL:
            axes.axhline(mean.iloc[0], color="black", lw=0.8, label=label)
            low, high = mean.iloc[0] - spread.iloc[0], mean.iloc[0] + spread.iloc[0]
            axes.axhspan(low, high, color="black", alpha=0.1, lw=0)
            continue
        style = {"color": PALETTE[i], "marker": MARKERS[i], "ls": LINES[i], "label": label}
        axes.errorbar(part["rank"].astype(float), mean, spread, **style)
    axes.set(xscale="log", xlabel="directions kept", ylabel="test AUC; bars: one std")
    log_ticks(axes.xaxis, sorted({int(rank) for rank in table["rank"] if rank != "all"}))
    axes.legend(fontsize="x-small")
