"""What the tests of ``langevin`` share: small problems, plans of them and edits."""

import functools

import jax
import jax.numpy as jnp

from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.item_level import langevin
from tests.support.planned import planned

USERS, DIM, DELTA = 12, 3, 1e-4
GIVEN = {"num_users": USERS, "dim": DIM, "epsilon": 1.0, "delta": DELTA, "distance": 2.0}
LINEAR = losses.huber(1.0, delta=1e-2)  # on labels far away
QUADRATIC = losses.huber(1.0, delta=100.0)
OBJECTIVES = {
    "whole space": losses.logistic(1.0),
    "ball": losses.logistic(2.0, domains.ball(0.7), ridge=0.05),
    "huber": losses.huber(1.0, delta=0.5, ridge=0.1),
}


def plan_of(objective, **changes):
    return planned(langevin.plan, objective, **(GIVEN | changes))


def edited(plan, **changes):
    return plan.replace(**changes)


def noiseless(plan):
    return edited(plan, noise_multiplier=1e-12)


def random_data(rng, users=USERS, items=1, dim=DIM, size=1.0):
    features = rng.normal(size=(users, items, dim)) * size
    labels = rng.integers(0, 2, (users, items))
    return UserData(Example(jnp.asarray(features, jnp.float32), jnp.asarray(labels, jnp.float32)))


@functools.cache
def solver(objective_name):
    objective = OBJECTIVES[objective_name]

    def run(key, plan, data, start):
        return langevin.solve(key, plan, objective, data, start)

    return jax.jit(run)
