"""Momentum and linear decay: the steps, the bound on the last point, and what Poisson sampling adds."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import methods
from dpsco_jax.solvers.user_level import momentum_sgd, sgd

USERS, DIM, STEPS = 12, 3, 7
LOSS = losses.huber(1.0, domain=domains.ball(0.2))
PROBLEM = Problem(LOSS, num_users=USERS, dim=DIM, items_per_user=2)
BUDGET = Budget(2.0, 1e-3)


def _data():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((USERS, 2, DIM)).astype(np.float32)
    return UserData(Example(rows, rng.standard_normal((USERS, 2)).astype(np.float32)))


def _run(method, gradient, start, steps):
    """The reported point of a method on a gradient without noise, as META applies updates."""

    def step(carry, _):
        point, state = carry
        updates, state = method.steps.update(gradient(point), state, point)
        return (optax.apply_updates(point, updates), state), None

    (point, state), _ = jax.lax.scan(step, (start, method.steps.init(start)), length=steps)
    return method.report(state, point)


@pytest.mark.parametrize("step_decay", ["linear", "none"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_the_recursion(step_decay, momentum):
    plan = momentum_sgd.plan(
        PROBLEM, BUDGET, num_steps=STEPS, momentum=momentum, step_decay=step_decay, sampling="full"
    )
    plan = plan.replace(noise_multiplier=0.0, step_size=0.3)
    data = _data()
    solve = jax.jit(lambda k, p: momentum_sgd.solve(k, p, LOSS, data, jnp.zeros(DIM)))
    found = solve(jax.random.key(0), plan).params

    rows = np.asarray(data.items.features, float)
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=-1, keepdims=True))
    point, velocity = np.zeros(DIM), np.zeros(DIM)
    for t in range(STEPS):
        slopes = np.clip(rows @ point - np.asarray(data.items.label, float), -1, 1)
        gradient = (slopes[..., None] * rows).mean((0, 1))
        velocity = momentum * velocity + (1 - momentum) * gradient
        point = (
            point - 0.3 * ((STEPS - t) / (STEPS + 1) if step_decay == "linear" else 1) * velocity
        )
        point *= min(1.0, 0.2 / np.linalg.norm(point))
    np.testing.assert_allclose(found, point, rtol=1e-5, atol=1e-7)


def _largest_gap(method, steps, planes):
    """The gap at the reported point over R·G/√(T + 1), the largest over piecewise linear functions.

    f(w) = max_i ⟨a_i, w⟩ with ‖a_i‖ = 1 is 0 at the origin, which minimizes it where the a_i surround it.
    """

    @jax.jit
    @jax.vmap
    def gap(slopes, start):
        end = _run(method, lambda w: slopes[jnp.argmax(slopes @ w)], start, steps)
        return jnp.max(slopes @ end) * jnp.sqrt(steps + 1.0)

    return np.asarray(gap(*planes))


def _planes(steps):
    """Random functions of many shapes, each with its mirror image, from random points of the unit sphere."""
    rng = np.random.default_rng(1)
    slopes = rng.standard_normal((4000, 4, 4)) * rng.choice([0.05, 0.3, 1.0], (4000, 1, 4))
    slopes = np.concatenate([slopes, -slopes], axis=1)
    slopes /= np.linalg.norm(slopes, axis=-1, keepdims=True)
    starts = rng.standard_normal((4000, 4)) * rng.choice([0.05, 1.0], (4000, 4))
    starts /= np.linalg.norm(starts, axis=-1, keepdims=True)
    return jnp.asarray(slopes, jnp.float32), jnp.asarray(starts, jnp.float32)


def test_the_last_point_of_linear_decay_keeps_the_bound_and_that_of_constant_steps_does_not():
    domain, steps = domains.ball(1.0), 15
    size = 1 / np.sqrt(steps + 1.0)
    planes = _planes(steps)
    decayed, constant = (
        _largest_gap(method.on(domain, steps), steps, planes)
        for method in (
            methods.Momentum(size, step_decay="linear"),
            methods.ProjectedSgd(size, averaging="last"),
        )
    )
    assert decayed.max() <= 1 + 1e-5
    assert decayed.max() > 0.5, "the search found nothing that comes near"
    assert constant.max() > 1.0


def test_the_bound_is_claimed_without_momentum_only():
    proven = momentum_sgd.plan(PROBLEM, BUDGET, num_steps=STEPS, momentum=0.0, sampling="full")
    base = sgd.plan(PROBLEM, BUDGET, num_steps=STEPS, sampling="full")
    ratio = np.sqrt(STEPS / (STEPS + 1))
    before = base.excess_bound / (1 + 1 / (2 * STEPS))
    assert proven.excess_bound == pytest.approx(before * ratio)
    assert proven.step_size == pytest.approx(base.step_size * ratio)
    assert proven.noise_multiplier == base.noise_multiplier
    for change in ({"momentum": 0.5}, {"momentum": 0.0, "step_decay": "none"}):
        made = momentum_sgd.plan(PROBLEM, BUDGET, num_steps=STEPS, sampling="full", **change)
        assert made.excess_bound == np.inf


@pytest.mark.parametrize("batch_size", [1, 5])
def test_the_second_moment_of_poisson_batches_is_in_the_bound(batch_size):
    """All gradients alike: the number of users who take part moves their sum over the expected number."""
    given = {
        "batch_size": batch_size,
        "accountant": "rdp",
    }  # whatever noise it is: this takes no time
    plan = sgd.plan(PROBLEM, BUDGET, num_steps=STEPS, **given)
    noise = DIM * (plan.noise_multiplier * plan.clip_norm / batch_size) ** 2
    taking_part = np.random.default_rng(0).binomial(USERS, batch_size / USERS, 200_000)
    moment = np.mean((taking_part / batch_size) ** 2) + noise
    variance = (PROBLEM.diameter / plan.step_size) ** 2 / STEPS
    assert variance == pytest.approx(moment, rel=0.01)
    bound = PROBLEM.diameter * np.sqrt(variance / STEPS) * (1 + 1 / (2 * STEPS))
    assert plan.excess_bound == pytest.approx(bound)
