"""The closed form agrees with automatic differentiation, and bounds every user by itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax.oracles import gradients, linear, sampling
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData
from tests.oracles.linear_users import DIM, PREPARE, USERS, labelled
from tests.support.neighbours import worst_pair

W = jnp.asarray(np.float32(np.random.default_rng(0).normal(size=DIM)))


def _pair(objective, data, clip_norm, sampler=None, chunk_size=3):
    """Gradient sums of the closed form and of autodiff with the same sample."""
    model = objective.linear_model
    prepared = jax.jit(lambda d: PREPARE(model, d, DIM))(data)
    closed = jax.jit(linear.clipped_gradient_sum(model, clip_norm, sampler, chunk_size))
    same = None if sampler is None else lambda key: sampler(jax.random.key(5))
    if sampler is not None:
        closed = jax.jit(linear.clipped_gradient_sum(model, clip_norm, same, chunk_size))
    auto = jax.jit(
        gradients.clipped_gradient_sum(
            gradients.user_gradient(objective), clip_norm, same, chunk_size
        )
    )
    return closed(jax.random.key(0), W, prepared), auto(jax.random.key(0), W, data)


@pytest.mark.parametrize("kind", ["dense", "one-hot"])
@pytest.mark.parametrize("items", [1, 4])
@pytest.mark.parametrize("clip_norm", [0.1, 50.0])
def test_the_closed_form_is_the_automatic_one(kind, items, clip_norm):
    closed, auto = _pair(losses.logistic(feature_bound=2.0), labelled(kind, items), clip_norm)
    np.testing.assert_allclose(closed.gradient, auto.gradient, rtol=1e-5, atol=1e-6)
    assert closed.num_gradients == auto.num_gradients


@pytest.mark.parametrize(
    "make", [losses.hinge, losses.huber, functools.partial(losses.quantile, level=0.2)]
)
def test_losses_of_every_kind(make):
    closed, auto = _pair(make(feature_bound=2.0), labelled("dense", 4), 0.3)
    np.testing.assert_allclose(closed.gradient, auto.gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["dense", "one-hot"])
@pytest.mark.parametrize("items", [1, 4])
def test_samples(kind, items):
    sampler = functools.partial(sampling.poisson, num_users=USERS, probability=0.5)
    closed, auto = _pair(losses.logistic(2.0), labelled(kind, items), 0.3, sampler)
    np.testing.assert_allclose(closed.gradient, auto.gradient, rtol=1e-5, atol=1e-6)
    assert closed.num_gradients == auto.num_gradients


def test_without_a_mask():
    data = labelled("dense", 4)._replace(mask=None)
    closed, auto = _pair(losses.logistic(2.0), data, 0.3, chunk_size=64)
    np.testing.assert_allclose(closed.gradient, auto.gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("items", [1, 4])
def test_bad_numbers_count_as_nothing(items):
    data = labelled("dense", items)
    data = data._replace(mask=np.ones((USERS, items), bool))
    data.items.label[1, 0] = np.nan  # no label: the item is zero
    data.items.features[2, 0, 1] = np.inf  # no features: the item is zero
    closed, auto = _pair(losses.huber(2.0), data, 0.3)
    np.testing.assert_allclose(closed.gradient, auto.gradient, rtol=1e-5, atol=1e-6)
    assert np.all(np.isfinite(closed.gradient))


def test_bad_numbers_in_padding_are_never_seen():
    data = labelled("dense", 4)
    clean, _ = _pair(losses.huber(2.0), data, 0.3)
    data.items.label[0] = np.nan  # user 0 has no item
    data.items.features[0] = np.inf
    spoiled, _ = _pair(losses.huber(2.0), data, 0.3)
    np.testing.assert_array_equal(spoiled.gradient, clean.gradient)


@pytest.mark.parametrize("items", [1, 3])
@pytest.mark.parametrize(
    ("relation", "most"),
    [(NeighboringRelation.REPLACE_ONE, 2.0), (NeighboringRelation.ADD_OR_REMOVE_ONE, 1.0)],
)
def test_one_user_moves_the_sum_by_at_most_the_declared_sensitivity(items, relation, most):
    # A square loss with labels without a bound: derivatives up to the largest float.
    model = losses.huber(feature_bound=10.0, delta=1e30).linear_model
    oracle = linear.clipped_gradient_sum(model, 1.0, chunk_size=2)

    def statistic(data, mask):
        rows = Example(data[..., :-1], data[..., -1])
        users = jnp.broadcast_to(mask[:, None], rows.label.shape)
        prepared = PREPARE(model, UserData(rows, users), 4)
        return jax.jit(oracle)(jax.random.key(0), jnp.ones(4), prepared).gradient

    found = worst_pair(statistic, 4, (items, 5), relation, rounds=4)
    assert 0.9 * most < found.distance <= most * (1 + 1e-6)


def test_row_norms_are_upper_bounds():
    # float32 sums of many equal squares are off by more than one unit in the last place.
    rows = np.stack([np.full(3001, v, np.float32) for v in (1e-3, 0.3, 7e3)])
    model = losses.logistic(feature_bound=1e6).linear_model
    data = UserData(Example(rows[:, None], np.zeros((3, 1), np.float32)), None)
    prepared = PREPARE(model, data, 3001)
    exact = np.linalg.norm(np.asarray(prepared.features, np.float64), axis=-1)
    assert np.all(np.asarray(prepared.row_norms, np.float64)[1:] >= exact[1:])
    np.testing.assert_allclose(prepared.row_norms[1:], exact[1:], rtol=1e-3)


def test_a_batch_of_points_and_clip_norms():
    model = losses.logistic(2.0).linear_model
    prepared = PREPARE(model, labelled("one-hot", 4), DIM)
    points, clips = jnp.stack([W, -W, 2 * W]), jnp.asarray([0.1, 1.0, 0.3])

    def one(point, clip):
        return linear.clipped_gradient_sum(model, clip, chunk_size=3)(
            jax.random.key(0), point, prepared
        ).gradient

    one = jax.jit(one)
    batch = jax.jit(jax.vmap(one))(points, clips)
    for row, point, clip in zip(batch, points, clips, strict=True):
        np.testing.assert_allclose(row, one(point, clip), rtol=1e-5, atol=1e-6)


def test_memory_is_that_of_a_chunk():
    model = losses.logistic(2.0).linear_model

    def temporaries(users, items):
        oracle = linear.clipped_gradient_sum(model, 1.0, chunk_size=8)
        shapes = jax.eval_shape(
            lambda d: PREPARE(model, d, 512),
            UserData(Example(jnp.zeros((users, items, 512)), jnp.zeros((users, items))), None),
        )
        run = jax.jit(lambda w, d: oracle(jax.random.key(0), w, d).gradient)
        compiled = run.lower(jax.ShapeDtypeStruct((512,), jnp.float32), shapes).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(2048, 2) < temporaries(64, 2) + 4096
    # One item each: a row for eight users, never users × dim.
    assert temporaries(2048, 1) < 2048 * 512 * 4 // 4


def test_rows_of_another_length_are_refused():
    model = losses.logistic(2.0).linear_model
    with pytest.raises(ValueError, match="features must have length dim = 13"):
        PREPARE(model, labelled("dense", 2), 13)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
def test_repeated_columns_of_narrow_integers_do_not_pass_the_clip(dtype):
    """64 times column 5 is one column; in uint8 the 63 that do not count were added up at dim - 256."""
    model = losses.logistic(feature_bound=1.0).linear_model
    oracle, norms = linear.clipped_gradient_sum(model, 0.05), []
    for columns in (np.full((1, 1, 64), 5), np.arange(64).reshape(1, 1, 64)):
        data = UserData(Example(OneHot(columns.astype(dtype)), np.zeros((1, 1), np.float32)), None)
        found = jax.jit(oracle)(
            jax.random.key(0), jnp.zeros(300), PREPARE(model, data, 300)
        ).gradient
        norms.append(np.linalg.norm(found))
    # Slope 1/2 times the norm of the row: 1/8 of one column in 64, and 1 of all of them.
    np.testing.assert_allclose(norms, [0.05, 0.05], rtol=1e-4)
