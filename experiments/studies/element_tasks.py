"""Real users' rows grouped by element: what runs of each granularity read, and the judges.

What it computes: for InstEval and for flights the training rows at each granularity (a user whole, coarse
and fine elements), and the measurements that all runs share: the excess of two objectives over their
minima on all training rows, and the AUC on the rows of unseen users.

- InstEval, user = student: elements are the 14 departments, or the 1,128 lecturers. A student rates a
  lecturer once, so a lecturer's element is one item, and element level is item level.
- flights, user = aircraft, a random 1,000 of the training aircraft (for speed): elements are the 12
  months, or the 365 days, of which a random flight is kept: nearly item level.

The objectives, with a ridge, over all of space: "user", the mean over users of the mean over the user's
rows; "element", E (11), the mean over users of the sum over coarse elements of the mean over the
element's rows, divided by the mean number of elements, so that both are nats of a row.

Source: the tables of ``dpsco_jax.problems.datasets``, with their vocabularies and their split by users.

Formal guarantee: what is kept of a unit depends on that unit alone. Taken as public are the numbers of
users and of slots, and that no user has more elements than these. Measurements are functions of the data
without noise.

Cost: some seconds for each task, once per process.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from dpsco_jax.problems import elements, losses, reference
from dpsco_jax.problems.datasets import flights, insteval
from dpsco_jax.problems.datasets.task import TRAIN_FRACTION, Table
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example, Objective, OneHot, margin
from dpsco_jax.problems.users import UserData
from experiments.studies.metrics import roc_auc

NAMES = ("insteval", "flights")
RIDGE = 1e-4
_MOST_USERS = {"insteval": None, "flights": 1000}


class Grain(NamedTuple):
    """How rows of a user become units.

    Attributes:
        num_elements: K of the partition.
        slots: public bound on the elements of a user.
        kept: rows kept of a unit.
        typical: a public guess of how many elements a user has: by it the ridge is multiplied, since the sum
            over so many elements is.
    """

    num_elements: int
    slots: int
    kept: int
    typical: int = 1


GRAINS = {
    "insteval": {
        "user": Grain(1, 1, 64),
        "department": Grain(14, 13, 4, 5),
        "lecturer": Grain(1128, 92, 1, 25),
    },
    "flights": {
        "user": Grain(1, 1, 128),
        "month": Grain(12, 12, 8, 9),
        "day": Grain(365, 335, 1, 60),
    },
}
COARSE = {"insteval": "department", "flights": "month"}


class Judges(NamedTuple):
    """What every run is measured on: all training rows, and the test rows by class.

    Attributes:
        columns: ``[rows, columns]``.
        labels: ``[rows]``.
        weights: of a row in the "user" and the "element" objective, ``[2, rows]``; each has sum 1.
        ridges: ``[2]``.
        least: minima of both, ``[2]``.
        negatives: columns of test rows of class 0.
        positives: columns of test rows of class 1.
    """

    columns: Any
    labels: Any
    weights: Any
    ridges: Any
    least: Any
    negatives: Any
    positives: Any


class ElementTask(NamedTuple):
    """A table at several granularities.

    Attributes:
        data: ``ElementData`` by the name of its grain.
        judges: the measurements.
        objectives: logistic, over all of space, by the name of the grain.
        dim: number of parameters.
        field_sizes: values of each categorical field, public.
        facts: what is known without any run.
        typical: a public guess of how many elements a user has, by the name of the grain.
    """

    data: dict[str, ElementData]
    judges: Judges
    objectives: dict[str, Objective]
    dim: int
    field_sizes: tuple[int, ...]
    facts: dict[str, float]
    typical: dict[str, int]


@functools.cache
def load_elements(name: str) -> ElementTask:
    """A task by its name in ``NAMES``; kept for the process."""
    if name == "insteval":
        table = insteval.table()
        keys = {"department": _codes(table, "dept"), "lecturer": _codes(table, "lecturer")}
    else:
        table = flights.table(True)
        keys = {"day": _codes(table, "date"), "month": _codes(flights.table(False), "month")}
        table = flights.table(False)
    return make_task(table, keys, GRAINS[name], COARSE[name], _MOST_USERS[name])


def make_task(
    table: Table,
    keys: dict[str, np.ndarray],
    grains: dict[str, Grain],
    coarse: str,
    most_users: int | None = None,
) -> ElementTask:
    """Splits the users as ``datasets.load`` does, and groups the rows of the training users."""
    sizes = tuple(len(field.vocabulary) for field in table.fields)
    codes = np.stack([field.codes for field in table.fields], axis=1)
    columns = np.where(codes < 0, -1, codes + np.cumsum([0, *sizes[:-1]])).astype(np.int32)
    rows, dim = Example(OneHot(columns), table.labels.astype(np.float32)), sum(sizes)
    order_key, data_key = jax.random.split(jax.random.key(0))
    user, names = pd.factorize(table.users, sort=True)
    order = np.asarray(jax.random.permutation(order_key, len(names)))
    trained = order[: round(TRAIN_FRACTION * len(names))]
    train, test = np.isin(user, trained[:most_users]), ~np.isin(user, trained)
    mine, of = jax.tree.map(lambda leaf: leaf[train], rows), user[train]
    keys = {"user": np.zeros(len(user), np.int64), **keys}

    def grouped(grain: str, slots: int | None, kept: int | None) -> ElementData:
        return elements.from_rows(
            data_key,
            of,
            keys[grain][train].astype(np.int64),
            mine,
            grains[grain].num_elements,
            kept,
            elements_per_user=slots,
            order="sorted",
        )

    data = {name: grouped(name, grain.slots, grain.kept) for name, grain in grains.items()}
    held = {name: float(np.mean(elements.elements_of_users(d))) for name, d in data.items()}
    objectives = {
        name: losses.logistic(1.0, ridge=RIDGE * grain.typical) for name, grain in grains.items()
    }
    ridges = [RIDGE, RIDGE * grains[coarse].typical / held[coarse]]
    found = [
        _optimum(grouped("user", None, None), dim, 1.0, ridges[0]),
        _optimum(grouped(coarse, None, None), dim, held[coarse], ridges[1]),
    ]
    weights = [_weights(of), _weights(of, keys[coarse][train])]
    judges = Judges(
        columns=columns[train],
        labels=rows.label[train],
        weights=np.asarray(weights, np.float32),
        ridges=np.asarray(ridges, np.float32),
        least=np.asarray([one.value for one in found], np.float32),
        negatives=columns[test & (rows.label < 0.5)],
        positives=columns[test & (rows.label > 0.5)],
    )
    at = [measure(jnp.asarray(one.params, jnp.float32), judges) for one in found]
    zero = measure(jnp.zeros(dim), judges)
    facts = {
        "optimum_auc": float(at[0]["test_auc"]),
        "element_optimum_auc": float(at[1]["test_auc"]),
        "element_optimum_excess": float(at[1]["excess_user"]),
        "trivial_user": float(zero["excess_user"]),
        "trivial_element": float(zero["excess_element"]),
    }
    facts |= {f"elements_{name}": count for name, count in held.items()}
    typical = {name: grain.typical for name, grain in grains.items()}
    return ElementTask(data, judges, objectives, dim, sizes, facts, typical)


def measure(params: Any, judges: Judges) -> dict[str, Any]:
    """Excess of both objectives, and test AUC."""
    objective = losses.logistic(1.0)
    model = objective.linear_model
    assert model is not None

    def scores(columns: Any) -> Any:
        return jax.vmap(lambda row: margin(params, OneHot(row), 1.0))(columns)

    each = model.link(scores(judges.columns), judges.labels)
    values = judges.weights @ each + 0.5 * judges.ridges * jnp.sum(params**2)
    excess = values - judges.least
    auc = roc_auc(scores(judges.negatives), scores(judges.positives))
    return {"excess_user": excess[0], "excess_element": excess[1], "test_auc": auc}


def _codes(table: Table, field: str) -> np.ndarray:
    return next(f.codes for f in table.fields if f.name == field)


def _weights(*keys: np.ndarray) -> np.ndarray:
    """Rows share the weight of their unit equally, and all units have the same."""
    frame = pd.DataFrame({str(i): key for i, key in enumerate(keys)})
    size = frame.groupby([*frame], sort=False)["0"].transform("size").to_numpy()
    return 1 / size / np.sum(1 / size)


def _optimum(data: ElementData, dim: int, held: float, ridge: float) -> reference.Reference:
    """The minimizer of E (11) over the mean number of elements ``held``, with a ridge, and its value."""
    share = held / elements.num_slots(data)
    units: UserData = elements.as_units(data)
    found = reference.solve(losses.logistic(1.0, ridge=ridge * share), units, dim)
    return found._replace(value=found.value / share, gap=found.gap / share)
