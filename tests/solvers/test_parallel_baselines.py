"""Subgradient descent and accelerated smoothing in rounds of queries."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.problems.regression_instances import absolute_regression
from dpsco_jax.solvers.ball import parallel_baselines as baselines

INSTANCE = absolute_regression(jax.random.key(0), 60, 6, 6)
CONDITION = 8
EXCESS = INSTANCE.lipschitz * INSTANCE.distance / CONDITION
NUMBERS = {
    "lipschitz": INSTANCE.lipschitz,
    "distance": INSTANCE.distance,
    "dim": 6,
    "excess": EXCESS,
}


def gap(params):
    return INSTANCE.value(params) - INSTANCE.optimum


@pytest.mark.parametrize("method", baselines.METHODS)
def test_the_excess_is_reached_and_the_first_round_is_found(method):
    plan = baselines.plan(**NUMBERS, method=method)

    # Runs to the end at target 0, to the first round within the excess at target 1.
    @jax.jit
    @jax.vmap
    def run(key, target):
        return baselines.solve(
            key, plan, INSTANCE.gradient, jnp.zeros(6), stop=lambda x: gap(x) <= target * EXCESS
        )

    keys = jax.random.split(jax.random.key(1), 8)
    keys = jnp.concatenate([keys, keys])
    ends = run(keys, jnp.repeat(jnp.array([-1.0, 1.0]), 8))
    gaps = np.asarray(jax.vmap(gap)(ends.params))
    assert np.all(ends.rounds[:8] == plan.num_rounds)
    assert gaps[:8].mean() <= EXCESS
    assert np.all(gaps[8:] <= EXCESS)
    assert np.all((ends.rounds[8:] > 0) & (ends.rounds[8:] < plan.num_rounds))


def test_sgd_reports_the_mean_of_all_iterates():
    plan = baselines.plan(lipschitz=1.0, distance=1.0, dim=1, excess=0.5, method="sgd")
    assert plan.batch_size == 1
    plan = dataclasses.replace(plan, batch_size=2)
    assert plan.num_rounds == 3
    end = baselines.solve(
        jax.random.key(0), plan, lambda keys, points: jnp.ones_like(points), jnp.zeros(1)
    )
    # Iterates 0, -1/2, -1, and -1 after projection.
    assert float(end.params[0]) == pytest.approx(-2.5 / 4)
    assert plan.cost(3) == (3, 6, 3, 6)


def test_rounds_grow_as_proved():
    def rounds(method, condition, dim):
        return baselines.plan(
            lipschitz=2.0, distance=3.0, dim=dim, excess=6.0 / condition, method=method
        ).num_rounds

    assert rounds("sgd", 100, 5) == 100**2 - 1
    # T(T+1) ≥ 16SR²/ε with S = 2√(2/π)·L²·E‖N‖/ε: about 5.05·d^(1/4)·κ.
    assert rounds("ac_sa", 1000, 10_000) == pytest.approx(5.05 * 10 * 1000, rel=1e-3)
    assert rounds("ac_sa", 2000, 10_000) == pytest.approx(2 * rounds("ac_sa", 1000, 10_000), abs=1)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"excess": 100.0}, "excess"),
    ],
)
def test_bad_arguments(change, name):
    with pytest.raises(ValueError, match=name):
        baselines.plan(**(NUMBERS | change))


def test_the_start_has_the_planned_dimension():
    plan = baselines.plan(**NUMBERS)
    with pytest.raises(ValueError, match="start"):
        baselines.solve(jax.random.key(0), plan, INSTANCE.gradient, jnp.zeros(5))
