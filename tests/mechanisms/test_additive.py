"""Additive noise: its size, its independence, its dtypes, its price."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpsco_jax import privacy
from dpsco_jax.mechanisms import additive

MECHANISMS = {
    "gaussian": (additive.gaussian, scipy.stats.norm),
    "laplace": (additive.laplace, scipy.stats.laplace),
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
    with pytest.raises(ValueError, match="size of the noise"):
        mechanism(jax.random.key(0), jnp.zeros(2), jnp.ones(2))


def test_a_loss_of_traced_numbers_out_of_range_is_infinite():
    for loss_of in (additive.gaussian_loss, additive.laplace_loss):
        traced = jax.jit(loss_of)
        assert np.all(np.isfinite(traced(1.0, 2.0).rdp))
        pairs = [(-1.0, -2.0), (1.0, -2.0), (-1.0, 2.0), (1.0, 0.0), (0.0, 1.0)]
        pairs += [(np.nan, 1.0), (1.0, np.nan)]
        for pair in pairs:
            assert np.all(np.isinf(traced(*pair).rdp)), pair
