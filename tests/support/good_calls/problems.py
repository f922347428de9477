"""Calls of ``dpsco_jax.problems`` that work, where the common vocabulary does not say it."""

import functools
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars

from dpsco_jax.problems import heavy_tailed, losses
from dpsco_jax.problems.datasets import task
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import OneHot
from dpsco_jax.problems.partition import Partition
from tests.support import kinds
from tests.support.kinds import Fresh, Kind

_TABLE = task.Table(
    np.arange(10) // 2,
    [task.categorical("field", np.array(["a", "b"] * 5), ["a", "b"])],
    np.ones(10),
)
_FRAME = pd.DataFrame({"user": [1, 1, 2], "x": [0.1, 0.2, 0.3], "y": [0.0, 1.0, 1.0]})
_SYNTHETIC = {"num_users": 12, "heterogeneity": kinds.NONNEGATIVE}
_EVEN = Kind("even number", (3, *kinds.COUNT_FROM_TWO.bad))(12)
_KINK = {"objective": kinds.OBJECT(losses.hinge(1.0)), "smoothing": kinds.POSITIVE(0.1)}
_ELEMENTS = ElementData(np.zeros((2, 3, 4), np.float32), np.ones((2, 3, 4), bool))
_BOTH = {"data": kinds.OBJECT(_ELEMENTS), "other": kinds.OBJECT(_ELEMENTS)}
_MEANS = {
    "public": kinds.FLAG(True),
    "max_steps": kinds.COUNT(3),
    "memory": kinds.COUNT(1000),
}
_ROWS = {"rows": kinds.COUNT(20)}
_TAIL = heavy_tailed.Tail("pareto", 4.0)
_RADIUS = Kind("radius of at least one", (*kinds.POSITIVE.bad, 0.1))(2.0)
_TEXT = {"name": kinds.WORDS("field")}
_FILE = Kind("path of what is there", ("nonsense", 7, None))
_VALUES = {
    "p": Kind("in [1, 2]", (0.5, 2.5, -1.0, kinds.NAN, kinds.INF, "1", None, 1j, True))(1.5),
    "queries": kinds.COUNT(100),
    "regularization": kinds.POSITIVE,
    "bounded": kinds.FLAG(True),
    "direction": kinds.CHOICE("axis"),
}


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()


@functools.cache
def _parquet() -> Path:
    path = Path(_temporary().name) / "users.parquet"
    polars.DataFrame({"x": np.ones((4, 3), np.float32)}).write_parquet(path)
    return path


@functools.cache
def _folder() -> Path:
    """A folder with batches of CIFAR-10 and an archive of features, of two images each."""
    folder = Path(_temporary().name)
    batch = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1]})
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(batch)
    np.savez(folder / "rows.npz", features=np.eye(2), labels=np.arange(2))
    return folder


_STORED = np.ones((4, 3, 2), np.float32)

GOOD: dict[str, dict[str, Any]] = {
    "problems.parquet.column": {
        "path": Kind("path of a Parquet file", (7, None, __file__))(Fresh(lambda: _parquet())),
        "name": Kind("a column of it", ("nonsense", 7, None))("x"),
        "shape": Kind("that of a row", ((4,), (-1,), "1", 7, None))((1, 3)),
        "group_rows": kinds.COUNT(2),
    },
    "problems.stored.StoredUsers": {
        "items": Kind("arrays or paths", (7, None, (), _STORED[0, 0], _STORED.astype(complex)))(
            _STORED
        ),
        "mask": Kind("booleans [users, items]", (np.ones((4, 3)), np.ones((4, 2), bool), 7))(
            np.ones((4, 3), bool)
        ),
        "block_users": kinds.COUNT(2),
        "prefetch": kinds.COUNT(2),
    },
    "problems.nonconvex_losses.low_rank_completion": {
        "rating_bound": kinds.POSITIVE(1.0),
        "factor_ridge": kinds.POSITIVE(1.0),
    },
    **{
        f"problems.fixtures.{name}": {
            "cap": kinds.POSITIVE(1.0),
            "width": kinds.POSITIVE(0.5),
            "num_units": kinds.COUNT(2),
            "num_teeth": kinds.COUNT(3),
            "separation": kinds.POSITIVE(1.5),
            "jitter": kinds.NONNEGATIVE(0.1),
            "num_users": _EVEN,
            "curvature": kinds.OPEN_PROBABILITY(0.5),
            "error": kinds.POSITIVE(0.1),
        }
        for name in (
            *("capped_distance", "escape_counterexample", "max_affine_difference"),
            *("relu_network", "saw_tooth", "two_wells"),
        )
    },
    "problems.nonconvex_losses.tanh_network": {"num_units": kinds.COUNT(2)},
    "problems.datasets.load": {"name": kinds.CHOICE("nlswork")},
    "problems.datasets.images.load": {"name": kinds.CHOICE("digits")},
    "problems.datasets.images.cifar10": {"folder": _FILE(Fresh(lambda: _folder()))},
    "problems.datasets.images.features": {"file": _FILE(Fresh(lambda: _folder() / "rows.npz"))},
    "problems.datasets.task.bucketed": {
        **_TEXT,
        "values": np.arange(4.0),
        "edges": kinds.NUMBERS((1.0, 2.0)),
    },
    "problems.datasets.task.categorical": {
        **_TEXT,
        "values": kinds.ANY(np.array(["a", "b"])),
        "vocabulary": kinds.ANY(["a", "b"]),
    },
    "problems.datasets.task.make_task": {
        **_TEXT,
        "table": kinds.OBJECT(_TABLE),
        "ridge": kinds.POSITIVE,
        "description": kinds.WORDS("text"),
    },
    **{
        f"problems.elements.{name}": {"data": kinds.OBJECT(_ELEMENTS)}
        for name in ("num_users", "num_slots", "elements_of_users", "as_units")
    },
    "problems.element_distance.are_element_neighbours": _BOTH,
    "problems.element_distance.element_distance": _BOTH,
    "problems.heavy_tailed.Tail": {
        "family": kinds.CHOICE("student"),
        "index": Kind("above two", (2.0, *kinds.POSITIVE.bad))(4.0),
        "dim": kinds.COUNT(3),
    },
    "problems.heavy_tailed.means": {"tail": kinds.OBJECT(_TAIL), "radius": _RADIUS},
    "problems.heavy_tailed.linear_model": {
        "tail": kinds.OBJECT(_TAIL),
        "radius": _RADIUS,
        "dim": kinds.COUNT(3),
        "truth_norm": kinds.NONNEGATIVE.also(3.0)(1.0),
        "noise": kinds.POSITIVE(1.0),
    },
    "problems.kmeans.kmeans_pp": {**_MEANS, "num_clusters": kinds.COUNT(2)},
    "problems.kmeans.lloyd": {**_MEANS, "centres": kinds.NUMBERS(np.eye(2, 4))},
    "problems.partition.Partition": {
        "centres": kinds.NUMBERS(np.eye(2, 4)),
        "public": Kind("True", (False, 1, None, "yes"))(True),
    },
    "problems.partition.assign_elements": {
        "partition": kinds.OBJECT(Partition(np.eye(2, 4), public=True)),
        "memory": kinds.COUNT(1000),
    },
    "problems.elements.from_rows": {
        "users": kinds.ANY(np.array([1, 1, 2])),
        "elements": kinds.ANY(np.array([0, 1, 1])),
        "rows": kinds.ANY(np.zeros((3, 2), np.float32)),
        "num_elements": kinds.COUNT(2),
        "items_per_element": kinds.COUNT(2),
    },
    "problems.envelopes.envelope_gap": _KINK,
    "problems.envelopes.moreau_envelope": _KINK,
    "problems.restricted_lipschitz.coefficients_from_matrix": {"half": kinds.NUMBERS(np.eye(3))},
    "problems.restricted_lipschitz.coefficients_from_gradients": {
        "gradients": kinds.NUMBERS.also(np.ones(3))(np.eye(3))
    },
    "problems.gaussian_smoothing.smoothed": {
        "link": kinds.FUNCTION(lambda margin, label, spread: margin),
        "smoothing_radius": kinds.NONNEGATIVE,
    },
    "problems.hard_instances.argmax_probabilities": {"stddev": kinds.POSITIVE(1.0)},
    "problems.user_level_instances.least_error_sum": {
        "epsilon": kinds.NONNEGATIVE,
        "delta": kinds.SHARE,
    },
    "problems.user_level_instances.sign_class": {
        "signs": Kind("signs", ("nonsense", None, np.zeros(2), np.ones((2, 2)), np.nan))(
            np.array([1, -1])
        ),
        "gap": kinds.OPEN_PROBABILITY(0.3),
        "bound": kinds.POSITIVE(1.0),
    },
    "problems.hard_instances.selection": {
        "dim": kinds.COUNT(2),
        "chances": Kind("chances", ("nonsense", None, np.ones(1), np.array([2.0, 0.5]), np.nan))(
            np.array([0.5, 0.2])
        ),
        "radius": Kind("in (0, 1/2]", ("nonsense", None, 0.0, 0.6, np.nan, -1.0))(0.25),
    },
    "problems.hard_instances.solve_linear_program": {
        "cost": kinds.ANY(np.ones(2)),
        "constraints": kinds.ANY(-np.eye(2)),
        "limits": kinds.ANY(np.zeros(2)),
        "free": kinds.ANY(0),
    },
    "problems.losses.huber": {"delta": kinds.POSITIVE(1.0)},
    "problems.losses.softmax": {"num_classes": kinds.COUNT_FROM_TWO(3)},
    "problems.objective.column_indices": {
        "features": kinds.OBJECT(OneHot(np.array([0, 1], np.int32)))
    },
    "problems.objective.row_values": {"features": kinds.OBJECT(OneHot(np.array([0, 1], np.int32)))},
    "problems.regression_instances.absolute_regression": _ROWS,
    "problems.regression_instances.support_vectors": {
        **_ROWS,
        "flipped": Kind("in (0, 1/2)", (0.0, 0.5, *kinds.PROBABILITY.bad))(0.1),
    },
    "problems.synthetic_elements.logistic": {
        "num_users": 12,
        "elements_per_user": kinds.COUNT(2),
        "num_elements": kinds.COUNT(3),
        "items_per_element": kinds.COUNT(2),
        "packed": kinds.FLAG(False),
    },
    "problems.synthetic.mean_estimation": {"heterogeneity": kinds.PROBABILITY},
    "problems.synthetic.geometric_median": {
        "num_users": _EVEN,
        "heterogeneity": kinds.PROBABILITY,
    },
    "problems.synthetic.linear_regression": _SYNTHETIC,
    "problems.synthetic.logistic_regression": _SYNTHETIC,
    "problems.synthetic.absolute_regression": {
        "num_users": _EVEN,
        "slope_norm": kinds.POSITIVE(1.0),
    },
    "problems.value_instances.hard_linear_instance": _VALUES,
    "problems.value_instances.hard_sampling_instance": _VALUES,
    "problems.users.subset": {"indices": kinds.INTEGERS(np.array([0, 1]))},
    "problems.tables.from_frame": {
        "frame": kinds.OBJECT(Fresh(_FRAME.copy)),
        "user_column": Kind("column", ("nonsense", 7, None))("user"),
        "feature_columns": Kind("columns", (("nonsense",), 7, None))(("x",)),
        "label_column": Kind("column", ("nonsense", 7, None))("y"),
    },
    "problems.tables.from_rows": {
        "users": kinds.ANY(np.array([1, 1, 2])),
        "rows": kinds.ANY(np.zeros((3, 2), np.float32)),
    },
}

EXEMPT: dict[tuple[str, str], str] = {
    ("problems.parquet.Column", "*"): "made by column, which is tried",
    (
        "problems.encoding.Encoding",
        "*",
    ): "declarations that fit together: tests/problems/test_encoding.py",
    (
        "problems.tables.from_frame",
        "*",
    ): "declarations that fit together: tests/problems/test_encoding.py",
    (
        "problems.elements.from_rows",
        "*",
    ): "rows that fit together: tests/problems/test_elements.py",
    ("problems.tables.from_rows", "*"): "rows that fit together: tests/problems/test_users.py",
    ("problems.objective.bounded_row", "features"): "dense or OneHot, whatever an item holds",
    ("problems.objective.margin", "features"): "dense or OneHot, whatever an item holds",
    ("problems.hard_instances.solve_linear_program", "*"): "arithmetic behind regression_instances",
}
