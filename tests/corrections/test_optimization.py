"""Sections C and D of docs/corrections.md: the printed claim fails, ours holds."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import special

from dpsco_jax import transforms
from dpsco_jax.geometry import domains, smoothing
from dpsco_jax.problems import losses
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.item_level import private_ac_sa
from tests.support.planned import planned


def printed_ac_sa(
    gradient, start, smoothness, mu, num_steps, *, shift=1, half=0.5, alg7=False, project=None
):
    """The last aggregate of Algorithm 3; each option brings back one printed slip.

    ``shift=2`` is α_t = 2/(t+2), ``half=1`` leaves out the ½, ``alg7`` has the weights of Algorithm 7.
    """
    x = ag = np.asarray(start, float)
    for t in range(1, num_steps + 1):
        alpha, gamma = 2 / (t + shift), 4 * smoothness / (t * (t + 1))
        on_x = (1 - alpha) * (mu + gamma) if alg7 else (1 - alpha) * mu + gamma
        md = ((1 - alpha) * (mu + gamma) * ag + alpha * on_x * x) / (gamma + (1 - alpha**2) * mu)
        centre = (alpha * mu * md + ((1 - alpha) * mu + gamma) * x) / (mu + gamma)
        x = centre - alpha / (2 * half * (mu + gamma)) * gradient(md)
        x = x if project is None else project(x)
        ag = alpha * x + (1 - alpha) * ag
    return ag


def our_ac_sa(gradient, start, smoothness, mu, num_steps, domain=None):
    method = transforms.ac_sa(smoothness, mu, domain)

    @jax.jit
    def run(start):
        def step(_, carry):
            params, state = carry
            updates, state = method.update(gradient(params), state, params)
            return optax.apply_updates(params, updates), state

        _, state = jax.lax.fori_loop(0, num_steps, step, (start, method.init(start)))
        return transforms.ac_sa_eval_params(state, start)

    return np.asarray(run(jnp.asarray(start, jnp.float32)), float)


def test_c1_the_first_weight_is_one():
    # f = w²/2 + 100 w on [0, 1] from 1: L = μ = 1, minimizer 0: Theorem 1.4.1 says 2/(T(T+1)).
    num_steps = 20
    bound = 2 / (num_steps * (num_steps + 1))

    def gap(w):
        return w**2 / 2 + 100 * w

    def gradient(w):
        return w + 100

    clip = {"project": lambda x: np.clip(x, 0, 1)}
    assert gap(printed_ac_sa(gradient, 1.0, 1.0, 1.0, num_steps, shift=2, **clip)) > 80 * bound
    assert gap(printed_ac_sa(gradient, 1.0, 1.0, 1.0, num_steps, **clip)) <= bound
    box = domains.box(jnp.float32(0), jnp.float32(1))
    assert gap(our_ac_sa(gradient, 1.0, 1.0, 1.0, num_steps, box)) <= bound


def test_c2_the_prox_step_has_halved_squares():
    num_steps, mu = 100, 0.1
    curvatures = np.linspace(mu, 1, 10)
    bound = 2 / (num_steps * (num_steps + 1))

    def worst(last):
        return np.max(curvatures / 2 * last**2)

    start = np.ones(10)
    printed = printed_ac_sa(lambda w: curvatures * w, start, 1.0, mu, num_steps, half=1)
    assert worst(printed) > 10 * bound
    ours = our_ac_sa(lambda w: curvatures.astype(np.float32) * w, start, 1.0, mu, num_steps)
    assert worst(ours) <= 0.12 * bound
    # Curvature μ has the closed form x_t = 4k/(t(t+1) + 4k) with k = 1/μ, and ag averages it.
    t = np.arange(1, num_steps + 1)
    average = np.sum(2 * t * (4 / mu) / (t * (t + 1) + 4 / mu)) / (num_steps * (num_steps + 1))
    np.testing.assert_allclose(ours[0], average, rtol=1e-4)


def test_c2_the_printed_rate():
    def last(num_steps):
        return printed_ac_sa(lambda w: 0.1 * w, 1.0, 1.0, 0.1, num_steps, half=1) ** 2

    slope = np.log(last(4000) / last(1000)) / np.log(4)
    np.testing.assert_allclose(slope, -4 * (1 - np.sqrt(0.5)), atol=1e-3)


def test_c3_the_query_point_is_an_average():
    # The same problem 20 to the right must give the same path 20 to the right.
    def moved(method, offset, **slip):
        return method(lambda w: 0.5 * (w - offset), 1.0 + offset, 1.0, 0.1, 10, **slip) - offset

    printed = [moved(printed_ac_sa, offset, alg7=True) for offset in (0.0, 20.0)]
    assert abs(printed[1] - printed[0]) > 0.1
    ours = [moved(our_ac_sa, offset) for offset in (0.0, 20.0)]
    np.testing.assert_allclose(ours[1], ours[0], atol=1e-4)


def test_c4_the_smoothing_radius_of_the_proof():
    # A linear loss of slope 1 on [0, 1] in a space of dimension 10⁶: smoothing does not change it.
    dim, num_steps = 10**6, 300
    segment = domains.box(jnp.float32(0), jnp.float32(1))
    factor = smoothing.smoothness_factor(dim)
    bound = 2 * np.sqrt(2 * factor) / num_steps

    def gap(radius):
        smoothness = smoothing.ball_smoothness(1.0, radius, dim)
        return our_ac_sa(lambda w: jnp.ones_like(w), 1.0, smoothness, 0.0, num_steps, segment)

    assert gap(1 / (num_steps * dim**0.25)) > 0.99  # Algorithm 4, line 2
    assert gap(dim**0.25 / num_steps) < bound  # the proof of Lemma 1.4.5
    assert gap(np.sqrt(2 * factor) / num_steps) < 0.5 * bound  # the best


def test_c4_the_plan_takes_it():
    objective = losses.geometric_median(domains.ball(1.0))
    plan = planned(
        private_ac_sa.plan,
        objective,
        num_users=10_000,
        dim=16,
        epsilon=0.5,
        delta=1e-6,
        constants="paper",
    )
    np.testing.assert_allclose(plan.smoothing_radius, 2 * 16**0.25 / plan.num_steps)


def test_c5_the_batch_size_meets_both_requirements():
    n, epsilon, delta = 10**7, 0.5, 0.1
    objective = losses.geometric_median(domains.ball(1.0))
    plan = planned(
        private_ac_sa.plan,
        objective,
        num_users=n,
        dim=1,
        epsilon=epsilon,
        delta=delta,
        allow_large_delta=True,
        constants="paper",
    )
    needed = (
        epsilon**2 * n**2 / np.log(1 / delta)
    )  # gradients, for the sampling error of the theorem
    printed = np.sqrt((epsilon * n**2 + needed) / plan.num_steps)
    assert printed * plan.num_steps < 0.1 * needed
    assert plan.batch_size * plan.num_steps >= needed
    assert plan.batch_size**2 * plan.num_steps >= epsilon * n**2


def test_c6_the_regularizer_moves_with_the_problem():
    # All users sit at the centre of the domain plus (1, 0).
    def objective(centre):
        return losses.geometric_median(domains.ball(1.0, centre))

    sizes = {"num_users": 40, "dim": 2, "num_steps": 20, "batch_size": 40}
    budget = {"epsilon": 8.0, "delta": 1e-3}
    plan = planned(
        private_ac_sa.plan, objective(jnp.zeros(2)), policy="regularize", **sizes, **budget
    )

    @jax.jit
    def solution(centre):
        data = UserData(jnp.tile(centre + jnp.array([1.0, 0.0]), (40, 1, 1)), None)
        solved = private_ac_sa.solve(jax.random.key(0), plan, objective(centre), data, centre)
        return solved.params - centre

    at_origin, far = solution(jnp.zeros(2)), solution(jnp.array([64.0, -64.0]))
    np.testing.assert_allclose(far, at_origin, atol=2e-3)
    assert at_origin[0] > 0.5
    # Printed: u·‖w‖² has a slope above that of the loss there, so it pulls to the wrong side.
    assert 2 * plan.pull * 64 > 1


def test_d1_the_smoothed_loss_lies_above():
    # f = ‖·‖: f_r(0) = r d/(d+1), while f(0) = 0.
    dim, radius = 3, 2.0
    keys = jax.random.split(jax.random.key(0), 4_000)
    draws = jax.vmap(lambda key: smoothing.uniform_ball(key, jnp.zeros(dim), radius))(keys)
    smoothed = jnp.mean(jnp.linalg.norm(draws, axis=1))
    np.testing.assert_allclose(smoothed, smoothing.ball_bias(1.0, radius, dim), rtol=0.03)
    assert smoothed > 1.0  # printed: at most f(0)


@pytest.mark.parametrize("dim", [1, 2, 10, 10_000])
def test_d2_the_smoothness_constant_is_attained(dim):
    # f = |<u, ·>|: f_r' at distance s·r from the kink is I_{s²}(½, (d+1)/2), a regularized beta function.
    s = 1e-3 / np.sqrt(dim)
    slope = special.betainc(0.5, (dim + 1) / 2, s**2) / s
    constant = smoothing.ball_smoothness(lipschitz=3.0, radius=0.5, dim=dim) * 0.5 / 3.0
    np.testing.assert_allclose(slope, constant, rtol=1e-6)
    assert constant <= np.sqrt(dim)
    assert smoothing.ball_bias(1.0, 1.0, dim) < 1.0
