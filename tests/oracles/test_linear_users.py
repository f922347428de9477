"""Rows of clipped user gradients: the closed form is the automatic one; every row is bounded by itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import norms
from dpsco_jax.oracles import gradients, linear, linear_users, sampling, smoothed
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from tests.oracles.linear_users import DIM, PREPARE, USERS, labelled

ITEMS = 4
W = jnp.asarray(np.float32(np.random.default_rng(0).normal(size=DIM)))
LOSS = losses.logistic(feature_bound=2.0)


def _both(data, clip_norm, sampler=None, chunk_size=3, objective=LOSS):
    model = objective.linear_model
    prepared = PREPARE(model, data, DIM)
    same = None if sampler is None else lambda key: sampler(jax.random.key(5))
    closed = linear_users.per_user_gradients(model, clip_norm, same, chunk_size)
    gradient = gradients.user_gradient(objective)
    auto = gradients.per_user_gradients(gradient, clip_norm, same, chunk_size)
    return (
        jax.jit(closed)(jax.random.key(0), W, prepared),
        jax.jit(auto)(jax.random.key(0), W, data),
    )


@pytest.mark.parametrize("kind", ["dense", "one-hot"])
@pytest.mark.parametrize(("items", "clip_norm", "chunk_size"), [(4, 0.1, 3), (1, 50.0, 64)])
def test_the_closed_form_is_the_automatic_one(kind, items, clip_norm, chunk_size):
    closed, auto = _both(labelled(kind, items), clip_norm, None, chunk_size)
    assert closed.gradient.shape == (USERS, DIM)
    np.testing.assert_allclose(closed.gradient, auto.gradient, rtol=1e-5, atol=1e-6)
    assert closed.num_gradients == auto.num_gradients


@pytest.mark.parametrize("chunk_size", [2, 64])
def test_a_subset_has_the_rows_of_its_users(chunk_size):
    sampler = functools.partial(sampling.without_replacement, num_users=USERS, batch_size=5)
    data = labelled("dense", ITEMS)
    closed, auto = _both(data, 0.3, sampler, chunk_size)
    np.testing.assert_allclose(closed.gradient, auto.gradient, rtol=1e-5, atol=1e-6)
    everybody, _ = _both(data, 0.3)
    chosen = sampler(jax.random.key(5)).indices
    np.testing.assert_allclose(closed.gradient, everybody.gradient[chosen], rtol=1e-6, atol=3e-8)
    assert closed.num_gradients == auto.num_gradients == int(np.sum(data.mask[chosen]))


def test_rows_add_up_to_the_clipped_sum():
    data = labelled("one-hot", ITEMS)
    rows, _ = _both(data, 0.2)
    model = LOSS.linear_model
    oracle = linear.clipped_gradient_sum(model, 0.2)
    total = jax.jit(oracle)(jax.random.key(0), W, PREPARE(model, data, DIM)).gradient
    # The sum is 1.6e-5 shorter, for its rounding.
    np.testing.assert_allclose(np.sum(rows.gradient, 0), total, rtol=3e-5, atol=1e-6)


def test_a_bad_user_is_a_row_of_zeros_and_large_ones_obey_the_bound():
    data = labelled("dense", ITEMS)._replace(mask=None)
    data.items.label[1, 0] = np.nan
    data.items.label[2] = 1e30
    # A square loss with labels without a bound: derivatives up to the largest float.
    loose = losses.huber(feature_bound=10.0, delta=1e30)
    # The losses know no label that is not finite; a link of one's own may, and its user is dropped.
    raw = loose.linear_model._replace(derivative=lambda m, y: m - y)
    closed, _ = _both(data, 1.0, objective=loose._replace(linear_model=raw))
    assert np.all(closed.gradient[1] == 0)
    lengths = np.linalg.norm(np.asarray(closed.gradient, np.float64), axis=1)
    assert lengths[2] > 0.999
    assert np.all(lengths <= 1.0)


def test_an_item_without_a_label_counts_as_nothing_and_the_users_others_stay():
    data = labelled("dense", ITEMS)._replace(mask=None)
    data.items.label[1, 0] = np.nan
    closed, auto = _both(data, 50.0, objective=losses.huber(2.0))
    np.testing.assert_allclose(closed.gradient, auto.gradient, rtol=1e-5, atol=1e-6)
    data.items.features[1, 0] = 0.0
    data.items.label[1, 0] = 0.0
    absent, _ = _both(data, 50.0, objective=losses.huber(2.0))
    np.testing.assert_allclose(closed.gradient, absent.gradient, rtol=1e-6)
    assert np.linalg.norm(closed.gradient[1]) > 0


def test_without_a_clip_gradients_are_as_they_are():
    data = labelled("dense", ITEMS)
    oracle = gradients.per_user_gradients(gradients.user_gradient(LOSS))
    raw = jax.jit(oracle)(jax.random.key(0), W, data).gradient
    clipped, _ = _both(data, 0.1)
    again = jax.jit(jax.vmap(lambda g: norms.clip_to_norm(g, 0.1)))(raw)
    np.testing.assert_allclose(clipped.gradient, again, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["dense", "one-hot"])
def test_smoothed_rows_have_the_law_of_shifted_points(kind):
    """Mean and variance over draws, against automatic differentiation at points shifted in all dimensions."""
    data, rough = labelled(kind, 2), losses.absolute(feature_bound=2.0)
    model = rough.linear_model
    closed = linear_users.per_user_gradients(model, 10.0, chunk_size=3, smoothing_radius=1.5)
    auto = gradients.per_user_gradients(smoothed.user_gradient_by_item(rough, 1.5), 10.0)
    keys = jax.random.split(jax.random.key(0), (2, 4000))
    found = []
    for oracle, given, runs in (
        (closed, PREPARE(model, data, DIM), keys[0]),
        (auto, data, keys[1]),
    ):
        rows = jax.jit(jax.vmap(lambda k, o=oracle, g=given: o(k, W, g).gradient))(runs)
        found.append(np.asarray(rows, float))
    error = np.sqrt((found[0].var(0) + found[1].var(0)) / 4000)
    assert np.all(np.abs(found[0].mean(0) - found[1].mean(0)) <= 5 * error + 1e-6)
    spread = [
        ((x - x.mean(0)) ** 2).std(0) for x in found
    ]  # of the squares whose mean is the variance
    error = np.sqrt((spread[0] ** 2 + spread[1] ** 2) / 4000)
    assert np.all(np.abs(found[0].var(0) - found[1].var(0)) <= 5 * error + 1e-6)
    assert np.max(found[0].var(0)) > 0.1
    # Two items of one user are shifted independently: signs differ in some draws and agree in others.
    assert len(np.unique(np.round(found[0][:, 1], 4), axis=0)) >= 3


@pytest.mark.parametrize("items", [1, 3])
def test_the_smoothed_sum_is_the_sum_of_the_smoothed_rows(items):
    model = losses.absolute(feature_bound=2.0).linear_model
    # All items are there: one that is alone in a sample may have the same sign at all points.
    data = PREPARE(model, labelled("dense", items)._replace(mask=None), DIM)
    chosen = functools.partial(
        sampling.without_replacement, num_users=len(data.labels), batch_size=5
    )
    rows, total = (
        make(model, 0.7, chosen, 2, 1.5)(jax.random.key(3), W, data).gradient
        for make in (linear_users.per_user_gradients, linear.clipped_gradient_sum)
    )
    np.testing.assert_allclose(total, np.sum(rows, axis=0), rtol=3e-5, atol=1e-6)
    plain = linear.clipped_gradient_sum(model, 0.7, chosen, 2)(jax.random.key(3), W, data)
    assert not np.allclose(total, plain.gradient, atol=1e-3)


def test_memory_follows_the_sample_and_not_the_users():
    model = LOSS.linear_model

    def temporaries(users):
        sampler = functools.partial(sampling.without_replacement, num_users=users, batch_size=32)
        oracle = linear_users.per_user_gradients(model, 1.0, sampler, chunk_size=8)
        shapes = jax.eval_shape(
            lambda d: PREPARE(model, d, 256),
            UserData(Example(jnp.zeros((users, 3, 256)), jnp.zeros((users, 3))), None),
        )
        run = jax.jit(lambda w, d: oracle(jax.random.key(0), w, d).gradient)
        compiled = run.lower(jax.ShapeDtypeStruct((256,), jnp.float32), shapes).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # Drawing the sample marks every user once: 4 bytes each.
    assert temporaries(4096) < temporaries(128) + 8 * 4096
