"""The solvers that are recorded: three plans each, and one run of the first plan.

Private solvers are the rows of ``tests.solvers.private_table``: the plan of the row, with twice its ε, and
with twice its users. Solvers without privacy have three settings of their own here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import Budget
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses, streams
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.regression_instances import absolute_regression
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.ball import ball_acceleration, parallel_baselines, parallel_sco
from dpsco_jax.solvers.convex import ac_sa
from dpsco_jax.solvers.online import batched_redraw, convex, experts, noised_leader
from tests.solvers.private_table import ROWS, Row
from tests.support.planned import planned

KEY = 7
DIM = 3


class Case(NamedTuple):
    """A solver with settings.

    Attributes:
        name: of the case.
        plans: what makes the three plans, by name; the first is run.
        run: the result of a plan, as a tree of arrays.
    """

    name: str
    plans: dict[str, Callable[[], Any]]
    run: Callable[[Any], Any]


def _private(row: Row) -> Case:
    wider = row._replace(settings={"epsilon": 2.0} | row.settings)
    wider.settings["epsilon"] = 2 * wider.settings["epsilon"]

    def run(plan: Any) -> Any:
        with jax.enable_x64(row.float64):
            solve = jax.jit(lambda data: row.solve(jax.random.key(KEY), plan, data))
            solution = solve(row.data())
        return {
            "params": solution.params,
            "rdp": solution.privacy.rdp[::16],
            "delta": solution.privacy.delta,
            "status": solution.status,
            "gradients": np.asarray(solution.gradients),
            "realized": np.asarray(solution.unprivate["gradients"]),
        }

    def planned_for(what: Row) -> Callable[[], Any]:
        def make() -> Any:
            with jax.enable_x64(row.float64):
                return what.plan()

        return make

    plans = {
        "plan": planned_for(row),
        "twice epsilon": planned_for(wider),
        "twice the users": planned_for(row._replace(num_users=2 * row.num_users)),
    }
    return Case(row.name, plans, run)


def _shown(solution: Any) -> Any:
    count = np.asarray(solution.gradients)
    return solution._replace(privacy=None, unprivate=None, gradients=count)


def _users() -> UserData:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((10, 2, DIM))
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    labels = rng.choice([0.0, 1.0], (10, 2))
    return UserData(Example(rows.astype(np.float32), labels.astype(np.float32)))


def _ac_sa(name: str, objective: Any, changes: tuple[dict[str, Any], ...], **given: Any) -> Case:
    plans = {
        str(change): lambda change=change: planned(
            ac_sa.plan, objective, **({"num_users": 10, "dim": DIM} | given | change)
        )
        for change in changes
    }

    def run(plan: Any) -> Any:
        found = jax.jit(
            lambda data: ac_sa.solve(jax.random.key(KEY), plan, objective, data, jnp.zeros(DIM))
        )(_users())
        return _shown(found)

    return Case(name, plans, run)


def _ball_acceleration() -> Case:
    objective = losses.logistic(feature_bound=1.0, ridge=0.02)
    given = {"lipschitz": 1.0, "distance": 1.0, "ball_radius": 0.4}
    plans = {
        str(change): lambda change=change: ball_acceleration.plan(**(given | change))
        for change in (
            {"excess": 0.2},
            {"excess": 0.1},
            {"excess": 0.2, "search": "doubling"},
        )
    }

    def run(plan: Any) -> Any:
        found = jax.jit(lambda data: ball_acceleration.solve(plan, objective, data, jnp.zeros(DIM)))
        return _shown(found(_users()))

    return Case("ball_acceleration", plans, run)


def _parallel(name: str, solver: Any, changes: tuple[dict[str, Any], ...]) -> Case:
    instance = absolute_regression(jax.random.key(0), 60, DIM, DIM)
    given = {
        "lipschitz": instance.lipschitz,
        "distance": instance.distance,
        "dim": DIM,
        "excess": instance.lipschitz * instance.distance / 4,
    }
    plans = {
        str(change): lambda change=change: solver.plan(**(given | change)) for change in changes
    }

    def run(plan: Any) -> Any:
        solve = jax.jit(lambda key: solver.solve(key, plan, instance.gradient, jnp.zeros(DIM)))
        return solve(jax.random.key(KEY))

    return Case(name, plans, run)


def _online(name: str, solver: Any, **given: Any) -> Case:
    """Plans of 200 rounds, with twice ε, and of twice the rounds: what was calibrated, and plays."""
    plans = {
        said: lambda rounds=rounds, epsilon=epsilon: solver.plan(
            rounds, DIM, Budget(epsilon, 1e-6), **given
        )
        for said, rounds, epsilon in (
            ("plan", 200, 2.0),
            ("twice epsilon", 200, 4.0),
            ("twice the rounds", 400, 2.0),
        )
    }
    table = np.random.default_rng(2).random((200, DIM)).astype(np.float32)

    def run(plan: Any) -> Any:
        stream = streams.rows(jnp.asarray(table))
        found = jax.jit(lambda key: solver.solve(key, plan, stream))(jax.random.key(KEY))
        return {"plays": found.released["plays"], "rdp": found.privacy.rdp[::16]}

    return Case(f"online {name}", plans, run)


_ON_BALL = {"radius": 1.0, "lipschitz": 1.0}
_SMOOTH = losses.logistic(feature_bound=1.0, domain=domains.ball(2.0), ridge=0.02)
_ROUGH = losses.absolute(feature_bound=1.0, domain=domains.ball(1.0))

STEPS, GAP = {"num_steps": 20}, {"excess": 0.3}
STAGES = {"policy": "multi_stage", "excess": 0.3}

CASES: tuple[Case, ...] = (
    *map(_private, ROWS),
    _ac_sa("ac_sa, smooth", _SMOOTH, (STEPS, GAP, STEPS | {"num_users": 50})),
    _ac_sa("ac_sa, sampled", _SMOOTH, (STEPS, GAP, STAGES), batch_size=4),
    _ac_sa("ac_sa, smoothed", _ROUGH, (STEPS, {"num_steps": 80}, STEPS | {"num_users": 1000})),
    _ball_acceleration(),
    *(
        _parallel(
            f"parallel_sco, {oracle}",
            parallel_sco,
            tuple(
                {"oracle": oracle} | change
                for change in ({"num_iterations": 2}, {"search": "fixed"}, {"constants": "paper"})
            ),
        )
        for oracle in ("epoch_sgd", "ac_sa")
    ),
    *(
        _parallel(
            f"parallel_baselines, {method}",
            parallel_baselines,
            tuple(
                {"method": method} | change for change in ({}, {"excess": 0.1}, {"distance": 2.0})
            ),
        )
        for method in parallel_baselines.METHODS
    ),
    _online("experts", experts),
    _online("experts, lagged", experts, reference="lagged"),
    _online("batched_redraw", batched_redraw),
    _online("convex", convex, redraw_probability=0.3, **_ON_BALL),
    _online("convex, redrawn", convex, redraw_probability=1.0, **_ON_BALL),
    _online("noised_leader", noised_leader, bands=8, **_ON_BALL),
    _online("noised_leader, tree", noised_leader, constants="paper", **_ON_BALL),
)
