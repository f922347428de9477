"""The Poisson-subsampled Gaussian against mpmath and dp_accounting, on the host and in float32."""

import functools

import chex
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from dpsco_jax import privacy
from dpsco_jax.privacy import ORDERS, PrivacyLoss
from dpsco_jax.privacy.curves.poisson import is_exact, poisson_subsampled_gaussian
from tests.privacy.references import sampled_gaussian_rdp
from tests.support.compiled import OPTIMIZED


def _log_uniform(rng: np.random.Generator, low: float, high: float, size: int) -> np.ndarray:
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


@functools.cache
def _jitted():
    """Curve, exactness and ε in one program, shared by the tests."""

    def everything(sigma, q, steps, delta):
        loss = poisson_subsampled_gaussian(sigma, q)
        spent = privacy.epsilon(privacy.scale(loss, steps), delta)
        return loss.rdp, is_exact(sigma, q), spent

    return jax.jit(chex.assert_max_traces(everything, n=1))


def _relative_error(value: float, exact: mp.mpf) -> float:
    return float((mp.mpf(float(value)) - exact) / exact)


def test_integer_orders_match_mpmath_and_are_never_below():
    whole = np.flatnonzero((ORDERS % 1 == 0) & (ORDERS <= 200))
    rng = np.random.default_rng(0)
    sigmas, rates = _log_uniform(rng, 0.3, 300, 60), _log_uniform(rng, 1e-5, 1, 60)
    for sigma, q in zip(sigmas, rates, strict=True):
        rdp, exact = poisson_subsampled_gaussian(sigma, q).rdp, is_exact(sigma, q)
        for i in rng.choice(whole[exact[whole]], 3):
            error = _relative_error(rdp[i], sampled_gaussian_rdp(ORDERS[i], sigma, q))
            assert 0.0 <= error <= 1e-10, (sigma, q, ORDERS[i])


def test_fractional_orders_match_mpmath_and_are_never_below():
    broken = np.flatnonzero((ORDERS % 1 != 0) & (ORDERS < 8))
    sigmas = [0.3, 0.31, 0.5, 0.8, 0.95, 1.0, 2.0, 5.0, 20.0, 300.0]
    rates = [1e-5, 0.9, 4e-5, 1e-3, 0.5, 1e-2, 0.1, 1e-4, 0.03, 0.99]
    rng = np.random.default_rng(1)
    for sigma, q in zip(sigmas, rates, strict=True):
        rdp, exact = poisson_subsampled_gaussian(sigma, q).rdp, is_exact(sigma, q)
        for i in rng.choice(broken[exact[broken]], 1):
            error = _relative_error(rdp[i], sampled_gaussian_rdp(ORDERS[i], sigma, q))
            assert 0.0 <= error <= 1e-10, (sigma, q, ORDERS[i])


def test_where_it_is_not_exact_it_is_a_bound_below_the_unsampled_curve():
    for sigma, q in [(0.3, 1e-5), (0.32, 2e-4), (0.26, 1e-3), (0.2, 1e-5), (0.2, 0.1), (0.05, 0.5)]:
        loss, exact = poisson_subsampled_gaussian(sigma, q), is_exact(sigma, q)
        loose = np.flatnonzero(~exact & (ORDERS % 1 == 0) & (ORDERS < 300))
        for i in [*loose[:2], *loose[-1:]]:
            assert _relative_error(loss.rdp[i], sampled_gaussian_rdp(ORDERS[i], sigma, q)) >= 0
        assert np.all(loss.rdp <= privacy.gaussian(sigma).rdp * (1 + 1e-12))


def test_exact_almost_everywhere_in_the_working_range():
    rng = np.random.default_rng(2)
    sigma, q = _log_uniform(rng, 0.3, 300, 300), _log_uniform(rng, 1e-5, 1, 300)
    assert np.mean(is_exact(sigma, q)) > 0.999


def test_values_and_epsilons_agree_with_dp_accounting_at_whole_orders():
    whole = np.flatnonzero((ORDERS % 1 == 0) & (ORDERS < 130))[::2]
    compared = 0
    for sigma in (0.5, 0.8, 1.0, 2.0, 4.0, 10.0, 50.0):
        for q in (1e-4, 1e-3, 1e-2, 0.1, 0.3):
            theirs = RdpAccountant(ORDERS[whole])
            theirs.compose(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)))
            ours = poisson_subsampled_gaussian(sigma, q)
            # Their logarithm of a number near 1 keeps 1e-16 of it, not of what it exceeds 1 by.
            usable = theirs._rdp * (ORDERS[whole] - 1) > 1e-9
            np.testing.assert_allclose(ours.rdp[whole][usable], theirs._rdp[usable], rtol=1e-6)
            compared += usable.sum()
            rdp = np.full_like(ours.rdp, np.inf)
            rdp[whole] = ours.rdp[whole]
            for steps in (1, 100, 10_000):
                repeated = RdpAccountant(ORDERS[whole])
                repeated.compose(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), steps)
                for delta in (1e-9, 1e-5, 1e-3, 1e-2, 0.05):
                    loss = privacy.scale(PrivacyLoss(rdp, np.zeros(())), steps)
                    expected = repeated.get_epsilon(delta)
                    found = privacy.epsilon(loss, delta)
                    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9), (sigma, q, steps)
                    compared += 1
    assert compared >= 1000


def test_float32_in_jit_is_never_below_the_host():
    rng = np.random.default_rng(3)
    sigma, q = (
        np.float32(_log_uniform(rng, 0.3, 300, 10_000)),
        np.float32(_log_uniform(rng, 1e-5, 1, 10_000)),
    )
    steps, delta = (
        np.rint(_log_uniform(rng, 1, 1e6, 10_000)).astype(np.float32),
        np.float32(_log_uniform(rng, 1e-12, 0.1, 10_000)),
    )
    rdp, exact, spent = (
        np.asarray(x) for x in _jitted()(*map(jnp.asarray, (sigma, q, steps, delta)))
    )
    assert np.all(np.isfinite(rdp) & (rdp > 0))
    assert np.all(np.isfinite(spent) & (spent >= 0))
    some = slice(0, 400)
    args = [np.float64(x[some]) for x in (sigma, q)]
    host, host_exact = poisson_subsampled_gaussian(*args), is_exact(*args)
    both = exact[some] & host_exact
    ratio = np.float64(rdp[some]) / host.rdp
    assert ratio.min() >= 1.0
    assert ratio[both].max() < 1.01
    assert np.median(ratio[both]) < 1.0 + 2e-5
    expected = privacy.epsilon(
        privacy.scale(host, np.float64(steps[some])), np.float64(delta[some])
    )
    assert np.all(spent[some] >= expected * (1 - 1e-5))
    tight = expected > 1e-3
    assert np.all(spent[some][tight] <= expected[tight] * 1.01)


def test_monotone_in_noise_and_rate_on_the_host():
    sigma, q = np.geomspace(0.21, 100, 24), np.geomspace(1e-6, 1, 16)
    rdp = poisson_subsampled_gaussian(sigma[:, None], q[None, :]).rdp
    assert np.all(np.diff(rdp, axis=0) <= 1e-9 * rdp[1:])
    assert np.all(np.diff(rdp, axis=1) >= -1e-9 * rdp[:, 1:])
    assert np.all(np.diff(rdp, axis=2) >= -1e-9 * rdp[..., 1:]), "a divergence grows with its order"


def test_ends_of_the_range():
    np.testing.assert_allclose(
        poisson_subsampled_gaussian(2.0, 1.0).rdp, privacy.gaussian(2.0).rdp, rtol=1e-14
    )
    assert np.all(poisson_subsampled_gaussian(2.0, 0.0).rdp == 0)
    assert np.all(np.isinf(poisson_subsampled_gaussian(0.0, 0.1).rdp))
    assert np.all(poisson_subsampled_gaussian(0.0, 0.0).rdp == 0)
    assert np.all(poisson_subsampled_gaussian(np.inf, 0.5).rdp < 1e-300)
    assert np.all(is_exact(2.0, [0.0, 1.0]))


@pytest.mark.slow
def test_gradients_are_finite_and_have_the_right_sign():
    def spent(sigma, q):
        return privacy.epsilon(privacy.scale(poisson_subsampled_gaussian(sigma, q), 100.0), 1e-5)

    sigma = jnp.asarray([0.01, 0.3, 1.0, 1.0, 1.0, 30.0, 300.0])
    q = jnp.asarray([0.1, 1e-3, 0.0, 1.0, 0.02, 1e-4, 0.5])
    slopes = jax.vmap(jax.grad(spent, argnums=(0, 1)))
    by_sigma, by_q = jax.jit(slopes, compiler_options=OPTIMIZED)(sigma, q)
    assert np.all(np.isfinite(by_sigma))
    assert np.all(np.isfinite(by_q))
    assert by_sigma[4] < 0 < by_q[4]
    step = 1e-4
    numeric = (spent(1.0 + step, 0.02) - spent(1.0 - step, 0.02)) / (2 * step)
    assert by_sigma[4] == pytest.approx(numeric, rel=1e-2)


def test_replacement_is_refused():
    with pytest.raises(ValueError, match="relation"):
        poisson_subsampled_gaussian(1.0, 0.1, NeighboringRelation.REPLACE_ONE)
