"""AC-SA against closed forms, against a plain transcription of the algorithm, and against PEPit."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax import transforms
from dpsco_jax.geometry import domains, prox


def run_with(smoothness, strong_convexity, curvature, start, noise, domain=None, prox=None):
    """Sequences (query, x, ag) for gradients ``curvature * query + noise[t]``."""
    method = transforms.ac_sa(smoothness, strong_convexity, domain, prox)

    def step(carry, noise_t):
        params, state = carry
        updates, state = method.update(curvature * params + noise_t, state, params)
        moved = optax.apply_updates(params, updates)
        return (moved, state), (params, state.prox_point, state.aggregate)

    return jax.lax.scan(step, (start, method.init(start)), noise)[1]


run = jax.jit(run_with)


def transcribed(smoothness, mu, curvature, start, noise, shift=1, half=0.5):
    """Algorithm 3 of the thesis in NumPy; ``shift=2, half=1`` is what it prints."""
    x, ag, out = start, start, []
    for t, noise_t in enumerate(np.asarray(noise, np.float64), start=1):
        alpha, gamma = 2 / (t + shift), 4 * smoothness / (t * (t + 1))
        denominator = gamma + (1 - alpha**2) * mu
        query = (1 - alpha) * (mu + gamma) / denominator * ag
        query = query + alpha * ((1 - alpha) * mu + gamma) / denominator * x
        g = curvature * query + noise_t
        # argmin α<g, w> + half·(μα‖w - query‖² + ((1-α)μ + γ)‖w - x‖²)
        weights = mu * alpha * query + ((1 - alpha) * mu + gamma) * x
        x = (2 * half * weights - alpha * g) / (2 * half * (mu + gamma))
        ag = alpha * x + (1 - alpha) * ag
        out.append((query, x, ag))
    return tuple(np.asarray(part) for part in zip(*out, strict=True))


def test_follows_the_algorithm_step_by_step(rng):
    curvature = np.array([0.1, 0.4, 1.0])
    start, noise = np.array([1.0, -2.0, 0.5]), rng.normal(size=(30, 3))
    ours = run(1.0, 0.1, jnp.float32(curvature), jnp.float32(start), jnp.float32(noise))
    for sequence, expected in zip(
        ours, transcribed(1.0, 0.1, curvature, start, noise), strict=True
    ):
        np.testing.assert_allclose(sequence, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kappa", [1.0, 10.0, 100.0])
def test_curvature_equal_to_strong_convexity(kappa, rng):
    # x_T - w* = [4κ(w_0 - w*) - (2/μ) Σ τ δ_τ] / (T(T+1) + 4κ), and ag_T is the average of the x_t
    # with weights 2t/(T(T+1)).
    mu, horizon = 0.5, 40
    noise = rng.normal(size=horizon)
    steps = np.arange(1, horizon + 1)
    x = (4 * kappa * 1.5 - 2 / mu * np.cumsum(steps * noise)) / (steps * (steps + 1) + 4 * kappa)
    ag = np.cumsum(steps * x) * 2 / (steps * (steps + 1))
    _, ours_x, ours_ag = run(kappa * mu, mu, mu, jnp.float32(1.5), jnp.float32(noise))
    np.testing.assert_allclose(ours_x, x, rtol=0, atol=1e-6)
    np.testing.assert_allclose(ours_ag, ag, rtol=0, atol=1e-6)


# x_1, x_2, ... and ag_1, ag_2, ... with L = Γ = 1, strong convexity 1/4, curvature 1 and w_0 = 1
RATIONAL = ("5/9 5/33 -31/1155 -30557/426195", "5/9 85/297 1348/10395 20938/426195")


def _numbers(text):
    return np.array([float(Fraction(word)) for word in text.split()])


@pytest.mark.parametrize(("shift", "half"), [(2, 0.5), (1, 1.0), (2, 1.0)])
def test_printed_versions_miss_the_closed_forms(shift, half):
    x, ag = map(_numbers, RATIONAL)
    for correct in (True, False):
        settings = {} if correct else {"shift": shift, "half": half}
        _, xs, ags = transcribed(1.0, 0.25, 1.0, np.float64(1), np.zeros(4), **settings)
        errors = np.abs(np.concatenate([xs - x, ags - ag]))
        assert (errors.max() < 1e-12) == correct


@pytest.mark.parametrize(("horizon", "ratio"), [(20, 2.58), (100, 10.2), (500, 38.3)])
def test_norms_without_the_half_break_the_rate(horizon, ratio):
    # Printed prox norms without ½ amount to 2μ and 2L. Curvature μ then decays like T^-1.17 only.
    _, _, printed = transcribed(1.0, 0.1, 0.1, np.float64(1), np.zeros(horizon), half=1.0)
    _, _, doubled = run(2.0, 0.2, 0.1, jnp.float32(1), jnp.zeros(horizon))
    np.testing.assert_allclose(doubled, printed, atol=1e-5)
    bound = 2 / (horizon * (horizon + 1))
    assert 0.05 * printed[-1] ** 2 / bound == pytest.approx(ratio, rel=0.01)


def test_linear_loss_with_and_without_a_ball():
    gamma, steps = 3.0, np.arange(1, 13)
    slope = jnp.array([0.6, -0.8])
    start = jnp.array([0.3, 0.1])
    noise = jnp.tile(slope, (12, 1))
    _, x, _ = run(gamma, 0.0, 0.0, start, noise)
    np.testing.assert_allclose(
        x, start - np.outer(steps * (steps + 1) / (4 * gamma), slope), atol=1e-5
    )
    _, x, _ = run_with(gamma, 0.0, 0.0, jnp.zeros(2), noise, domains.ball(2.0))
    lengths = np.minimum(2.0, steps * (steps + 1) / (4 * gamma))
    np.testing.assert_allclose(x, -np.outer(lengths, slope), atol=1e-5)


def test_iterates_stay_in_the_domain_and_a_start_outside_is_projected(rng):
    ball = domains.ball(1.0, jnp.array([1.0, 0.0, 0.0]))
    noise = jnp.float32(rng.normal(size=(25, 3)) * 10)
    sequences = run_with(2.0, 0.5, 0.7, jnp.array([3.0, 3.0, 0.0]), noise, ball)
    for sequence in (sequences[0][1:], *sequences[1:]):
        assert all(ball.contains(point, 1e-5) for point in sequence)


def test_composite_term_and_box_solve_the_joint_step(rng):
    # F(w) = ½ Σ λ_i (w_i - c_i)² + 0.3 ‖w‖₁ on [-1, ½]³: the minimizer is known coordinatewise.
    curvature, center = np.array([0.5, 1.0, 1.0]), np.array([2.0, -0.7, 0.1])
    minimizer = np.sign(center) * np.maximum(np.abs(center) - 0.3 / curvature, 0)
    minimizer = np.clip(minimizer, -1, 0.5)
    box = domains.box(jnp.full(3, -1.0), jnp.full(3, 0.5))
    noise = jnp.tile(jnp.float32(-curvature * center), (300, 1))
    _, x, ag = run_with(1.0, 0.5, jnp.float32(curvature), jnp.zeros(3), noise, box, prox.l1(0.3))
    np.testing.assert_allclose(ag[-1], minimizer, atol=2e-3)
    # And the first step, α = 1, γ = 2L: argmin <g, w> + 0.3‖w‖₁ + (μ + γ)/2 ‖w - 0‖² over the box.
    grid = np.linspace(-1, 0.5, 150_001)
    cost = np.outer(-curvature * center, grid) + 0.3 * np.abs(grid) + 1.25 * grid**2
    np.testing.assert_allclose(x[0], grid[np.argmin(cost, axis=1)], atol=2e-5)


def test_a_ridge_elsewhere_over_a_ball_solves_the_joint_step(rng):
    # x_1 minimizes <g, w> + (λ/2)‖w - c‖² + ((μ + γ)/2)‖w - w_0‖² over the ball, γ = 2L: the nearest point
    # to ((μ + γ)w_0 - g + λc)/(μ + γ + λ), an isotropic quadratic's minimizer.
    start, center, slope = jnp.float32(rng.normal(size=(3, 4)) * 0.3)
    ball = domains.ball(0.5, jnp.full(4, 0.2))
    start = ball.project(start)
    for weight, mu in ((0.7, 0.3), (5.0, 0.0)):
        term = prox.ridge(weight, center)
        _, x, _ = run_with(1.0, mu, 0.0, start, slope[None], ball, term)
        p = mu + 2.0
        free = (p * start - slope + weight * center) / (p + weight)
        np.testing.assert_allclose(x[0], ball.project(free), atol=1e-6)


def test_a_term_without_closed_form_over_the_domain_is_refused():
    for domain in (domains.ball(1.0, jnp.ones(2)), domains.simplex()):
        with pytest.raises(ValueError, match="prox must be a term whose proximal point"):
            transforms.ac_sa(1.0, domain=domain, prox=prox.l1(0.1))
        transforms.ac_sa(1.0, domain=domain, prox=prox.ridge(0.1))
        transforms.ac_sa(1.0, domain=domain, prox=lambda point, step: point)


def test_balanced_smoothness_minimizes_the_bound():
    smoothness, variance, horizon, distance = 0.01, 4.0, 50, 1.5

    def bound(gamma):
        optimization = 2 * gamma * distance**2 / (horizon * (horizon + 1))
        return optimization + variance * (2 * horizon + 1) / (6 * gamma)

    best = transforms.balanced_smoothness(smoothness, variance, horizon, distance)
    assert bound(best) <= min(bound(best * 0.99), bound(best * 1.01))
    assert transforms.balanced_smoothness(1e3, variance, horizon, distance) == 2e3
    np.testing.assert_allclose(
        jax.jit(transforms.balanced_smoothness)(smoothness, variance, horizon, distance), best, 1e-6
    )


def test_noise_of_a_long_run_on_curvature_equal_to_strong_convexity():
    # ag_T = Σ c_τ δ_τ with c_τ = -(4τ/(μT(T+1))) Σ_{j≥τ} j/(j(j+1) + 4κ), and (μ/2)Σc_τ² → 16/(27μT).
    mu, kappa, horizon = 0.5, 3.0, 500
    _, _, ag = run(kappa * mu, mu, mu, jnp.zeros(horizon), jnp.eye(horizon))
    steps = np.arange(1, horizon + 1)
    tails = np.cumsum((steps / (steps * (steps + 1) + 4 * kappa))[::-1])[::-1]
    expected = -4 * steps / (mu * horizon * (horizon + 1)) * tails
    np.testing.assert_allclose(ag[-1], expected, atol=1e-7)
    noise_part = mu / 2 * np.sum(np.square(np.asarray(ag[-1], np.float64)))
    assert noise_part * mu * horizon == pytest.approx(16 / 27, rel=0.05)
    assert noise_part < 2 / (mu * (horizon + 1))


def test_eval_needs_one_state():
    state = transforms.ac_sa(1.0).init(jnp.ones(2))
    for wrong in (optax.EmptyState(), (state, state)):
        with pytest.raises(ValueError, match="AcSaState"):
            transforms.ac_sa_eval_params(wrong, jnp.ones(2))
    with pytest.raises(ValueError, match="strong_convexity"):
        transforms.ac_sa(1.0, 1.1)


def test_narrow_parameters_do_not_drift():
    """The sequences live in float32: the bfloat16 query point does not feed its rounding back."""
    wide, narrow = (
        run(1.0, 0.1, jnp.zeros((), dtype), jnp.ones(4, dtype), jnp.full((50, 4), 0.125, dtype))
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    assert narrow[0].dtype == jnp.bfloat16
    np.testing.assert_allclose(narrow[2], wide[2], rtol=1e-6)
    np.testing.assert_allclose(np.float32(narrow[0]), wide[0], rtol=2**-7, atol=2**-8)
