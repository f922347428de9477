"""Lazy draws: how often a point is kept, also where it nearly always or never is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.mechanisms import _draws
from dpsco_jax.mechanisms.lazy_draws import lazy_draw


def drawn(exponent, count=200_000, seed=0):
    def one(key):
        found = lazy_draw(key, jnp.float32(7.0), exponent, lambda k: jax.random.uniform(k))
        return found.point, found.fresh

    point, fresh = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(seed), count))
    return np.asarray(point), np.asarray(fresh)


@pytest.mark.parametrize("exponent", [0.001, 0.5, 3.0])
def test_a_point_is_kept_with_its_probability_and_else_drawn(exponent):
    point, fresh = drawn(exponent)
    q = -np.expm1(-exponent)
    assert abs(fresh.mean() - q) < 4 * np.sqrt(q * (1 - q) / len(fresh))
    np.testing.assert_array_equal(fresh, point != 7.0)
    new = point[fresh]
    assert np.all((new >= 0) & (new < 1))
    # The draw has nothing to do with the coin.
    assert abs(new.mean() - 0.5) < 4 * np.sqrt(1 / 12 / len(new))


def test_coin_and_draw_have_keys_of_their_own():
    """A draw of the law of the coin: by the key of the coin it would always be below the exponent."""
    law = lambda key: _draws.exponential(key, (), jnp.float32)  # noqa: E731
    run = jax.vmap(lambda key: lazy_draw(key, jnp.float32(7.0), 0.5, law))
    found = run(jax.random.split(jax.random.key(0), 4000))
    assert 0.3 < np.mean(np.asarray(found.point)[np.asarray(found.fresh)] < 0.5) < 0.5


def test_the_ends():
    assert not drawn(0.0)[1].any()
    assert drawn(jnp.inf)[1].all()
    one = lazy_draw(jax.random.key(0), jnp.float32(7.0), 0.0, lambda k: jax.random.uniform(k))
    assert float(one.point) == 7.0


def test_keys_that_draw_alike_in_a_batch_are_refused():
    keys = jnp.stack([jax.random.key(s, impl="rbg") for s in (0, 1)])
    with pytest.raises(ValueError, match=r"key must be one of threefry2x32 under jax\.vmap"):
        jax.eval_shape(
            jax.vmap(lambda key: lazy_draw(key, jnp.float32(1.0), 0.5, jax.random.uniform)), keys
        )
