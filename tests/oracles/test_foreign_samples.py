"""Samples of users that the data do not have, and data of which one leaf has fewer users than another.

A gather clamps: the last user would count as often as there are numbers beyond, or the last label for all
users who have none.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.oracles import (
    ghost,
    gradients,
    linear,
    linear_users,
    preconditioned,
    sampling,
    streamed,
    unclipped,
)
from dpsco_jax.oracles.chunks import map_over_users, sum_over_users
from dpsco_jax.oracles.sampling import UserSample
from dpsco_jax.problems import StoredUsers, losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData

USERS, ITEMS, DIM = 12, 2, 3
OBJECTIVE = losses.logistic(1.0)
MODEL = OBJECTIVE.linear_model
X = 0.4 * np.random.default_rng(0).normal(size=(USERS, ITEMS, DIM)).astype(np.float32)
LABELS = np.where(X[..., 0] > 0, 1.0, -1.0).astype(np.float32)
DATA = UserData(Example(jnp.asarray(X), jnp.asarray(LABELS)))
POINT = jnp.asarray([0.5, -1.0, 2.0])
GRADIENT = gradients.user_gradient(OBJECTIVE)
COMPONENT = preconditioned.Component(jnp.zeros(DIM), 1.0, 0.0)

# By name: the oracle of a sampler and a chunk size, and the form of its data.
ORACLES = {
    "ghost": (lambda s, k: ghost.clipped_gradient_sum(OBJECTIVE, 1.0, s, k), None),
    "gradients": (lambda s, k: gradients.clipped_gradient_sum(GRADIENT, 1.0, s, k), None),
    "rows": (lambda s, k: gradients.per_user_gradients(GRADIENT, 1.0, s, k), None),
    "unclipped": (lambda s, k: unclipped.mean_gradient(OBJECTIVE, 1, s, None, k), None),
    "linear": (lambda s, k: linear.clipped_gradient_sum(MODEL, 1.0, s, k), linear.prepare),
    "linear rows": (lambda s, k: linear_users.per_user_gradients(MODEL, 1.0, s, k), linear.prepare),
    "preconditioned": (
        lambda s, k: preconditioned.scaled_sums(MODEL, jnp.ones(DIM), COMPONENT, 0.0, s, k),
        linear.prepare,
    ),
}
each_oracle = pytest.mark.parametrize("name", list(ORACLES))
CHUNKS = (4, 100)  # several chunks, and everybody at once


def _formed(name, data):
    form = ORACLES[name][1]
    return data if form is None else form(MODEL, data, DIM)


def _point(name):
    return preconditioned.TunedPoint(POINT, jnp.zeros(())) if name == "preconditioned" else POINT


def _estimate(name, sampler, data=DATA, chunk=4):
    oracle = ORACLES[name][0](sampler, chunk)
    return oracle(jax.random.key(0), _point(name), _formed(name, data))


@each_oracle
@pytest.mark.parametrize(
    "sampler",
    [
        lambda key: sampling.without_replacement(key, USERS + 1, 5),
        lambda key: sampling.with_replacement(key, USERS + 1, 5),
        lambda key: sampling.poisson(key, USERS + 1, 0.5),
    ],
)
def test_a_sampler_of_more_users_is_refused(name, sampler):
    wanted = f"sampler must be a draw of {USERS} users, as many as the data have, or fewer, got 13"
    with pytest.raises(ValueError, match=wanted):
        jax.eval_shape(lambda: _estimate(name, sampler))


def test_users_on_disk_are_as_many_as_are_drawn_from():
    oracle = ORACLES["gradients"][0](lambda key: sampling.poisson(key, 500, 0.01), 4)
    sums = streamed.Sums(oracle, StoredUsers(Example(X, LABELS)))
    with pytest.raises(ValueError, match="sampler must be a draw of 12 users"):
        sums.estimate(jax.random.key(0), POINT)


@each_oracle
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("size", [6, "random"])
def test_a_number_of_nobody_counts_as_nobody(name, chunk, size):
    """Of a sampler without a law: with numbers of users alone it would have made the same sum."""
    numbers = jnp.asarray([USERS, 3, -1, 2**31 - 1, 7, USERS + 40], jnp.int32)
    number = size if size == 6 else jnp.int32(6)
    draw = jax.jit(
        lambda indices, data: _one_vector_of(name, UserSample(indices, number), data, chunk)
    )
    at = [3, 7]
    own = jax.jit(lambda d: _one_vector_of(name, None, d, chunk))(
        jax.tree.map(lambda x: x[np.array(at)], DATA)
    )
    np.testing.assert_allclose(draw(numbers, DATA), own, rtol=1e-5, atol=1e-6)
    assert np.any(np.abs(np.asarray(own)) > 1e-2)


def _one_vector_of(name, sample, data, chunk):
    found = _estimate(name, None if sample is None else lambda key: sample, data, chunk).gradient
    found = found.rest if name == "preconditioned" else found
    return jnp.sum(found, 0) if found.ndim > 1 else found


def test_a_law_that_is_traced_is_no_warrant():
    """A sample that went through ``jit`` has traced sizes, which nobody can compare."""

    @jax.jit
    def total(sample):
        return sum_over_users(_counted, {"x": jnp.ones(USERS)}, sample, 4)

    assert total(sampling.without_replacement(jax.random.key(0), 10 * USERS, 10 * USERS)) == USERS


def _counted(rows, counted, position):
    return jnp.sum(jnp.where(counted, rows["x"], 0.0))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_sample_is_no_longer_than_its_places(chunk):
    data, indices = {"x": jnp.ones(USERS)}, jnp.arange(5, dtype=jnp.int32)
    with pytest.raises(ValueError, match=r"sample\.size must be at most 5, its places, got 9"):
        sum_over_users(_counted, data, UserSample(indices, 9), chunk)
    run = jax.jit(lambda n: sum_over_users(_counted, data, UserSample(indices, n), chunk))
    assert [float(run(n)) for n in (3, 5, 9)] == [3.0, 5.0, 5.0]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_rows_of_nobody_are_zero(chunk):
    data, indices = {"x": jnp.full(USERS, jnp.nan).at[2].set(3.0)}, jnp.asarray([2, 99, 5, 6, 7])
    rows = jax.jit(
        lambda n: map_over_users(lambda r, c, p: r["x"], data, UserSample(indices, n), chunk)
    )
    np.testing.assert_array_equal(rows(2), [3.0, 0.0, 0.0, 0.0, 0.0])


@each_oracle
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("leaf", ["label", "mask"])
def test_leaves_of_different_users_are_refused(name, chunk, sampled, leaf):
    items, mask = DATA.items, jnp.ones((USERS, ITEMS), bool)
    data = UserData(items, mask[:-1])
    if leaf == "label":
        data = UserData(items._replace(label=items.label[:-1]), None)
    sampler = (lambda key: sampling.without_replacement(key, USERS - 1, 5)) if sampled else None
    wanted = "must be arrays with one leading axis, of the same length|must be of shape .*users|mask must"
    with pytest.raises(ValueError, match=wanted):
        jax.eval_shape(lambda: _estimate(name, sampler, data, chunk))


def test_leaves_without_users_are_refused():
    for data in ({"x": jnp.ones(USERS), "y": 1.0}, {}):
        with pytest.raises(ValueError, match="data must be arrays with one leading axis"):
            sum_over_users(_counted, data, None, 4)
