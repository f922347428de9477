"""Sums at the columns that users have: against dense rows in NumPy, for repeated and missing entries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.oracles import linear, sampling
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData
from tests.oracles.linear_users import PREPARE

USERS, ITEMS, NNZ, DIM = 9, 3, 2, 128


def _data(seed=0):
    """Columns that repeat within rows and among a user's rows, that are out of range, users without items."""
    rng = np.random.default_rng(seed)
    columns = rng.integers(-3, DIM + 3, (USERS, ITEMS, NNZ)).astype(np.int32)
    columns[0] = 7
    columns[1, :, 0] = 5
    labels = rng.integers(0, 2, (USERS, ITEMS)).astype(np.float32)
    counts = rng.integers(0, ITEMS + 1, USERS)
    counts[:4] = ITEMS, ITEMS, 0, 1
    return UserData(Example(OneHot(columns), labels), np.arange(ITEMS) < counts[:, None])


def _user_gradients(data, bound, slopes):
    """By loops; ``slopes(row, label)`` is a number or a vector."""
    found = []
    for user in range(USERS):
        terms = []
        for item in range(ITEMS):
            if data.mask[user, item]:
                row = np.zeros(DIM)
                inside = [c for c in data.items.features.columns[user, item] if 0 <= c < DIM]
                row[list(set(inside))] = bound / NNZ**0.5
                terms.append(np.multiply.outer(row, slopes(row, data.items.label[user, item])))
        found.append(np.mean(terms, axis=0) if terms else None)
    shape = next(g for g in found if g is not None).shape
    return [np.zeros(shape) if g is None else g for g in found]


def _clipped_sum(gradients, clip):
    return sum(g * min(1.0, clip / max(np.linalg.norm(g), 1e-30)) for g in gradients)


@pytest.mark.parametrize("clip", [0.05, 50.0])
def test_the_sum_is_that_of_dense_rows(clip):
    data, objective = _data(), losses.logistic(2.0)
    point = np.random.default_rng(3).normal(size=DIM)
    prepared = PREPARE(objective.linear_model, data, DIM)
    assert prepared.local is not None
    oracle = linear.clipped_gradient_sum(objective.linear_model, clip, None, 4)
    found = jax.jit(oracle)(jax.random.key(0), jnp.asarray(np.float32(point)), prepared).gradient
    gradients = _user_gradients(
        data, 2.0, lambda row, label: 1 / (1 + np.exp(-row @ point)) - label
    )
    np.testing.assert_allclose(found, _clipped_sum(gradients, clip), rtol=2e-5, atol=1e-6)


def test_parameters_may_be_a_matrix():
    data, objective, clip = _data(1), losses.softmax(2.0, 3), 0.1
    point = np.random.default_rng(4).normal(size=(DIM, 3))
    prepared = PREPARE(objective.linear_model, data, DIM)
    assert prepared.local is not None
    oracle = linear.clipped_gradient_sum(objective.linear_model, clip, None, 4)
    found = jax.jit(oracle)(jax.random.key(0), jnp.asarray(np.float32(point)), prepared).gradient

    def slopes(row, label):
        chances = np.exp(row @ point)
        return chances / chances.sum() - np.eye(3)[int(label)]

    gradients = _user_gradients(data, 2.0, slopes)
    np.testing.assert_allclose(found, _clipped_sum(gradients, clip), rtol=2e-5, atol=1e-6)


def test_a_sample_has_the_rows_of_its_users():
    data, objective = _data(2), losses.logistic(2.0)
    sampler = lambda key: sampling.poisson(key, USERS, 0.5)  # noqa: E731
    model = objective.linear_model
    point = jnp.linspace(-1.0, 1.0, DIM)
    prepared = PREPARE(model, data, DIM)
    oracle = linear.clipped_gradient_sum(model, 0.2, sampler, 2)
    whole = linear.clipped_gradient_sum(model, 0.2, sampler, 2)
    found = jax.jit(oracle)(jax.random.key(11), point, prepared)
    other = jax.jit(whole)(jax.random.key(11), point, prepared._replace(local=None))
    np.testing.assert_allclose(found.gradient, other.gradient, rtol=1e-5, atol=1e-7)
    assert found.num_gradients == other.num_gradients > 0


def test_one_user_moves_the_sum_by_the_clip_norm_at_most():
    """Users all of whose entries are one column, where places would otherwise add up to less."""
    clip, rng = 0.01, np.random.default_rng(0)
    objective = losses.logistic(2.0)
    oracle = jax.jit(linear.clipped_gradient_sum(objective.linear_model, clip, None, 16))
    largest = 0.0
    for trial in range(40):
        columns = rng.integers(0, 3, (1, ITEMS, NNZ)).astype(np.int32)
        columns[:] = 0 if trial % 2 else columns
        labels = np.full((1, ITEMS), float(trial % 3 > 0), np.float32)
        prepared = PREPARE(
            objective.linear_model, UserData(Example(OneHot(columns), labels), None), DIM
        )
        moved = oracle(jax.random.key(0), jnp.zeros(DIM), prepared).gradient
        largest = max(largest, float(np.linalg.norm(np.asarray(moved, np.float64))))
    assert 0.999 * clip < largest <= clip


def test_columns_that_are_many_of_all_are_not_kept():
    features = jnp.zeros((2, 4, 4), jnp.int32)
    assert linear._find_columns(features, 16 * 16) is not None
    assert linear._find_columns(features, 16 * 16 - 1) is None


def test_every_entry_stands_at_its_column():
    data = _data(5)
    features = np.where(data.mask[..., None], data.items.features.columns, DIM) % (DIM + 1)
    local = linear._find_columns(jnp.asarray(features), DIM)
    for user in range(USERS):
        columns = np.asarray(local.columns[user])
        np.testing.assert_array_equal(columns[np.asarray(local.place[user])], features[user])
        named = columns[columns < DIM]
        assert len(set(named)) == len(named)
