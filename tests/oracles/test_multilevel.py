"""The multilevel estimate: its level law is exact, and its mean is that of the finest level."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.oracles import multilevel


def test_levels_are_geometric_and_truncated():
    draws = np.asarray(multilevel.draw_levels(jax.random.key(0), 4, (200_000,)))
    expected = np.array([1 / 16, 1 / 2, 1 / 4, 1 / 8, 1 / 16])
    counts = np.bincount(draws, minlength=5)
    deviation = np.abs(counts - expected * draws.size) / np.sqrt(expected * draws.size)
    assert deviation.max() < 5
    assert not np.asarray(multilevel.draw_levels(jax.random.key(0), 0, (100,))).any()


def test_the_mean_over_levels_is_the_finest_estimate_exactly():
    """With a deterministic function of the level the telescoping sum is an identity."""
    values = jnp.asarray([3.0, -1.0, 4.0, 1.5, 9.25])
    levels = [lambda key, j=j: (values[j], jnp.zeros(5).at[j].set(1.0)) for j in range(5)]
    one = [multilevel.estimate(jax.random.key(j), levels, level=j) for j in range(5)]
    weights = np.array([1 / 16, 1 / 2, 1 / 4, 1 / 8, 1 / 16])
    assert weights @ np.array([float(point) for point, _ in one]) == float(values[-1])
    calls = weights @ np.array([np.asarray(count) for _, count in one])
    np.testing.assert_array_equal(calls, multilevel.expected_calls(4))
    drawn, _ = multilevel.estimate(jax.random.key(1), levels)
    assert float(drawn) in [float(point) for point, _ in one]


def test_the_three_estimates_are_independent():
    """Otherwise fine and coarse would share their noise, and the mean would still be right."""
    levels = [lambda key, j=j: (jax.random.normal(key), 0) for j in range(2)]
    draw = jax.vmap(lambda key: multilevel.estimate(key, levels, level=1)[0])
    values = draw(jax.random.split(jax.random.key(2), 4000))
    assert float(jnp.var(values)) == pytest.approx(9.0, rel=0.15)  # 1 + 4·(1 + 1)


def test_mean_squared_error_is_within_its_bound():
    """E‖x_j - x*‖² = e²·2^-j: at most 14·m·e²; and the error of a single level would be e²."""
    levels = [lambda key, j=j: (2.0 ** (-j / 2) * jax.random.normal(key), 0) for j in range(7)]
    keys = jax.random.split(jax.random.key(3), 20_000)
    values = jax.lax.map(lambda key: multilevel.estimate(key, levels)[0], keys)
    error = float(jnp.mean(values**2))
    assert 2 * 6 < error <= 14 * 6  # exact: 1 + 3·6
    assert error == pytest.approx(19, rel=0.3)


def test_bad_levels_are_refused():
    with pytest.raises(ValueError, match=r"max_level must be .*in \[0, 31\], got 32"):
        multilevel.draw_levels(jax.random.key(0), 32)
