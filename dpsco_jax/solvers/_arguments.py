"""What every ``plan`` and every ``solve`` ask of their arguments before anything is computed.

What is looked at of the arguments of a ``solve`` is static (classes, structures, shapes, dtypes), so that it
works on tracers, depends on no value, and costs nothing in a compiled program. Of arrays that are NumPy's two
things more are looked at: bytes of a mask, and integers that JAX does not hold.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks
from dpsco_jax._given import require_held
from dpsco_jax._pytrees import Number
from dpsco_jax._redact import Words
from dpsco_jax.problems.objective import Example, Objective, OneHot
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _plan_base, _planning


def require_run(
    made: type,
    key: Any,
    plan: Any,
    objective: Any,
    data: Any,
    params: Any,
    trace: Any = None,
    stored: bool = False,
) -> None:
    """``ValueError``, by the name of the argument, unless a ``solve`` can start with these.

    The key must be a single typed one, a trace that is given a function; all else as in ``require_problem``.
    """
    _checks.require_key(key)
    require_problem(made, plan, objective, data, params, stored)
    _checks.require_given(_checks.require_callable, trace=trace)


def require_problem(
    made: type, plan: Any, objective: Any, data: Any, params: Any, stored: bool = False
) -> None:
    """``ValueError``, by the name of the argument, unless plan, objective, data and start fit together.

    Args:
        made: the class of plans that the solver's ``plan`` makes.
        plan: must be of that class.
        objective: must be an ``Objective``, with the constants of that of the plan.
        data: must be ``UserData`` whose leaves are arrays of numbers ``[users, items, ...]``, of the same two
            axes, for as many users as the plan states in ``num_users``, if it does, or as many units as it
            states in ``num_units``, where these are the rows. Features of ``Example``
            items must be floating, since losses project them onto a norm, or ``OneHot`` of integers; the
            mask must be booleans ``[users, items]``.
        params: must be a tree of real floating leaves, with as many entries as the plan states in ``dim``,
            if it does; a single array if the objective is a linear model.
        stored: whether the data may be ``StoredUsers``, of which only shapes are looked at.
    """
    require_plan(made, plan)
    _checks.require_instance("objective", objective, Objective)
    _plan_base.require_same(plan, objective)
    if not (stored and isinstance(data, StoredUsers)):
        _checks.require_instance("data", data, UserData)
    _require_data(data)
    if hasattr(plan, "num_units"):
        _require_rows("plan.num_units", plan.num_units, "rows, users times elements", data)
    elif hasattr(plan, "num_users"):
        _require_rows("plan.num_users", plan.num_users, "users", data)
    _checks.require_real_leaves("params", params)
    if objective.linear_model is not None and jax.tree.leaves(params):
        one = jax.tree_util.treedef_is_leaf(jax.tree.structure(params))
        shapes = jax.tree.map(np.shape, params)
        _checks.require(one, "params", shapes, "one array, of a linear model")
    if hasattr(plan, "dim"):
        _planning.require_params("params", plan.dim, params)


def require_asked(made: type, key: Any, plan: Any, gradient: Any, start: Any, stop: Any) -> None:
    """``require_run`` for solvers that ask a gradient oracle in place of an objective and data.

    The gradient must be a function, as ``stop`` if it is given, the start an array of real numbers
    ``[plan.dim]``.
    """
    _checks.require_key(key)
    require_plan(made, plan)
    _checks.require_callable("gradient", gradient)
    _checks.require_number("start", start, "an array of real numbers")
    found = np.shape(start)
    _checks.require(found == (plan.dim,), "start", found, f"of shape ({plan.dim},) as planned")
    _checks.require_given(_checks.require_callable, stop=stop)


def require_plan(made: type, plan: Any) -> None:
    """``ValueError`` unless the plan is of this solver's class, has all its numbers, and wide enough ones.

    An edited plan may lack a number: one whose field is not declared to be ``None`` where there is none.
    """
    found = f"{type(plan).__module__}.{type(plan).__qualname__}"
    _checks.require(
        type(plan) is made, "plan", Words(found), f"a {made.__module__}.{made.__name__}"
    )
    _require_numbers("plan", plan)
    _checks.require_wide_numbers("plan", plan)


def _require_numbers(name: str, node: Any) -> None:
    """``ValueError`` where a number is missing of a dataclass, or of one that it is made of."""
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        missing = field.type is Number and value is None
        _checks.require(not missing, f"{name}.{field.name}", None, "a number")
        if dataclasses.is_dataclass(value):
            _require_numbers(f"{name}.{field.name}", value)


def require_like(name: str, point: Any, params: Any) -> None:
    """``ValueError`` unless the point is a real floating tree of the structure and shapes of ``params``."""
    _checks.require_real_leaves(name, point)
    wanted, found = (jax.tree.map(np.shape, tree) for tree in (params, point))
    _checks.require(found == wanted, name, found, f"of the shape of params, {wanted}")


def _require_rows(name: str, planned: int, what: str, data: Any) -> None:
    """``ValueError`` unless the data have the planned number of rows; sizes are static."""
    found = jax.tree.leaves(data.items)[0].shape[0]
    if found != planned:
        raise ValueError(f"data must have {name} = {planned} {what}, got {found}")


def _require_data(data: Any) -> None:
    shapes = [np.shape(leaf)[:2] for leaf in jax.tree.leaves(data.items)]
    grid = len(shapes) > 0 and len(set(shapes)) == 1 and len(shapes[0]) == 2
    _checks.require(grid, "data.items", shapes, "arrays [users, items, ...], all of the same two")
    few = shapes[0][0] * shapes[0][1] <= _planning.MOST_SLOTS
    _checks.require(
        few, "data.items", shapes[0], f"of at most {_planning.MOST_SLOTS} items of users"
    )
    for leaf in jax.tree.leaves(data.items):
        kind = getattr(leaf, "dtype", None)
        numeric = kind is not None and (kind == np.bool_ or jnp.issubdtype(kind, jnp.number))
        _checks.require(numeric, "data.items", kind, "arrays of numbers")
    if not isinstance(data, StoredUsers):
        require_held("data", data)
    if data.mask is not None:
        # Which items are there is private: what is shown of the mask is its dtype and shape.
        found = (getattr(data.mask, "dtype", type(data.mask)), np.shape(data.mask))
        good = found == (np.dtype(bool), shapes[0])
        _checks.require(good, "data.mask", found, f"an array of booleans of shape {shapes[0]}")
    if isinstance(data.items, Example):
        _require_features(data.items.features)


def _require_features(features: Any) -> None:
    if isinstance(features, OneHot):
        kind = features.columns.dtype
        sparse = jnp.issubdtype(kind, jnp.integer)
        _checks.require(sparse, "data.items.features.columns", kind, "integers")
    else:
        _checks.require_real_leaves("data.items.features", features)
