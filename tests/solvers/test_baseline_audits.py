"""The user-level baselines attacked from end to end: what is learned stays below what is claimed."""

import jax
import jax.numpy as jnp
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import item_group_privacy, output_perturbation
from tests.support.planned import planned

RUNS, EPSILON, DELTA = 400_000, 1.0, 1e-2
ITEMS = 3
# <z, w>: every gradient is an item, so the parameters are a sum of all noisy sums.
LINEAR = Objective(lambda w, z: jnp.vdot(z, w), 1.0, 1e-3, domains.whole_space())
FLAT = losses.huber(1.0, delta=1e-3)


def _learned(solver, plan, objective, pair, understated=1.0):
    plan = plan.replace(noise_multiplier=plan.noise_multiplier / understated)

    def mechanism(key, data):
        return solver.solve(key, plan, objective, data, jnp.zeros(1)).params

    audit = privacy.audit(
        jax.random.key(0), mechanism, *pair, lambda params: params[0], RUNS, DELTA
    )
    return audit.epsilon


def _linear_pair(users):
    # All items of the canary pull one way, far beyond the clip.
    return tuple(
        UserData(jnp.zeros((users, ITEMS, 1)).at[0].set(50.0 * sign)) for sign in (1.0, -1.0)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "least"), [(None, 0.8), (2, 0.25)])
def test_item_level_sgd_keeps_its_claim_for_users(batch_size, least):
    users = 4
    plan = planned(item_group_privacy.plan,
        LINEAR, num_users=users, items_per_user=ITEMS, dim=1, epsilon=EPSILON, delta=DELTA,
        num_steps=2, batch_size=batch_size, step_size=0.1,
    )  # fmt: skip
    pair = _linear_pair(users)
    learned = _learned(item_group_privacy, plan, LINEAR, pair)
    assert least * EPSILON < learned <= EPSILON
    # What protects one item only does not protect a user.
    assert _learned(item_group_privacy, plan, LINEAR, pair, understated=ITEMS) > EPSILON


@pytest.mark.slow
def test_output_perturbation_keeps_its_claim():
    plan = planned(output_perturbation.plan,
        FLAT, num_users=2, dim=1, epsilon=EPSILON, delta=DELTA, distance=1.0,
        regularization=1e-2,
    )  # fmt: skip
    pair = tuple(
        UserData(Example(jnp.ones((2, 1, 1)), jnp.asarray([[label], [-1.0]])))
        for label in (1.0, -1.0)
    )
    learned = _learned(output_perturbation, plan, FLAT, pair)
    assert 0.8 * EPSILON < learned <= EPSILON
    assert _learned(output_perturbation, plan, FLAT, pair, understated=1.3) > EPSILON
