"""Whole solvers and the parts of one of their steps, as programs that ``aot`` compiles.

Logistic regression of many users with one item each. What a step cannot do without: one read of its users'
rows for the clipped sum of their gradients, noise on a vector of parameters, and an update.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpsco_jax import Budget, Problem, transforms
from dpsco_jax.oracles import linear
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.resque import ball_accelerated_erm
from dpsco_jax.solvers.sampling import regularized
from dpsco_jax.solvers.user_level import multipass_sgd, preconditioned_sgd, sgd, whitened_sgd

USERS, DIM, STEPS = 65_536, 256, 100

Program = tuple[Callable[..., Any], tuple[Any, ...]]  # a function and the shapes of its arguments


class Case(NamedTuple):
    """A solver: its name, whether it asks for float64, and what makes its plan."""

    name: str
    solver: Any
    settings: dict[str, Any]
    wide: bool = False

    def program(self, users: int = USERS, dim: int = DIM) -> Program:
        """The whole run, whose loop is one step, as a function of key and data."""
        objective = losses.logistic(1.0)
        problem = Problem(objective, num_users=users, items_per_user=1, dim=dim, distance=4.0)
        plan = self.solver.plan(problem, Budget(1.0, 1e-6), **self.settings)

        def run(key: Any, data: Any) -> Any:
            return self.solver.solve(key, plan, objective, data, jnp.zeros(dim)).params

        return run, (_key(), rows(users, dim))


CASES = (
    Case("sgd, all users", sgd, {"num_steps": STEPS, "sampling": "full"}),
    Case(
        "sgd, Poisson",
        sgd,
        {"num_steps": STEPS, "batch_size": USERS // 16, "accountant": "rdp"},
    ),
    Case(
        "sgd, Poisson, in one chunk",
        sgd,
        {
            "num_steps": STEPS,
            "batch_size": USERS // 16,
            "chunk_size": USERS // 8,
            "accountant": "rdp",
        },
    ),
    Case("private_ac_sa", private_ac_sa, {"num_steps": STEPS, "batch_size": USERS}),
    Case("multipass_sgd", multipass_sgd, {"num_steps": STEPS}),
    Case("preconditioned_sgd", preconditioned_sgd, {"num_steps": STEPS, "accountant": "rdp"}),
    Case("whitened_sgd", whitened_sgd, {"num_steps": STEPS}),
    Case(
        "ball_accelerated_erm",
        ball_accelerated_erm,
        {
            "calls": ball_accelerated_erm.Calls(num_iterations=8, num_queries=64),
            "smoothing_radius": 0.2,
            "largest_error": np.inf,
        },
    ),
    Case("regularized", regularized, {"regularization": 0.01}, wide=True),
)


def rows(users: int, dim: int) -> UserData:
    """The shapes of users with one item each."""
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    return UserData(Example(shape((users, 1, dim)), shape((users, 1))))


def parts(users: int = USERS, dim: int = DIM) -> Iterator[tuple[str, Program]]:
    """What a step of all users is made of: the gradients' sum, noise and update, and the plain gradient."""
    model = losses.logistic(1.0).linear_model
    assert model is not None
    given = jax.eval_shape(lambda data: linear.prepare(model, data, dim), rows(users, dim))
    point = jax.ShapeDtypeStruct((dim,), jnp.float32)
    oracle = linear.clipped_gradient_sum(model, 1.0)
    yield (
        "the clipped sum of gradients",
        (lambda key, w, data: oracle(key, w, data).gradient, (_key(), point, given)),
    )

    def step(key: Any, w: Any, total: Any) -> Any:
        sums = transforms.summed_contributions(1.0, users)
        chain = optax.chain(transforms.privatize(sums, key, 1.0), optax.sgd(0.1))
        updates, _ = chain.update(total, chain.init(w), w, clipped_to=1.0)
        return optax.apply_updates(w, updates)

    yield "noise and update", (step, (_key(), point, point))

    def plain(w: Any, features: Any, labels: Any) -> Any:
        slopes = jax.nn.sigmoid(features @ w) - labels
        return slopes @ features

    features = jax.ShapeDtypeStruct((users, dim), jnp.float32)
    labels = jax.ShapeDtypeStruct((users,), jnp.float32)
    yield "the plain sum of gradients", (plain, (point, features, labels))


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))
