"""Calls of every ``solve`` that work, and what each of its arguments may not be.

The private solvers are those of the table that ``test_recorded_releases`` runs, so a new one is here by its
row. A plan is made once, when it is first asked for; nothing is run, since refusals come before.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpsco_jax.geometry import prox
from dpsco_jax.problems import StoredUsers, losses
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.ball import ball_acceleration, parallel_baselines, parallel_sco
from dpsco_jax.solvers.convex import ac_sa, high_probability, sgd
from dpsco_jax.solvers.item_level import private_ac_sa
from tests.solvers import private_table
from tests.solvers.private_table import DIM, ROWS, SGD_ONLY, Row
from tests.support import kinds
from tests.support.kinds import Argument, Fresh, Kind
from tests.support.objects import DATA, OBJECTIVE
from tests.support.planned import planned

_START = np.zeros(DIM, np.float32)
_OTHER_PLAN = ball_acceleration.plan(lipschitz=1.0, distance=1.0, ball_radius=0.5, excess=0.1)
_ANY_LOSS = losses.logistic(1.0)
_PLAN = Kind("plan of this solver", (*kinds.OBJECT.bad, OBJECTIVE, DATA, _OTHER_PLAN))
_OBJECTIVE = Kind("objective", (*kinds.OBJECT.bad, DATA, OBJECTIVE.domain, OBJECTIVE.loss))
_LIKE_PARAMS = (
    *(*kinds.TREE.bad, np.zeros(DIM, np.int32), np.zeros(DIM, bool), np.zeros(DIM + 1, np.float32)),
    {"w": np.zeros(DIM + 1, np.float32)},
)
_PARAMS = Kind("start of plan.dim entries", (*_LIKE_PARAMS, None, "nonsense", DATA))
_CENTER = Kind("like params", (*_LIKE_PARAMS, np.zeros((DIM, 1), np.float32), np.float32(0.0)))
_NUMBERS = {"lipschitz": 1.0, "distance": 1.0, "dim": DIM, "excess": 0.5}
_ASKED = {
    "gradient": kinds.FUNCTION(lambda keys, points: points),
    "start": Kind("array [dim]", (*kinds.NUMBERS.bad, np.zeros(DIM + 1), 0.0))(_START),
}
_RIDGED = kinds.NONNEGATIVE(0.0)


def _data(good: UserData, planned: bool = True) -> Argument:
    """The data, and what they may not be: other objects, numbers, axes, masks, numbers of users."""
    items, mask = good.items, np.ones(np.shape(good.items.label), bool)
    bad = (
        *(*kinds.OBJECT.bad, OBJECTIVE, items, good._replace(items="nonsense")),
        *(good._replace(items=()), good._replace(items=items._replace(features=None, label=7.0))),
        good._replace(items=items._replace(features=items.features.astype(np.int32))),
        good._replace(items=items._replace(features=items.features.astype(complex))),
        good._replace(items=items._replace(label=np.full(np.shape(items.label), "yes"))),
        good._replace(items=items._replace(label=items.label[:-1])),
        good._replace(items=items._replace(label=items.label[0, 0])),
        good._replace(mask=mask.astype(np.float32)),
        good._replace(mask=mask[:-1]),
        good._replace(mask="nonsense"),
    )
    if planned:
        fewer = items._replace(features=items.features[1:], label=items.label[1:])
        bad = (*bad, UserData(fewer, mask[1:]))
    return Argument(Kind("data as planned", bad), good)


def _call(row: Row) -> dict[str, Any]:
    params = _PARAMS(_START)
    if row.params is not None:
        wrong = (row.params[:-1], row.params.astype(np.int32), None, np.float32(0.0))
        params = Kind("candidates", (*kinds.TREE.bad, *wrong))(row.params)
    return {
        "plan": _PLAN(Fresh(functools.cache(row.plan))),
        "objective": _OBJECTIVE(row.objective),
        "data": _data(row.data()),
        "params": params,
    }


def _path(solver: Any) -> str:
    """Where the solver's ``solve`` is public: first-order solvers have one and the same, phased ones too."""
    home = solver.solve.__module__
    shared = tuple(
        f"dpsco_jax.solvers.{name}"
        for name in ("copies", "first_order", "phased", "sampling.exponential_mechanism")
    )
    home = home if home in shared else solver.__name__
    return home.removeprefix("dpsco_jax.") + ".solve"


_BY_ROW = {_path(row.solver): row for row in reversed(ROWS)}
_PULLED = next(row for row in ROWS if row.solver is private_ac_sa)
GOOD: dict[str, dict[str, Any]] = {path: _call(row) for path, row in _BY_ROW.items()}
# Its row wraps ``first_order.solve``, to pair items.
del GOOD["solvers.user_level.item_sampled_sgd.solve"]
GOOD["solvers.first_order.solve"] = _call(_PULLED) | {"center": _CENTER(None)}
GOOD["solvers.element_level.federated.solve"] |= {"server": kinds.OBJECT.but(None)(optax.sgd(0.1))}
GOOD["solvers.resque.ball_accelerated_erm.solve"] |= {
    "regularization": _RIDGED,
    "anchor": _CENTER(None),
}
GOOD["solvers.heavy_tailed.known_lipschitz.solve"] |= {
    "slopes": kinds.NUMBERS(np.ones(24, np.float32))
}
GOOD["solvers.user_level.auto.solve"] |= {
    "candidates": Kind("candidates", ("nonsense", 7, (7,), ()))(SGD_ONLY)
}
GOOD["solvers.user_level.finite_class.select"] = GOOD["solvers.user_level.finite_class.solve"] | {
    "point": kinds.FUNCTION(lambda index: jnp.asarray(private_table.CANDIDATES)[index])
}
del GOOD["solvers.user_level.finite_class.select"]["params"]
GOOD["solvers.combinators.composite.solve"] = GOOD["solvers.item_level.erm.solve"] | {
    "inner": kinds.FUNCTION(private_ac_sa.solve),
    "center": _CENTER(None),
}

GOOD["solvers.ball.ball_acceleration.solve"] = {
    "objective": _OBJECTIVE(_ANY_LOSS),
    # Any number of users and any dimension is planned for.
    "data": _data(ROWS[0].data(), planned=False),
    "plan": Kind("plan", (*kinds.OBJECT.bad, OBJECTIVE, DATA))(_OTHER_PLAN),
    "params": Kind("start", (*kinds.TREE.bad, np.zeros(DIM, np.int32)))(_START),
    "inner": kinds.CHOICE("gradient"),
}
for _solver in (ac_sa, sgd):
    _planned = functools.cache(
        functools.partial(
            planned,
            _solver.plan,
            OBJECTIVE,
            num_users=ROWS[0].num_users,
            dim=DIM,
            num_steps=3,
            distance=1.0,
        )
    )
    GOOD[_path(_solver)] = {
        "objective": _OBJECTIVE(OBJECTIVE),
        "data": _data(ROWS[0].data()),
        "params": _PARAMS(_START),
        "plan": _PLAN(Fresh(_planned)),
    }
for _solver in (parallel_baselines, parallel_sco):
    _planned = functools.cache(functools.partial(_solver.plan, **_NUMBERS))
    GOOD[_path(_solver)] = {"plan": _PLAN(Fresh(_planned)), **_ASKED}

GOOD["solvers.convex.high_probability.solve"] = {
    **_ASKED,
    "plan": _PLAN(
        Fresh(
            functools.cache(
                lambda: high_probability.plan(
                    second_moment=1.0, distance=1.0, dim=DIM, num_queries=20
                )
            )
        )
    ),
    "term": kinds.OBJECT.but(None)(prox.l1(0.1)),
}

_ON_DISK = next(row for row in ROWS if row.name.startswith("sgd"))
GOOD["solvers.out_of_core.solve"] = _call(_ON_DISK) | {
    "solver": Kind("module of a solver", ("nonsense", 7, None, OBJECTIVE))(_ON_DISK.solver),
    "data": Kind(
        "users on disk",
        (*kinds.OBJECT.bad, _ON_DISK.data(), StoredUsers(np.ones((3, 2, DIM)).astype(np.float32))),
    )(StoredUsers(*jax.tree.map(np.asarray, _ON_DISK.data()))),
    "checkpoint": Kind("path of a file", (7, 1.5, True))(None),
    "progress": Kind("function", ("nonsense", 7))(None),
}

EXEMPT: dict[tuple[str, str], str] = {}
