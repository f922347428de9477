"""DP-SGD and private AC-SA attacked from end to end: what is learned stays below what is claimed.

The loss <z, w> makes every gradient a record, so the parameters are a weighted sum of all noisy sums: along
the canary's direction nearly the likelihood ratio of the whole run.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.item_level import private_ac_sa, staged_ac_sa
from dpsco_jax.solvers.user_level import momentum_sgd, sgd
from tests.support.planned import planned

USERS, DIM, STEPS, RUNS, EPSILON, DELTA = 4, 2, 3, 400_000, 1.0, 1e-2
LINEAR = Objective(
    loss=lambda w, z: jnp.vdot(z, w),
    lipschitz=1.0,
    smoothness=1e-3,
    domain=domains.whole_space(),
)
SIZES = {"num_users": USERS, "dim": DIM, "epsilon": EPSILON, "delta": DELTA, "num_steps": STEPS}
CANARY = jnp.asarray([1.0, 0.0])


def _data(first):
    # Far beyond the clip: it is the clip that bounds the canary.
    records = jnp.zeros((USERS, 1, DIM)).at[0, 0].set(50.0 * first * CANARY)
    return UserData(records, None)


def _with_noise(plan, divisor):
    return plan.replace(noise_multiplier=plan.noise_multiplier / np.float32(divisor))


def _audit(solver, plan, neighbour, understated=1.0):
    plan = _with_noise(jax.tree.map(lambda x: np.asarray(x, np.float32), plan), understated)

    def mechanism(key, data):
        return solver.solve(key, plan, LINEAR, data, jnp.zeros(DIM)).params

    # A canary that pulls the parameters down, against one that pushes them up or is not there.
    found = privacy.audit(
        jax.random.key(0),
        mechanism,
        _data(1.0),
        _data(neighbour),
        lambda params: params[0],
        RUNS,
        DELTA,
    )
    return found.epsilon


def _full_sgd():
    return planned(sgd.plan, LINEAR, sampling="full", averaging="last", step_size=0.1, **SIZES)


def _full_ac_sa():
    return planned(private_ac_sa.plan, LINEAR, batch_size=USERS, distance=1.0, **SIZES)


def _poisson():
    return planned(sgd.plan, LINEAR, batch_size=2, averaging="last", step_size=0.1, **SIZES)


def _momentum():
    settings = {"sampling": "full", "momentum": 0.2, "step_size": 0.1}
    return planned(momentum_sgd.plan, LINEAR, **settings, **SIZES)


def _staged():
    return planned(staged_ac_sa.plan, LINEAR, num_stages=2, distance=1.0, **SIZES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "planned_as", "neighbour"),
    [
        (sgd, _full_sgd, -1.0),
        (private_ac_sa, _full_ac_sa, -1.0),
        (sgd, _poisson, 0.0),
        (momentum_sgd, _momentum, -1.0),
        (staged_ac_sa, _staged, -1.0),
    ],
    ids=["sgd, full", "ac-sa, full", "sgd, poisson", "momentum", "staged"],
)
def test_the_claim_holds_and_less_noise_is_caught(solver, planned_as, neighbour):
    plan = planned_as()
    learned = _audit(solver, plan, neighbour)
    assert 0.8 * EPSILON < learned <= EPSILON
    assert _audit(solver, plan, neighbour, understated=1.3) > EPSILON


def test_the_canary_is_as_large_as_a_user_may_be():
    """Power of the audits above: the two data sets differ by the whole sensitivity in every step."""
    plan = _full_sgd()
    plan = plan.replace(noise_multiplier=1e-9)
    ends = [
        sgd.solve(jax.random.key(0), plan, LINEAR, _data(s), jnp.zeros(DIM)).params
        for s in (1.0, -1.0)
    ]
    np.testing.assert_allclose(
        ends[1] - ends[0], 0.1 * STEPS * 2 / USERS * CANARY, rtol=3e-5, atol=1e-7
    )
