"""Section K of docs/corrections.md: the printed claim fails, ours holds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from dpsco_jax.mechanisms.robust_point import runs_for
from dpsco_jax.solvers.ball import _step, ball_acceleration, exact_ball_oracles
from dpsco_jax.solvers.ball.ball_oracles import BallAnswer, BallOracles


def test_k1_the_ball_is_active_on_the_whole_printed_range():
    """Linear F of slope L = R = 1, r = ε/(L√d) as in the parallel part, and C_ba = 16."""
    excess, dim = 0.1, 10_000
    radius = excess / np.sqrt(dim)
    linear = jnp.zeros(3).at[0].set(1.0)
    oracle = exact_ball_oracles.quadratic(jnp.zeros(3), linear, radius).line_search
    plan = ball_acceleration.plan(
        lipschitz=1.0, distance=1.0, ball_radius=radius, excess=excess, log_power=0.0
    )

    def movement(lam):
        answer = oracle(None, jnp.zeros(3), lam)
        return float(jnp.linalg.norm(answer.point)), float(answer.multiplier)

    printed_end = 16 * 1.0 / excess
    distance, multiplier = movement(printed_end)
    assert distance == pytest.approx(radius, rel=1e-5)
    assert multiplier > 5 * printed_end  # not a proximal point for any λ in the range
    distance, multiplier = movement(plan.largest)
    assert distance == pytest.approx(radius / 4, rel=1e-5)
    assert multiplier == pytest.approx(plan.largest)


def test_k2_eighteen_runs_are_too_few():
    divergence = special.rel_entr([0.51, 0.49], [2 / 3, 1 / 3]).sum()
    assert 18 * divergence < 1 < 20 * divergence
    assert runs_for(1e-6) == np.ceil(20 * np.log(1e6))


def test_k3_all_searches_share_the_failure():
    plan = ball_acceleration.plan(lipschitz=1.0, distance=1.0, ball_radius=0.01, excess=0.01)
    total = 1 / plan.condition
    runs = plan.accuracies(total).search_runs
    calls = plan.num_iterations * plan.max_searches
    assert plan.max_searches > 5
    assert np.exp(-runs / 20) * calls <= total
    printed = runs_for(total / plan.num_iterations)
    assert np.exp(-printed / 20) * calls > total


def test_k4_a_quarter_is_attained():
    """Linear F with x' = y: the printed constant is below what is true, and a quarter is exact."""
    lam, weight = 0.7, 2.5
    slope = jnp.asarray([1.0, -2.0])
    x, v, best = jnp.asarray([[0.3, 0.1], [-1.0, 2.0], [5.0, 4.0]])
    share = _step.coefficients(lam, weight)[1]
    y = x + share * (v - x)
    nearest = y - slope / lam
    calls = jnp.zeros(1, jnp.int32)
    oracles = BallOracles(
        None,
        lambda *_: BallAnswer(y, jnp.float32(lam), calls),
        lambda *_: BallAnswer(nearest, jnp.float32(lam), calls),
    )
    plan = ball_acceleration.plan(
        lipschitz=1.0, distance=1.0, ball_radius=0.5, excess=0.1, search="fixed", reuse=False
    )
    plan = dataclasses.replace(plan, regularization=lam, start_weight=weight)
    key = jax.random.key(0)
    state = _step.init(key, plan, oracles, x)._replace(dual=v)
    new = _step.step(key, plan, oracles, state)

    def potential(state):
        return float(
            state.weight * slope @ (state.point - best) + jnp.sum((state.dual - best) ** 2)
        )

    moved = float(lam * new.weight * jnp.sum((nearest - y) ** 2))
    phi = float(slope @ (y - nearest) - lam / 2 * jnp.sum((nearest - y) ** 2))
    rise = potential(new) - potential(state) - float(new.weight) * phi
    assert rise == pytest.approx(-moved / 4, rel=1e-4)
    assert rise < -moved / 6


def test_k5_without_the_logarithm_the_oracle_may_be_coarser():
    options = {"lipschitz": 1.0, "distance": 1.0, "ball_radius": 1e-3, "excess": 1e-2}
    paper = ball_acceleration.plan(**options, log_power=2.0)
    ours = ball_acceleration.plan(**options, log_power=0.0)
    assert ours.accuracies(0.01).ball == 1 / 48
    assert paper.accuracies(0.01).ball == pytest.approx(1 / (42 * np.log(100) ** 3))
    # The iterations that lead from A = 0 to 3R²/ε at the least λ, by the recursion itself.
    for plan in (paper, ours):
        lam, weight, total, count = plan.regularization, 0.0, 0.0, 0
        factor = lam / (0.01 * 1e4)
        while weight < plan.target_weight:
            weight += (1 + np.sqrt(1 + 4 * lam * weight)) / (2 * lam)
            total += lam * weight
            count += 1
        assert count <= 2 * np.sqrt(3 * factor) * 100 + 1
        assert total <= 3.5 * factor**1.5 * 1e6 * 1.02
        assert total * 1e-6 / (21 * factor**1.5) <= 0.17
