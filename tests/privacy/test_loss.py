"""Composition and conversion: against the analytic Gaussian curve, and in float32 against float64."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsco_jax import privacy
from dpsco_jax.privacy import ORDERS, PrivacyLoss
from tests.support.gaussians import gaussian_delta


def test_orders_are_what_the_curves_need():
    assert ORDERS.dtype == np.float64
    assert np.all(np.diff(ORDERS) > 0)
    assert ORDERS[0] > 1
    assert {2.0, 3.0, 4.0} <= set(ORDERS)


@given(st.floats(0.01, 20.0), st.floats(0.0, 50.0))
@settings(deadline=None, max_examples=200)
def test_delta_is_never_below_that_of_the_gaussian(mu, eps):
    found = privacy.delta(privacy.gdp(mu), eps)
    assert gaussian_delta(eps, mu) <= found <= 1.0


@given(st.floats(0.01, 20.0), st.floats(-12.0, -1.0))
@settings(deadline=None, max_examples=200)
def test_epsilon_is_never_below_that_of_the_gaussian(mu, log_delta):
    delta = 10.0**log_delta
    found = privacy.epsilon(privacy.gdp(mu), delta)
    assert gaussian_delta(found, mu) <= delta


def test_epsilon_is_close_to_that_of_the_gaussian():
    found = privacy.epsilon(privacy.gdp(1.0), 1e-5)
    assert gaussian_delta(found * 0.9, 1.0) > 1e-5


@given(st.floats(1e-3, 30.0), st.floats(-12.0, -1.0), st.floats(0.0, 0.5))
@settings(deadline=None, max_examples=200)
def test_delta_and_epsilon_are_inverse(rho, log_delta, failing):
    delta = 10.0**log_delta
    loss = PrivacyLoss(rho * ORDERS, np.asarray(failing * delta))
    eps = privacy.epsilon(loss, delta)
    assert privacy.delta(loss, eps) <= delta * (1 + 1e-9)
    if eps > 1e-6:
        assert privacy.delta(loss, eps * (1 - 1e-6)) >= delta * (1 - 1e-9)


def test_nothing_costs_nothing():
    assert privacy.epsilon(privacy.zero(), 1e-9) == 0
    assert privacy.delta(privacy.zero(), 0.0) == 0
    chex.assert_trees_all_close(privacy.compose(), privacy.zero())
    chex.assert_trees_all_close(privacy.parallel(), privacy.zero())
    chex.assert_trees_all_close(privacy.scale(privacy.gaussian(0.0), 0), privacy.zero())


def test_small_total_variation_gives_epsilon_zero():
    loss = privacy.gdp(1e-8)
    assert privacy.epsilon(loss, 1e-6) == 0
    assert privacy.epsilon(loss, 1e-9) > 0
    assert privacy.delta(loss, 0.0) <= 1e-7


def test_what_is_unknown_is_infinite_and_what_fails_too_often_proves_nothing():
    nothing = privacy.gaussian(0.0)
    assert privacy.epsilon(nothing, 0.1) == np.inf
    assert privacy.delta(nothing, 10.0) == 1
    failing = PrivacyLoss(np.zeros(len(ORDERS)), np.asarray(0.01))
    assert privacy.epsilon(failing, 0.01) == np.inf
    assert privacy.epsilon(failing, 0.011) == 0
    assert privacy.delta(failing, 1.0) == pytest.approx(0.01)
    partly = PrivacyLoss(np.where(ORDERS == 2.0, 1.0, np.inf), np.zeros(()))
    assert np.isfinite(privacy.epsilon(partly, 1e-5))


@given(st.lists(st.floats(0.05, 5.0), min_size=2, max_size=5), st.floats(0.0, 20.0))
@settings(deadline=None, max_examples=100)
def test_releases_together_cost_at_least_what_gaussians_of_one_vector_cost(mus, eps):
    # Gaussians with shifts of mu_i standard deviations are one Gaussian with the shift's Euclidean norm.
    found = privacy.delta(privacy.compose(*[privacy.gdp(mu) for mu in mus]), eps)
    assert gaussian_delta(eps, float(np.linalg.norm(mus))) <= found


def test_divergences_add_up():
    parts = privacy.gaussian(2.0), privacy.gaussian(0.5), privacy.gdp(3.0)
    expected = ORDERS / 2 * (1 / 2.0**2 + 1 / 0.5**2 + 3.0**2)
    np.testing.assert_allclose(privacy.compose(*parts).rdp, expected, rtol=1e-12)
    np.testing.assert_allclose(privacy.scale(parts[0], 7).rdp, 7 * ORDERS / 8, rtol=1e-12)


def test_of_disjoint_parts_the_worst_counts_at_every_order_and_for_failures():
    first = PrivacyLoss(np.where(ORDERS < 5, 3.0, 1.0), np.asarray(1e-6))
    second = PrivacyLoss(np.where(ORDERS < 5, 2.0, 4.0), np.asarray(1e-5))
    for parts in ((first, second), (second, first), (privacy.zero(), first, second)):
        found = privacy.parallel(*parts)
        np.testing.assert_array_equal(found.rdp, np.where(ORDERS < 5, 3.0, 4.0))
        assert found.delta == 1e-5


def test_failure_probabilities_add_up():
    loss = privacy.approximate_dp(0.1, 1e-6)
    assert privacy.scale(loss, 10).delta == pytest.approx(1e-5)
    assert privacy.compose(loss, loss).delta == pytest.approx(2e-6)
    assert privacy.parallel(loss, privacy.zero()).delta == pytest.approx(1e-6)


def test_batches_broadcast():
    loss = privacy.gaussian(np.asarray([[1.0], [2.0], [4.0]]))
    assert privacy.epsilon(loss, 1e-5).shape == (3, 1)
    assert privacy.epsilon(loss, np.asarray([1e-5, 1e-6])).shape == (3, 2)
    assert privacy.scale(loss, np.asarray([1, 2])).rdp.shape == (3, 2, len(ORDERS))
    assert privacy.delta(loss, np.asarray([1.0, 2.0])).shape == (3, 2)


def test_float32_conversion_is_never_below_float64():
    rng = np.random.default_rng(0)
    rho = np.exp(rng.uniform(np.log(1e-12), np.log(100), 20_000)).astype(np.float32)
    delta = (10.0 ** rng.uniform(-12, -1, 20_000)).astype(np.float32)
    rdp = rho[:, None] * np.float32(ORDERS)
    single = PrivacyLoss(jnp.asarray(rdp), jnp.zeros(20_000))
    double = PrivacyLoss(np.float64(rdp), np.zeros(20_000))
    found = np.float64(jax.jit(privacy.epsilon)(single, jnp.asarray(delta)))
    expected = privacy.epsilon(double, np.float64(delta))
    assert np.all(found >= expected * (1 - 1e-7))
    assert np.all(found <= expected * (1 + 1e-4) + 1e-6)
    eps = np.float32(np.exp(rng.uniform(np.log(1e-3), np.log(50), 20_000)))
    found = np.float64(jax.jit(privacy.delta)(single, jnp.asarray(eps)))
    expected = privacy.delta(double, np.float64(eps))
    assert np.all(found >= np.minimum(expected, 1.0) * (1 - 1e-6) - 1e-37)


def test_gradients_are_finite():
    def spent(sigma, delta):
        return privacy.epsilon(privacy.scale(privacy.gaussian(sigma), 10.0), delta)

    for sigma in (0.0, 1e-3, 1.0, 1e6):
        assert all(np.isfinite(g) for g in jax.grad(spent, (0, 1))(sigma, 1e-5)), sigma
    assert np.isfinite(jax.grad(lambda e: privacy.delta(privacy.gaussian(jnp.float32(1)), e))(2.0))
