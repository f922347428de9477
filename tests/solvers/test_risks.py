"""What is proven of the risk, held against runs: one problem, a solver of every family."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses, users
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.item_level import erm, langevin, sco
from dpsco_jax.solvers.resque import ball_accelerated_erm
from dpsco_jax.solvers.user_level import output_perturbation, phased_erm, winsorized_erm
from tests.support.planned import planned

pytestmark = pytest.mark.slow

DIM = 3
# Labels are those of the truth: its risk is zero, on every sample.
TRUTH = np.array([0.6, -0.3, 0.2])
ABSOLUTE = losses.absolute(1.0, domain=domains.ball(1.0))
HUBER = losses.huber(1.0, domain=domains.ball(1.0))


class Case(NamedTuple):
    """A run, and the excess that its end has at most: two to five times what was seen."""

    solver: Any
    objective: Any
    most: float
    settings: dict[str, Any]
    num_users: int = 500


CASES = {
    "erm, direct": Case(erm, ABSOLUTE, 1e-3, {"method": "direct"}),
    "erm, regularize": Case(erm, ABSOLUTE, 1.5e-3, {"method": "regularize"}),
    "sco": Case(sco, ABSOLUTE, 5e-4, {}),
    "langevin": Case(langevin, HUBER, 1e-3, {}),
    "output perturbation": Case(output_perturbation, HUBER, 0.02, {}),
    "phased erm": Case(phased_erm, HUBER, 0.06, {"most_steps": 8}),
    "winsorized erm": Case(winsorized_erm, HUBER, 0.015, {"num_steps": 8}),
    "balls, erm": Case(ball_accelerated_erm, ABSOLUTE, 0.05, {"smoothing_radius": 0.2}, 2000),
}


@pytest.mark.parametrize("name", CASES)
def test_the_risk_stays_below_its_bound(name):
    case, rng = CASES[name], np.random.default_rng(0)
    rows = rng.normal(size=(case.num_users, 1, DIM))
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    data = UserData(Example(jnp.float32(rows), jnp.float32(rows @ TRUTH)), None)
    plan = planned(
        case.solver.plan, case.objective, num_users=case.num_users, dim=DIM, distance=1.0,
        epsilon=4.0, delta=1e-6, **case.settings,
    )  # fmt: skip
    loss, start = users.mean_loss(case.objective), jnp.zeros(DIM)

    @jax.jit
    def excess(key, plan, data):
        return loss(case.solver.solve(key, plan, case.objective, data, start).params, data)

    keys = jax.random.split(jax.random.key(0), 3)
    found = np.mean([float(excess(key, plan, data)) for key in keys])
    assert 0.0 < found < case.most < loss(start, data)
    assert found < getattr(plan, "excess_bound", math.inf)
