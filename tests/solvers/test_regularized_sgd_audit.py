"""DP-SGD pulled to its start attacked from end to end, with all points of the run in sight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.item_level import regularized_sgd

BY_RECORD = Objective(
    loss=lambda w, z: jnp.vdot(z, w),
    lipschitz=1.0,
    smoothness=1e-3,
    domain=domains.whole_space(),
)
AUDIT_USERS, AUDIT_STEPS, RUNS, EPSILON, DELTA = 20, 10, 100_000, 1.0, 1e-2


def _audit(sampling, divisor=1.0):
    """-G against G in coordinate 1; all other users have gradient G."""
    problem = Problem(BY_RECORD, num_users=AUDIT_USERS, dim=1, distance=1.0)
    plan = regularized_sgd.plan(
        problem,
        Budget(EPSILON, DELTA),
        num_steps=AUDIT_STEPS,
        sampling=sampling,
        step_size=0.1,
        regularization=0.5,
    )
    plan = jax.tree.map(lambda x: np.asarray(x, np.float32), plan)
    plan = plan.replace(noise_multiplier=plan.noise_multiplier / np.float32(divisor))

    def mechanism(key, data):
        last = lambda params, opt_state, estimate: params[0]  # noqa: E731
        found = regularized_sgd.solve(key, plan, BY_RECORD, data, jnp.zeros(1), last)
        return found.unprivate["trace"]

    others = 50.0 * jnp.ones((AUDIT_USERS, 1, 1))
    # Pulled away, all noisy gradients are seen again: their differences are normal, and where one user is
    # drawn the greatest of ten tells most.
    score = (lambda path: -path[-1]) if sampling == "full" else _likeliest(plan)
    return privacy.audit(
        jax.random.key(1),
        mechanism,
        UserData(others.at[0].set(-50.0), None),
        UserData(others, None),
        score,
        RUNS,
        DELTA,
    ).epsilon


def _likeliest(plan):
    """The logarithm of the likelihood ratio of all noisy gradients, which the path gives away."""
    noise, q = 2 * plan.noise_multiplier, 1 / AUDIT_USERS

    def score(path):
        before = jnp.concatenate([jnp.zeros(1), path[:-1]])
        seen = (before - path) / plan.step_size - plan.pull * before
        ratio = jnp.exp(-2 * seen / noise**2)  # of N(-1) to N(1)
        return jnp.sum(jnp.log1p(q * (ratio - 1)))

    return score


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["full", "single"])
def test_the_claim_holds_and_a_quarter_of_the_noise_is_caught(sampling):
    learned = _audit(sampling)
    assert 0.2 < learned <= EPSILON
    assert _audit(sampling, divisor=4.0) > EPSILON
