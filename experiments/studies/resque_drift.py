"""How far coupled runs of reweighted SGD drift apart, against the bound that privacy rests on.

What it computes: pairs of runs of the first phase, with the same records and shifts but for one record,
which is opposite in the two; the distance of their averages over twice the step size; its quantiles, beside
the values that the accountant proves for them. Losses |<a, x>| with kinks at the center, start at the edge of
the ball.

Source: thesis, Lemma 2.4.7; docs/theory/resque.md, Lemma 2.

Formal guarantee: none needed: nothing is released.

Cost: about a minute.
"""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, ArrayLike, Float, Key

from dpsco_jax.privacy.resque._drift import drift_factor
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, panels, save
from dpsco_jax.sweeps.report import show

_DIM = 5
_TAILS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


def coupled_drifts(
    key: Key[Array, ""],
    num_queries: int,
    radius_ratio: ArrayLike,
    record: ArrayLike,
    trials: int,
) -> Float[Array, "trials"]:
    """|ȳ - ȳ'| / (2ηL) of coupled runs of the first phase, with r = L = 1.

    Args:
        key: of all trials.
        num_queries: T̂; the phase has half as many steps.
        radius_ratio: ρ.
        record: the step whose record differs.
        trials: independent pairs of runs.
    """
    steps = num_queries // 2
    step = 2.0 / (4.0 * np.sqrt(num_queries))

    def inside(v: Any) -> Any:
        return v / jnp.maximum(jnp.linalg.norm(v), 1.0)

    def pair(key: Any) -> Any:
        features_key, shifts_key = jax.random.split(key)
        features = jax.random.normal(features_key, (steps, _DIM))
        features = features / jnp.linalg.norm(features, axis=1, keepdims=True)
        shifts = radius_ratio * jax.random.normal(shifts_key, (steps, _DIM))
        start, opposite = jnp.eye(_DIM)[:2]

        def body(carry: Any, now: Any) -> tuple[Any, None]:
            points, sums = carry
            sums = sums[0] + points[0], sums[1] + points[1]  # where gradients are used
            j, a, xi = now

            def moved(v: Any, sign: float) -> Any:
                gradient = jnp.where(j == record, sign * opposite, jnp.sign(a @ xi) * a)
                log_weight = (v @ xi - 0.5 * v @ v) / radius_ratio**2
                return inside(v - step * jnp.exp(log_weight) * gradient)

            points = moved(points[0], 1.0), moved(points[1], -1.0)
            return (points, sums), None

        zero = jnp.zeros(_DIM)
        rows = jnp.arange(steps), features, shifts
        (_, sums), _ = jax.lax.scan(body, ((start, start), (zero, zero)), rows)
        return jnp.linalg.norm(sums[0] - sums[1]) / steps / (2 * step)

    return jax.vmap(pair)(jax.random.split(key, trials))


@dataclasses.dataclass(frozen=True)
class ResqueDrift:
    """Drift of coupled runs of reweighted SGD against its bound.

    Attributes:
        queries: T̂.
        ratios: ρ/r.
        places: where the differing record is, as a share of the phase; -1: anywhere.
        trials: pairs of runs of a cell.
    """

    name: ClassVar[str] = "resque-drift"
    version: ClassVar[int] = 2
    queries: tuple[int, ...] = axis("queries", (512,), static=True)
    ratios: tuple[float, ...] = axis("ratio", (4.0, 8.0, 12.0))
    places: tuple[float, ...] = axis("place", (0.0, -1.0))
    trials: int = 20_000

    def cells(self) -> list[dict[str, Setting]]:
        return product(self)

    def build(self, static: Settings) -> Program:
        queries = int(static["queries"])

        def run(shared: Any, key: Any, inputs: Any) -> dict[str, Any]:
            place_key, key = jax.random.split(key)
            steps = queries // 2
            # A few positions, each with its own trials.
            records = jax.random.randint(place_key, (100,), 0, steps)
            fixed = (inputs["place"] * steps).astype(jnp.int32)
            records = jnp.where(inputs["place"] < 0, records, fixed)

            def group(now: Any) -> Any:
                one_key = jax.random.fold_in(key, now[0])
                return coupled_drifts(one_key, queries, inputs["ratio"], now[1], self.trials // 100)

            drift = jax.lax.map(group, (jnp.arange(100), records))
            found = jnp.quantile(drift, 1.0 - jnp.asarray(_TAILS))
            names = [f"tail {tail:g}" for tail in _TAILS]
            squares = {"mean square": jnp.mean(drift**2)}
            return dict(zip(names, found, strict=True)) | squares

        return Program(run)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        rows = frame.melt(
            id_vars=["queries", "ratio", "place"],
            value_vars=[f"tail {tail:g}" for tail in _TAILS],
            var_name="tail",
            value_name="drift",
        )
        rows["tail"] = rows["tail"].str.removeprefix("tail ").astype(float)
        rows["bound"] = [
            drift_factor(int(queries), float(ratio), float(tail))
            for queries, ratio, tail in zip(
                rows["queries"], rows["ratio"], rows["tail"], strict=True
            )
        ]
        rows.to_csv(folder / "resque_drift.csv", index=False)
        worst = rows[rows["tail"] == rows["tail"].min()]
        show(
            f"drift exceeded with probability {worst['tail'].iloc[0]:g}",
            {name: worst[name].tolist() for name in ("ratio", "place", "drift", "bound")},
        )
        with panels(1, len(self.ratios), sharey=True) as (figure, axes):
            for panel, (ratio, part) in zip(axes[0], rows.groupby("ratio"), strict=True):
                _draw(panel, float(str(ratio)), part)
            axes[0, 0].set_ylabel("probability of more")
            axes[0, -1].legend(loc="lower left")
            save(figure, folder / "resque_drift")


def _draw(panel: Any, ratio: float, rows: pd.DataFrame) -> None:
    for i, (place, line) in enumerate(rows.groupby("place", sort=False)):
        share = float(str(place))
        name = "record anywhere" if share < 0 else f"record at {share:g}"
        options = {"color": PALETTE[i], "marker": MARKERS[i], "ls": LINES[i]}
        panel.plot(line["drift"], line["tail"], label=name, **options)
    bound = rows[rows["place"] == rows["place"].iloc[0]]
    panel.plot(bound["bound"], bound["tail"], color="black", label="proved")
    panel.set(yscale="log", xlabel="drift / (2ηL)", title=f"ρ/r = {ratio:g}")
