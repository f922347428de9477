"""Gaussian DP up to total variation: published values, pairs that attain the bound, exact compositions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from dpsco_jax import privacy

# s(ε, δ): the μ whose Gaussian curve passes through (ε, δ), and the closed form of T Lemma 3.6.3.
VALUES = [
    (0.1, 1e-6, 0.0275, 0.0195),
    (0.5, 1e-6, 0.1241, 0.0967),
    (1.0, 1e-2, 0.5325, 0.3372),
    (1.0, 1e-4, 0.3139, 0.2356),
    (1.0, 1e-6, 0.2367, 0.1916),
    (1.0, 1e-9, 0.1820, 0.1561),
    (2.0, 1e-6, 0.4483, 0.3766),
    (5.0, 1e-6, 1.0204, 0.8974),
    (10.0, 1e-6, 1.8481, 1.6774),
]


def _hockey_stick(mu, epsilon):
    """∫ (p - e^ε·q)₊ for N(μ, 1) and N(0, 1), by quadrature."""

    def gap(x):
        return max(stats.norm.pdf(x - mu) - math.exp(epsilon) * stats.norm.pdf(x), 0.0)

    start = epsilon / mu + mu / 2
    return integrate.quad(gap, start, start + 40, points=[mu], epsabs=0, epsrel=1e-10, limit=500)[0]


@pytest.mark.parametrize(("epsilon", "delta", "mu", "closed_form"), VALUES)
def test_the_gaussian_curve_is_inverted(epsilon, delta, mu, closed_form):
    found = privacy.gdp_within(epsilon, delta)
    assert round(found, 4) == mu
    level = 2 * math.log(1 / (2 * delta))
    assert round(math.sqrt(level + 2 * epsilon) - math.sqrt(level), 4) == closed_form < found
    assert privacy.variation_delta(found, 0.0, epsilon) <= delta
    assert privacy.variation_delta(found * (1 + 1e-9), 0.0, epsilon) > delta
    assert privacy.variation_epsilon(found, 0.0, delta) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_delta_is_the_hockey_stick_and_what_the_distance_adds(mu, epsilon):
    ideal = _hockey_stick(mu, epsilon)
    assert privacy.variation_delta(mu, 0.0, epsilon) == pytest.approx(ideal, rel=1e-8)
    if epsilon == 0.0:
        assert ideal == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, rel=1e-8)
    real = privacy.variation_delta(mu, 1e-3, epsilon)
    assert real - ideal == pytest.approx((1 + math.exp(epsilon)) * 1e-3, rel=1e-4)


def _discrete_pair(mu, cells=400):
    """N(μ, 1) and N(0, 1) on a grid: a post-processing, so at most as far apart."""
    edges = np.concatenate([[-np.inf], np.linspace(-6.0, 6.0 + mu, cells - 1), [np.inf]])
    return np.diff(stats.norm.cdf(edges - mu)), np.diff(stats.norm.cdf(edges))


def _moved(p, q, epsilon, tau):
    """Laws at distance τ of both: p gains where p > e^ε·q, q loses there."""
    inside = p > math.exp(epsilon) * q
    assert tau < min(p[~inside].sum(), q[inside].sum())
    gain = tau * (inside / inside.sum() - p * ~inside / p[~inside].sum())
    loss = tau * (-q * inside / q[inside].sum() + ~inside / (~inside).sum())
    return p + gain, q + loss


def _delta(p, q, epsilon):
    return np.maximum(p - math.exp(epsilon) * q, 0.0).sum()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_bound_is_attained_and_the_distance_alone_is_too_little(epsilon):
    mu, tau = 1.0, 1e-4
    p, q = _discrete_pair(mu, 20_000)
    real_p, real_q = _moved(p, q, epsilon, tau)
    assert 0.5 * np.abs(real_p - p).sum() == pytest.approx(tau, rel=1e-9)
    assert 0.5 * np.abs(real_q - q).sum() == pytest.approx(tau, rel=1e-9)
    found, bound = _delta(real_p, real_q, epsilon), privacy.variation_delta(mu, tau, epsilon)
    assert found == pytest.approx(bound, rel=1e-5)
    assert found > 1.3 * tau + _delta(p, q, epsilon)


@pytest.mark.parametrize(
    ("mu", "tau", "delta"), [(0.3, 1e-9, 1e-6), (1.0, 1e-8, 1e-5), (5.0, 0.0, 1e-6)]
)
def test_epsilon_is_the_least_that_holds(mu, tau, delta):
    found = privacy.variation_epsilon(mu, tau, delta)
    assert privacy.variation_delta(mu, tau, found) <= delta
    assert privacy.variation_delta(mu, tau, found * (1 - 1e-9)) > delta


def test_a_distance_that_is_too_large_gives_nothing():
    # From which τ on no ε holds: scanned.
    for tau in (1e-5, 1e-4, 1e-3):
        grid = [privacy.variation_delta(1.0, tau, e) for e in np.linspace(0, 12, 2000)]
        assert (privacy.variation_epsilon(1.0, tau, 2e-3) < math.inf) == (min(grid) <= 2e-3)
    assert privacy.variation_epsilon(0.0, 1e-7, 1e-6) == 0.0
    assert privacy.variation_epsilon(1.0, 1.0, 0.5) == math.inf
    with pytest.raises(ValueError, match=r"variation must be below delta/\(1 \+ exp\(epsilon\)\)"):
        privacy.gdp_within(1.0, 1e-6, 1e-6 / (1 + math.e))
    assert privacy.gdp_within(1.0, 1e-6, 0.99e-6 / (1 + math.e)) > 0


@pytest.mark.parametrize(("tau", "horizon", "delta"), [(1e-12, 2.0, 1e-9), (3e-10, 4.0, 1e-6)])
def test_what_composes_by_the_theorem(tau, horizon, delta):
    """η from the mass, then the growth of each order, in NumPy; the ideal loss hardly ever exceeds h."""
    ideal = privacy.gdp(0.2)
    beyond = _hockey_stick(0.2, horizon)
    assert beyond < 1e-3 * delta
    eta = 2 * tau * (1 + np.exp(horizon)) / (delta - tau)
    orders = privacy.ORDERS
    grown = orders / (orders - 1) * (np.log1p(eta) - np.log1p(-delta)) - np.log1p(-eta)
    found = privacy.with_variation(ideal, tau, horizon, delta)
    assert found.delta == delta
    np.testing.assert_allclose(found.rdp - ideal.rdp, grown, rtol=1e-3)


def test_the_distance_as_a_failure_probability_is_no_bound():
    """Q loses a cell of the mass τ in which P gains τ."""
    mu, tau, epsilon = 0.1, 1e-6, 3.0
    p, q = _discrete_pair(mu)
    cell = np.flatnonzero(q[200:] <= tau)[0] + 200
    real_p, real_q = p.copy(), q.copy()
    real_q[[0, cell]] += [q[cell], -q[cell]]
    real_p[[200, cell]] += [-tau, tau]
    assert 0.5 * np.abs(real_q - q).sum() <= tau
    assert 0.5 * np.abs(real_p - p).sum() == pytest.approx(tau, rel=1e-6)
    found = _delta(real_p, real_q, epsilon)
    printed = privacy.PrivacyLoss(privacy.gdp(mu).rdp, np.asarray(tau))
    assert found > 1.5 * privacy.delta(printed, epsilon)
    assert found <= privacy.variation_delta(mu, tau, epsilon)
    proven = privacy.with_variation(privacy.gdp(mu), tau, 1.0, 1e-4)
    assert found <= privacy.delta(proven, epsilon) < 2e-4


def test_no_distance_changes_nothing_and_what_is_out_of_range_is_unbounded():
    ideal = privacy.gdp(0.3)
    same = privacy.with_variation(ideal, 0.0, 3.0, 1e-9)
    np.testing.assert_array_equal(same.rdp, ideal.rdp)
    assert same.delta == 0.0
    assert np.isinf(privacy.epsilon(privacy.with_variation(ideal, 1e-9, 3.0, 1e-9), 1e-6))

    @jax.jit
    def spent(tau, horizon, delta):
        return privacy.epsilon(privacy.with_variation(ideal, tau, horizon, delta), 1e-6)

    assert spent(1e-15, 3.0, 1e-9) < 1.05 * privacy.epsilon(ideal, 1e-6)
    for bad in (
        (jnp.nan, 3.0, 1e-9),
        (-1e-15, 3.0, 1e-9),
        (1e-15, -1.0, 1e-9),
        (1e-15, 3.0, jnp.nan),
        (1e-15, 3.0, 0.0),
    ):
        assert np.isinf(spent(*bad)), bad
    batched = jax.vmap(lambda tau: spent(tau, 3.0, 1e-9))(jnp.asarray([1e-15, 1e-8]))
    assert np.isfinite(batched[0])
    assert np.isinf(batched[1])


@pytest.mark.parametrize("mu", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("tau", [1e-15, 1e-12])
def test_the_horizon_that_is_advised_is_near_the_best(mu, tau):
    ideal = privacy.gdp(mu)

    def spent(horizon):
        return privacy.epsilon(privacy.with_variation(ideal, tau, horizon, 1e-8), 1e-6)

    advised = float(privacy.epsilon(ideal, 1e-9))
    best = min(spent(each) for each in advised * np.linspace(0.5, 2.0, 61))
    assert best < math.inf
    assert spent(advised) <= 1.02 * best


def test_a_loss_that_may_fail_fails_twice():
    ideal = privacy.PrivacyLoss(privacy.gdp(0.3).rdp, np.asarray(1e-10))
    assert np.isfinite(privacy.epsilon(privacy.with_variation(ideal, 1e-18, 3.0, 1e-9), 1e-6))
    # Twice itself, and once among what it proves at the horizon.
    assert np.isinf(privacy.epsilon(privacy.with_variation(ideal, 1e-18, 3.0, 2.9e-10), 1e-6))
