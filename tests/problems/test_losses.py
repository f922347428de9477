"""Constants of the losses: never exceeded by an attacker, and attained, so that none is slack."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from tests.support.climbed import climb

DIM, CLASSES = 3, 3
LINEAR = {
    "logistic": losses.logistic(2.0),
    "hinge": losses.hinge(2.0),
    "huber": losses.huber(2.0, delta=0.7),
    "absolute": losses.absolute(2.0),
    "quantile": losses.quantile(2.0, level=0.8),
    "squared": losses.squared(2.0, label_bound=3.0, radius=1.5),
}
OBJECTIVES = {
    **LINEAR,
    "softmax": losses.softmax(2.0, CLASSES),
    "geometric_median": losses.geometric_median(),
    "squared_distance": losses.squared_distance(2.0, 1.5),
}


def build(name, numbers):
    """Parameters and an item from a flat vector: anything that an attacker may hand in."""
    size = DIM * CLASSES if name == "softmax" else DIM
    params = OBJECTIVES[name].domain.project(numbers[:size])
    point, raw = numbers[size : size + DIM], numbers[size + DIM]
    if name == "softmax":
        label = jnp.clip(jnp.round(raw), -1, CLASSES).astype(jnp.int32)
        return params.reshape(DIM, CLASSES), Example(point, label)
    return params, point if name.startswith(("geometric", "squared_d")) else Example(point, raw)


def size_of(name):
    return DIM * CLASSES + DIM + 1 if name == "softmax" else 2 * DIM + 1


@pytest.mark.parametrize("name", OBJECTIVES)
def test_lipschitz_constant_is_the_largest_gradient(name):
    objective = OBJECTIVES[name]

    def gradient_norm(numbers):
        params, item = build(name, numbers)
        return jnp.linalg.norm(jax.grad(objective.loss)(params, item))

    worst = climb(jax.jit(jax.vmap(gradient_norm)), size_of(name), seed=1)
    assert 0.99 * objective.lipschitz <= worst <= objective.lipschitz * (1 + 1e-5)


@pytest.mark.parametrize("name", [n for n, o in OBJECTIVES.items() if o.smoothness is not None])
def test_smoothness_constant_is_the_largest_curvature(name):
    objective = OBJECTIVES[name]

    def curvature(numbers):
        params, item = build(name, numbers)
        hessian = jax.hessian(lambda flat: objective.loss(flat.reshape(params.shape), item))
        matrix = hessian(params.ravel())
        # A norm of matrices above the operator norm would be too strict: power iteration.
        vector = jnp.ones(matrix.shape[0]) + 0.1 * jnp.arange(matrix.shape[0])
        for _ in range(30):
            vector = matrix @ vector
            vector = vector / jnp.maximum(jnp.linalg.norm(vector), 1e-20)
        return jnp.linalg.norm(matrix @ vector)

    worst = climb(jax.jit(jax.vmap(curvature)), size_of(name), seed=2)
    assert 0.98 * objective.smoothness <= worst <= objective.smoothness * (1 + 1e-5)


@pytest.mark.parametrize("name", LINEAR)
def test_closed_form_gradient_is_the_gradient(name):
    objective = LINEAR[name]
    model = objective.linear_model
    assert model.feature_bound == 2.0
    margins = jnp.linspace(-4.0, 4.0, 41) + 0.013
    for label in (0.0, 1.0, 0.3, -7.0):
        slopes = jax.jit(jax.vmap(jax.grad(model.link), (0, None)))(margins, label)
        np.testing.assert_allclose(model.derivative(margins, label), slopes, atol=2e-6)
    x, label = jnp.asarray([0.3, -0.2, 1.0]), jnp.float32(1.0)
    params = jnp.asarray([0.5, 0.1, -0.7])
    closed = model.derivative(x @ params, label) * x
    np.testing.assert_allclose(
        jax.grad(objective.loss)(params, Example(x, label)), closed, rtol=1e-5
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_is_convex_as_declared(name):
    objective = OBJECTIVES[name]
    size = size_of(name)

    def midpoint_excess(numbers):
        start, item = build(name, numbers[:size])
        end, _ = build(name, numbers[size:])
        middle = objective.loss((start + end) / 2, item)
        mean = (objective.loss(start, item) + objective.loss(end, item)) / 2
        bend = objective.loss_strong_convexity / 8 * jnp.sum(jnp.square(start - end))
        return (middle + bend - mean) / (1.0 + jnp.abs(mean))

    rng = np.random.default_rng(3)
    numbers = rng.normal(size=(4096, 2 * size)) * 10.0 ** rng.uniform(-1, 1, (4096, 1))
    assert float(jnp.max(jax.jit(jax.vmap(midpoint_excess))(numbers.astype(np.float32)))) < 1e-5


def test_which_losses_are_lipschitz_everywhere():
    everywhere = {n for n, o in OBJECTIVES.items() if o.globally_convex_lipschitz}
    assert everywhere == set(OBJECTIVES) - {"squared", "squared_distance"}


@pytest.mark.parametrize("name", ["squared", "squared_distance"])
def test_losses_with_a_bound_on_their_domain_only_break_it_outside(name):
    objective = OBJECTIVES[name]
    item = jnp.ones(DIM) if name == "squared_distance" else Example(jnp.ones(DIM), jnp.float32(0.0))
    far = jax.grad(objective.loss)(100.0 * jnp.ones(DIM), item)
    assert float(jnp.linalg.norm(far)) > 2 * objective.lipschitz


def test_values_by_hand():
    x, params = jnp.asarray([1.0, 0.0, 0.0]), jnp.asarray([0.5, 9.0, 9.0])
    ball = {name: OBJECTIVES[name].loss(params, Example(x, jnp.float32(1.0))) for name in LINEAR}
    np.testing.assert_allclose(ball["logistic"], np.log1p(np.exp(-0.5)), rtol=1e-6)
    np.testing.assert_allclose(ball["hinge"], 0.5, rtol=1e-6)
    np.testing.assert_allclose(ball["huber"], 0.125, rtol=1e-6)
    np.testing.assert_allclose(ball["absolute"], 0.5, rtol=1e-6)
    np.testing.assert_allclose(ball["quantile"], 0.8 * 0.5, rtol=1e-6)
    np.testing.assert_allclose(ball["squared"], 0.125, rtol=1e-6)
    matrix = jnp.zeros((3, CLASSES)).at[0].set(jnp.log(jnp.asarray([1.0, 2.0, 3.0])))
    soft = OBJECTIVES["softmax"].loss(matrix, Example(x, jnp.int32(1)))
    np.testing.assert_allclose(soft, np.log(3.0), rtol=1e-6)
    assert float(OBJECTIVES["softmax"].loss(matrix, Example(x, jnp.int32(7)))) == 0.0


def test_median_has_a_subgradient_at_the_kink():
    loss = losses.geometric_median().loss
    point = {"a": jnp.asarray([1.0, 2.0]), "b": jnp.asarray(3.0)}
    assert float(loss(point, point)) == 0.0
    np.testing.assert_array_equal(jax.grad(loss)(point, point)["a"], 0.0)


def test_domain_and_ridge_are_passed_on():
    domain = domains.ball(3.0)
    for factory in (losses.logistic, losses.hinge, losses.absolute):
        objective = factory(1.0, domain, 0.25)
        assert objective.domain is domain
        assert objective.strong_convexity == 0.25
    assert losses.squared(1.0, 1.0, 2.0).domain.diameter == 4.0
