"""What a solution says of its privacy: one number to publish, that of the plan."""

import jax
import jax.numpy as jnp
import pytest

from dpsco_jax import Budget, privacy
from dpsco_jax.problems import synthetic
from dpsco_jax.solvers.item_level import private_ac_sa

MADE = synthetic.logistic_regression(jax.random.key(0), num_users=200, items_per_user=1, dim=3)


def _solve(plan, key):
    start = jnp.zeros(3)
    return private_ac_sa.solve(key, plan, MADE.objective, MADE.data, start)


def test_a_run_is_certified_by_its_plan_and_by_no_other():
    problem = MADE.problem(distance=5.0)
    plan, other = (private_ac_sa.plan(problem, Budget(eps, 1e-5)) for eps in (2.0, 4.0))
    key = jax.random.key(1)
    for solve in (_solve, jax.jit(_solve)):
        solution = solve(plan, jax.random.clone(key))
        found = solution.certificate(plan)
        assert found == plan.certificate()
        assert found.epsilon <= 2.0 < privacy.epsilon(solution.privacy, 1e-5)
        with pytest.raises(ValueError, match="plan must be the one by which this run was made"):
            solution.certificate(other)
        with pytest.raises(ValueError, match="plan must be the one by which this run was made"):
            solution.certificate(plan.replace(num_steps=plan.num_steps + 1))
    batch = jax.vmap(lambda k: _solve(plan, k))(jax.random.split(jax.random.key(2), 2))
    with pytest.raises(ValueError, match="a single run"):
        batch.certificate(plan)
    with pytest.raises(ValueError, match="plan must be the plan that was solved"):
        solution.certificate(Budget(2.0, 1e-5))
    with pytest.raises(ValueError, match="plan must be the plan that was solved"):
        solution.certificate(type(plan))
