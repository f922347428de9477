"""Winsorized means attacked: what is learned from many runs stays below the claim; too little noise shows.

The canary moves across the median of two clusters (the interval), or across the whole ball (the noise).
"""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from dpsco_jax import privacy, transforms
from dpsco_jax.mechanisms.winsorized import winsorized_mean as winsorized
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import calibrate_winsorized

pytestmark = pytest.mark.slow

EPSILON, DELTA, RUNS, QUERIES = 1.0, 1e-2, 100_000, 5


def _learned(mechanism, data, neighbour, score, delta):
    found = privacy.audit(
        jax.random.key(0), mechanism, data, neighbour, score, RUNS, delta, batch_size=4096
    )
    return found.epsilon


def _learned_1d(epsilon_of_noise):
    """Ten users at -0.5 and ten at 0.5, against nine and eleven: which window, and where in it."""
    data = jnp.repeat(jnp.asarray([-0.5, 0.5]), 10)
    neighbour = data.at[0].set(0.5)

    def mechanism(key, values):
        return winsorized.winsorized_mean_1d(key, values, epsilon_of_noise, 0.05, 1.0)

    return _learned(mechanism, data, neighbour, lambda mean: -mean, 0.0)


def test_one_dimension():
    assert 0.2 * EPSILON < _learned_1d(EPSILON) <= EPSILON


def test_one_dimension_with_too_little_noise():
    assert _learned_1d(6.0 * EPSILON) > EPSILON


def _learned_queries(form, understated):
    """Five queries, each of them shifted by the last answer: the sum of what the canary pulls."""
    # With many users the coarse mean is precise, and the canary at the end of the ball around it.
    users, dim = (400 if form == "recentred" else 6), 2
    planned = calibrate_winsorized(
        users,
        dim,
        QUERIES,
        EPSILON,
        DELTA,
        radius=0.02 if form == "recentred" else 0.5,
        bound=1.0,
        failure=0.5,
        form=form,
        range_share=0.5 if form == "winsorized" else "auto",
    )
    planned = dataclasses.replace(
        planned,
        noise_multiplier=planned.noise_multiplier / understated,
        coarse_multiplier=planned.coarse_multiplier / understated,
        range_epsilon=planned.range_epsilon * understated,
    )

    def mechanism(key, canary):
        chain = transforms.winsorized_mean(planned, key)
        state, last, total = chain.init(None), jnp.zeros(dim), 0.0
        for _ in range(QUERIES):
            rows = jnp.zeros((users, dim)).at[0, 0].set(canary) - 1e-3 * last
            last, state = chain.update(rows, state)
            total = total + last[0]
        return total

    return _learned(mechanism, jnp.asarray(50.0), jnp.asarray(-50.0), lambda t: t, DELTA)


@pytest.mark.parametrize("form", ["clipped", "winsorized", "recentred"])
def test_adaptive_queries(form):
    least = {"clipped": 0.8, "winsorized": 0.15, "recentred": 0.4}[form]
    assert least * EPSILON < _learned_queries(form, 1.0) <= EPSILON


@pytest.mark.parametrize(
    ("form", "understated"), [("clipped", 1.3), ("winsorized", 4.0), ("recentred", 2.0)]
)
def test_adaptive_queries_with_too_little_noise(form, understated):
    assert _learned_queries(form, understated) > EPSILON
