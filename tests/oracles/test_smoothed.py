"""Smoothed user gradients with a shift for each item, or one for all."""

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.geometry import domains
from dpsco_jax.oracles import gradients, smoothed
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData

USERS, ITEMS = 40, 25
ABSOLUTE = Objective(
    loss=lambda w, z: jnp.abs(w - z),
    lipschitz=1.0,
    smoothness=None,
    domain=domains.whole_space(),
)
DATA = UserData(jnp.zeros((USERS, ITEMS)))


def _by_item(radius=1.0, chunk_size=None):
    gradient = smoothed.user_gradient_by_item(ABSOLUTE, radius)
    return gradients.per_user_gradients(gradient, chunk_size=chunk_size)


def _common(radius=1.0):
    one = gradients.per_user_gradients(gradients.user_gradient(ABSOLUTE))
    return smoothed.at_shifted_point(one, radius)


def test_shifts_of_items_average_out_within_each_user():
    """|w| smoothed within r has gradient w/r; one item has variance 1 - (w/r)²."""
    keys = jax.random.split(jax.random.key(0), 200)
    rows = jax.jit(jax.vmap(lambda k: _by_item()(k, jnp.asarray(0.3), DATA).gradient))(keys)
    assert rows.shape == (200, USERS)
    np.testing.assert_allclose(np.mean(rows), 0.3, atol=0.01)
    np.testing.assert_allclose(np.var(rows), (1 - 0.09) / ITEMS, rtol=0.1)
    by_step = np.mean(rows, axis=1)
    np.testing.assert_allclose(np.var(by_step), (1 - 0.09) / (ITEMS * USERS), rtol=0.4)


def test_a_common_shift_moves_all_users_alike():
    keys = jax.random.split(jax.random.key(1), 2000)
    rows = jax.jit(jax.vmap(lambda k: _common()(k, jnp.asarray(0.3), DATA).gradient))(keys)
    np.testing.assert_array_equal(rows, np.broadcast_to(rows[:, :1], rows.shape))
    np.testing.assert_allclose(np.mean(rows), 0.3, atol=0.1)


def test_no_radius_no_shift_and_masked_items_do_not_count():
    items = jnp.asarray([[-1.0, 2.0], [-1.0, 0.0]])
    data = UserData(items, jnp.asarray([[True, True], [True, False]]))
    key = jax.random.key(2)
    expected = [0.0, 1.0]
    by_item = _by_item(0.0)(jax.random.clone(key), jnp.asarray(0.5), data)
    np.testing.assert_array_equal(by_item.gradient, expected)
    assert by_item.num_gradients == 3
    np.testing.assert_array_equal(_common(0.0)(key, jnp.asarray(0.5), data).gradient, expected)


def test_chunks_change_nothing():
    def rows(chunk_size):
        return _by_item(1.0, chunk_size)(jax.random.key(3), jnp.asarray(0.3), DATA).gradient

    np.testing.assert_allclose(rows(None), rows(7), atol=1e-6)
