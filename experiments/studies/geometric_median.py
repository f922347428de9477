"""The excess risk of private geometric medians against the dimension, for spectra that fall and that do not.

What it computes: noisy gradient descent on all users (Algorithm 35, full batches) for mean ‖x - x_i‖_A with
points on a line in d dimensions, so that without noise all dimensions are the same problem. Of a grid of
steps, step sizes and pulls the best in hindsight, chosen on half of the seeds and shown on the others; and,
untuned, the plan of ``regularized_sgd`` with and without the coefficients.

Source: thesis, section 11.4.1 and Figure 11.1, and the public code of its authors. Conventions: ``"text"``
has A = diag(j^-p); ``"companion_corrected"`` A^{1/2} = diag(j^-p), as that code for p > 0;
``"companion_printed"`` has the code's own "const", diag(1, ..., d), with noise for gradients of length 1: NOT
private, as ``epsilon`` says.

Formal guarantee: a run is ``epsilon``-DP at δ under replacement of one point, except of the last convention.
Tuning and what is measured are not private.

Cost: four minutes on two cores.
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
from scipy import optimize

from dpsco_jax import Budget, Problem
from dpsco_jax.privacy.curves import composition
from dpsco_jax.privacy.releases import fixed_size
from dpsco_jax.problems import restricted_lipschitz
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import first_order, methods
from dpsco_jax.solvers.item_level import regularized_sgd
from dpsco_jax.sweeps.cells import Setting, Settings, axis
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize
from experiments.studies import mahalanobis
from experiments.studies.mahalanobis import CONVENTIONS, CORRECTED, OBJECTIVE, POWERS, PRINTED, TEXT

GRID, PLANNED, PAPER, BLIND = "grid", "planned", "planned, paper", "planned, blind"
METHODS = (GRID, PLANNED, PAPER, BLIND)
ACCOUNTANTS = ("pld", "zcdp", "advanced")
COLUMNS = (
    (TEXT, "const", "A = I"),
    (TEXT, "sqrt", "A = diag(j^-1/2)"),
    (TEXT, "linear", "A = diag(j^-1)"),
    (CORRECTED, "linear", "A^1/2 = diag(j^-1)"),
)
_TEST_POINTS = 10_000


@functools.cache
def noise_multiplier(
    accountant: str, users: int, steps: int, epsilon: float, delta: float
) -> float:
    """σ over the sensitivity: of Gaussians exactly, by zCDP in closed form, or by advanced composition."""
    if accountant == "pld":
        return fixed_size(users, users, steps).noise_multiplier(epsilon, delta, "pld")
    if accountant == "zcdp":
        rho = (math.sqrt(epsilon + math.log(1 / delta)) - math.sqrt(math.log(1 / delta))) ** 2
        return math.sqrt(steps / (2 * rho))
    each = delta / (steps + 1)

    def over(one: float) -> float:
        composed, _ = composition.advanced_composition(one, each, steps, each)
        return float(composed) - epsilon

    one = optimize.brentq(over, 1e-9, epsilon)
    return math.sqrt(2 * math.log(1.25 / each)) / one


@dataclasses.dataclass(frozen=True)
class GeometricMedian:
    """Noisy gradient descent for generalized geometric medians as the dimension grows.

    Attributes:
        methods: the grid, or plans.
        conventions: what the spectra are of.
        spectra: names of powers.
        dims: d.
        steps: T; plans take the largest.
        step_sizes: η of the grid.
        pulls: α of the grid.
        seeds: data sets; the grid is tuned on the even ones.
        num_users: n.
        scale: G_0, the largest entry of A^{1/2}.
        epsilon: ε.
        delta: δ.
        accountant: of the noise.
        distance: D, of the plans: a public bound on how far the median is from the origin.
    """

    name: ClassVar[str] = "geometric-median"
    version: ClassVar[int] = 1
    methods: tuple[str, ...] = axis("method", METHODS, choices=METHODS)
    conventions: tuple[str, ...] = axis("convention", (TEXT, CORRECTED), choices=CONVENTIONS)
    spectra: tuple[str, ...] = axis("spectrum", tuple(POWERS), choices=tuple(POWERS))
    dims: tuple[int, ...] = axis("dim", (20, 50, 100, 200, 500, 1000, 2000), static=True)
    steps: tuple[int, ...] = axis("steps", (10, 40, 160, 640), static=True)
    step_sizes: tuple[float, ...] = axis("step size", (0.03, 0.1, 0.3, 1.0, 3.0))
    pulls: tuple[float, ...] = axis("pull", (0.0,))
    seeds: int = axis("seed", 20)
    num_users: int = 500
    scale: float = 1.0
    epsilon: float = 2.0
    delta: float = 1e-6
    accountant: str = "pld"
    distance: float = 1.5

    def cells(self) -> list[dict[str, Setting]]:
        found: list[dict[str, Setting]] = []
        for convention in self.conventions:
            for spectrum in self.spectra:
                if convention == PRINTED and spectrum != "const":
                    continue  # those of the corrected companion
                for dim in self.dims:
                    base: dict[str, Setting] = {
                        "convention": convention,
                        "spectrum": spectrum,
                        "dim": dim,
                    }
                    for method in self.methods:
                        found += [
                            base | {"method": method} | more | {"seed": seed}
                            for more in self._settings(method)
                            for seed in range(self.seeds)
                        ]
        return found

    def _settings(self, method: str) -> list[dict[str, Setting]]:
        if method != GRID:
            return [{"steps": max(self.steps)}]
        return [
            {"steps": steps, "step size": size, "pull": pull}
            for steps in self.steps
            for size in self.step_sizes
            for pull in self.pulls
        ]

    def build(self, static: Settings) -> Program:
        dim, steps, users = int(static["dim"]), int(static["steps"]), self.num_users

        def run(shared: Any, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            # The same points for all settings of a seed.
            seeded = jax.random.fold_in(jax.random.key(11), inputs["seed"])
            points, test = jnp.split(
                1 + jax.random.normal(seeded, (users + _TEST_POINTS, 1)), [users]
            )
            half = inputs["half"]
            mean = mahalanobis.ClosedForm(half, inputs["clip"], inputs["multiplier"])
            method = methods.ProjectedSgd(inputs["step size"])
            pull, data = first_order.Pull(inputs["pull"]), UserData(points[:, None])
            found = first_order.run(
                key, mean, method, OBJECTIVE, data, jnp.zeros(dim), steps, steps * users, pull
            ).params
            # The minimizer is the median of the first coordinate, and nothing in the others.
            least = half[0] * jnp.mean(jnp.abs(points - jnp.median(points)))
            return {
                "excess": mahalanobis.mean_distance(found, half, points) - least,
                "train": mahalanobis.mean_distance(found, half, points),
                "test": mahalanobis.mean_distance(found, half, test),
            }

        def inputs(settings: Settings) -> dict[str, Any]:
            half = mahalanobis.half_matrix(
                str(settings["convention"]), str(settings["spectrum"]), dim, self.scale
            )
            moves = self._moves(str(settings["method"]), half, steps) or settings
            return {
                "half": np.asarray(half, np.float32),
                "clip": self.scale,
                "multiplier": self._multiplier(steps),
                "step size": float(moves["step size"]),
                "pull": float(moves["pull"]),
                "seed": int(settings["seed"]),
            }

        def known(settings: Settings) -> dict[str, float]:
            half = mahalanobis.half_matrix(
                str(settings["convention"]), str(settings["spectrum"]), dim, self.scale
            )
            moves = self._moves(str(settings["method"]), half, steps)
            # Of the grid nothing is claimed.
            bound = {} if moves is None else {"bound": moves["bound"]}
            return bound | {"epsilon": self.true_epsilon(float(half.max()), steps)}

        return Program(run, inputs=inputs, known=known)

    def _multiplier(self, steps: int) -> float:
        return noise_multiplier(self.accountant, self.num_users, steps, self.epsilon, self.delta)

    def true_epsilon(self, longest: float, steps: int) -> float:
        """ε at δ of a run whose gradients are that long, with the noise for ``scale``."""
        multiplier = self._multiplier(steps) * self.scale / longest
        return (
            fixed_size(self.num_users, self.num_users, steps)
            .certificate(multiplier, self.delta)
            .epsilon
        )

    def _moves(self, method: str, half: np.ndarray, steps: int) -> dict[str, float] | None:
        """What a plan says; ``None`` of the grid."""
        if method == GRID:
            return None
        objective = OBJECTIVE._replace(lipschitz=float(half.max()))
        problem = Problem(
            objective, num_users=self.num_users, dim=len(half), distance=self.distance
        )
        known = restricted_lipschitz.coefficients_from_matrix(half)
        plan = regularized_sgd.plan(
            problem,
            Budget(self.epsilon, self.delta),
            num_steps=steps,
            coefficients=None if method == BLIND else known,
            constants="paper" if method == PAPER else "tight",
        )
        moves = {
            "step size": plan.step_size,
            "pull": plan.pull,
            "bound": plan.excess_bound,
        }
        return {name: float(value) for name, value in moves.items()}

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        table = best(frame)
        table.to_csv(folder / "geometric_median.csv", index=False)
        names = [
            "convention",
            "spectrum",
            "dim",
            "line",
            "steps",
            "step size",
            "pull",
            "excess",
            "excess_sd",
            "test",
        ]
        show(
            "excess of each line",
            {name: table[name].tolist() for name in [*names, "bound", "epsilon"]},
        )
        _draw(table, folder / "geometric_median")


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """One row for each problem and line: plans, and the entries of the grid that are best on even seeds.

    Lines of the grid are ``"tuned"``, of all pulls there are, and ``"tuned, no pull"``; shown on odd seeds.
    """
    problem = ["convention", "spectrum", "dim"]
    frame = frame.assign(**{n: math.nan for n in ("step size", "pull", "bound") if n not in frame})
    filled = frame.fillna({"step size": 0.0, "pull": 0.0, "bound": math.inf})
    chosen_by = ["method", *problem, "steps", "step size", "pull"]
    even = summarize(filled[filled["seed"] % 2 == 0], chosen_by, ("excess",))
    odd = filled[filled["seed"] % 2 == 1]
    shown = summarize(odd, chosen_by, ("excess", "train", "test", "bound", "epsilon"))
    shown["excess_sd"] = shown["excess_se"] * np.sqrt(shown["count"])
    rows = []
    for _, group in even.groupby(problem, sort=False):
        lines = {
            "tuned": group[group["method"] == GRID],
            "tuned, no pull": group[(group["method"] == GRID) & (group["pull"] == 0)],
        } | {name: group[group["method"] == name] for name in METHODS[1:]}
        for line, entries in lines.items():
            if len(entries):
                entry = entries.loc[entries["excess"].idxmin(), chosen_by]
                same = (shown[chosen_by] == entry.to_numpy()).all(axis=1)
                rows.append({"line": line} | shown[same].iloc[0].to_dict())
    return pd.DataFrame(rows)


def _draw(table: pd.DataFrame, stem: Path) -> None:
    lines = [line for line in ("tuned, no pull", PLANNED, BLIND) if line in set(table["line"])]
    with panels(1, len(lines), height=2.4, sharey=True) as (figure, axes):
        for panel, line in zip(axes[0], lines, strict=True):
            for i, (convention, spectrum, label) in enumerate(COLUMNS):
                here = table["convention"].eq(convention) & table["spectrum"].eq(spectrum)
                part = table[here & table["line"].eq(line)].sort_values("dim")
                if len(part):
                    style: Any = {"color": PALETTE[i], "marker": MARKERS[i], "ls": LINES[i]}
                    panel.errorbar(
                        part["dim"], part["excess"], part["excess_sd"], label=label, **style
                    )
            panel.set(xscale="log", yscale="log", xlabel="dimension", title=line)
            log_ticks(panel.xaxis, [20, 200, 2000])
        axes[0, 0].set_ylabel("excess training loss")
        shared_legend(figure, [axes[0, 0]])
        save(figure, stem)
