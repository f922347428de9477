"""Lasry-Lions smoothing: closed forms, bounds, curvature, and Goldstein stationarity of what was smoothed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import lasry_lions

SPACING, SMOOTHING = 0.002, 0.1
GRID = np.arange(-600, 601) * SPACING
# Where the edge of the grid, 3λL away for L = 1, is not felt.
INSIDE = slice(200, -200)


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def huber(x, smoothing=SMOOTHING):
    near = np.abs(x) <= smoothing
    return np.where(near, x**2 / (2 * smoothing), np.abs(x) - smoothing / 2)


def smoothed(values, smoothing=SMOOTHING):
    found = jax.jit(lambda v: lasry_lions.lasry_lions(v, SPACING, smoothing))(values)
    return jax.tree.map(np.asarray, found)


def teeth(x, slope=1.0):
    """A saw-tooth with cells of width .13, and slopes ±."""
    return slope * np.abs((x + 0.02) % 0.26 - 0.13)


CASES = {
    "distance": (np.abs(GRID), 1.0),
    "negative distance": (-np.abs(GRID), 1.0),
    "steep": (3.0 * np.abs(GRID), 3.0),
    "saw-tooth": (teeth(GRID), 1.0),
    "steep saw-tooth": (teeth(GRID, 3.0), 3.0),
}


def test_of_a_distance_it_is_hubers_function_which_is_the_moreau_envelope():
    found = smoothed(np.abs(GRID))
    np.testing.assert_allclose(found.values[INSIDE], huber(GRID)[INSIDE], atol=1e-4)
    envelope = jax.jit(lambda v: lasry_lions.grid_envelope(v, SPACING, SMOOTHING))(np.abs(GRID))
    np.testing.assert_allclose(envelope[INSIDE], huber(GRID)[INSIDE], atol=1e-4)
    slope = np.clip(GRID / SMOOTHING, -1, 1)
    np.testing.assert_allclose(
        found.gradient[INSIDE, 0], slope[INSIDE], atol=1.01 * SPACING / SMOOTHING
    )


def test_of_a_negative_distance_it_is_lower_by_the_smoothing_and_rounds_the_top():
    found = smoothed(-np.abs(GRID))
    np.testing.assert_allclose(found.values[INSIDE], (-SMOOTHING - huber(GRID))[INSIDE], atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_values_curvature_and_minima(name):
    values, lipschitz = CASES[name]
    smoothing = SMOOTHING / lipschitz
    found = smoothed(values, smoothing).values
    assert np.all(found <= values + 1e-12)
    assert np.all(found >= values - lipschitz**2 * smoothing - 1e-12)
    bend = np.diff(found[INSIDE], 2) / SPACING**2
    assert np.max(np.abs(bend)) <= (1 + 1e-6) / smoothing
    assert np.max(np.abs(bend)) >= 0.99 / smoothing or name == "saw-tooth"
    assert np.max(np.abs(np.diff(found))) <= lipschitz * SPACING * (1 + 1e-9)
    if name == "negative distance":  # which has no least value
        return
    inside = values[INSIDE]
    assert found[INSIDE].min() == pytest.approx(inside.min(), abs=1e-12)
    assert found[INSIDE][np.argmin(inside)] == pytest.approx(inside.min(), abs=1e-12)


@pytest.mark.parametrize("name", ["negative distance", "saw-tooth", "steep saw-tooth"])
def test_a_small_gradient_is_one_that_gradients_nearby_mix_to(name):
    """Within λβ + 2λL of every point: slopes between the least and the largest of h there."""
    values, lipschitz = CASES[name]
    smoothing = SMOOTHING / lipschitz
    found = smoothed(values, smoothing)
    slopes = np.diff(values) / SPACING
    # The exact gradient, up to the grid: a central difference, within a spacing times the curvature.
    size = np.abs(np.gradient(found.values, SPACING))
    np.testing.assert_allclose(
        found.gradient[INSIDE, 0],
        np.gradient(found.values, SPACING)[INSIDE],
        atol=2.01 * SPACING / smoothing,
    )
    tight = 0
    for place in range(250, len(GRID) - 250, 7):
        reach = int(np.ceil(smoothing * (size[place] + 2 * lipschitz) / SPACING)) + 1
        near = slopes[place - reach : place + reach]
        mixed = max(0.0, near.min(), -near.max())
        assert mixed <= size[place] + 2 * SPACING / smoothing
        tight += mixed > 0.0
    assert name != "negative distance" or tight > 0


def test_two_axes_are_smoothed_together():
    """Of ‖x‖₂, convex, it is Huber's function of the length; of a sum over axes it is the sum."""
    grid = np.arange(-60, 61) * 0.02
    first, second = np.meshgrid(grid, grid, indexing="ij")
    length = np.hypot(first, second)
    run = jax.jit(lambda v: lasry_lions.lasry_lions(v, 0.02, 0.15))
    found = run(length)
    inside = (slice(25, -25), slice(25, -25))
    np.testing.assert_allclose(found.values[inside], huber(length, 0.15)[inside], atol=2e-3)
    wanted = np.stack([first, second], -1) / np.maximum(length, 0.15)[..., None]
    off = np.asarray(found.gradient) - wanted
    assert np.max(np.abs(off[inside])) <= 0.02 / 0.15 * 1.01
    apart = teeth(first) - 0.5 * np.abs(second)
    one, other = (run(v).values for v in (teeth(grid), -0.5 * np.abs(grid)))
    np.testing.assert_allclose(run(apart).values, one[:, None] + other[None, :], atol=1e-12)


def test_records_are_smoothed_side_by_side():
    both = np.stack([np.abs(GRID), teeth(GRID)])
    found = jax.vmap(lambda v: lasry_lions.lasry_lions(v, SPACING, SMOOTHING))(jnp.asarray(both))
    np.testing.assert_array_equal(found.values[1], smoothed(both[1]).values)


def test_refusals():
    for wrong in (np.zeros((2, 2, 2)), np.zeros(()), np.zeros(3, int)):
        with pytest.raises(ValueError, match="values must be"):
            lasry_lions.lasry_lions(wrong, 0.1, 0.1)
