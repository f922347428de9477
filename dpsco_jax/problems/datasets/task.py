"""A learning task on real users' data, and how the data-set files build one.

What it computes: one-hot rows from categorical fields, a fixed user-wise split, padded user data.

Source: the split by users follows the user-level setting: a test user was never seen in training.

Formal guarantee: features are one-hot with a public vocabulary, so ‖x‖ ≤ 1 by construction.
Vocabularies are written in the code or are catalogues that do not depend on who answered (see each
data set). The number of training users and the bound on items per user are public.

Cost: less than two seconds for the largest table, nothing is downloaded.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from dpsco_jax._checks import (
    require,
    require_count,
    require_each,
    require_instance,
    require_integer,
    require_number,
    require_positive,
)
from dpsco_jax._redact import described
from dpsco_jax.geometry.domains import ball
from dpsco_jax.problems.losses import logistic
from dpsco_jax.problems.objective import Example, Objective, OneHot
from dpsco_jax.problems.tables import from_rows
from dpsco_jax.problems.users import UserData

TRAIN_FRACTION = 0.8
MISSING = "missing"


class Task(NamedTuple):
    """Binary classification with one-hot features, users split into train and test.

    Attributes:
        name: what ``load`` calls it.
        train: items are ``Example(OneHot(columns [users, items, nnz]), label [users, items])``.
        test: examples of the same form, of other users; all of their items.
        dim: number of columns.
        objective: logistic loss with feature bound 1 and a ridge λ, on the ball of radius √(2·log 2/λ),
            which contains the minimizer whatever the data.
        feature_names: ``field=value`` for each column, ``dim`` of them.
        description: what is predicted, from what, whose the rows are.
    """

    name: str
    train: UserData
    test: UserData
    dim: int
    objective: Objective
    feature_names: tuple[str, ...]
    description: str


class Field(NamedTuple):
    """One categorical column: its public vocabulary, and each row's place in it (-1 if outside)."""

    name: str
    vocabulary: tuple[str, ...]
    codes: np.ndarray


class Table(NamedTuple):
    """Rows before grouping: who, what, label in {0, 1}."""

    users: np.ndarray
    fields: Sequence[Field]
    labels: np.ndarray


def categorical(name: str, values: Any, vocabulary: Sequence[Any]) -> Field:
    """A field by exact match; the entry ``MISSING`` of a vocabulary takes the missing values."""
    require_instance("name", name, str)
    codes = pd.Categorical(values, categories=[v for v in vocabulary if v is not MISSING]).codes
    codes = codes.astype(np.int32)
    if MISSING in vocabulary:
        codes = np.where(pd.isna(values), len(vocabulary) - 1, codes)
    return Field(name, tuple(str(v) for v in vocabulary), codes)


def bucketed(name: str, values: Any, edges: Sequence[float]) -> Field:
    """A field by interval: below the first edge, between edges, from the last edge on.

    A missing value is in none of them.
    """
    require_instance("name", name, str)
    values = np.asarray(values)
    require(values.ndim == 1, "values", described(values), "an array of numbers [rows]")
    there = values[~pd.isna(values)].tolist()
    require_each(require_number, values=there, edges=edges)
    middle = [f"[{low:g},{high:g})" for low, high in itertools.pairwise(edges)]
    vocabulary = (f"<{edges[0]:g}", *middle, f">={edges[-1]:g}")
    # NaN sorts after every number, so that it would count as larger than the last edge.
    codes = np.where(pd.isna(values), -1, np.digitize(values.astype(np.float64), edges))
    return Field(name, vocabulary, codes.astype(np.int32))


def make_task(
    name: str,
    table: Table,
    max_items_per_user: int,
    ridge: float,
    split: int,
    description: str,
) -> Task:
    """Split the users, bound their contributions, and wrap up.

    The split and the choice of the kept items are part of the task's definition: they depend on
    ``split`` only, so that results on one split can be compared.
    """
    require_instance("name", name, str)
    require_instance("description", description, str)
    require_instance("table", table, Table)
    require_integer("split", split, 0)
    require_count("max_items_per_user", max_items_per_user)
    require_positive("ridge", ridge)
    sizes = [len(field.vocabulary) for field in table.fields]
    offsets = np.cumsum([0, *sizes[:-1]])
    codes = np.stack([field.codes for field in table.fields], axis=1)
    columns = np.where(codes < 0, -1, codes + offsets).astype(np.int32)
    rows = Example(OneHot(columns), table.labels.astype(np.float32))

    order_key, train_key, test_key = jax.random.split(jax.random.key(split), 3)
    user, names = pd.factorize(table.users, sort=True)
    order = np.asarray(jax.random.permutation(order_key, len(names)))
    in_train = np.zeros(len(names), bool)
    in_train[order[: round(TRAIN_FRACTION * len(names))]] = True

    # The minimizer is no worse than zero, where the logistic loss is log 2: (λ/2)·‖w‖² <= log 2.
    radius = math.sqrt(2 * math.log(2) / ridge)

    def part(key: Any, chosen: np.ndarray, bound: int | None) -> UserData:
        items = jax.tree.map(lambda leaf: leaf[chosen], rows)
        return from_rows(key, user[chosen], items, bound, order="sorted")

    return Task(
        name=name,
        train=part(train_key, in_train[user], max_items_per_user),
        test=part(test_key, ~in_train[user], None),
        dim=sum(sizes),
        objective=logistic(feature_bound=1.0, domain=ball(radius), ridge=ridge),
        feature_names=tuple(f"{f.name}={v}" for f in table.fields for v in f.vocabulary),
        description=description,
    )
