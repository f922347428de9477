"""Real data with a row as the record, and what a draw should reach there by the real curvature.

What it computes: a number of rows of a task's training users, each a user of one item; logistic loss on the
whole space with a ridge that is there to make the minimizer unique; the minimum (Newton's method, no
privacy); and predictions of the excess risk by Laplace's method, with the Hessian of the data where plans
have nominal curvatures:

- a draw from exp(-k·(F + (μ/2)‖x‖²)): F at the regularized minimizer above the least, and ½·tr(H·(k·(H +
  μI))^(-1)), H the Hessian of F there;
- the last point of noisy gradient steps: F where the steps end without noise, above the least, and
  ½·tr(H·C), C the covariance of the noise under steps with H;
- output perturbation: F at the regularized minimizer above the least, and ½·σ²·tr H.

Formal guarantee: none: predictions and minima are functions of the data without noise, for a study.

Cost: seconds for each task and μ; a dense [dim, dim] decomposition.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpsco_jax import Problem
from dpsco_jax.problems import losses, reference
from dpsco_jax.problems.datasets import load
from dpsco_jax.problems.objective import Example, Objective, OneHot
from dpsco_jax.problems.users import UserData, mean_loss

RIDGE = 1e-6
_DENSE = 200  # columns up to which rows are held as vectors where many runs share them


class Rows(NamedTuple):
    """A task with a row as the record.

    Attributes:
        name: of the task.
        one_hot: the rows, by their columns.
        columns: of a row.
        dim: number of parameters.
        objective: logistic loss and ridge, whole space.
        least: the minimum of the objective.
        trivial: how far above it w = 0 is.
    """

    name: str
    one_hot: UserData
    columns: int
    dim: int
    objective: Objective
    least: float
    trivial: float

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.one_hot.items.label)

    def problem(self, radius: float) -> Problem:
        """What plans are made for: sizes, and a radius that somebody declared."""
        return Problem(self.objective, num_users=self.num_rows, dim=self.dim, distance=radius)


@functools.cache
def load_rows(name: str, most_rows: int) -> Rows:
    """Rows of the training users of a task, in an order that does not depend on them.

    Args:
        name: of the task.
        most_rows: how many are kept.
    """
    task = load(name)
    mask = np.asarray(task.train.mask)
    columns = np.asarray(task.train.items.features.columns)[mask]
    labels = np.asarray(task.train.items.label)[mask]
    kept = np.random.default_rng(0).permutation(len(labels))[:most_rows]
    data = UserData(Example(OneHot(columns[kept][:, None]), labels[kept][:, None]))
    objective = losses.logistic(1.0, ridge=RIDGE)
    found = reference.solve(objective, data, task.dim)
    return Rows(
        name=name,
        one_hot=data,
        columns=columns.shape[1],
        dim=task.dim,
        objective=objective,
        least=found.value,
        trivial=math.log(2.0) - found.value,
    )


class Users(NamedTuple):
    """What is known of a task with a user as the record.

    Attributes:
        problem: ``problem(R)``: the sizes, and a distance that somebody declared.
        columns: of a row.
        trivial: excess risk of w = 0, not private.
    """

    problem: Callable[[float], Problem]
    columns: int
    trivial: float


@functools.cache
def load_users(name: str) -> Users:
    """A task of whole users, of the mean over users of the mean over their rows.

    Args:
        name: of the task.
    """
    task, objective = load(name), losses.logistic(1.0, ridge=RIDGE)
    users, slots, columns = task.train.items.features.columns.shape
    found = reference.solve(objective, task.train, task.dim)

    def problem(radius: float) -> Problem:
        sizes = {"num_users": users, "items_per_user": slots, "dim": task.dim}
        return Problem(objective, distance=radius, **sizes)

    return Users(problem, columns, math.log(2.0) - found.value)


def shared_rows(rows: Rows, always: bool = False) -> UserData:
    """The rows as float32 vectors, which many runs multiply at once; by columns where they are long.

    Args:
        rows: the task.
        always: whether they are vectors even then.
    """
    if rows.dim > _DENSE and not always:
        return rows.one_hot
    columns = np.asarray(rows.one_hot.items.features.columns)[:, 0]
    dense = np.zeros((len(columns), rows.dim), np.float32)
    row, place = np.nonzero(columns >= 0)
    dense[row, columns[row, place]] = 1.0 / math.sqrt(rows.columns)
    return UserData(Example(dense[:, None], rows.one_hot.items.label))


def excess_risk(params: Array, objective: Objective, data: UserData, least: Any) -> Array:
    """The objective above its minimum."""
    kind = jnp.result_type(float)  # float64 where it is on
    return mean_loss(objective)(params.astype(kind), data) - least


class _Model(NamedTuple):
    """The objective in float64 on the host."""

    rows: Any
    labels: np.ndarray
    weights: np.ndarray

    def value(self, w: np.ndarray) -> float:
        margins = self.rows @ w
        return float(self.weights @ (np.logaddexp(0.0, margins) - self.labels * margins)) + (
            RIDGE / 2 * float(w @ w)
        )

    def gradient(self, w: np.ndarray) -> np.ndarray:
        chance = 1.0 / (1.0 + np.exp(-(self.rows @ w)))
        return self.rows.T @ (self.weights * (chance - self.labels)) + RIDGE * w

    def curvatures(self, w: np.ndarray) -> Float[np.ndarray, "dim"]:
        """The eigenvalues of the Hessian, ridge included."""
        chance = 1.0 / (1.0 + np.exp(-(self.rows @ w)))
        bends = self.weights * chance * (1.0 - chance)
        gram = (self.rows.T @ self.rows.multiply(bends[:, None])).toarray()
        return np.maximum(np.linalg.eigvalsh(gram), 0.0) + RIDGE


@functools.cache
def _model(rows: str, most: int) -> _Model:
    loaded = load_rows(rows, most)
    return _Model(*reference.sparse_rows(loaded.objective, loaded.one_hot, loaded.dim))


@functools.cache
def _pulled(name: str, most: int, added: float) -> tuple[float, np.ndarray]:
    """F above its minimum at the minimizer with a regularizer more, and the curvatures of F there."""
    rows, model = load_rows(name, most), _model(name, most)
    pulled = losses.logistic(1.0, ridge=RIDGE + added)
    point = reference.solve(pulled, rows.one_hot, rows.dim).params
    return model.value(point) - rows.least, model.curvatures(point)


def of_draw(rows: Rows, most: int, added: float, temperature: float) -> float:
    """The excess risk of a draw, by Laplace's method.

    Args:
        rows: the task.
        most: the number of rows that it was loaded with.
        added: μ, centred at zero.
        temperature: k.
    """
    bias, bends = _pulled(rows.name, most, added)
    return bias + float(np.sum(bends / (bends + added))) / (2.0 * temperature)


def of_output(rows: Rows, most: int, added: float, stddev: float) -> float:
    """The excess risk of the regularized minimizer with noise, likewise; ``stddev`` of each parameter."""
    bias, bends = _pulled(rows.name, most, added)
    return bias + stddev**2 * float(np.sum(bends)) / 2.0


def of_steps(
    rows: Rows, most: int, num_steps: int, step_size: float, added: float, stddev: float
) -> float:
    """The excess risk of the last of noisy gradient steps from zero, likewise.

    Args:
        rows: the task.
        most: the number of rows that it was loaded with.
        num_steps: T.
        step_size: η.
        added: u, centred at zero.
        stddev: of the noise that a step adds to each parameter.
    """
    model, point = _model(rows.name, most), np.zeros(rows.dim)
    for _ in range(num_steps):
        point = point - step_size * (model.gradient(point) + added * point)
    bends = model.curvatures(point)
    kept = (1.0 - step_size * (bends + added)) ** 2
    grown = np.where(kept < 1.0, (1.0 - kept**num_steps) / np.maximum(1.0 - kept, 1e-15), num_steps)
    spread = stddev**2 * float(bends @ np.minimum(grown, num_steps)) / 2.0
    return model.value(point) - rows.least + spread
