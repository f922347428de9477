"""Selection as a loss: 1-Lipschitz, with the risk of the coin that is chosen, and as hard as selection is."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import _proofs
from dpsco_jax.problems import hard_instances as hard
from dpsco_jax.problems.users import mean_loss
from dpsco_jax.solvers.nonconvex import net_exponential_mechanism

CHANCES = np.array([0.5, 0.2, 0.9, 0.5, 0.4, 1.0])
MADE = hard.selection(jax.random.key(3), 3, CHANCES, radius=0.3)


def test_bumps_are_apart_and_slopes_at_most_one():
    gaps = np.linalg.norm(MADE.points[:, None] - MADE.points, axis=2)
    assert np.min(gaps[~np.eye(6, dtype=bool)]) >= 0.6
    assert np.max(np.linalg.norm(MADE.points, axis=1)) <= 1.0
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (4000, 3)).astype(np.float32)
    coins = rng.random((4000, 6)) < 0.5
    slopes = jax.jit(jax.vmap(jax.grad(MADE.objective.loss)))(x, coins)
    lengths = np.linalg.norm(slopes, axis=1)
    assert 0.999 < lengths.max() <= 1 + 1e-6
    assert 0.02 < np.mean(lengths > 0) < 0.5
    at_center = jax.grad(MADE.objective.loss)(
        jnp.asarray(MADE.points[0], jnp.float32), np.zeros(6, bool)
    )
    assert np.all(np.isfinite(at_center))
    assert _proofs.require_lipschitz(MADE.objective) == 1.0
    with pytest.raises(ValueError, match="convex"):
        _proofs.require_proven(MADE.objective)


def test_the_risk_of_a_centre_is_that_of_its_coin_and_no_point_is_better():
    found = np.array([float(MADE.excess(jnp.asarray(point))) for point in MADE.points])
    np.testing.assert_allclose(found, 0.3 * (CHANCES - 0.2), atol=1e-6)
    x = np.random.default_rng(1).uniform(-1, 1, (20_000, 3))
    risk = np.asarray(jax.jit(jax.vmap(MADE.excess))(x))
    assert risk.min() > 0.0
    # The mean loss of many users is that of the population.
    data = MADE.draw(jax.random.key(1), 20_000)
    for point, expected in zip(MADE.points, -0.3 * (1 - CHANCES), strict=True):
        seen = float(mean_loss(MADE.objective)(jnp.asarray(point, jnp.float32), data))
        assert abs(seen - expected) < 4 * 0.3 * 0.5 / math.sqrt(20_000)


def test_the_best_coin_of_a_sample_is_off_by_one_over_root_n():
    """One coin better by √(log(k)/n)/2 among 64: the mean excess over 200 samples, by its slope in n."""
    rng, sizes, risks = np.random.default_rng(2), 2 ** np.arange(6, 13), []
    for n in sizes:
        chances = np.full(64, 0.5)
        chances[0] -= 0.5 * math.sqrt(math.log(64) / n)
        chosen = np.argmin(rng.binomial(n, chances, (200, 64)), axis=1)
        risks.append(np.mean(chances[chosen] - chances[0]))
    slope = np.polyfit(np.log(sizes), np.log(risks), 1)[0]
    assert abs(slope + 0.5) < 0.1
    assert np.all(np.array(risks) > 0.2 * np.sqrt(np.log(64) / sizes))


def test_a_net_finds_a_good_coin_of_enough_users():
    with jax.enable_x64(True):
        made = hard.selection(jax.random.key(0), 2, np.array([0.9, 0.1, 0.8, 0.9]), radius=0.4)
        problem = Problem(made.objective, num_users=2000, dim=2)
        plan = net_exponential_mechanism.plan(problem, Budget(2.0), cells=30, risk="population")
        data = made.draw(jax.random.key(1), 2000)
        run = jax.jit(
            lambda key: (
                net_exponential_mechanism.solve(
                    key, plan, made.objective, data, jnp.zeros(2)
                ).params
            )
        )
        risks = [float(made.excess(run(jax.random.key(seed)))) for seed in range(5)]
    assert np.mean(risks) < plan.excess_bound < 0.4 * 0.7


def test_bad_requests():
    for given in ({"radius": 0.0}, {"radius": 0.6}, {"dim": 0}, {"chances": np.array([0.5])}):
        name = next(iter(given))
        with pytest.raises(ValueError, match=name):
            hard.selection(**({"key": jax.random.key(0), "dim": 2, "chances": CHANCES} | given))
    with pytest.raises(ValueError, match="at most 2 coins"):
        hard.selection(jax.random.key(0), 1, CHANCES, radius=0.5)
