"""A small table, declarations that fit it, and a stand-in for the solver where only the way there matters."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from dpsco_jax.estimators import (
    PrivateLogisticRegression,
    PrivateRegression,
    PrivateSoftmaxRegression,
    _solving,
)
from dpsco_jax.problems import users
from dpsco_jax.solvers.solution import Solution

LEVELS = ["clerk", "nurse", "pilot"]
TABLE = pd.DataFrame(
    {
        "age": [50.0, 0.0, 120.0, -np.inf, np.nan, 25.0, 75.0],
        "job": ["nurse", "clerk", "pilot", "clerk", None, "pilot", "nurse"],
    }
)
WHO = np.array([3, 1, 3, 2, 1, 3, 2])
UNION = np.array(["yes", "no", "no", "yes", "yes", "no", "yes"])
WAGE = np.array([10.0, 20.0, 30.0, 1e9, -1e9, 15.0, 25.0])
SHIFT = np.array(["day", "late", "night", "day", "late", "night", "day"])

COMMON = {
    "epsilon": 2.0,
    "delta": 1e-5,
    "bounds": {"age": (0, 100)},
    "categories": {"job": LEVELS},
    "max_items_per_user": 3,
    "random_state": 7,
}
KINDS = {
    "logistic": (PrivateLogisticRegression, {"classes": ["no", "yes"]}, UNION),
    "squared": (PrivateRegression, {"label_bounds": (10, 30)}, WAGE),
    "softmax": (PrivateSoftmaxRegression, {"classes": ["day", "late", "night"]}, SHIFT),
}


def made(kind="logistic", **changes):
    """An unfitted estimator with all that it needs for the table."""
    cls, own, _ = KINDS[kind]
    return cls(**COMMON | own | changes)


def fitted(kind="logistic", X=TABLE, groups=WHO, **changes):
    return made(kind, **changes).fit(X, KINDS[kind][2], groups=groups)


def stand_in(seen=None):
    """In place of ``_solving._solve``: the plan is a true one, the parameters are noise of the key alone."""

    def solve(model, key, plan, data, start):
        if seen is not None:
            seen.append((model, plan, data))
        params = jax.random.normal(key, start.shape)
        return Solution(params, plan.loss(), jnp.int32(0), jnp.int32(0), {})

    return solve


def one_long_step(model, key, plan, data, start):
    """In place of ``_solving._solve`` where predictions are read: a step against the gradient."""
    slope = jax.jit(jax.grad(users.mean_loss(_solving.objective_of(model))))(start, data)
    return Solution(start - 10.0 * slope, plan.loss(), jnp.int32(0), jnp.int32(0), {})


def replaced_solver(monkeypatch):
    """Puts the stand-in there; the list that is returned gets what it is given (model, plan, data)."""
    seen = []
    monkeypatch.setattr(_solving, "_solve", stand_in(seen))
    return seen
