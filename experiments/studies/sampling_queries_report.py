"""Tables and the figure of ``sampling-queries``: draws, the best peer in hindsight, exponents by plans.

What it computes: arithmetic on finished cells, and ``sampling_formulas``.

Formal guarantee: none.

Cost: half a minute, of plans.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, panels, save
from dpsco_jax.sweeps.report import show, summarize
from experiments.studies import sampling_formulas as formulas
from experiments.studies.peers.zeroth_order_sgd import AVERAGES

_CONFIG = ["num_steps", "directions", "clip", "path", "mode"]
_CELL = ["problem", "dim", "epsilon"]
_SIZES, _DELTA, _DIM = (25, 50, 100, 200, 400), 1e-4, 3
_ROWS, _DIMS, _CONVEXITIES = (1_000, 10_000, 100_000), (5, 50, 500), (1e-1, 1e-2, 1e-3)
_WIDE = (8, 32, 128, 512, 2048)


def write(frame: pd.DataFrame, folder: Path, draw: str, peer: str, delta: float) -> None:
    """Writes CSV files, prints the tables and draws the figure.

    Args:
        frame: of ``sampling-queries``.
        folder: where files go.
        draw: name of the method of this package.
        peer: name of the other.
        delta: δ, for the label.
    """
    measured = compared(frame, draw, peer)
    measured.to_csv(folder / "sampling_queries.csv", index=False)
    show("excess risk of a draw and of the best peer in hindsight", _columns(measured))
    queries = formulas.planned_queries(_SIZES, 1.0, _DELTA, _DIM)
    queries.to_csv(folder / "planned_queries.csv", index=False)
    grown = formulas.slope(queries["sn"], queries["queries"])
    show(f"planned value queries grow like (sn)^{grown:.3f}", _columns(queries))
    steps = formulas.proximal_steps(_ROWS, _DIMS, _CONVEXITIES)
    show("exponents of proximal steps", {name: [value] for name, value in steps.items()})
    risks = formulas.norm_risks(_WIDE, 1_000_000, 0.1, 1e-6)
    risks.to_csv(folder / "norm_risks.csv", index=False)
    slopes = [
        (p, formulas.slope(x["dim"], x["risk"]), formulas.slope(x["dim"], x["table"]))
        for p, x in risks.groupby("p")
    ]
    names = ("p", "exponent of the risk in d", "of Table 4.1")
    show("risk in d", dict(zip(names, map(list, zip(*slopes, strict=True)), strict=True)))
    means = formulas.means((100, 1_000, 10_000, 100_000, 1_000_000), 10, 1.0, 1e-6)
    means.to_csv(folder / "means.csv", index=False)
    show("means as draws, exact", _columns(means))
    _figure(measured, queries, risks, folder, delta)


def compared(frame: pd.DataFrame, draw: str, peer: str) -> pd.DataFrame:
    """For each problem, dimension and ε the draw and the best configuration of the peer.

    It is chosen by every second seed and measured on the others, so that the least of many noisy means is
    not taken for the mean of the least; with one seed on that.
    """
    draws = summarize(frame[frame["method"] == draw], _CELL, ("excess_risk",))
    facts = frame[frame["method"] == draw].groupby(_CELL, sort=False)
    draws = draws.merge(facts[["bound", "queries", "trivial"]].first().reset_index(), on=_CELL)
    others = frame[frame["method"] == peer]
    if others.empty:
        return draws
    long = others.melt(
        id_vars=[*_CELL, *_CONFIG, "queries", "seed"], value_vars=list(AVERAGES), var_name="average",
        value_name="peer",
    )  # fmt: skip
    by = (*_CELL, *_CONFIG, "queries", "average")
    chosen = summarize(long[long["seed"] % 2 == 0], by, ("peer",))
    chosen = chosen.loc[chosen.groupby(_CELL, sort=False)["peer"].idxmin()]
    fresh = long[long["seed"] % 2 == 1]
    means = summarize(long if fresh.empty else fresh, by, ("peer",))
    best = chosen[list(by)].merge(means, on=list(by))
    best = best.rename(columns={"queries": "peer_queries"}).drop(columns=["count", "peer_ci"])
    both = draws.merge(best, on=_CELL, how="left")
    both["ratio"] = both["excess_risk"] / both["peer"]
    return both


def _columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    return {str(name): table[name].tolist() for name in table}


def _figure(
    measured: pd.DataFrame, queries: pd.DataFrame, risks: pd.DataFrame, folder: Path, delta: float
) -> None:
    with panels(1, 3) as (figure, axes):
        left, middle, right = axes[0]
        for i, ((problem, dim), rows) in enumerate(
            measured.groupby(["problem", "dim"], sort=False)
        ):
            color = PALETTE[i]
            for column, style in (("excess_risk", "-"), ("peer", "--")):
                if column in rows:
                    error = rows[f"{column}_se"].fillna(0.0)
                    label = f"{problem}, d = {dim}" if style == "-" else None
                    left.errorbar(
                        rows["epsilon"], rows[column], error, color=color, ls=style,
                        marker=MARKERS[i], label=label,
                    )  # fmt: skip
        ticks = sorted(measured["epsilon"].unique())
        left.set(xscale="log", yscale="log", xlabel=f"ε (δ = {delta:g})", ylabel="excess risk")
        left.set_xticks(ticks, [f"{x:g}" for x in ticks], minor=False)
        left.set_xticks([], minor=True)
        left.set_title("solid: draw; dashed: peer")
        left.legend(fontsize=6)
        middle.plot(
            queries["sn"], queries["queries"], marker="o", color=PALETTE[0], label="planned"
        )
        square = queries["queries"].iloc[0] * (queries["sn"] / queries["sn"].iloc[0]) ** 2
        middle.plot(queries["sn"], square, color="black", lw=0.6, label="slope 2")
        middle.set(xscale="log", yscale="log", xlabel="s·n", ylabel="value queries")
        middle.set_title("planned value queries")
        middle.legend()
        for i, (p, rows) in enumerate(risks.groupby("p")):
            right.plot(
                rows["dim"], rows["risk"], color=PALETTE[i], marker=MARKERS[i], ls=LINES[i],
                label=f"p = {p:g}",
            )  # fmt: skip
            scale = rows["risk"].iloc[0] / rows["table"].iloc[0]
            right.plot(rows["dim"], scale * rows["table"], color="black", lw=0.6)
        right.set(xscale="log", yscale="log", xlabel="d", ylabel="risk of a draw, at most")
        right.set_title("ℓp balls; thin: Table 4.1")
        right.legend()
        save(figure, folder / "sampling_queries")
