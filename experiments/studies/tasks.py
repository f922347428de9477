"""The data sets of an experiment with what is measured on them: excess training risk and test AUC.

What it computes: a task, the minimum of its training objective (Newton's method, no privacy), the
measurements of a model, and two numbers that plans need, by rules that see public sizes only:

- ``clip_norm`` = 1/√(item slots of a user): the norm of a mean of that many unit vectors which point
  in unrelated directions;
- ``distance`` = ½·√(dim·columns per row): parameters with which every named column moves the
  logit by one half.

Formal guarantee: the rules know no data. Measurements are functions of the data without noise: for a
study, not private outputs.

Cost: loading and the optimum take seconds for each task, once per process; measuring a model takes one pass.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import reference
from dpsco_jax.problems.datasets import Task, load
from dpsco_jax.problems.objective import Objective, OneHot, margin
from dpsco_jax.problems.users import UserData, mean_loss
from dpsco_jax.solvers.user_level import preconditioned_sgd
from experiments.studies.metrics import roc_auc

TITLES = {
    "insteval": "InstEval",
    "flights": "flights",
    "flights_dates": "flights, dates",
    "nlswork": "nlswork",
    "movielens": "MovieLens 100k",
    "movielens_films": "MovieLens, films",
}


class Data(NamedTuple):
    """What every cell of a task reads: the training users, the test items by class, min F."""

    train: UserData
    negatives: Array
    positives: Array
    least: Float[Array, ""]


class Loaded(NamedTuple):
    """A task with what is known of it without any run.

    Attributes:
        task: as loaded.
        data: for the compiled program.
        facts: ``optimum_auc``, test AUC of the non-private optimum, and ``trivial_excess``, excess risk of
            w = 0.
    """

    task: Task
    data: Data
    facts: dict[str, float]


class Sizes(NamedTuple):
    """The public sizes of a task: training users, item slots of a user, columns of a row, dim."""

    num_users: int
    items_per_user: int
    columns_per_row: int
    dim: int


@functools.cache
def load_problem(name: str) -> Loaded:
    """The task with its optimum; kept for the process."""
    task = load(name)
    optimum = reference.solve(task.objective, task.train, task.dim)
    params = jnp.asarray(optimum.params, jnp.float32)
    mask = np.asarray(task.test.mask)
    columns = np.asarray(task.test.items.features.columns)[mask]
    positive = np.asarray(task.test.items.label)[mask] > 0.5
    data = Data(task.train, columns[~positive], columns[positive], jnp.float32(optimum.value))
    auc = held_out_auc(params, task.objective, data)
    facts = {"optimum_auc": float(auc), "trivial_excess": math.log(2.0) - optimum.value}
    return Loaded(task, data, facts)


def held_out_auc(params: Array, objective: Objective, data: Data) -> Array:
    """AUC on all items of the users who were not trained on."""

    def scores(columns: Array) -> Array:
        bound = objective.linear_model.feature_bound  # type: ignore[union-attr]
        return jax.vmap(lambda row: margin(params, OneHot(row), bound))(columns)

    return roc_auc(scores(data.negatives), scores(data.positives))


def excess_risk(params: Array, objective: Objective, data: Data) -> Array:
    """The training objective, ridge included, above its minimum."""
    return mean_loss(objective)(params, data.train) - data.least


def sizes(task: Task) -> Sizes:
    """The public sizes that plans are made from."""
    users, slots, columns = task.train.items.features.columns.shape
    return Sizes(users, slots, columns, task.dim)


def public_problem(task: Task) -> Problem:
    """What plans are made for: sizes, and the distance by the rule of the file's docstring."""
    users, slots, columns, dim = sizes(task)
    distance = 0.5 * math.sqrt(dim * columns)
    return Problem(
        task.objective, num_users=users, items_per_user=slots, dim=dim, distance=distance
    )


def clip_norm(task: Task) -> float:
    """The clip norm of full-batch methods by the rule of the file's docstring."""
    return 1.0 / math.sqrt(sizes(task).items_per_user)


def preconditioned_plan(
    task: Task, epsilon: float, delta: float, num_steps: int
) -> preconditioned_sgd.Plan:
    """The plan of preconditioned DP-SGD from public sizes: how many values each field has, to begin with."""
    fields = itertools.groupby(name.split("=")[0] for name in task.feature_names)
    counts = [len(list(values)) for _, values in fields]
    bound = task.objective.linear_model.feature_bound  # type: ignore[union-attr]
    return preconditioned_sgd.plan(
        public_problem(task),
        Budget(epsilon, delta),
        columns_per_row=sizes(task).columns_per_row,
        second_moments=preconditioned_sgd.one_hot_moments(bound, counts),
        num_steps=num_steps,
    )
