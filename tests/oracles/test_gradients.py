"""User gradients by automatic differentiation, clipped and summed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax.geometry import domains
from dpsco_jax.geometry.norms import global_norm
from dpsco_jax.oracles import gradients, sampling, smoothed
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from tests.support.neighbours import worst_pair

USERS, ITEMS, DIM = 9, 4, 3

RNG = np.random.default_rng(0)
X = RNG.normal(size=(USERS, ITEMS, DIM)).astype(np.float32)
MASK = np.arange(ITEMS) < np.array([4, 3, 0, 1, 4, 2, 4, 4, 1])[:, None]
DATA = UserData(jnp.where(MASK[..., None], X, 0.0), jnp.asarray(MASK))
# The gradient of user u is w - (mean of the user's items), zero for user 2, who has none.
OBJECTIVE = Objective(
    loss=lambda w, x: 0.5 * jnp.sum(jnp.square(w - x)),
    lipschitz=20.0,
    smoothness=1.0,
    domain=domains.ball(10.0),
)
W = jnp.asarray([0.3, -0.2, 0.5])
MEANS = np.sum(X * MASK[..., None], 1) / np.maximum(MASK.sum(1), 1)[:, None]
EXACT = np.where(MASK.any(1)[:, None], np.asarray(W) - MEANS, 0.0)


def _clipped(rows, clip_norm):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, clip_norm / np.maximum(norms, 1e-30))


def _oracle(**kwargs):
    gradient = gradients.user_gradient(OBJECTIVE)
    return jax.jit(gradients.clipped_gradient_sum(gradient, **kwargs))


def test_per_user_gradients():
    estimate = jax.jit(gradients.per_user_gradients(gradients.user_gradient(OBJECTIVE)))(
        jax.random.key(0), W, DATA
    )
    np.testing.assert_allclose(estimate.gradient, EXACT, rtol=1e-5, atol=1e-6)
    assert estimate.num_gradients == MASK.sum()


@pytest.mark.parametrize("clip_norm", [0.4, 1.1, 100.0])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_rows_of_all_users_are_clipped_one_by_one(clip_norm, chunk_size):
    spoiled = DATA._replace(items=DATA.items.at[4, 1, 0].set(jnp.nan).at[7].set(jnp.inf))
    gradient = gradients.user_gradient(OBJECTIVE)
    oracle = jax.jit(gradients.per_user_gradients(gradient, clip_norm, chunk_size=chunk_size))
    estimate = jax.jit(oracle)(jax.random.key(0), W, spoiled)
    expected = _clipped(EXACT, clip_norm)
    expected[[4, 7]] = 0.0  # a user with a bad number counts as nobody
    np.testing.assert_allclose(estimate.gradient, expected, rtol=1e-4, atol=1e-5)
    norms = np.linalg.norm(np.asarray(estimate.gradient, np.float64), axis=1)
    assert np.all(norms <= clip_norm)
    assert np.any(norms > 0.99 * clip_norm) == (clip_norm < 100.0)  # it is reached


@pytest.mark.parametrize("clip_norm", [0.4, 100.0])
@pytest.mark.parametrize("chunk_size", [1, 4, 64])
def test_clipped_sum_of_all_users(clip_norm, chunk_size):
    estimate = _oracle(clip_norm=clip_norm, chunk_size=chunk_size)(jax.random.key(0), W, DATA)
    expected = _clipped(EXACT, clip_norm).sum(0)
    np.testing.assert_allclose(estimate.gradient, expected, rtol=1e-4, atol=1e-5)
    assert estimate.num_gradients == MASK.sum()
    assert set(estimate.extra_args) == {"remainder", "clipped_to", "checksum"}
    assert estimate.extra_args["clipped_to"] == clip_norm
    np.testing.assert_allclose(estimate.extra_args["remainder"], 0.0, atol=1e-6)


@pytest.mark.parametrize("chunk_size", [2, 64])
@pytest.mark.parametrize("kind", ["fixed", "poisson"])
def test_clipped_sum_of_a_sample(kind, chunk_size):
    sampler = {
        "fixed": functools.partial(sampling.without_replacement, num_users=USERS, batch_size=5),
        "poisson": functools.partial(sampling.poisson, num_users=USERS, probability=0.4),
    }[kind]
    oracle = _oracle(clip_norm=0.4, sampler=sampler, chunk_size=chunk_size)
    sampler = jax.jit(sampler)
    for seed in range(5):
        key = jax.random.key(seed)
        sample_key, _ = jax.random.split(jax.random.clone(key))
        sample = sampler(sample_key)
        who = np.asarray(sample.indices)[: int(sample.size)]
        estimate = oracle(key, W, DATA)
        expected = _clipped(EXACT, 0.4)[who].sum(0)
        np.testing.assert_allclose(estimate.gradient, expected, rtol=1e-4, atol=1e-5)
        assert estimate.num_gradients == MASK[who].sum()


def test_a_user_with_a_bad_number_counts_as_nobody():
    spoiled = DATA._replace(items=DATA.items.at[4, 1, 0].set(jnp.nan).at[7].set(jnp.inf))
    absent = np.array([u not in (4, 7) for u in range(USERS)])
    estimate = _oracle(clip_norm=0.4)(jax.random.key(0), W, spoiled)
    expected = _clipped(EXACT, 0.4)[absent].sum(0)
    np.testing.assert_allclose(estimate.gradient, expected, rtol=1e-4, atol=1e-5)


def test_params_of_any_structure_are_clipped_jointly():
    def loss(params, item):
        return params["a"] * item[0] + jnp.dot(params["b"], item[1:])

    objective = OBJECTIVE._replace(loss=loss)
    params = {"a": jnp.asarray(0.0), "b": jnp.zeros(2)}
    gradient = gradients.user_gradient(objective)
    oracle = jax.jit(gradients.clipped_gradient_sum(gradient, 0.4))
    total = jax.jit(oracle)(jax.random.key(0), params, DATA).gradient
    flat = np.concatenate([np.atleast_1d(total["a"]), total["b"]])
    np.testing.assert_allclose(flat, _clipped(MEANS, 0.4).sum(0), rtol=1e-4, atol=1e-5)


def test_one_user_moves_the_sum_by_at_most_the_declared_sensitivity():
    objective = losses.logistic(feature_bound=1e30)
    oracle = gradients.clipped_gradient_sum(gradients.user_gradient(objective), 1.0, chunk_size=2)

    def statistic(data, mask):
        items = Example(data[..., :-1], data[..., -1])
        users = jnp.broadcast_to(mask[:, None], items.label.shape)
        return jax.jit(oracle)(jax.random.key(0), jnp.ones(3), UserData(items, users)).gradient

    for relation, most in (
        (NeighboringRelation.REPLACE_ONE, 2.0),
        (NeighboringRelation.ADD_OR_REMOVE_ONE, 1.0),
    ):
        found = worst_pair(statistic, 4, (2, 4), relation, rounds=4)
        assert 0.9 * most < found.distance <= most * (1 + 1e-6)


def test_memory_does_not_grow_with_the_number_of_users():
    oracle = gradients.clipped_gradient_sum(gradients.user_gradient(OBJECTIVE), 1.0, chunk_size=8)

    def temporaries(users):
        data = UserData(jax.ShapeDtypeStruct((users, 2, 256), jnp.float32), None)
        params = jax.ShapeDtypeStruct((256,), jnp.float32)
        compiled = jax.jit(lambda p, d: oracle(jax.random.key(0), p, d).gradient).lower(
            params, data
        )
        return compiled.compile().memory_analysis().temp_size_in_bytes

    assert temporaries(4096) < temporaries(64) + 4096
    assert temporaries(64) < 64 * 256 * 4


def test_smoothing_gives_every_user_a_shift_of_its_own():
    # The gradient of a quadratic at a shifted point is the gradient at the point plus the shift.
    radius = 0.5
    gradient = smoothed.user_gradient(OBJECTIVE, radius)
    oracle = jax.jit(gradients.per_user_gradients(gradient))
    full = DATA._replace(mask=None, items=X)
    exact = np.asarray(W) - X.mean(1)
    shifts = (
        np.stack([np.asarray(oracle(jax.random.key(s), W, full).gradient) for s in range(400)])
        - exact
    )
    norms = np.linalg.norm(shifts, axis=-1)
    assert norms.max() <= radius * (1 + 1e-4)
    # E‖y‖² = r²·d/(d + 2); independent over users: no correlation between any two.
    np.testing.assert_allclose((norms**2).mean(), radius**2 * DIM / (DIM + 2), rtol=0.05)
    cross = np.einsum("sud,svd->uv", shifts, shifts) / 400 / radius**2
    np.testing.assert_allclose(cross, np.eye(USERS) * DIM / (DIM + 2), atol=0.12)
    assert float(global_norm(oracle(jax.random.key(0), W, full).gradient)) > 0


def test_the_shifts_of_a_sum_differ_between_chunks():
    # Linear losses have no second user whose shift could hide: the sum of gradients is the sum of shifts.
    objective = OBJECTIVE._replace(loss=lambda w, x: 0.5 * jnp.sum(jnp.square(w)))
    gradient = smoothed.user_gradient(objective, 1.0)
    oracle = jax.jit(
        lambda key: gradients.clipped_gradient_sum(gradient, 100.0, chunk_size=3)(
            key, jnp.zeros(3), DATA
        )
    )
    occupied = MASK.any(1).sum()
    sums = np.stack([np.asarray(oracle(jax.random.key(s)).gradient) for s in range(600)])
    # Variance adds over independent shifts; shared ones would give occupied² or 3·occupied.
    np.testing.assert_allclose((sums**2).mean(), occupied / (DIM + 2), rtol=0.15)
