"""Which loss, which solver: the one place where estimators meet ``problems.losses`` and ``solvers``.

A model gets an objective, a plan for it from public numbers, and the run of that plan, compiled once for each
shape of the data. Smooth linear models, softmax among them, go to ``user_level.whitened_sgd``, which has
nothing to tune. It does not take the quantile loss, which is not smooth: this goes to
``user_level.momentum_sgd`` without momentum, 100 full-batch steps that decay, for which a bound on the risk
is proven (private AC-SA, which smooths such a loss, had more loss after many more steps).
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpsco_jax import privacy
from dpsco_jax._checks import require
from dpsco_jax.geometry import ball
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.user_level import momentum_sgd, whitened_sgd

_SOLVERS: dict[str, Any] = {
    "logistic": whitened_sgd,
    "squared": whitened_sgd,
    "huber": whitened_sgd,
    "quantile": momentum_sgd,
    "softmax": whitened_sgd,
}
_NO_ERRORS = {
    "quantile": "it has no curvature by which errors could be told",
    "softmax": "too little would be seen of the curvature in all coefficients of all classes",
}
LOSSES = ("squared", "huber", "quantile")


@dataclasses.dataclass(frozen=True)
class Model:
    """What is fitted. All of it is public.

    Attributes:
        loss: ``"logistic"``, ``"squared"``, ``"huber"``, ``"quantile"`` or ``"softmax"``.
        feature_bound: ℓ2 norm of an encoded row.
        num_columns: of an encoded row.
        max_norm: radius of the ball of the parameters.
        ridge: λ of (λ/2)·‖params‖².
        intercept: whether the first column is the constant 1.
        shape_number: the threshold of ``"huber"``, on the scale of labels in [-1, 1]; the level of
            ``"quantile"``; the number of classes of ``"softmax"``; not read by the others.
    """

    loss: str
    feature_bound: float
    num_columns: int
    max_norm: float
    ridge: float
    intercept: bool
    shape_number: float = 0.0

    @property
    def params_shape(self) -> tuple[int, ...]:
        """Shape of the parameters: ``[columns]``, or ``[columns, classes]``."""
        matrix = self.loss == "softmax"
        return (self.num_columns, int(self.shape_number)) if matrix else (self.num_columns,)


def simplified(model: Model) -> Model:
    """The model, with the squared loss in place of a Huber loss whose threshold no deviation reaches.

    On the ball of the parameters, with labels in [-1, 1], both are the same loss. As a Huber loss its slope
    would be taken to be the threshold, whatever its size, and noise be as large.
    """
    if model.loss == "huber" and model.shape_number >= model.feature_bound * model.max_norm + 1.0:
        return dataclasses.replace(model, loss="squared", shape_number=0.0)
    return model


class Run(NamedTuple):
    """What a fit leaves.

    Attributes:
        plan: of the solver.
        solution: without ``unprivate``: nothing else leaves the compiled program.
        solver: name of the solver.
    """

    plan: Any
    solution: Solution
    solver: str


def fit(
    key: jax.Array,
    model: Model,
    data: UserData,
    items_per_user: int,
    budget: privacy.Budget,
    covariance: bool = False,
) -> Run:
    """Plans from public numbers, and runs.

    Args:
        key: of the noise; used once.
        model: what is fitted.
        data: users × items of ``Example``.
        items_per_user: the public bound on the items of a user.
        budget: (ε, δ).
        covariance: whether that of the parameters is released too, out of the same budget.

    Raises:
        ValueError: a covariance is asked for where the solver makes none.
    """
    solver = _SOLVERS[model.loss]
    start = jnp.zeros(model.params_shape)
    problem = Problem(
        objective_of(model),
        num_users=jax.tree.leaves(data.items)[0].shape[0],
        dim=start.size,
        items_per_user=items_per_user,
        distance=model.max_norm,
    )
    settings = _settings(model)
    if covariance:
        reason = _NO_ERRORS.get(model.loss)
        require(
            reason is None, "standard_errors", True, f"False for the {model.loss} loss: {reason}"
        )
        settings["covariance"] = True
    plan = solver.plan(problem, budget, **settings)
    name = solver.__name__.removeprefix("dpsco_jax.solvers.")
    return Run(plan, _solve(model, key, plan, data, start), name)


def _settings(model: Model) -> dict[str, Any]:
    """Further arguments of the solver's ``plan``."""
    if model.loss == "quantile":
        return {"num_steps": 100, "momentum": 0.0, "sampling": "full"}
    # No entry of an encoded row is above one.
    return {"intercept": 0 if model.intercept else None, "entry_bound": 1.0}


@functools.lru_cache(maxsize=256)
def objective_of(model: Model) -> Objective:
    """The objective; the same object for equal models, so that nothing is compiled twice."""
    bound, domain, ridge = model.feature_bound, ball(model.max_norm), model.ridge
    if model.loss == "logistic":
        return losses.logistic(bound, domain, ridge)
    if model.loss == "squared":
        return losses.squared(bound, 1.0, model.max_norm, ridge)
    if model.loss == "huber":
        return losses.huber(bound, model.shape_number, domain, ridge)
    if model.loss == "quantile":
        return losses.quantile(bound, model.shape_number, domain, ridge)
    return losses.softmax(bound, int(model.shape_number), domain, ridge)


@functools.partial(jax.jit, static_argnums=0)
def _solve(model: Model, key: jax.Array, plan: Any, data: UserData, start: jax.Array) -> Solution:
    solution = _SOLVERS[model.loss].solve(key, plan, objective_of(model), data, start)
    return solution._replace(unprivate={})
