"""Convolved losses agree with numerical integration, and obey the bounds of smoothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

from dpsco_jax.geometry import smoothing
from dpsco_jax.problems import gaussian_smoothing, losses
from dpsco_jax.problems.objective import Example, OneHot

MARGINS = np.linspace(-3.0, 3.0, 13, dtype=np.float32)
QUANTILE = losses.quantile(1.0, 0.3)
CLOSED = {
    "absolute": (losses.absolute(1.0), gaussian_smoothing.absolute),
    "hinge": (losses.hinge(1.0), gaussian_smoothing.hinge),
    "quantile": (QUANTILE, gaussian_smoothing.quantile(0.3)),
    "squared": (losses.squared(1.0, 1.0, 1.0), gaussian_smoothing.squared(1.0)),
}


def value_and_slope(link, label, spread):
    """Values and derivatives of a link at all margins."""
    batch = jax.vmap(jax.value_and_grad(link), in_axes=(0, None, None))
    return jax.jit(batch)(MARGINS, label, spread)


def convolution(link, margin, label, spread):
    """E link(margin + spread·N(0, 1)) by adaptive quadrature with the kink as a break point."""

    def at(z):
        return link(margin + spread * z, label) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)

    kinks = [(k - margin) / spread for k in (label, 1.0, -1.0)]
    points = sorted(z for z in kinks if abs(z) < 9)
    return integrate.quad(at, -9, 9, points=points or None, limit=200)[0]


def numpy_link(name):
    return {
        "absolute": lambda m, y: abs(m - y),
        "hinge": lambda m, y: max(0.0, 1 - (2 * y - 1) * m),
        "quantile": lambda m, y: max(0.3 * (y - m), -0.7 * (y - m)),
        "squared": lambda m, y: (m - y) ** 2 / 2,
        "logistic": lambda m, y: np.logaddexp(0, m) - y * m,
    }[name]


@pytest.mark.parametrize("name", CLOSED)
def test_closed_forms_are_the_convolution(name):
    _, link = CLOSED[name]
    spread, label, step = 0.7, 1.0, 1e-3
    value, slope = value_and_slope(link, label, spread)
    exact = [convolution(numpy_link(name), m, label, spread) for m in MARGINS.astype(float)]
    np.testing.assert_allclose(value, exact, atol=2e-6)
    up, down = (
        [convolution(numpy_link(name), m + s, label, spread) for m in MARGINS.astype(float)]
        for s in (step, -step)
    )
    np.testing.assert_allclose(slope, np.subtract(up, down) / (2 * step), atol=1e-5)


@pytest.mark.parametrize("name", CLOSED)
def test_without_spread_the_loss_and_its_derivative_are_unchanged(name):
    objective, link = CLOSED[name]
    model = objective.linear_model
    value, slope = value_and_slope(link, 0.25, 0.0)
    np.testing.assert_allclose(value, model.link(MARGINS, 0.25), atol=1e-6)
    if name != "hinge":  # a soft label moves the hinge
        np.testing.assert_allclose(slope, model.derivative(MARGINS, 0.25), atol=1e-6)


def test_derivative_in_the_spread():
    by_spread = jax.grad(gaussian_smoothing.expected_absolute, argnums=1)(0.4, 0.7)
    exact = np.sqrt(2 / np.pi) * np.exp(-((0.4 / 0.7) ** 2) / 2)
    np.testing.assert_allclose(by_spread, exact, rtol=1e-6)


@pytest.mark.parametrize(
    ("spread", "error"), [(1.0, 1e-6), (3.0, 1e-6), (4.0, 8e-6), (8.0, 2.5e-3)]
)
def test_quadrature_of_the_logistic_link_is_as_exact_as_stated(spread, error):
    link = gaussian_smoothing.by_quadrature(losses.logistic(1.0).linear_model.link)
    value, slope = value_and_slope(link, 0.0, spread)
    exact = [convolution(numpy_link("logistic"), m, 0.0, spread) for m in MARGINS.astype(float)]
    np.testing.assert_allclose(value, exact, atol=error)
    exact_slope = [
        convolution(lambda m, _: special.expit(m), m, 0.0, spread) for m in MARGINS.astype(float)
    ]
    np.testing.assert_allclose(slope, exact_slope, atol=error)


def test_bias_and_smoothness_stay_within_their_bounds():
    radius, dim = 0.3, 4
    rng = np.random.default_rng(0)
    row = rng.normal(size=dim)
    row /= np.linalg.norm(row)
    item = Example(jnp.asarray(np.float32(row)), jnp.float32(0.2))
    params = jnp.asarray(np.float32(rng.normal(size=(200, dim)) * 0.3))
    for name in ("absolute", "hinge", "quantile"):
        objective, link = CLOSED[name]
        smooth = gaussian_smoothing.smoothed(objective, link, radius)

        def gap(x, smooth=smooth, objective=objective):
            return smooth.loss(x, item) - objective.loss(x, item)

        gaps = jax.jit(jax.vmap(gap))(params)
        slope = objective.lipschitz if name != "hinge" else 0.6 * objective.lipschitz
        assert float(jnp.min(gaps)) > -1e-6
        assert float(jnp.max(gaps)) <= slope * radius * np.sqrt(2 / np.pi) + 1e-6
        assert float(jnp.max(gaps)) <= smoothing.gaussian_bias(objective.lipschitz, radius, dim)
        assert smooth.smoothness == smoothing.gaussian_smoothness(objective.lipschitz, radius)
    # Attained by the absolute loss at its kink, in value and in curvature.
    smooth = gaussian_smoothing.smoothed(CLOSED["absolute"][0], gaussian_smoothing.absolute, radius)
    kink = jnp.asarray(np.float32(0.2 * row))
    np.testing.assert_allclose(smooth.loss(kink, item), radius * np.sqrt(2 / np.pi), rtol=1e-5)
    curvature = jnp.linalg.norm(jax.jit(jax.hessian(smooth.loss))(kink, item), ord=2)
    np.testing.assert_allclose(curvature, smooth.smoothness, rtol=1e-5)


def test_one_hot_features_have_the_spread_of_their_norm():
    objective = losses.absolute(2.0)
    smooth = gaussian_smoothing.smoothed(objective, gaussian_smoothing.absolute, 0.5)
    sparse = Example(OneHot(jnp.asarray([1, 3, 9])), 0.1)  # the last column is padding
    dense = Example(jnp.asarray([0.0, 2 / 3**0.5, 0.0, 2 / 3**0.5]), 0.1)
    params = jnp.asarray([0.3, -0.2, 0.1, 0.4])
    loss = jax.jit(smooth.loss)
    np.testing.assert_allclose(loss(params, sparse), loss(params, dense), rtol=1e-6)


def test_only_linear_models_are_accepted():
    with pytest.raises(ValueError, match="linear_model"):
        gaussian_smoothing.smoothed(losses.geometric_median(), gaussian_smoothing.absolute, 0.1)
