"""Sums of clipped Hessians, against NumPy, and how far one user moves them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.oracles import hessians
from dpsco_jax.problems import nonconvex_losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData

LOSS = nonconvex_losses.welsch(1.0)
RNG = np.random.default_rng(0)


def _bend(margin):
    """Second derivative of Welsch's loss of scale one."""
    return (1 - margin**2) * np.exp(-(margin**2) / 2)


def _data(users, items=2, dim=3):
    rows = RNG.normal(size=(users, items, dim))
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    labels = 2 * RNG.normal(size=(users, items))
    return UserData(Example(rows.astype(np.float32), labels.astype(np.float32)))


@pytest.mark.parametrize("clip", [10.0, 0.2])
def test_sums_are_those_of_numpy(clip):
    data, w = _data(70), RNG.normal(size=3).astype(np.float32)
    found = hessians.clipped_hessian_sum(LOSS, w, clip)(jax.random.key(0), w, data)
    rows, labels = (np.asarray(x, float) for x in data.items)
    wanted = np.zeros((3, 3))
    for features, label in zip(rows, labels, strict=True):
        own = sum(_bend(x @ w - y) * np.outer(x, x) for x, y in zip(features, label, strict=True))
        own = own / len(label)
        wanted += own / max(clip, np.linalg.norm(own))
    np.testing.assert_allclose(hessians.symmetric(found.gradient, 3), wanted, atol=2e-4)
    assert float(found.extra_args["clipped_to"]) == 1.0
    assert int(found.num_gradients) == 140


def test_a_vector_is_as_long_as_its_matrix():
    vectors = RNG.normal(size=(50, 10))
    for vector in vectors:
        made = np.asarray(hessians.symmetric(jnp.asarray(vector, jnp.float32), 4))
        np.testing.assert_array_equal(made, made.T)
        assert np.linalg.norm(made) == pytest.approx(np.linalg.norm(vector), rel=1e-5)


def test_no_user_moves_a_sum_by_more_than_two_and_some_nearly_do():
    """Of 200 random users, and of those who are bent both ways along one direction; NaN counts as zero."""
    w = np.zeros(3, np.float32)
    others = _data(1)
    ask = jax.jit(
        lambda data: hessians.clipped_hessian_sum(LOSS, w, 0.4)(jax.random.key(0), w, data).gradient
    )
    first = np.asarray(ask(others), float)
    moved = []
    for _ in range(200):
        moved.append(np.linalg.norm(np.asarray(ask(_data(1)), float) - first))
    assert max(moved) <= 2.0
    ends = []
    for label in (0.0, math.sqrt(3)):
        row = np.zeros((1, 2, 3), np.float32)
        row[..., 0] = 1.0
        ends.append(np.asarray(ask(UserData(Example(row, np.full((1, 2), label, np.float32))))))
    assert 1.98 <= np.linalg.norm(ends[0] - ends[1]) <= 2.0
    broken = UserData(Example(np.full((1, 2, 3), np.nan, np.float32), np.zeros((1, 2), np.float32)))
    np.testing.assert_array_equal(ask(broken), 0.0)


def test_refusals():
    with pytest.raises(ValueError, match="clip_norm"):
        hessians.clipped_hessian_sum(LOSS, np.zeros(3, np.float32), 0.0)
    with pytest.raises(ValueError, match="params"):
        hessians.clipped_hessian_sum(LOSS, np.zeros(513, np.float32), 1.0)
    with pytest.raises(ValueError, match=r"vector .* \(6,\)"):
        hessians.symmetric(jnp.zeros(5), 3)
