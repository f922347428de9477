"""Second-order acceleration on logistic regression: iterations, Hessians and linear systems to a given gap.

What it computes: unregularized logistic regression (mean of log(1 + exp(-y<x, w>)), rows of norm 1, no
intercept, start at zero, float64), solved by

- ``msn adaptive``: Monteiro-Svaiter acceleration without bisection, oracle: a regularized Newton step;
- ``msn bisection``: the same oracle, λ found by bisection for every iteration;
- ``msn iterated``: the same oracle without acceleration;
- ``ball adaptive``, ``ball doubling``, ``ball plain``: balls of radius 1, solved by Newton's method, with
  acceleration (adaptive or by a search) and without;
- ``newton``: Newton's method with halved steps; ``gradient``: accelerated gradient descent.

Source: Carmon, Hausler, Jambulapati, Jin and Sidford 2022, section 5: their adaptive algorithm and oracle,
their parameters (first λ' = 0.1, σ = 1/2, lazy after the first call), their synthetic problem (two Gaussians)
and, given a file, their LIBSVM problems. Carmon et al. 2020 for balls. The problems from scikit-learn are
added here.

Formal guarantee: none needed: nothing is private here.

Cost: eleven minutes on two busy cores, most of it Newton steps in balls; five more on a9a.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from dpsco_jax.solvers.ball import ball_acceleration, exact_ball_oracles, newton_ball_oracles
from dpsco_jax.solvers.ball.ball_oracles import BallOracles
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, panels, save
from dpsco_jax.sweeps.report import show

PROBLEMS = ("synthetic", "breast cancer", "digits")
METHODS: Mapping[str, tuple[str, float, int]] = {
    "msn adaptive": ("adaptive", 0.1, 200),
    "msn bisection": ("multiplier", 0.1, 200),
    "msn iterated": ("none", 0.1, 200),
    "ball adaptive": ("adaptive", 0.1, 200),
    "ball doubling": ("doubling", 1e-8, 200),
    "ball plain": ("none", 1e-9, 600),
    "newton": ("none", 1e-10, 60),
    "gradient": ("fixed", 0.25, 20000),
}
"""Search of the plan, its (first) λ, and a cap on iterations. 1/4 is the loss's smoothness."""


class Logistic(NamedTuple):
    """The rows -y·x, ``[items, dim]``; value, gradient and Hessian of the mean loss."""

    rows: jax.Array

    def value(self, w: Any) -> Any:
        return jnp.mean(jnp.logaddexp(0.0, self.rows @ w))

    def gradient(self, w: Any) -> Any:
        return jax.nn.sigmoid(self.rows @ w) @ self.rows / len(self.rows)

    def hessian(self, w: Any) -> Any:
        share = jax.nn.sigmoid(self.rows @ w)
        return (self.rows * (share * (1 - share))[:, None]).T @ self.rows / len(self.rows)


def oracles(method: str, problem: Logistic) -> BallOracles:
    """The oracles of a method."""
    derivatives = (problem.gradient, problem.hessian)
    if method == "gradient":
        return exact_ball_oracles.gradient_step(problem.gradient)
    if method == "newton":
        return newton_ball_oracles.newton(*derivatives, math.inf, max_steps=1)
    if method.startswith("ball"):
        return newton_ball_oracles.newton(*derivatives, 1.0)
    careful = newton_ball_oracles.monteiro_svaiter(*derivatives)
    lazy = newton_ball_oracles.monteiro_svaiter(*derivatives, lazy=True)
    if method == "msn adaptive":
        return BallOracles(careful, lazy, lazy)  # careful in the first iteration
    one = lazy if method == "msn bisection" else careful
    return BallOracles(one, one, one)


def plan(method: str, num_iterations: int | None = None) -> ball_acceleration.Plan:
    """The plan of a method: its constants play no part, since the gap ends the run."""
    search, regularization, most = METHODS[method]
    made = ball_acceleration.plan(
        lipschitz=1.0, distance=100.0, ball_radius=1.0, excess=1e-9, search=search, exact=True
    )
    return dataclasses.replace(
        made,
        regularization=regularization,
        num_iterations=num_iterations or most,
        max_searches=100 if made.max_searches else 0,
        target_weight=np.inf,
    )


def trajectory(
    method: str, rows: Any, stop: Any = -np.inf, num_iterations: int | None = None
) -> ball_acceleration.Trajectory:
    """Runs a method until the loss is at most ``stop``; its trace has losses and counts."""
    problem = Logistic(rows)
    return ball_acceleration.run(
        jax.random.key(0),
        plan(method, num_iterations),
        oracles(method, problem),
        jnp.zeros(rows.shape[1], rows.dtype),
        stop=lambda w: problem.value(w) <= stop,
        trace=lambda state: (problem.value(state.point), state.calls),
    )


@dataclasses.dataclass(frozen=True)
class MonteiroSvaiter:
    """Iterations, Hessians and linear systems of second-order acceleration on logistic regression.

    Attributes:
        problems: names in ``PROBLEMS``, or paths of LIBSVM files.
        methods: names in ``METHODS``.
        gaps: of the loss to its least value, to be reached.
    """

    name: ClassVar[str] = "monteiro-svaiter"
    version: ClassVar[int] = 1
    problems: tuple[str, ...] = axis("problem", PROBLEMS, static=True)
    methods: tuple[str, ...] = axis("method", tuple(METHODS), static=True, choices=tuple(METHODS))
    gaps: tuple[float, ...] = axis("gap", (1e-3, 1e-4, 1e-5, 1e-6))

    def cells(self) -> list[dict[str, Setting]]:
        for problem in self.problems:
            if problem not in PROBLEMS and not Path(problem).is_file():
                known = ", ".join(PROBLEMS)
                raise ValueError(f"problem must be one of {known}, or a file, got {problem!r}")
        return product(self)

    def build(self, static: Settings) -> Program:
        problem, method = str(static["problem"]), str(static["method"])
        # Float64: the runs are made on the host, where precision can be chosen.
        solve = functools.cache(lambda: _losses(problem, method, min(self.gaps)))
        return Program(
            lambda shared, key, inputs: {"drawn": jnp.zeros([])},
            known=lambda cell: _first(*solve(), method, float(cell["gap"])),
        )

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        columns = ["problem", "method", "gap", "reached", "iterations", "problems", "hessians"]
        columns += ["systems", "gradients"]
        frame["problem"] = [Path(name).name for name in frame["problem"]]
        frame[columns].to_csv(folder / "counts.csv", index=False)
        problems = dict([*frame.groupby("problem", sort=False)])
        for name, rows in problems.items():
            _show(str(name), rows, self)
        with panels(1, len(problems) + 1, sharey=True) as (figure, axes):
            for panel, (name, rows) in zip(axes[0], problems.items(), strict=False):
                _draw(panel, str(name), rows, self.methods)
            axes[0, 0].set_ylabel("gap of the loss")
            axes[0, -1].axis("off")
            axes[0, -1].legend(*axes[0, 0].get_legend_handles_labels(), loc="center")
            save(figure, folder / "monteiro_svaiter")


def _losses(problem: str, method: str, gap: float) -> tuple[np.ndarray, np.ndarray]:
    """Gap and calls after each iteration, until the gap is reached."""
    with jax.enable_x64(True):
        rows, least = load(problem)
        end = jax.jit(lambda rows, stop: trajectory(method, rows, stop))(rows, least + gap)
        values, calls = end.trace
        made = int(end.iterations)
        return np.asarray(values)[:made] - least, np.asarray(calls)[:made]


def _first(gaps: np.ndarray, calls: np.ndarray, method: str, gap: float) -> dict[str, float]:
    """What had been spent when the gap was reached first, or at the end."""
    reached = np.flatnonzero(gaps <= gap)
    at = reached[0] if len(reached) else len(gaps) - 1
    names = ("problems", *(("gradients",) if method == "gradient" else ("hessians", "systems")))
    spent = dict.fromkeys(("gradients", "hessians", "systems"), 0.0)
    spent |= {name: float(count) for name, count in zip(names, calls[at], strict=True)}
    return {"reached": float(len(reached) > 0), "iterations": float(at + 1), **spent}


@functools.cache
def load(problem: str) -> tuple[jax.Array, float]:
    """Rows -y·x of norm 1 in float64, and the least value of the loss by sixty Newton steps."""
    features, labels = _features(problem)
    features = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-300)
    with jax.enable_x64(True):
        rows = jnp.asarray(-labels[:, None] * features, jnp.float64)
        end = jax.jit(lambda rows: trajectory("newton", rows))(rows)
        return rows, float(Logistic(rows).value(end.params))


def _features(problem: str) -> tuple[np.ndarray, np.ndarray]:
    from sklearn import datasets

    if problem == "synthetic":
        return _two_gaussians()
    if problem == "breast cancer":
        features, labels = datasets.load_breast_cancer(return_X_y=True)
        features = (features - features.mean(axis=0)) / features.std(
            axis=0
        )  # scales differ 10⁵-fold
        return features, 2.0 * labels - 1
    if problem == "digits":
        features, labels = datasets.load_digits(return_X_y=True)
        return features, 2.0 * (labels % 2) - 1
    features, labels = datasets.load_svmlight_file(problem)
    return features.toarray(), np.where(labels == labels.max(), 1.0, -1.0)


def _two_gaussians(rows: int = 500, dim: int = 200, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Two classes with random means of norm 1/2; closer and wider until they cannot be separated."""
    from sklearn.svm import LinearSVC

    rng = np.random.default_rng(seed)
    labels = np.repeat([1.0, -1.0], rows // 2)
    length, variance = 0.5, 1.0
    while True:
        means = rng.standard_normal((2, dim))
        means *= length / np.linalg.norm(means, axis=1, keepdims=True)
        noise = np.sqrt(variance) * rng.standard_normal((rows, dim))
        features = noise + np.repeat(means, rows // 2, axis=0)
        judge = LinearSVC(fit_intercept=False, max_iter=20_000, dual=True).fit(features, labels)
        if judge.score(features, labels) < 1:
            return features, labels
        length, variance = length / 2, 2 * variance


def _show(name: str, rows: pd.DataFrame, of: MonteiroSvaiter) -> None:
    table: dict[str, Any] = {"method": [*of.methods]}
    for gap in sorted(of.gaps, reverse=True):
        at = rows[rows["gap"] == gap].set_index("method")
        table[f"gap {gap:g}"] = [_cell(at.loc[method]) for method in of.methods]
    show(f"{name}: iterations / Hessians / linear systems (gradients for 'gradient')", table)


def _cell(row: pd.Series) -> str:
    if row["reached"] != 1:
        return "not reached"
    work = [row["iterations"], row["hessians"], row["systems"]]
    if row["hessians"] == 0:
        work = [row["iterations"], row["gradients"]]
    return " / ".join(f"{count:.0f}" for count in work)


def _draw(panel: Any, name: str, rows: pd.DataFrame, methods: tuple[str, ...]) -> None:
    shown = [method for method in methods if method != "gradient"]
    for i, method in enumerate(shown):
        line = rows[(rows["method"] == method) & (rows["reached"] == 1)]
        style: Any = {"color": PALETTE[i], "marker": MARKERS[i], "linestyle": LINES[i]}
        panel.plot(line["systems"], line["gap"], label=method, **style)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_title(name, loc="left")
    panel.set_xlabel("linear systems")
