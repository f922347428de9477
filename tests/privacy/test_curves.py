"""Curves of single releases against closed forms in arbitrary precision, and laws that all curves obey."""

import itertools

import chex
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent
from dp_accounting.rdp import RdpAccountant

from dpsco_jax import privacy
from dpsco_jax.privacy import ORDERS
from tests.privacy import references  # noqa: F401 (sets the working precision)

_SIZES = (1e-8, 1e-4, 0.01, 0.3, 1.0, 3.0, 50.0, 700.0)
_SOME = range(0, len(ORDERS), 13)


def _laplace(a, b):
    x = 1 / mp.mpf(b)
    terms = a * mp.exp((a - 1) * x) + (a - 1) * mp.exp(-a * x)
    return mp.log(terms / (2 * a - 1)) / (a - 1)


def _randomized_response(a, e):
    return mp.log((mp.exp(a * e) + mp.exp((1 - a) * e)) / (1 + mp.exp(e))) / (a - 1)


def _two_ends(a, e):
    def g(y):
        return mp.log(mp.sinh(y) / y)

    return (a * g(a * e / 2) - (a - 1) * g((a - 1) * e / 2) - g(e / 2)) / (a - 1)


def _answer_above(a, e):
    p, q = mp.exp(e) / (1 + mp.exp(e)), 1 / (1 + mp.exp(e))
    return mp.log(p**a * q ** (1 - a) / (1 - q**a * p ** (1 - a))) / (a - 1)


_CLOSED_FORMS = {
    "gaussian": (privacy.gaussian, lambda a, s: a / (2 * s * s)),
    "gdp": (privacy.gdp, lambda a, m: a * m * m / 2),
    "laplace": (privacy.laplace, _laplace),
    "pure_dp": (privacy.pure_dp, _randomized_response),
    "bounded_range": (privacy.bounded_range, _two_ends),
    "threshold_answer": (privacy.threshold_answer, _answer_above),
}

# Name, curve, arguments from more to less private, and which of them may be traced.
CURVES = {
    "gaussian": (privacy.gaussian, [(3.0,), (1.0,), (0.2,)]),
    "laplace": (privacy.laplace, [(10.0,), (1.0,), (0.1,)]),
    "pure_dp": (privacy.pure_dp, [(0.01,), (1.0,), (8.0,)]),
    "bounded_range": (privacy.bounded_range, [(0.01,), (1.0,), (8.0,)]),
    "threshold_answer": (privacy.threshold_answer, [(0.01,), (1.0,), (8.0,)]),
    "approximate_dp": (privacy.approximate_dp, [(0.01, 0.0), (1.0, 1e-9), (8.0, 1e-8)]),
    "gdp": (privacy.gdp, [(0.1,), (1.0,), (5.0,)]),
    "poisson": (privacy.poisson_subsampled_gaussian, [(4.0, 0.001), (2.0, 0.01), (0.5, 0.3)]),
    "poisson_replaced": (
        privacy.poisson_replaced_gaussian,
        [(4.0, 0.001), (2.0, 0.01), (0.5, 0.3)],
    ),
    "user_sampled": (
        privacy.user_sampled_gaussian,
        [(4.0, 0.001, 1.5), (2.0, 0.01, 2.5), (0.5, 0.3, 9.0)],
    ),
    "item_sampled": (
        lambda sigma, q: privacy.item_sampled_gaussian(sigma, q, 3),
        [(4.0, 0.001), (2.0, 0.01), (0.5, 0.3)],
    ),
    "without_replacement": (
        privacy.subsampled_gaussian_without_replacement,
        [(4.0, 1000, 1), (2.0, 1000, 10), (0.5, 1000, 300)],
    ),
    "with_replacement": (
        privacy.subsampled_gaussian_with_replacement,
        [(9.0, 1000, 1), (6.0, 1000, 10), (5.0, 1000, 300)],
    ),
}


@pytest.mark.parametrize("name", _CLOSED_FORMS)
def test_matches_mpmath_and_is_never_below(name):
    curve, exact = _CLOSED_FORMS[name]
    with mp.workdps(60):
        for size in _SIZES:
            rdp = curve(size).rdp
            for i in _SOME:
                true = exact(mp.mpf(float(ORDERS[i])), mp.mpf(size))
                error = float((mp.mpf(float(rdp[i])) - true) / true)
                assert 0.0 <= error <= 1e-10, (size, ORDERS[i])


@pytest.mark.parametrize("name", _CLOSED_FORMS)
def test_float32_is_never_below_the_host(name):
    curve, _ = _CLOSED_FORMS[name]
    sizes = np.geomspace(1e-4, 1e4, 200, dtype=np.float32)
    found = np.float64(jax.jit(chex.assert_max_traces(curve, n=1))(jnp.asarray(sizes)).rdp)
    ratio = found / curve(np.float64(sizes)).rdp
    assert ratio.min() >= 1 - 1e-7
    assert ratio.max() <= 1 + 5e-4
    assert np.median(ratio) <= 1 + 1e-5


def test_agrees_with_dp_accounting():
    for event, loss in [
        (GaussianDpEvent(0.7), privacy.gaussian(0.7)),
        (LaplaceDpEvent(0.7), privacy.laplace(0.7)),
    ]:
        accountant = RdpAccountant(ORDERS)
        accountant.compose(event)
        np.testing.assert_allclose(loss.rdp, accountant._rdp, rtol=1e-6)


def test_the_quadratic_bounds_lie_above():
    for eps in _SIZES:
        exact, quadratic = privacy.pure_dp(eps), privacy.pure_dp(eps, bound="quadratic")
        np.testing.assert_allclose(
            quadratic.rdp, np.minimum(0.5 * ORDERS * eps**2, eps), rtol=1e-14
        )
        assert np.all(exact.rdp <= quadratic.rdp)
        assert np.all(privacy.bounded_range(eps).rdp <= exact.rdp * (1 + 1e-12))
    assert privacy.pure_dp(0.0).rdp.max() == 0
    assert privacy.bounded_range(0.0).rdp.max() == 0
    assert np.all(np.isinf(privacy.pure_dp(np.inf).rdp))


def test_approximate_dp_is_pure_dp_that_may_fail():
    loss = privacy.approximate_dp(2.0, 1e-6)
    np.testing.assert_array_equal(loss.rdp, privacy.pure_dp(2.0).rdp)
    assert loss.delta == 1e-6
    assert privacy.epsilon(loss, 1e-6) == np.inf
    assert privacy.epsilon(loss, 2e-6) == pytest.approx(2.0, rel=1e-3)
    batch = privacy.approximate_dp(np.ones(3), np.asarray([[1e-6], [1e-5]]))
    assert batch.delta.shape == (2, 3)
    assert batch.rdp.shape == (2, 3, len(ORDERS))


_traced_epsilon = jax.jit(lambda loss: privacy.epsilon(loss, 1e-5))


@pytest.mark.parametrize("name", CURVES)
class TestEveryCurve:
    def test_repetition_is_composition(self, name):
        curve, settings = CURVES[name]
        loss = curve(*settings[1])
        chex.assert_trees_all_close(
            privacy.compose(*[loss] * 7), privacy.scale(loss, 7), rtol=1e-13
        )
        chex.assert_trees_all_close(privacy.scale(loss, 0), privacy.zero())

    def test_order_of_composition_does_not_matter_and_parallel_is_cheaper(self, name):
        curve, settings = CURVES[name]
        first, second = curve(*settings[0]), privacy.gaussian(1.3)
        chex.assert_trees_all_close(
            privacy.compose(first, second), privacy.compose(second, first), rtol=1e-15
        )
        apart, together = privacy.parallel(first, second), privacy.compose(first, second)
        assert np.all(apart.rdp <= together.rdp)
        assert np.all(apart.rdp >= np.maximum(first.rdp, second.rdp))

    def test_monotone_in_setting_steps_and_delta(self, name):
        curve, settings = CURVES[name]
        losses = [curve(*setting) for setting in settings]
        for less, more in itertools.pairwise(losses):
            assert np.all(less.rdp <= more.rdp)
        spent = [
            [privacy.epsilon(privacy.scale(losses[1], steps), delta) for steps in (1, 10, 1000)]
            for delta in (1e-4, 1e-5, 1e-5)
        ]
        assert np.all(np.diff(spent, axis=1) >= 0)
        assert np.all(np.diff(spent, axis=0) >= 0)

    def test_in_jit_it_bounds_the_host_value(self, name):
        curve, settings = CURVES[name]
        if name == "with_replacement":
            settings = settings[1:2]
        jitted = jax.jit(chex.assert_max_traces(curve, n=1))
        for setting in settings:
            loss = jitted(*map(jnp.float32, setting))
            host = curve(*[float(np.float32(value)) for value in setting])
            assert loss.rdp.dtype == jnp.float32
            assert np.all(np.float64(loss.rdp) >= host.rdp * (1 - 1e-6))
            found, expected = _traced_epsilon(loss), privacy.epsilon(host, 1e-5)
            assert expected * (1 - 1e-5) <= found <= expected * 1.001 + 1e-6


def _gradients_are_finite(curve, settings):
    gradient = jax.jit(jax.grad(lambda x: curve(x, *settings[1][1:]).rdp.sum()))
    return all(np.isfinite(gradient(size)) for size in (1e-4, 0.5, 30.0))


_MIXTURES = ("poisson_replaced", "user_sampled", "item_sampled")


def test_gradients_are_finite():
    for name, (curve, settings) in CURVES.items():
        if name in ("poisson", "without_replacement", "with_replacement", *_MIXTURES):
            continue  # tests/privacy/test_poisson.py, and below
        assert _gradients_are_finite(curve, settings), name


@pytest.mark.slow  # half a minute of compilation
def test_gradients_of_mixtures_are_finite():
    for name in _MIXTURES:
        assert _gradients_are_finite(*CURVES[name]), name
