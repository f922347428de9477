"""Functions on which claims are checked: their constants, stationary points, and what fails on them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.problems import fixtures
from dpsco_jax.problems.fixtures import AffinePieces
from dpsco_jax.problems.objective import Example
from tests.support.climbed import climb

DIM, PIECES, UNITS, TEETH = 2, 2, 3, 4
OBJECTIVES = {
    "well": fixtures.well(),
    "capped_distance": fixtures.capped_distance(0.8),
    "max_affine_difference": fixtures.max_affine_difference(1.4),
    "relu_network": fixtures.relu_network(0.9, UNITS),
    "saw_tooth": fixtures.saw_tooth(0.5, TEETH),
}
SHAPES = {"relu_network": (DIM, UNITS), "saw_tooth": (1,)}
NUMBERS = {
    "max_affine_difference": 2 * PIECES * (DIM + 1),
    "relu_network": DIM + 1,
    "saw_tooth": TEETH,
}


def loss_of(name, flat, numbers):
    """The loss at parameters, of an item that an attacker may hand in."""
    params = flat.reshape(SHAPES.get(name, (DIM,)))
    item = numbers
    if name == "max_affine_difference":
        slopes, offsets = jnp.split(numbers, [2 * PIECES * DIM])
        item = AffinePieces(slopes.reshape(2, PIECES, DIM), offsets.reshape(2, PIECES))
    elif name == "relu_network":
        item = Example(numbers[:DIM], numbers[DIM])
    return OBJECTIVES[name].loss(params, item)


def sizes(name):
    return math.prod(SHAPES.get(name, (DIM,))), NUMBERS.get(name, DIM)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_lipschitz_constant_is_the_largest_gradient(name):
    size, more = sizes(name)

    def steepness(numbers):
        return jnp.linalg.norm(jax.grad(lambda w: loss_of(name, w, numbers[size:]))(numbers[:size]))

    with jax.enable_x64(True):
        worst = climb(jax.jit(jax.vmap(steepness)), size + more, seed=1, dtype=np.float64)
    known = OBJECTIVES[name].lipschitz
    # Half of the units of a network have outer weights of one sign: rarely are all of them on.
    assert 0.95 * known <= worst <= known * (1 + 1e-9)


@pytest.mark.parametrize("name", [n for n, o in OBJECTIVES.items() if o.loss_range is not None])
def test_range_is_the_largest_difference_of_values(name):
    size, more = sizes(name)

    def drop(numbers):
        item = numbers[2 * size :]
        first, second = numbers[:size], numbers[size : 2 * size]
        return loss_of(name, first, item) - loss_of(name, second, item)

    with jax.enable_x64(True):
        worst = climb(jax.jit(jax.vmap(drop)), 2 * size + more, seed=2, dtype=np.float64)
    known = OBJECTIVES[name].loss_range
    assert 0.95 * known <= worst <= known * (1 + 1e-9)


@pytest.mark.parametrize("order", [2, 3])
def test_curvature_of_a_well(order):
    def along(numbers):
        point, vector = numbers[:DIM], numbers[DIM : 2 * DIM]
        unit = vector / jnp.maximum(jnp.linalg.norm(vector), 1e-30)

        def function(step):
            return OBJECTIVES["well"].loss(point + step * unit, jnp.zeros(DIM))

        for _ in range(order):
            function = jax.grad(function)
        return function(0.0)

    with jax.enable_x64(True):
        found = jax.jit(jax.vmap(along))
        high, low = (
            climb(lambda x, s=sign: s * found(x), 2 * DIM, seed=3, dtype=np.float64)
            for sign in (1.0, -1.0)
        )
    well = OBJECTIVES["well"]
    claims = (
        (well.smoothness, -well.loss_strong_convexity)
        if order == 2
        else (well.hessian_lipschitz,) * 2
    )
    for known, worst in zip(claims, (high, low), strict=True):
        assert 0.999 * known <= worst <= known * (1 + 1e-9)


def test_constants_of_a_well_are_those_of_the_fixture():
    well = OBJECTIVES["well"]
    np.testing.assert_allclose(
        [well.lipschitz, well.smoothness, well.hessian_lipschitz, well.loss_range],
        [0.6065, 1.0, 1.3801, 1.0],
        atol=5e-5,
    )


def test_two_wells_have_a_strict_saddle_between_two_minima():
    made = fixtures.two_wells(jax.random.key(0), num_users=10, items_per_user=2, dim=3, jitter=0.0)
    points = made.data.items.reshape(-1, 3)

    def risk(params):
        return jnp.mean(jax.vmap(made.objective.loss, (None, 0))(params, points))

    gradient, hessian = jax.jit(jax.grad(risk)), jax.jit(jax.hessian(risk))
    np.testing.assert_allclose(gradient(jnp.zeros(3)), 0.0, atol=1e-7)
    deep = (1 - 2.25) * math.exp(-2.25 / 2)
    expected = np.diag([deep, math.exp(-2.25 / 2), math.exp(-2.25 / 2)])
    np.testing.assert_allclose(hessian(jnp.zeros(3)), expected, atol=1e-6)
    np.testing.assert_allclose([deep, math.exp(-2.25 / 2)], [-0.4058, 0.3247], atol=5e-5)
    for sign in (1.0, -1.0):
        there = jnp.asarray(sign * made.minimizer, jnp.float32)
        np.testing.assert_allclose(gradient(there), 0.0, atol=1e-6)
        assert np.linalg.eigvalsh(hessian(there)).min() > 0.1
    np.testing.assert_allclose(made.minimizer, [1.46, 0.0, 0.0], atol=5e-3)


def test_jitter_is_drawn_and_signs_are_balanced_in_halves():
    made = fixtures.two_wells(jax.random.key(1), num_users=40, items_per_user=3, dim=2, jitter=0.05)
    points = np.asarray(made.data.items)
    middles = 1.5 * (1 - 2 * (np.arange(40) % 2))
    rest = points - np.stack([middles, np.zeros(40)], axis=1)[:, None]
    assert 0.04 < rest.std() < 0.06
    assert np.sum(points[:20, 0, 0] > 0) == 10


def test_items_that_are_not_finite_are_no_items():
    cases = {
        "well": jnp.asarray([jnp.nan, 0.0]),
        "capped_distance": jnp.asarray([jnp.inf, 0.0]),
        "max_affine_difference": AffinePieces(
            jnp.ones((2, PIECES, DIM)).at[0, 0, 0].set(jnp.nan), jnp.zeros((2, PIECES))
        ),
        "relu_network": Example(jnp.ones(DIM), jnp.float32(jnp.nan)),
        "saw_tooth": jnp.asarray([1.0, jnp.nan, 1.0, 1.0]),
    }
    for name, item in cases.items():
        params = jnp.full(SHAPES.get(name, (DIM,)), 0.3)
        value, gradient = jax.value_and_grad(OBJECTIVES[name].loss)(params, item)
        assert float(value) == 0.0, name
        np.testing.assert_array_equal(gradient, 0.0, err_msg=name)


def test_values_by_hand():
    capped, affine = OBJECTIVES["capped_distance"].loss, OBJECTIVES["max_affine_difference"].loss
    assert float(capped(jnp.asarray([0.3, 0.4]), jnp.zeros(2))) == pytest.approx(0.5)
    assert float(capped(jnp.asarray([3.0, 4.0]), jnp.zeros(2))) == pytest.approx(0.8)
    slopes = jnp.asarray([[[0.5, 0.0], [-0.5, 0.0]], [[0.0, 0.3], [0.0, -0.3]]])
    item = AffinePieces(slopes, jnp.asarray([[0.0, 0.1], [0.2, 0.0]]))
    found = affine(jnp.asarray([-1.0, 2.0]), item)
    assert float(found) == pytest.approx(max(-0.5, 0.6) - max(0.8, -0.6), rel=1e-5)
    relu = OBJECTIVES["relu_network"].loss
    weights = jnp.asarray([[1.0, 2.0, -1.0], [0.0, 0.0, 0.0]])
    output = (0.5 * 1.0 - 0.5 * 2.0) / math.sqrt(3.0)
    example = Example(jnp.asarray([0.5, 0.0]), jnp.float32(1.0))
    assert float(relu(weights, example)) == pytest.approx(1.0 - output, rel=1e-5)
    tooth = OBJECTIVES["saw_tooth"].loss
    assert float(tooth(jnp.asarray([1.2]), jnp.asarray([1.0, -1.0, 0.5, 9.0]))) == pytest.approx(
        0.1
    )


def test_teeth_of_a_sample_turn_where_the_population_has_slope_one_half():
    """Whatever the neighbourhood, it holds stationary points of the sample once it has enough cells."""
    rng = np.random.default_rng(0)
    num_teeth, users = 400, 15
    signs = np.where(rng.random((users, num_teeth)) < 0.75, 1.0, -1.0).astype(np.float32)
    loss = fixtures.saw_tooth(0.01, num_teeth).loss
    middles = (0.01 * (np.arange(num_teeth) + 0.5)).astype(np.float32)[:, None]
    slope = jax.jit(
        jax.vmap(
            lambda w: jnp.mean(jax.vmap(lambda z: jax.grad(loss)(w, z))(jnp.asarray(signs)), axis=0)
        )
    )
    found = slope(middles)[:, 0]
    np.testing.assert_allclose(found, signs.mean(axis=0), atol=1e-6)
    assert found.min() < 0.0 < found.max()
    np.testing.assert_allclose(found.mean(), 0.5, atol=4 * (0.75 / users / num_teeth) ** 0.5)


@pytest.mark.parametrize("error", ["adversarial", "none", "independent"])
def test_with_errors_that_are_merely_bounded_a_saddle_is_not_left(error):
    """0 of 8 leave within 2,000 steps; without errors, or with independent ones, all do."""
    made = fixtures.escape_counterexample(curvature=0.1, error=0.01)
    kick = made.error / math.sqrt(2 * math.log(2 / 0.05))

    def gradient(key, point):
        if error == "adversarial":
            return made.oracle(point)
        noise = jax.random.normal(key, (2,)) * (0.0 if error == "none" else made.error / 4)
        return made.gradient(point) + noise

    def step(carry, index):
        point, left = carry
        first, second = jax.random.split(jax.random.fold_in(left, index))
        move = gradient(first, point)
        small = (jnp.linalg.norm(move) <= made.error) & (index % 50 == 0)
        move = move + small * kick * jax.random.normal(second, (2,))
        point = point - move
        escaped = jnp.abs(point[1]) > 2 * made.error / made.curvature
        return (jnp.where(escaped, carry[0], point), left), escaped

    def run(key):
        _, escaped = jax.lax.scan(step, (jnp.zeros(2), key), jnp.arange(2000))
        return jnp.any(escaped), jnp.argmax(escaped)

    escaped, when = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(3), 8))
    assert int(jnp.sum(escaped)) == (0 if error == "adversarial" else 8)
    if error != "adversarial":
        assert int(jnp.max(when)) < 100


def test_the_oracle_of_the_counterexample_is_never_off_by_more_than_it_says():
    made = fixtures.escape_counterexample(curvature=0.3, error=0.02)
    points = 0.1 * jax.random.normal(jax.random.key(0), (1000, 2))
    off = jnp.linalg.norm(jax.vmap(made.oracle)(points) - jax.vmap(made.gradient)(points), axis=1)
    assert 0.019 < float(jnp.max(off)) <= 0.02
    np.testing.assert_allclose(
        jax.vmap(jax.grad(made.value))(points), jax.vmap(made.gradient)(points)
    )
