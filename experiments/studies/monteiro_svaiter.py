"""Second-order acceleration on logistic regression: iterations, Hessians and linear systems to a given gap.

What it computes: unregularized logistic regression (mean of log(1 + exp(-y<x, w>)), rows of norm 1, no
intercept, start at zero, float64), solved by

- ``msn adaptive``: Monteiro-Svaiter acceleration without bisection, oracle: a regularized Newton step;
- ``msn bisection``: the same oracle, λ found by bisection for every iteration;
- ``msn iterated``: the same oracle without acceleration;
- ``krylov adaptive``, ``krylov bisection``: the first two by gradients and products with Hessians alone;
- ``cubic``: Newton's method with cubic regularization, of the loss's own constant;
- ``scipy newton-cg``, ``scipy trust-ncg``, ``scipy l-bfgs``: SciPy's methods, of gradients and products;
- ``ball adaptive``, ``ball doubling``, ``ball plain``: balls of radius 1, solved by Newton's method, with
  acceleration (adaptive or by a search) and without;
- ``newton``: Newton's method with halved steps; ``gradient``: accelerated gradient descent.

A gradient, with the loss's value, is a call; so is a product with a Hessian.

Source: Carmon, Hausler, Jambulapati, Jin and Sidford 2022, section 5: their adaptive algorithm and oracle,
their parameters (first λ' = 0.1, σ = 1/2, lazy after the first call), their synthetic problem (two Gaussians)
and, given a file, their LIBSVM problems. Carmon et al. 2020 for balls. The problems from scikit-learn are
added here.

Formal guarantee: none needed: nothing is private here.

Cost: fifteen minutes on two busy cores, most of it Newton steps in balls; five more on a9a.
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

from dpsco_jax.solvers.ball import (
    ball_acceleration,
    exact_ball_oracles,
    krylov_ball_oracles,
    newton_ball_oracles,
)
from dpsco_jax.solvers.ball.ball_oracles import BallAnswer, BallOracle, BallOracles
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, log_ticks, panels, save
from dpsco_jax.sweeps.report import show

PROBLEMS = ("synthetic", "breast cancer", "digits")
METHODS: Mapping[str, tuple[str, float, int]] = {
    "msn adaptive": ("adaptive", 0.1, 200),
    "msn bisection": ("multiplier", 0.1, 200),
    "msn iterated": ("none", 0.1, 200),
    "krylov adaptive": ("adaptive", 0.1, 200),
    "krylov bisection": ("multiplier", 0.1, 200),
    "cubic": ("none", 1.0, 2000),
    "ball adaptive": ("adaptive", 0.1, 200),
    "ball doubling": ("doubling", 1e-8, 200),
    "ball plain": ("none", 1e-9, 600),
    "newton": ("none", 1e-10, 60),
    "gradient": ("fixed", 0.25, 20000),
    "scipy newton-cg": ("", 0.0, 200),
    "scipy trust-ncg": ("", 0.0, 200),
    "scipy l-bfgs": ("", 0.0, 2000),
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
    if method == "cubic":
        one = cubic(*derivatives)
        return BallOracles(one, one, one)
    if method.startswith("krylov"):
        careful = krylov_ball_oracles.monteiro_svaiter(problem.gradient)
        lazy = krylov_ball_oracles.monteiro_svaiter(problem.gradient, lazy=True)
        return BallOracles(careful if method == "krylov adaptive" else lazy, lazy, lazy)
    if method.startswith("ball"):
        return newton_ball_oracles.newton(*derivatives, 1.0)
    careful = newton_ball_oracles.monteiro_svaiter(*derivatives)
    lazy = newton_ball_oracles.monteiro_svaiter(*derivatives, lazy=True)
    if method == "msn adaptive":
        return BallOracles(careful, lazy, lazy)  # careful in the first iteration
    one = lazy if method == "msn bisection" else careful
    return BallOracles(one, one, one)


CUBIC = 1 / (6 * math.sqrt(3))
"""Lipschitz constant of the Hessian: the largest third derivative of log(1 + e^x)."""


def cubic(gradient: Any, hessian: Any) -> BallOracle:
    """The minimizer of the quadratic model plus (M/6)‖x - y‖³ (Nesterov and Polyak 2006)."""

    def oracle(key: Any, center: Any, regularization: Any) -> BallAnswer:
        eigenvalues, vectors = jnp.linalg.eigh(hessian(center))
        components = vectors.T @ gradient(center)

        # The root of r = ‖(H + Mr/2)⁻¹g‖ in r, by halving: the right side falls.
        def half(_: Any, ends: Any) -> Any:
            low, high = ends
            middle = (low + high) / 2
            length = jnp.linalg.norm(
                components / (jnp.maximum(eigenvalues, 0.0) + CUBIC * middle / 2)
            )
            return jnp.where(length > middle, middle, low), jnp.where(length > middle, high, middle)

        most = jnp.sqrt(2 * jnp.linalg.norm(components) / CUBIC)
        _, length = jax.lax.fori_loop(0, 60, half, (jnp.zeros_like(most), most))
        move = vectors @ (components / (jnp.maximum(eigenvalues, 0.0) + CUBIC * length / 2))
        calls = jnp.ones(3, jnp.int32)
        return BallAnswer(center - move, CUBIC * length / 2, calls)

    return oracle


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
    version: ClassVar[int] = 2
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
        columns += ["systems", "gradients", "products"]
        frame["problem"] = [Path(name).name for name in frame["problem"]]
        frame[columns].to_csv(folder / "counts.csv", index=False)
        problems = dict([*frame.groupby("problem", sort=False)])
        for name, rows in problems.items():
            _show(str(name), rows, self)
        first_order = tuple(method for method in self.methods if _is_first_order(method))
        second_order = tuple(m for m in self.methods if m not in first_order and m != "gradient")
        frame["calls"] = frame["gradients"] + frame["products"]
        with panels(2, len(problems) + 1, sharey=True) as (figure, axes):
            for row, methods, unit in (
                (axes[0], second_order, "systems"),
                (axes[1], first_order, "calls"),
            ):
                for panel, (name, at) in zip(
                    row, frame.groupby("problem", sort=False), strict=False
                ):
                    _draw(panel, str(name), at, methods, unit)
                row[0].set_ylabel("gap of the loss")
                row[-1].axis("off")
                row[-1].legend(*row[0].get_legend_handles_labels(), loc="center")
            save(figure, folder / "monteiro_svaiter")


def _is_first_order(method: str) -> bool:
    """Whether its calls are gradients and products with Hessians."""
    return method.startswith(("krylov", "scipy"))


def _losses(problem: str, method: str, gap: float) -> tuple[np.ndarray, np.ndarray]:
    """Gap and calls after each iteration, until the gap is reached."""
    with jax.enable_x64(True):
        rows, least = load(problem)
        if method.startswith("scipy"):
            return _of_scipy(np.asarray(rows), method, least, gap)
        end = jax.jit(lambda rows, stop: trajectory(method, rows, stop))(rows, least + gap)
        values, calls = end.trace
        made = int(end.iterations)
        return np.asarray(values)[:made] - least, np.asarray(calls)[:made]


def _of_scipy(rows: np.ndarray, method: str, least: float, gap: float) -> Any:
    """Gaps, ``[iterations]``, and calls, ``[iterations, 3]``, of a method of SciPy."""
    from scipy import optimize, special

    name = {"newton-cg": "Newton-CG", "trust-ncg": "trust-ncg", "l-bfgs": "L-BFGS-B"}[
        method.removeprefix("scipy ")
    ]
    made, gaps, calls = np.zeros(3, int), [], []

    def value_and_gradient(w: Any) -> Any:
        made[1] += 1
        margins = rows @ w
        return np.logaddexp(0, margins).mean(), special.expit(margins) @ rows / len(rows)

    def product(w: Any, v: Any) -> Any:
        made[2] += 1
        share = special.expit(rows @ w)
        return (share * (1 - share) * (rows @ v)) @ rows / len(rows)

    def after(w: Any) -> None:
        made[0] += 1
        gaps.append(np.logaddexp(0, rows @ w).mean() - least)
        calls.append(made.copy())
        if gaps[-1] <= gap:
            raise StopIteration

    optimize.minimize(
        value_and_gradient,
        np.zeros(rows.shape[1]),
        jac=True,
        hessp=None if name == "L-BFGS-B" else product,
        method=name,
        callback=after,
        options={"maxiter": METHODS[method][2]},
        tol=1e-14,
    )
    return np.asarray(gaps), np.asarray(calls)


def _first(gaps: np.ndarray, calls: np.ndarray, method: str, gap: float) -> dict[str, float]:
    """What had been spent when the gap was reached first, or at the end."""
    reached = np.flatnonzero(gaps <= gap)
    at = reached[0] if len(reached) else len(gaps) - 1
    kinds = ("gradients", "products") if _is_first_order(method) else ("hessians", "systems")
    names = ("problems", *(("gradients",) if method == "gradient" else kinds))
    spent = dict.fromkeys(("gradients", "products", "hessians", "systems"), 0.0)
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
    show(f"{name}: iterations / Hessians / linear systems, or / gradients / products", table)


def _cell(row: pd.Series) -> str:
    if row["reached"] != 1:
        return "not reached"
    work = [row["iterations"], row["hessians"], row["systems"]]
    if row["hessians"] == 0:
        work = [row["iterations"], row["gradients"], row["products"]]
    return " / ".join(f"{count:.0f}" for count in work)


def _draw(panel: Any, name: str, rows: pd.DataFrame, methods: tuple[str, ...], unit: str) -> None:
    for i, method in enumerate(methods):
        line = rows[(rows["method"] == method) & (rows["reached"] == 1)]
        at, again = i % len(PALETTE), i // len(PALETTE)
        style: Any = {"color": PALETTE[at], "linestyle": LINES[at]}
        style["marker"] = MARKERS[(at + 3 * again) % len(MARKERS)]
        panel.plot(line[unit], line["gap"], label=method, **style)
    panel.set_xscale("log")
    panel.set_yscale("log")
    log_ticks(panel.xaxis)
    panel.set_title(name, loc="left")
    panel.set_xlabel("linear systems" if unit == "systems" else "gradients and products")
