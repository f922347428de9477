"""Proximal steps with a pull to the start against NumPy in float64, and the average that they report."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax import transforms
from dpsco_jax.geometry import domains

STRENGTH, STEPS, DIM = 0.7, 12, 3
START = np.array([0.3, -0.2, 0.5])


def followed(radius, domain_radius, gradients, strength=STRENGTH):
    """Algorithm 36 in float64: each step by SciPy's minimizer of its own objective, and Σ (t + 4)·x_t."""
    from scipy.optimize import minimize

    x, points = START.copy(), []
    for t, g in enumerate(gradients):
        points.append(x.copy())
        eta = 4 / (strength * (t + 1))

        def objective(y, x=x, g=g, eta=eta):
            pull = eta * strength / 2 * np.sum((y - START) ** 2)
            return eta * g @ y + pull + np.sum((y - x) ** 2) / 2

        within = [{"type": "ineq", "fun": lambda y: radius**2 - np.sum((y - START) ** 2)}]
        within += [{"type": "ineq", "fun": lambda y: domain_radius**2 - np.sum(y**2)}]
        x = minimize(objective, START, constraints=within, tol=1e-12, method="SLSQP").x
    weights = np.arange(len(points)) + 4
    return np.array(points), weights @ np.array(points) / weights.sum()


def run(radius, domain, gradients, strength=STRENGTH):
    chain = transforms.prox_step(strength, radius, domain)

    def step(carry, gradient):
        params, state = carry
        updates, state = chain.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), params

    start = jnp.asarray(START, jnp.result_type(float))
    (params, state), points = jax.lax.scan(step, (start, chain.init(start)), gradients)
    return points, transforms.prox_step_eval_params(state, params)


@pytest.mark.parametrize(("radius", "domain_radius"), [(50.0, 90.0), (0.3, 90.0), (0.5, 0.8)])
def test_steps_minimize_their_objectives_within_ball_and_domain(radius, domain_radius):
    gradients = np.random.default_rng(0).normal(size=(STEPS, DIM))
    wanted, average = followed(radius, domain_radius, gradients)
    with jax.enable_x64(True):
        points, found = jax.jit(lambda g: run(radius, domains.ball(domain_radius), g))(gradients)
    np.testing.assert_allclose(points, wanted, atol=2e-5)
    np.testing.assert_allclose(found, average, atol=2e-5)


def test_the_last_point_is_not_in_the_average_and_weights_add_up():
    """Without gradients nothing moves; with one at the last step nothing of it is reported."""
    gradients = np.zeros((STEPS, DIM))
    gradients[-1] = 1.0
    with jax.enable_x64(True):
        _, found = run(50.0, domains.whole_space(), gradients)
    np.testing.assert_allclose(found, START, atol=1e-12)
    gradients[-1], gradients[-2] = 0.0, 1.0
    with jax.enable_x64(True):
        points, found = run(50.0, domains.whole_space(), gradients)
    share = (STEPS + 3) / (STEPS * (STEPS + 7) / 2)
    found, last = np.asarray(found), np.asarray(points)[-1]
    np.testing.assert_allclose(found - START, share * (last - START), atol=1e-12)


def test_a_strength_far_from_one_loses_no_digits():
    """λ·32^i reaches 10^20: steps are made of ηλ, which is 4/(t + 1)."""
    gradients = np.random.default_rng(1).normal(size=(STEPS, DIM))
    whole = domains.whole_space()
    one, _ = run(50.0, whole, np.float32(gradients), 1.0)
    for strength in (1e-20, 1e20):
        far, _ = run(50.0 / strength, whole, np.float32(gradients), strength)
        scaled, origin = np.float64(far) - START, np.float64(one) - START
        if strength < 1:
            np.testing.assert_allclose(scaled * strength, origin, atol=1e-5)
        else:
            assert np.max(np.abs(scaled)) < 1e-6


def test_an_explicit_step_would_overshoot():
    """From 1 off the start, without a gradient, the first step goes to a fifth of it, not to -3."""
    chain = transforms.prox_step(STRENGTH, 50.0, domains.whole_space())
    state = chain.init(jnp.zeros(1))
    moved, _ = chain.update(jnp.zeros(1), state, jnp.ones(1))
    np.testing.assert_allclose(1 + moved, 1 / 5, rtol=1e-6)
