"""Support vector machines and l1 regression: certified optima, queries, smoothed gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.problems import regression_instances as regressions

MAKERS = {
    "support vectors": regressions.support_vectors,
    "l1 regression": regressions.absolute_regression,
}
DRAWS = 8_000


@functools.cache
def made(name):
    return MAKERS[name](jax.random.key(3), 60, 7, 4)


@pytest.mark.parametrize("name", MAKERS)
def test_the_optimum_is_certified_and_attained(name):
    instance = made(name)
    assert 0 <= instance.gap < 1e-6
    minimizer = jnp.asarray(np.float32(instance.minimizer))
    assert float(instance.value(minimizer)) == pytest.approx(instance.optimum, abs=1e-6)
    assert instance.distance == pytest.approx(np.linalg.norm(instance.minimizer))
    moves = 0.1 * jax.random.normal(jax.random.key(3), (300, instance.dim))
    values = jax.jit(jax.vmap(instance.value))(minimizer + moves)
    assert values.min() >= instance.optimum
    assert float(instance.value(jnp.zeros(7))) > instance.optimum + 0.1


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_function_in_a_larger_space(name):
    instance, larger = made(name), MAKERS[name](jax.random.key(3), 60, 20, 4)
    assert larger.dim == 20
    assert larger.optimum == pytest.approx(instance.optimum, abs=1e-6)
    assert larger.distance == pytest.approx(instance.distance, rel=1e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_queries_are_unbiased_and_bounded(name):
    instance = made(name)
    point = jax.random.normal(jax.random.key(3), (7,))
    keys = jax.random.split(jax.random.key(3), DRAWS)
    gradient = jax.jit(instance.gradient)
    sample = np.asarray(gradient(keys, jnp.tile(point, (DRAWS, 1))))
    assert np.linalg.norm(sample, axis=1).max() <= instance.lipschitz * (1 + 1e-6)
    exact = np.asarray(jax.jit(jax.grad(instance.value))(point))
    error = sample.std(axis=0) / np.sqrt(DRAWS)
    assert np.all(np.abs(sample.mean(axis=0) - exact) <= 5 * error + 1e-6)
    shifts = 0.5 * jax.random.normal(jax.random.key(7), (DRAWS, 7))
    keys = jax.random.split(jax.random.key(8), DRAWS)
    sample = np.asarray(gradient(keys, point + shifts))
    exact = np.asarray(instance.smoothed_gradient(point, 0.5))
    assert np.all(np.abs(sample.mean(axis=0) - exact) <= 5 * sample.std(axis=0) / np.sqrt(DRAWS))


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        (lambda: regressions.support_vectors(jax.random.key(3), 60, 7, 8), "rank"),
        (lambda: regressions.absolute_regression(jax.random.key(3), 3, 7, 4), "rows"),
    ],
)
def test_bad_arguments(bad, name):
    with pytest.raises(ValueError, match=name):
        bad()
