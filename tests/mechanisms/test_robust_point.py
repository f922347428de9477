"""The chosen point is near wherever 51 % of the points agree, whatever the others are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.mechanisms.robust_point import aggregate_points, runs_for


@pytest.mark.parametrize("runs", [1, 3, 21, 101])
def test_a_majority_within_a_third_brings_the_choice_within_the_radius(runs):
    """The others are placed against it: far away together, or just outside of the good ones."""
    rng = np.random.default_rng(runs)
    good = int(np.ceil(0.51 * runs))
    trials = 250

    def ball(*shape):
        x = rng.standard_normal((*shape, 3))
        return x / np.linalg.norm(x, axis=-1, keepdims=True) * rng.random((*shape, 1)) ** (1 / 3)

    center = 5 * rng.standard_normal((trials, 1, 3))
    near = center + ball(trials, good) / 3
    away = np.exp(rng.uniform(-1.5, 2, (trials, 1, 1))) * ball(trials, 1)
    spread = np.exp(rng.uniform(-4, 1, (trials, 1, 1))) * ball(trials, runs - good)
    points = np.concatenate([near, center + away + spread], axis=1)
    chosen = jax.vmap(aggregate_points)(jnp.asarray(np.float32(points)))
    assert np.linalg.norm(chosen - center[:, 0], axis=-1).max() <= 1 + 1e-5


def test_the_mean_would_fail_where_the_choice_does_not():
    points = jnp.concatenate([jnp.zeros((11, 2)), jnp.full((10, 2), 1e6)])
    assert jnp.all(aggregate_points(points) == 0)
    broken = points.at[-1].set(jnp.nan)
    assert jnp.all(aggregate_points(broken) == 0)


def test_runs_for_a_failure_probability():
    """Chernoff: exp(-k·KL(0.51‖2/3)) is at most the failure."""
    divergence = 0.51 * np.log(0.51 * 1.5) + 0.49 * np.log(0.49 * 3)
    for failure in (0.3, 1e-2, 1e-6):
        assert np.exp(-runs_for(failure) * divergence) <= failure
    with pytest.raises(ValueError, match=r"failure must be in \(0, 1\), got 1"):
        runs_for(1.0)
