"""Adversarial users: what private means do when some vectors are far away, NaN, or collude.

What it computes: users' vectors are means of m items around a centre, as in ``user-level-scaling``. From the
second half of the releases on, a share of the users sends something else. Measured: the distance of the last
private mean from the mean of the honest users, whether the run has halted, and whether the distance is
within what is proven.

What is proven of the outlier-removed mean with score radius ρ if honest users lie within ρ/2 of their
centre and the test passes: a vector with positive weight has more than half of all users within 2ρ, hence an
honest one if fewer than half attack, hence lies within 2.5ρ of the centre and 3ρ of every honest vector. If
the share x of attackers is at most 1 - θ, honest weights are one and the mean is off by at most x·3ρ; for
any x below one half by 3ρ. Noise adds σρ(√d + √(2 ln 1/γ)), up to a probability γ = 1/1000. If the score
falls below the threshold the run halts and keeps its last release, whose distance is that of the noise.

Source: U Algorithm 1 (what it is for); the bound is ours.

Formal guarantee: every released mean is (ε, δ)-DP for users, under any attack. Distances are measured with
the honest users' exact mean, without privacy.

Cost: a minute on two cores.
"""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pandas as pd

from dpsco_jax.problems.concentration import user_mean_radius
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import MARKERS, PALETTE, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize
from experiments.studies import mean_estimators
from experiments.studies.mean_estimators import ESTIMATORS, OUTLIER
from experiments.studies.user_level_scaling import count_of_ones

NOBODY, FAR, NAN = "none", "at 1e6", "NaN"
# All attackers at one place, this many score radii from the centre.
_COLLUDING = {"colluding, 1.5 radii": 1.5, "colluding, 3 radii": 3.0, "colluding, 10 radii": 10.0}
ATTACKS = (NOBODY, *_COLLUDING, FAR, NAN)


@dataclasses.dataclass(frozen=True)
class UserLevelRobustness:
    """Distance of private means from the honest users' mean under attacks, and who halts.

    Attributes:
        estimators: private means, names in ``mean_estimators.ESTIMATORS``.
        attacks: names in ``ATTACKS``.
        shares: of the users who attack.
        seeds: number of repetitions.
        num_users: n.
        items: m.
        dim: d.
        num_releases: T; attacks begin at the second half.
        threshold: of the test of concentration, as a share of n: a share x of outliers leaves (1 - x)².
        epsilon: ε, of all releases.
        delta: likewise.
    """

    name: ClassVar[str] = "user-level-robustness"
    version: ClassVar[int] = 1
    estimators: tuple[str, ...] = axis("estimator", ESTIMATORS, static=True, choices=ESTIMATORS)
    attacks: tuple[str, ...] = axis("attack", ATTACKS, choices=ATTACKS)
    shares: tuple[float, ...] = axis("share", (0.05, 0.4))
    seeds: int = axis("seed", 20)
    num_users: int = 2000
    items: int = 1024
    dim: int = 16
    num_releases: int = 4
    threshold: float = 0.85
    epsilon: float = 2.0
    delta: float = 1e-6

    def cells(self) -> list[dict[str, Setting]]:
        return product(self)

    def build(self, static: Settings) -> Program:
        name = str(static["estimator"])
        users, first = self.num_users, self.num_releases // 2
        plan = mean_estimators.plan(name, self.problem)
        centre = jnp.full(self.dim, 0.5 / math.sqrt(self.dim))
        # Across the centre's direction, so that clipping does not undo the attack.
        across = centre.at[::2].multiply(-1.0) / 0.5

        def run(shared: Any, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            data_key, release_key = jax.random.split(key)
            ones = count_of_ones(data_key, jnp.int32(self.items), (users, self.dim))
            honest = centre * (2.0 * ones / self.items)
            attacks = jnp.arange(users) < inputs["attackers"]
            sent = jnp.where(attacks[:, None], centre + inputs["distance"] * across, honest)
            found = mean_estimators.run(
                name,
                release_key,
                plan,
                lambda step: honest if step < first else sent,
                self.num_releases,
            )
            keeps = jnp.where(attacks, 0.0, 1.0)
            # Before the attack everybody is honest.
            everybody = jnp.mean(honest, axis=0)
            others = (keeps @ honest) / jnp.sum(keeps)
            honest_mean = jnp.where(found.halted, everybody, others)
            error = jnp.linalg.norm(found.mean - honest_mean)
            measured = {"error": error, "halted": found.halted.astype(jnp.float32)}
            if name != OUTLIER:
                return measured
            bound = inputs["noise_norm"] + jnp.where(found.halted, 0.0, inputs["shift"])
            return measured | {
                "bound": bound,
                "within_bound": (error <= bound).astype(jnp.float32),
            }

        def inputs(settings: Settings) -> dict[str, Any]:
            attack, share = str(settings["attack"]), float(settings["share"])
            count = 0 if attack == NOBODY else round(share * users)
            found = {"attackers": count, "distance": self.distance(attack)}
            return found | (self.bounds(plan, count / users) if name == OUTLIER else {})

        return Program(run, inputs=inputs)

    @functools.cached_property
    def score_radius(self) -> float:
        """ρ: twice the distance to the centre within which all honest vectors lie, but for 1/1000."""
        return 2.0 * user_mean_radius(0.5, self.items, self.num_users, 1e-3)

    @property
    def problem(self) -> mean_estimators.Problem:
        """What all estimators are planned from."""
        return mean_estimators.Problem(
            self.num_users,
            self.dim,
            self.num_releases,
            0.5 * self.score_radius,
            1.0,
            self.epsilon,
            self.delta,
            threshold=self.threshold,
        )

    def distance(self, attack: str) -> float:
        """How far from the centre attackers stand."""
        others = {NOBODY: 0.0, FAR: 1e6, NAN: math.nan}
        return others[attack] if attack in others else _COLLUDING[attack] * self.score_radius

    def bounds(self, plan: mean_estimators.Plan, share: float) -> dict[str, float]:
        """What is proven of the outlier-removed mean: the norm of the noise, and what attackers add."""
        noise = plan.noise * (math.sqrt(self.dim) + math.sqrt(2.0 * math.log(1e3)))
        weight = share if share <= 1.0 - float(plan.releases.keep_level) else 1.0
        return {"noise_norm": float(noise), "shift": 3.0 * self.score_radius * weight}

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        summary = summarize(
            frame, ("share", "attack", "estimator"), ("error", "halted", "bound", "within_bound")
        )
        summary.to_csv(folder / "summary.csv", index=False)
        for share, rows in summary.groupby("share", sort=False):
            _print_table(float(str(share)), rows)
        _draw(summary, folder / "user_level_robustness")


def _print_table(share: float, rows: pd.DataFrame) -> None:
    """Distances from the honest users' mean; for the outlier-removed mean also halts and the bound."""
    attacks = list(dict.fromkeys(rows["attack"]))
    columns: dict[str, Any] = {"attack": attacks}
    for name in dict.fromkeys(rows["estimator"]):
        lines = rows[rows["estimator"] == name].set_index("attack").loc[attacks]
        pairs = zip(lines["error"], lines["error_ci"], strict=True)
        columns[str(name)] = [f"{mean:.3g} ± {half:.2g}" for mean, half in pairs]
        if name == OUTLIER:
            columns["halted"] = list(lines["halted"])
            columns["proven"] = list(lines["bound"])
            columns["within"] = list(lines["within_bound"])
    show(f"{share:.0%} of the users attack: distance from the honest users' mean", columns)


def _draw(summary: pd.DataFrame, stem: Path) -> None:
    """One panel for each share: the distance under each attack, and what is proven."""
    shares = list(dict.fromkeys(summary["share"]))
    attacks = list(dict.fromkeys(summary["attack"]))
    with panels(1, len(shares), height=2.8, sharey=True) as (figure, axes):
        for panel, share in zip(axes[0], shares, strict=True):
            for i, name in enumerate(ESTIMATORS):
                rows = summary[(summary["share"] == share) & (summary["estimator"] == name)]
                places = [attacks.index(attack) + 0.15 * (i - 1.5) for attack in rows["attack"]]
                style: Any = {"color": PALETTE[i], "marker": MARKERS[i], "linestyle": "none"}
                panel.errorbar(places, rows["error"], yerr=rows["error_ci"], label=name, **style)
                if name == OUTLIER:
                    label = "proven for the outlier-removed mean"
                    panel.plot(places, rows["bound"], "_", color=PALETTE[i], ms=12, label=label)
                    kept = rows["error"].where(rows["halted"] > 0.5)
                    label = "halted: its last release"
                    panel.plot(places, kept, **style | {"mfc": "white", "zorder": 3}, label=label)
            panel.set_yscale("log")
            panel.set_xticks(range(len(attacks)), attacks, rotation=40, ha="right")
            panel.set_title(f"{share:.0%} of the users attack", loc="left")
        axes[0, 0].set_ylabel("distance from the honest mean")
        shared_legend(figure, axes[0])
        save(figure, stem)
