"""Scaling laws of user-level privacy, measured: noise and risk against m and n, gradient counts against nm.

What it computes: items are a fixed centre plus independent signs in each coordinate, of norm ½ each; a user's
vector is the mean of m items. Each private mean of the users' vectors is compared with their exact mean
("noise", root mean square of a coordinate) and with the centre: half the squared distance is the excess
population risk of the squared loss, whose minimizer is the centre. Along one axis m grows at fixed n, along
the other n at fixed m. Exponents come with bootstrap intervals over seeds.

Item gradients are counted from the plans of two solvers with proven rates and from the papers' closed forms
(``rates.user_level``, logarithms off), for a smooth loss at fixed m.

Source: U Theorem 4.1 and T Theorem 9.4.1 (noise ∝ 1/(n√m)); T Theorem 10.3.2 (gradients (nm)^(9/8) and
(nm)^(3/2)); T Theorem 9.4.11 (squares of these risks for strongly convex losses, as here).

Formal guarantee: every released mean is (ε, δ)-DP for users. The comparison with exact means is not private.

Cost: about two minutes on two cores; most of it are pairwise distances of up to 8,000 users, and plans.
"""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry.domains import ball
from dpsco_jax.problems.concentration import user_mean_radius
from dpsco_jax.problems.losses import logistic
from dpsco_jax.rates import user_level as rates
from dpsco_jax.solvers.user_level import accelerated_phased_erm, multipass_sgd
from dpsco_jax.sweeps.cells import Setting, Settings, axis
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import MARKERS, PALETTE, error_bars, log_ticks, panels, save
from dpsco_jax.sweeps.report import show, summarize
from dpsco_jax.sweeps.statistics import Interval, power
from experiments.studies import mean_estimators
from experiments.studies.mean_estimators import CENTRED, CLIPPING, ESTIMATORS, OUTLIER, WINSORIZED

COUNTED = {"multipass_sgd": multipass_sgd, "accelerated_phased_erm": accelerated_phased_erm}
_RELEASES = {CLIPPING: 1, OUTLIER: 1, WINSORIZED: 1, CENTRED: 3}
_LAWS = {"multipass_sgd": 1.5, "accelerated_phased_erm": 1.125}


@dataclasses.dataclass(frozen=True)
class UserLevelScaling:
    """Noise and risk of private means against m and n, gradient counts against nm, with exponents.

    Attributes:
        estimators: private means, names in ``mean_estimators.ESTIMATORS``.
        num_users: n, the values of the axis along which m is ``base_items``.
        items: m, the values of the axis along which n is ``base_users``.
        seeds: number of repetitions.
        count_users: n of the plans whose gradients are counted, at ``count_items``.
        base_users: n where m varies.
        base_items: m where n varies.
        count_items: m of the plans.
        dim: d.
        epsilon: ε, of every release and plan.
        delta: likewise.
    """

    name: ClassVar[str] = "user-level-scaling"
    version: ClassVar[int] = 1
    estimators: tuple[str, ...] = axis("estimator", ESTIMATORS, static=True, choices=ESTIMATORS)
    num_users: tuple[int, ...] = axis("users", (1000, 2000, 4000, 8000), static=True)
    items: tuple[int, ...] = axis("items", (16, 64, 256, 1024, 4096))
    seeds: int = axis("seed", 20)
    count_users: tuple[int, ...] = axis("users", (4000, 16000, 64000, 256000), static=True)
    base_users: int = 2000
    base_items: int = 256
    count_items: int = 16
    dim: int = 16
    epsilon: float = 2.0
    delta: float = 1e-6

    def cells(self) -> list[dict[str, Setting]]:
        points = [(self.base_users, m) for m in self.items]
        points += [(n, self.base_items) for n in self.num_users]
        cells: list[dict[str, Setting]] = [
            {"estimator": name, "users": n, "items": m, "seed": seed}
            for name in self.estimators
            for n, m in dict.fromkeys(points)
            for seed in range(self.seeds)
        ]
        cells += [
            {"estimator": name, "users": n, "items": self.count_items, "seed": 0}
            for name in COUNTED
            for n in self.count_users
        ]
        return cells

    def build(self, static: Settings) -> Program:
        name, users = str(static["estimator"]), int(static["users"])
        if name in COUNTED:
            return Program(
                lambda shared, key, inputs: {"drawn": jnp.zeros([])},
                known=lambda settings: self._counts(name, users),
            )
        centre = jnp.full(self.dim, 0.5 / math.sqrt(self.dim))

        def run(shared: Any, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            items, plan = inputs
            data_key, release_key = jax.random.split(key)
            ones = count_of_ones(data_key, items, (users, self.dim)).astype(jnp.float32)
            vectors = centre * (2.0 * ones / items)
            found = mean_estimators.run(
                name, release_key, plan, lambda step: vectors, _RELEASES[name]
            )
            noise = found.mean - jnp.mean(vectors, axis=0)
            return {
                "noise": jnp.sqrt(jnp.mean(noise**2)),
                "excess_risk": 0.5 * jnp.sum((found.mean - centre) ** 2),
                "halted": found.halted.astype(jnp.float32),
            }

        @functools.cache
        def planned(items: int) -> mean_estimators.Plan:
            return mean_estimators.plan(
                name,
                mean_estimators.Problem(
                    users,
                    self.dim,
                    _RELEASES[name],
                    # Items are off their mean by a norm of one half.
                    user_mean_radius(0.5, items, users, 1e-3),
                    1.0,
                    self.epsilon,
                    self.delta,
                ),
            )

        def inputs(settings: Settings) -> Any:
            items = int(settings["items"])
            return np.int32(items), planned(items)

        return Program(
            run,
            inputs=inputs,
            known=lambda s: {"planned_noise": float(planned(int(s["items"])).noise)},
        )

    def _counts(self, name: str, users: int) -> dict[str, float]:
        """Item gradients of a plan, and by the papers' rates."""
        objective = logistic(1.0, domain=ball(1.0))
        sizes = {"num_users": users, "items_per_user": self.count_items, "dim": self.dim}
        plan = COUNTED[name].plan(Problem(objective, **sizes), Budget(self.epsilon, self.delta))
        setting = rates.Setting(**sizes, epsilon=self.epsilon, smoothness=1.0)
        method = next(method for method in rates.METHODS if method.name == name)
        return {
            "plan_gradients": float(plan.item_gradients),
            "rate_gradients": float(method.leading_gradients(setting)),
        }

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        counts = frame[frame["estimator"].isin(COUNTED)]
        means = frame[~frame["estimator"].isin(COUNTED)]
        by = ("estimator", "users", "items")
        summary = summarize(means, by, ("noise", "excess_risk", "planned_noise", "halted"))
        summary.to_csv(folder / "summary.csv", index=False)
        table = exponents(means, self.base_users, self.base_items)
        table.to_csv(folder / "exponents.csv", index=False)
        counts.dropna(axis=1).to_csv(folder / "gradients.csv", index=False)
        _print_exponents(table, summary)
        _print_counts(counts)
        _draw(summary, counts, self, folder / "user_level_scaling")


def count_of_ones(key: jax.Array, bits: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """How many of ``bits`` fair coins show one: 32 coins are one random word."""

    def add_word(i: jax.Array, count: jax.Array) -> jax.Array:
        words = jax.random.bits(jax.random.fold_in(key, i), shape, jnp.uint32)
        wanted = jnp.clip(bits - 32 * i, 0, 32).astype(jnp.uint32)
        return count + jax.lax.population_count(words >> (32 - wanted)).astype(jnp.int32)

    return jax.lax.fori_loop(0, (bits + 31) // 32, add_word, jnp.zeros(shape, jnp.int32))


def exponents(means: pd.DataFrame, base_users: int, base_items: int) -> pd.DataFrame:
    """Exponents of noise (root mean square) and excess risk in m and in n, for every estimator."""
    rows = []
    for name, group in means.groupby("estimator", sort=False):
        row: dict[str, Any] = {"estimator": name}
        for symbol, column, fixed in (("m", "items", "users"), ("n", "users", "items")):
            base = base_users if fixed == "users" else base_items
            line = group[group[fixed] == base].groupby(column)
            noise = {float(x): list(rows["noise"]) for x, rows in line}  # type: ignore[arg-type]
            risk = {float(x): list(rows["excess_risk"]) for x, rows in line}  # type: ignore[arg-type]
            row[f"noise in {symbol}"] = power(noise, _root_mean_square)
            row[f"risk in {symbol}"] = power(risk)
        rows.append(row)
    return pd.DataFrame(rows)


def _root_mean_square(values: np.ndarray, axis: int) -> np.ndarray:
    return np.sqrt(np.mean(np.square(values), axis=axis))


def _count_exponent(rows: pd.DataFrame, value: str) -> float:
    product = np.log((rows["users"] * rows["items"]).to_numpy(float))
    return float(np.polyfit(product, np.log(rows[value].to_numpy(float)), 1)[0])


def _print_exponents(table: pd.DataFrame, summary: pd.DataFrame) -> None:
    halted = summary.groupby("estimator")["halted"].max()
    columns: dict[str, Any] = {"private mean": table["estimator"]}
    for heading in table.columns[1:]:
        columns[heading] = [str(Interval(*cell)) for cell in table[heading]]
    columns["halted, at most"] = [halted[name] for name in table["estimator"]]
    show("exponents, with 95 % bootstrap intervals over seeds", columns)


def _print_counts(counts: pd.DataFrame) -> None:
    if counts.empty:
        return
    groups = dict([*counts.groupby("estimator", sort=False)])
    show(
        "item gradients: exponents in nm",
        {
            "solver": [*groups],
            "papers' rate": [_LAWS[str(name)] for name in groups],
            "closed form": [_count_exponent(rows, "rate_gradients") for rows in groups.values()],
            "plans": [_count_exponent(rows, "plan_gradients") for rows in groups.values()],
            "least n: plan": [rows["plan_gradients"].iloc[0] for rows in groups.values()],
            "largest n: plan": [rows["plan_gradients"].iloc[-1] for rows in groups.values()],
        },
    )


def _draw(summary: pd.DataFrame, counts: pd.DataFrame, of: UserLevelScaling, stem: Path) -> None:
    """Noise above, risk below; against m, against n, and the gradient counts."""
    lines = {
        "items": summary[summary["users"] == of.base_users],
        "users": summary[summary["items"] == of.base_items],
    }
    with panels(2, 3, height=2.1) as (figure, axes):
        for column, (x, rows) in enumerate(lines.items()):
            for panel, value in zip(axes[:, column], ("noise", "excess_risk"), strict=True):
                error_bars(panel, rows, x, value, "estimator", ESTIMATORS)
                log_ticks(panel.xaxis, sorted(set(rows[x])))
                panel.set_yscale("log")
        for panel, text in zip(axes[:, 0], ("noise of a coordinate", "excess risk"), strict=True):
            panel.set_ylabel(text)
        axes[0, 0].set_title(f"n = {of.base_users}", loc="left")
        axes[0, 1].set_title(f"m = {of.base_items}", loc="left")
        axes[1, 0].set_xlabel("items of a user, m")
        axes[1, 1].set_xlabel("users, n")
        counted = axes[0, 2]
        for i, (name, rows) in enumerate(counts.groupby("estimator", sort=False)):
            product = rows["users"] * rows["items"]
            style: Any = {"color": PALETTE[4 + i], "marker": MARKERS[4 + i]}
            counted.plot(product, rows["plan_gradients"], label=f"{name}, plans", **style)
            rate = (
                rows["rate_gradients"] * (rows["plan_gradients"] / rows["rate_gradients"]).iloc[0]
            )
            law = f"(nm)^{_LAWS[str(name)]:g}"
            counted.plot(product, rate, linestyle=":", color=PALETTE[4 + i], label=law)
        counted.set_xscale("log")
        counted.set_yscale("log")
        counted.set_title(f"item gradients, m = {of.count_items}", loc="left")
        counted.set_xlabel("nm")
        axes[1, 2].axis("off")
        pairs = [panel.get_legend_handles_labels() for panel in (axes[0, 0], counted)]
        handles = [handle for pair in pairs for handle in pair[0]]
        labels = [label for pair in pairs for label in pair[1]]
        axes[1, 2].legend(handles, labels, loc="center")
        save(figure, stem)
