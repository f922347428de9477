"""Pushes where a gradient is small, and the point of the shortest gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax import transforms


def _run(transformation, updates, points=None):
    """What comes out for updates ``[steps, dim]``, and the last state."""
    points = jnp.zeros_like(updates) if points is None else points

    def step(state, each):
        moved, state = transformation.update(each[0], state, each[1])
        return state, moved

    state, moved = jax.jit(lambda u, p: jax.lax.scan(step, transformation.init(points[0]), (u, p)))(
        updates, points
    )
    return np.asarray(moved), state


@pytest.mark.parametrize(
    ("wait", "expected"),
    [(1, [1, 1, 0, 1, 1, 1, 1]), (2, [1, 0, 0, 1, 0, 1, 0]), (3.5, [1, 0, 0, 0, 1, 0, 0])],
)
def test_pushes_come_where_the_update_is_small_and_not_too_often(wait, expected):
    """At the threshold itself there is a push; long, NaN and infinite updates have none."""
    lengths = np.float32([0.0, 2.0, 2.1, 1.0, 0.5, 1.0, 1.0])
    updates = jnp.asarray(lengths[:, None] * np.float32([[0.6, 0.8]]))
    pushed, state = _run(transforms.perturb_when_small(jax.random.key(0), 2.0, 1.0, wait), updates)
    found = np.any(pushed != np.asarray(updates), axis=1)
    np.testing.assert_array_equal(found, np.asarray(expected, bool))
    assert int(state.pushes) == sum(expected)
    odd = jnp.asarray([[jnp.nan, 0.0], [jnp.inf, 0.0]])
    _, state = _run(transforms.perturb_when_small(jax.random.key(0), 2.0, 1.0, 1), odd)
    assert int(state.pushes) == 0


def test_pushes_are_gaussian_of_the_deviation_and_each_is_drawn_anew():
    push = transforms.perturb_when_small(jax.random.key(3), 1.0, 0.3, 1)
    pushed, _ = _run(push, jnp.zeros((4000, 2)))
    # The deviation of 8,000 numbers is known to 0.8 %, a correlation of 4,000 to 0.016.
    assert np.std(pushed) == pytest.approx(0.3, rel=0.032)
    assert abs(np.corrcoef(pushed[:-1, 0], pushed[1:, 0])[0, 1]) < 0.064
    assert abs(np.corrcoef(pushed[:, 0], pushed[:, 1])[0, 1]) < 0.064
    assert len(np.unique(pushed[:, 0])) > 3990


def test_the_point_of_the_shortest_update_is_kept_and_updates_are_left_alone():
    updates = jnp.asarray([[3.0, 0], [0, 2.0], [jnp.nan, 0], [2.0, 0], [5.0, 1.0]])
    points = jnp.arange(10.0).reshape(5, 2)
    chain = optax.chain(transforms.smallest(), optax.scale(-1.0))
    moved, state = _run(chain, updates, points)
    np.testing.assert_array_equal(moved, -updates)
    np.testing.assert_array_equal(transforms.smallest_eval_params(state, points[0]), points[1])
    with pytest.raises(ValueError, match="params must be given"):
        transforms.smallest().update(updates[0], transforms.smallest().init(updates[0]))
