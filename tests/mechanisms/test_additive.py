"""Additive noise: its size, its independence, its dtypes, its price."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpsco_jax import privacy
from dpsco_jax.mechanisms import additive


class _Bounded:
    """Laplace variables of a scale, given that they are within a bound."""

    def __init__(self, scale, bound):
        self.law, self.bound = scipy.stats.laplace(scale=scale), bound

    def cdf(self, x):
        low, high = self.law.cdf(-self.bound), self.law.cdf(self.bound)
        return (self.law.cdf(np.clip(x, -self.bound, self.bound)) - low) / (high - low)


MECHANISMS = {
    "gaussian": (additive.gaussian, scipy.stats.norm),
    "laplace": (additive.laplace, scipy.stats.laplace),
    "bounded_laplace": (
        lambda key, tree, scale: additive.bounded_laplace(key, tree, scale, 2 * scale),
        lambda scale: _Bounded(scale, 2 * scale),
    ),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_adds_noise_of_the_stated_size_to_every_leaf_independently(name):
    mechanism, law = MECHANISMS[name]
    tree = {"a": jnp.full((100, 200), 3.0), "b": jnp.full(20_000, -1.0), "c": jnp.zeros(())}
    noised = jax.jit(mechanism)(jax.random.key(0), tree, 2.5)
    noise = [np.ravel(noised[k] - tree[k]).astype(np.float64) for k in "ab"]
    for sample in noise:
        assert scipy.stats.kstest(sample, law(scale=2.5).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(noise)[0, 1]) < 0.03
    assert noised["c"] != 0


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_noise_is_added_before_rounding(name, dtype):
    mechanism, _ = MECHANISMS[name]
    # In bfloat16 arithmetic noise of 0.1 on 256 would vanish in most entries: units are 1 or 2 there.
    value = jnp.asarray(np.linspace(200, 250, 64), dtype)
    key = jax.random.key(3)
    noised = mechanism(key, value, 0.1)
    assert noised.dtype == dtype
    wide = mechanism(jax.random.clone(key), value.astype(jnp.float32), 0.1)
    np.testing.assert_array_equal(noised, wide.astype(dtype))


def test_integers_are_released_as_floats():
    noised = additive.laplace(jax.random.key(0), jnp.arange(5), 1.0)
    assert noised.dtype == jnp.float32


@pytest.mark.parametrize("name", MECHANISMS)
def test_keys(name):
    mechanism, _ = MECHANISMS[name]
    key = jax.random.key(0)
    first = mechanism(key, jnp.zeros(3), 1.0)
    second = mechanism(jax.random.key(1), jnp.zeros(3), 1.0)
    assert not np.any(np.asarray(first) == np.asarray(second))
    with pytest.raises(jax.errors.KeyReuseError):
        mechanism(key, jnp.zeros(3), 1.0)
    with pytest.raises(ValueError, match="key"):
        mechanism(jax.random.split(jax.random.key(0)), jnp.zeros(3), 1.0)


def test_losses_divide_by_the_sensitivity():
    # Two data sets at the full sensitivity: N(0, σ²) against N(Δ, σ²) has Rényi divergence αΔ²/2σ².
    loss = additive.gaussian_loss(3.0, 2.0)
    np.testing.assert_allclose(loss.rdp, privacy.ORDERS * 4 / 18, rtol=1e-12)
    # The privacy loss of Laplace noise is at most Δ/b, which high orders approach.
    assert additive.laplace_loss(4.0, 2.0).rdp[-1] == pytest.approx(0.5, abs=2e-3)


@pytest.mark.parametrize("name", MECHANISMS)
def test_what_is_not_real_is_refused(name):
    """Complex numbers would keep their imaginary part exact; truth values are no numbers."""
    mechanism, _ = MECHANISMS[name]
    for wrong in (jnp.ones(2, jnp.complex64), 1j, {"a": jnp.ones(2), "b": jnp.asarray([True])}):
        for call in (mechanism, jax.jit(mechanism)):
            with pytest.raises(ValueError, match="tree must be a tree of real numbers"):
                call(jax.random.key(0), wrong, 1.0)


@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_has_one_size(name):
    mechanism, _ = MECHANISMS[name]
    with pytest.raises(ValueError, match="must be one number"):
        mechanism(jax.random.key(0), jnp.zeros(2), jnp.ones(2))


def test_bounded_noise_reaches_its_bound_and_no_farther():
    """Bounds of a hundredth of a scale, where noise is nearly uniform, and of 30, where it is Laplace."""
    for bound in (0.01, 1.0, 30.0):
        noise = additive.bounded_laplace(jax.random.key(3), jnp.zeros(200_000), 1.0, bound)
        assert np.max(np.abs(noise)) <= bound
        assert scipy.stats.kstest(np.float64(noise), _Bounded(1.0, bound).cdf).pvalue > 1e-3
        if bound <= 1:
            assert np.max(np.abs(noise)) > 0.999 * bound


@pytest.mark.parametrize(("bound", "sensitivity"), [(3.0, 0.5), (2.0, 2.0), (9.0, 1.0)])
def test_bounded_laplace_fails_with_the_stated_delta_exactly(bound, sensitivity):
    """The hockey-stick divergence of the two laws at ε = Δ / R, by quadrature."""
    scale = 1.5
    laws = [scipy.stats.laplace(loc=at, scale=scale) for at in (0.0, sensitivity)]
    mass = laws[0].cdf(bound) - laws[0].cdf(-bound)
    x = np.linspace(-bound, bound + sensitivity, 2_000_001)[:-1] + 0.5e-6
    p, q = (
        np.where(np.abs(x - at) <= bound, law.pdf(x) / mass, 0.0)
        for at, law in zip((0.0, sensitivity), laws, strict=True)
    )
    epsilon = sensitivity / scale
    step = (2 * bound + sensitivity) / 2_000_000
    failing = np.sum(np.maximum(p - np.exp(epsilon) * (1 + 1e-9) * q, 0.0)) * step
    loss = additive.bounded_laplace_loss(scale, bound, sensitivity)
    assert failing == pytest.approx(float(loss.delta), rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(loss.rdp, privacy.pure_dp(epsilon).rdp, rtol=1e-12)


def test_bounded_laplace_of_the_thesis_has_room():
    """Lemma 12.7.4, τ at least (Δ/ε)·log(4/δ) for ε ≤ 1: true, with four times too large a δ."""
    for epsilon in (0.1, 1.0):
        loss = additive.bounded_laplace_loss(1 / epsilon, np.log(4 / 1e-6) / epsilon, 1.0)
        assert loss.delta < 1e-6 / 4
        general = (1 + np.exp(epsilon)) * np.exp(-np.log(4 / 1e-6))
        assert loss.delta < general
    # Noise within less than the sensitivity gives neighbours away.
    with pytest.raises(ValueError, match="bound must be at least the sensitivity"):
        additive.bounded_laplace_loss(1.0, 0.9, 1.0)
    assert np.all(np.isinf(jax.jit(additive.bounded_laplace_loss)(1.0, 0.9, 1.0).rdp))


def test_a_loss_of_traced_numbers_out_of_range_is_infinite():
    for loss_of in (additive.gaussian_loss, additive.laplace_loss):
        traced = jax.jit(loss_of)
        assert np.all(np.isfinite(traced(1.0, 2.0).rdp))
        pairs = [(-1.0, -2.0), (1.0, -2.0), (-1.0, 2.0), (1.0, 0.0), (0.0, 1.0)]
        pairs += [(np.nan, 1.0), (1.0, np.nan)]
        for pair in pairs:
            assert np.all(np.isinf(traced(*pair).rdp)), pair
