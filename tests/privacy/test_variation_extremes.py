"""Gaussian DP up to total variation where floats end: against arithmetic of many digits."""

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpsco_jax import Infeasible, privacy

LEAST, MOST = 5e-324, 1.7e308


def _exact_delta(mu, tau, epsilon, digits=50):
    """δ_μ(ε) + (1 + e^ε)·τ as it is defined; digits enough for what cancels."""
    with mpmath.workdps(digits):
        mu, tau, epsilon = map(mpmath.mpf, (mu, tau, epsilon))
        grown = mpmath.exp(epsilon)
        ideal = mpmath.mpf(0)
        # Beyond that it is less than any float, and mpmath does not say how much.
        if mu > 0 and epsilon < 1e50 * mu:
            ideal = mpmath.ncdf(mu / 2 - epsilon / mu) - grown * mpmath.ncdf(-mu / 2 - epsilon / mu)
        return ideal + (1 + grown) * tau


@pytest.mark.parametrize(
    ("tau", "epsilon"), [(1e-310, 1400.0), (1e-310, 705.0), (LEAST, 740.0), (1e-300, 690.0)]
)
def test_a_tiny_distance_grows_by_all_of_e_to_the_epsilon(tau, epsilon):
    """Where exp overflows the product need not: 1e-310·e^705 is 1.5e-4."""
    truth = min(float(_exact_delta(0.3, tau, epsilon)), 1.0)
    found = privacy.variation_delta(0.3, tau, epsilon)
    assert truth <= found <= truth * (1 + 1e-11)


SIZES = [0.0, LEAST, 1e-300, 1e-160, 1e-3, 1.0, 30.0, 1e8, 1e154, 1e200, MOST]
EPSILONS = [0.0, LEAST, 1e-200, 1e-3, 1.0, 700.0, 720.0, 1e5, 1e155, MOST]


@pytest.mark.parametrize("mu", SIZES)
def test_delta_is_never_less_than_it_is(mu):
    """No underflow to zero, no NaN, wherever the numbers are in their range."""
    for epsilon, tau in itertools.product(EPSILONS, [0.0, LEAST, 1e-310, 1e-20, 1.0]):
        found = privacy.variation_delta(mu, tau, epsilon)
        assert 0 <= found <= 1, (tau, epsilon)
        if mu < 1e100 and epsilon < 1e100:
            truth = _exact_delta(mu, tau, epsilon, digits=700)
            assert truth >= 0
            assert found >= min(truth, 1), (tau, epsilon)
        assert found > 0 or mu == tau == 0, (tau, epsilon)


def test_an_underflow_rounds_up():
    # Φ(-100) is 1e-2174, and δ is below it.
    assert privacy.variation_delta(0.01, 0.0, 1.0) == LEAST
    assert privacy.variation_delta(0.01, LEAST, 1.0) > LEAST
    assert privacy.variation_delta(0.0, 0.0, 1.0) == 0.0
    assert privacy.gdp_within(1.0, 1e-300) > 0.02


@pytest.mark.parametrize("epsilon", [1e-300, 1e-100, 1e-6, 1.0, 700.0, 1e6, 1e155, 1e300])
@pytest.mark.parametrize("delta", [LEAST, 1e-300, 1e-6, 0.9])
def test_what_is_said_to_hold_holds(epsilon, delta):
    mu = privacy.gdp_within(epsilon, delta)
    assert mu > 0
    assert privacy.variation_delta(mu, 0.0, epsilon) <= delta
    if epsilon < 1e10:
        assert _exact_delta(mu, 0.0, epsilon, digits=700) <= delta


@pytest.mark.parametrize("mu", [1e9, 1e155, 1e200, MOST])
def test_a_huge_size_has_a_huge_epsilon(mu):
    found = privacy.variation_epsilon(mu, 0.0, 1e-6)
    assert found >= min(0.5 * mu, 1e154) * mu * (1 - 1e-9)
    assert privacy.variation_epsilon(mu, 0.5, 1e-6) == math.inf


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: privacy.variation_delta(bad, 0.0, 1.0),
        lambda bad: privacy.variation_epsilon(bad, 0.0, 1e-6),
    ],
)
@pytest.mark.parametrize("bad", [-1.0, math.inf, 10**400, np.array([0.1, 0.2]), np.array([0.1])])
def test_the_size_is_refused_by_its_name(call, bad):
    with pytest.raises(ValueError, match=r"^mu must be"):
        call(bad)


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: privacy.variation_delta(0.1, bad, 1.0),
        lambda bad: privacy.variation_epsilon(0.1, bad, 1e-6),
        lambda bad: privacy.gdp_within(1.0, 1e-6, bad),
    ],
)
@pytest.mark.parametrize("bad", [np.zeros(2), np.zeros(1), jnp.zeros(2), 1.5, math.nan])
def test_the_distance_is_one_number(call, bad):
    with pytest.raises(ValueError, match=r"^variation must be"):
        call(bad)
    for good in (0, 0.0, np.float32(0), np.zeros(()), jnp.zeros(())):
        call(good)


@pytest.mark.parametrize("epsilon", [1e-9, 0.1, 1.0, 20.0, 700.0, 745.0, 1400.0])
@pytest.mark.parametrize("delta", [1e-310, 1e-200, 1e-6, 0.3])
def test_the_limit_that_is_named_works(epsilon, delta):
    with pytest.raises(Infeasible, match=r"^variation must be below delta/\(1 \+ exp") as refusal:
        privacy.gdp_within(epsilon, delta, min(2 * delta / (1 + math.exp(-epsilon)), 1.0))
    named = refusal.value.needed["variation"]
    assert repr(named) in str(refusal.value)
    assert privacy.gdp_within(epsilon, delta, named) > 0
    limit = mpmath.mpf(delta) / (1 + mpmath.exp(epsilon))
    assert named <= limit <= named * (1 + 1e-8) + 2 * LEAST


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2, 0.5])
def test_the_inverse_is_as_exact_as_is_said(epsilon, delta):
    found = privacy.gdp_within(epsilon, delta)
    assert _exact_delta(found, 0.0, epsilon) <= delta
    assert _exact_delta(found * (1 + (1e-11 if epsilon >= 0.1 else 1e-8)), 0.0, epsilon) > delta


def _exact_rdp(rdp, tau, horizon, delta, failure=0.0):
    """The theorem of docs/theory/variation.md, nothing but failures being beyond the horizon."""
    with mpmath.workdps(60):
        tau, horizon, delta, failure = map(mpmath.mpf, map(float, (tau, horizon, delta, failure)))
        eta = 2 * tau * (1 + mpmath.exp(horizon)) / (delta - tau - 3 * failure)
        assert eta < 1
        return [
            mpmath.mpf(float(each))
            + mpmath.mpf(a) / (mpmath.mpf(a) - 1) * (mpmath.log1p(eta) - mpmath.log1p(-delta))
            - mpmath.log1p(-eta)
            - mpmath.log1p(-failure)
            for each, a in zip(rdp, privacy.ORDERS, strict=True)
        ]


def _not_below(found, exact):
    return all(mpmath.mpf(float(a)) >= b for a, b in zip(found, exact, strict=True))


def test_the_sum_is_rounded_up_too():
    """Growth of 1e-20 is below the last digit of a divergence of 1."""
    ideal = privacy.PrivacyLoss(np.geomspace(0.9, 1.1, len(privacy.ORDERS)), np.zeros(()))
    # At a horizon of 60 this loss fails with less than e^-3000 at its largest orders.
    found = privacy.with_variation(ideal, 1e-66, 60.0, 1e-20)
    assert _not_below(found.rdp, _exact_rdp(ideal.rdp, 1e-66, 60.0, 1e-20))
    np.testing.assert_allclose(found.rdp, ideal.rdp, rtol=1e-13)


@pytest.mark.parametrize("count", [0, 70_000, 500_000, 2_000_000])
def test_single_precision_is_not_below_what_it_was_given(count):
    """A horizon near 64 that is rounded down to float32 takes 4e-6 off e^h; η near 1 shows it."""
    delta = np.float32(1e-3)
    horizon = 64.0 + (count + 0.49) * 2.0**-17
    tau = np.float32(0.475 * float(delta) / math.exp(horizon))
    found = privacy.with_variation(privacy.zero(), jnp.asarray(tau), horizon, delta)
    assert found.rdp.dtype == np.float32
    assert _not_below(found.rdp, _exact_rdp(np.zeros_like(found.rdp), tau, horizon, delta))


@pytest.mark.parametrize("horizon", [709.5, 720.0, 5000.0])
def test_a_horizon_beyond_the_floats_proves_nothing(horizon):
    """Its mass (2τ/η)·e^h is above 1 for every η below 1, or cannot be computed."""
    found = privacy.with_variation(privacy.gdp(0.2), 1e-310, horizon, 1e-3)
    assert np.all(np.isinf(found.rdp))
    assert np.isfinite(privacy.with_variation(privacy.gdp(0.2), 1e-310, 690.0, 1e-3).rdp[0])
    single = privacy.with_variation(privacy.gdp(0.2), jnp.float32(1e-37), 88.5, 0.5)
    assert np.all(np.isinf(single.rdp))


def test_only_a_zero_that_is_seen_is_exact():
    """1e-40 counts as zero in float32, and e^87 times it is 0.006."""
    ideal = privacy.gdp(0.2)

    def spent(tau, horizon=87.0):
        return privacy.with_variation(ideal, tau, horizon, 1e-3)

    for flushed in (jnp.float32(1e-40), jnp.float32(0.0), 1e-40 * jnp.ones(())):
        assert np.all(np.isinf(spent(flushed).rdp))
        assert np.all(np.isinf(jax.jit(spent)(flushed).rdp))
    assert np.all(np.isinf(privacy.with_variation(ideal, 1e-40, jnp.float32(87.0), 1e-3).rdp))
    near = jax.jit(lambda tau: spent(tau, 3.0))(jnp.float32(0.0))
    assert near.delta == np.float32(1e-3)
    assert np.all(near.rdp > ideal.rdp)
    for seen in (0, 0.0, np.float32(0.0), np.zeros(())):
        same = spent(seen)
        np.testing.assert_array_equal(same.rdp, ideal.rdp)
        assert same.delta == 0.0
    both = privacy.with_variation(ideal, np.array([0.0, 1e-12]), 3.0, jnp.float32(1e-3))
    np.testing.assert_array_equal(both.delta, np.float32([0.0, 1e-3]))


def test_failures_that_are_flushed_count():
    """A δ_0 of 9e-39 reads as zero in float32, and so does what it leaves beyond the horizon."""
    ideal = privacy.PrivacyLoss(np.zeros(len(privacy.ORDERS)), np.asarray(9e-39))
    tau, delta = np.finfo(np.float32).tiny, np.float32(3e-37)
    found = privacy.with_variation(ideal, jnp.asarray(tau), 0.0, delta)
    assert _not_below(found.rdp, _exact_rdp(ideal.rdp, tau, 0.0, delta, 9e-39))
    assert np.isinf(privacy.with_variation(ideal, jnp.asarray(tau), 0.0, 1.5e-38).rdp[0])
