"""A private fit of a large table through the estimators, beside the fit of scikit-learn without privacy.

What it computes: seconds of ``PrivateLogisticRegression.fit`` for 50,000 users with 8 rows of 50 numbers,
planning, encoding and compilation included; and again in the same process, where nothing is compiled. Both
with one column of the model for each number, and with a second one that says whether it is missing, which is
the default. Of scikit-learn the second fit counts.

Source: none.

Formal guarantee: none; the rows are drawn at random.

Cost: a minute, 2 GB.
"""

import functools
from typing import Any

import numpy as np

from dpsco_jax.estimators import PrivateLogisticRegression
from experiments.benchmarks.timing import Row, once

USERS, ITEMS, COLUMNS = 50_000, 8, 50


def rows() -> list[Row]:
    """The comparisons."""
    from sklearn.linear_model import LogisticRegression  # it takes a second to import

    rng = np.random.default_rng(0)
    table = np.clip(0.4 * rng.normal(size=(USERS * ITEMS, COLUMNS)), -1, 1)
    margins = table @ rng.normal(size=COLUMNS)
    labels = (rng.random(len(table)) < 1 / (1 + np.exp(-margins))).astype(int)
    users = np.repeat(np.arange(USERS), ITEMS)

    def private(missing: str) -> Any:
        model = PrivateLogisticRegression(
            epsilon=1.0, delta=1e-6, bounds=(-1.0, 1.0), classes=[0, 1], max_items_per_user=ITEMS,
            missing=missing, random_state=0,
        )  # fmt: skip
        return model.fit(table, labels, groups=users)

    public = LogisticRegression(max_iter=1000)
    public.fit(table, labels)
    peer = once(lambda: public.fit(table, labels))
    name = f"fit, {USERS} users x {ITEMS} x {COLUMNS}"
    found = []
    for missing, columns in (("zero", COLUMNS), ("indicator", 2 * COLUMNS)):
        for again in ("first", "again"):
            took = once(functools.partial(private, missing))
            ours = f"{columns} columns, {again}"
            found.append(Row(name, ours, took, "scikit-learn, no privacy", peer, None))
    return found
