"""Rounds over elements: the clients' steps, what they equal, and the server's optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example
from dpsco_jax.solvers.element_level import federated, sgd

USERS, SLOTS, ITEMS, DIM = 5, 3, 2, 4
LOSS = losses.huber(1.0)
PROBLEM = Problem(LOSS, num_users=USERS, dim=DIM)
SIZES = {"num_steps": 3, "elements_per_user": SLOTS, "step_size": 0.5, "accountant": "rdp"}
ORIGIN = jnp.zeros(DIM)


def _data():
    rng = np.random.default_rng(0)
    shape = (USERS, SLOTS, ITEMS)
    rows = rng.standard_normal((*shape, DIM))
    rows /= 1.01 * np.linalg.norm(rows, axis=-1, keepdims=True)
    mask = rng.random(shape) < 0.7
    labels = 2 * rng.standard_normal(shape) * mask
    rows = rows * mask[..., None]
    return ElementData(Example(rows.astype(np.float32), labels.astype(np.float32)), mask)


def _plan(**given):
    return federated.plan(PROBLEM, Budget(2.0, 1e-3), local_step_size=0.4, **SIZES | given)


def test_one_local_step_is_sgd():
    ours = _plan(sampling="full")
    theirs = sgd.plan(PROBLEM, Budget(2.0, 1e-3), sampling="full", averaging="last", **SIZES)
    runs = [
        jax.jit(lambda p, s=solver: s.solve(jax.random.key(1), p, LOSS, _data(), ORIGIN).params)(p)
        for solver, p in ((federated, ours), (sgd, theirs))
    ]
    np.testing.assert_allclose(*runs, atol=1e-6)
    assert ours.certificate() == theirs.certificate()


@pytest.mark.parametrize("radius", [np.inf, 0.1])
def test_local_steps_are_those_of_clients(radius):
    objective = LOSS if radius == np.inf else losses.huber(1.0, domain=domains.ball(radius))
    plan = _plan(sampling="full", local_steps=3, clip_norm=0.5).replace(
        noise_multiplier=0.0, made_for=None
    )
    data = _data()
    run = jax.jit(lambda p: federated.solve(jax.random.key(1), p, objective, data, ORIGIN).params)
    found = run(plan)

    x, y = (np.asarray(leaf, float) for leaf in data.items)
    project = lambda w: w * min(1.0, radius / max(np.linalg.norm(w), 1e-300))  # noqa: E731
    server = np.zeros(DIM)
    for _ in range(3):
        total = np.zeros(DIM)
        for u in range(USERS):
            for k in range(SLOTS):
                there = data.mask[u, k]
                client = server.copy()
                for _ in range(3 if there.any() else 0):
                    slopes = np.clip(x[u, k][there] @ client - y[u, k][there], -1, 1)
                    client = project(client - 0.4 * (slopes[:, None] * x[u, k][there]).mean(0))
                update = (server - client) / (0.4 * 3)
                total += update * min(1.0, 0.5 / max(np.linalg.norm(update), 1e-300))
        server = project(server - 0.5 * total / USERS)
    np.testing.assert_allclose(found, server, atol=1e-5)


def test_the_server_has_any_optimizer():
    plan = _plan(sampling="full", num_steps=1).replace(noise_multiplier=0.0)
    run = jax.jit(
        lambda p: (
            federated.solve(
                jax.random.key(1), p, LOSS, _data(), ORIGIN, server=optax.adam(0.1)
            ).params
        )
    )
    np.testing.assert_allclose(np.abs(run(plan)), 0.1, rtol=1e-3)
    with pytest.raises(ValueError, match="server must be"):
        federated.solve(jax.random.key(1), plan, LOSS, _data(), ORIGIN, server=0.1)


@pytest.mark.parametrize(
    ("named", "given"),
    [("local_steps", {"local_steps": 0}), ("local_step_size", {"local_step_size": 0.0})],
)
def test_bad_arguments_are_refused_by_name(named, given):
    settings = {"local_step_size": 0.4, "batch_size": 2} | SIZES | given
    with pytest.raises(ValueError, match=rf"^{named} must be"):
        federated.plan(PROBLEM, Budget(2.0, 1e-3), **settings)
