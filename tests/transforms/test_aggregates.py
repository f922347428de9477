"""Aggregates: values, sensitivity against adversarial neighbours, masks, chunks, bad users."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsco_jax import transforms
from dpsco_jax.transforms import CentredClipState
from tests.support.neighbours import worst_pair

REPLACE = NeighboringRelation.REPLACE_ONE
ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
ZERO_OUT = NeighboringRelation.REPLACE_SPECIAL


def total(aggregate, updates, **extra):
    return aggregate.update(updates, aggregate.init(None), **extra)[0]


def reference(updates, clip_norm, mask):
    """The clipped sum in NumPy, float64, user by user."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(updates)]
    sums = [np.zeros(leaf.shape[1:]) for leaf in leaves]
    for user, counted in enumerate(mask):
        rows = [leaf[user] for leaf in leaves]
        if not counted or not all(np.all(np.isfinite(row)) for row in rows):
            continue
        norm = np.sqrt(sum(np.sum(row**2) for row in rows))
        factor = min(1.0, clip_norm / norm) if norm else 1.0
        sums = [s + factor * row for s, row in zip(sums, rows, strict=True)]
    return sums


@pytest.mark.parametrize("microbatch_size", [None, 1, 3, 4, 50])
def test_sum_of_jointly_clipped_users(microbatch_size, rng):
    users = 11
    updates = {"w": rng.normal(size=(users, 3, 2)), "b": (rng.normal(size=users),)}
    updates = jax.tree.map(jnp.float32, updates)
    updates["w"] = updates["w"].at[2, 0, 0].set(jnp.nan).at[5].set(0.0)
    updates["b"] = (updates["b"][0].at[7].set(-jnp.inf).at[5].set(0.0),)
    mask = np.arange(users) != 9
    aggregate = transforms.clipped_mean(1.5, 4.0, microbatch_size=microbatch_size)
    ours = jax.jit(lambda u: total(aggregate, u, user_mask=jnp.asarray(mask)))(updates)
    for leaf, expected in zip(jax.tree.leaves(ours), reference(updates, 1.5, mask), strict=True):
        np.testing.assert_allclose(leaf, expected / 4.0, rtol=1e-4, atol=1e-6)


@functools.partial(jax.jit, static_argnames="microbatch_size")
def clipped_to_one(updates, mask, microbatch_size):
    aggregate = transforms.clipped_sum(1.0, microbatch_size=microbatch_size)
    return total(aggregate, updates, user_mask=mask)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_users_shapes_masks_and_values(data):
    users, microbatch = data.draw(st.sampled_from([(0, None), (1, 2), (5, None), (5, 2)]))
    dtype = data.draw(st.sampled_from([jnp.float16, jnp.float32]))
    number = st.sampled_from([0.0, 1.0, -0.3, 7.0, 1e4, 1e-6, 1e30, -1e30, 1e-30, np.nan, np.inf])
    values = data.draw(st.lists(number, min_size=users * 3, max_size=users * 3))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=users, max_size=users)), bool)
    rows = jnp.asarray(np.array(values).reshape(users, 3), jnp.float32).astype(dtype)
    updates = {"a": rows[:, :2], "b": rows[:, 2], "c": jnp.zeros((users, 0), dtype)}
    ours = clipped_to_one(updates, mask, microbatch)
    assert {leaf.dtype for leaf in jax.tree.leaves(ours)} == {jnp.dtype(jnp.float32)}
    for leaf, expected in zip(jax.tree.leaves(ours), reference(updates, 1.0, mask), strict=True):
        assert np.all(np.isfinite(leaf))
        np.testing.assert_allclose(leaf, expected, rtol=1e-4, atol=1e-5)


# The state of a centred clip, to which earlier releases may have led.
AWAY = CentredClipState({"w": jnp.array([0.2, -1.0, 0.4]), "b": jnp.float32(0.3)}, jnp.float32(0.7))
BASIS = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
AGGREGATES = {
    "sum": lambda relation: transforms.clipped_sum(0.7, relation),
    "mean": lambda relation: transforms.clipped_mean(0.7, 3.0, relation),
    "microbatched": lambda relation: transforms.clipped_mean(0.7, 3.0, relation, microbatch_size=2),
    # Reached because users may lie in the subspace, the whole space included.
    "projected": lambda relation: transforms.project_subspace(
        transforms.clipped_mean(0.7, 3.0, relation), BASIS, provenance="public"
    ),
    "centred": lambda relation: transforms.centred_clip(1.0, 3.0, relation, microbatch_size=2),
    "centred, quantile": lambda relation: transforms.centred_clip(
        1.0, 3.0, relation, quantile=0.5, microbatch_size=2
    ),
}


@pytest.mark.parametrize("name", AGGREGATES)
@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE, ZERO_OUT])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_sensitivity_is_reached_but_not_exceeded(name, relation, dtype):
    aggregate = AGGREGATES[name](relation)
    state = AWAY if name.startswith("centred") else aggregate.init(None)

    def statistic(data, mask):
        # Two leaves: the norm is of both together.
        return aggregate.update({"w": data[:, :3], "b": data[:, 3]}, state, user_mask=mask)[0]

    worst = worst_pair(statistic, 3, (4,), relation, dtype=dtype, rounds=6, population=64)
    # The sum of three users of norm 0.7 is rounded to a few units in its last place.
    slack = 3e-6 if name == "projected" else 1e-6
    assert 0.95 * aggregate.sensitivity < worst.distance <= aggregate.sensitivity * (1 + slack)


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE, ZERO_OUT])
def test_declared_sensitivity(relation):
    factor = 2.0 if relation is REPLACE else 1.0
    assert transforms.clipped_sum(3.0, relation).sensitivity == factor * 3.0
    assert transforms.clipped_mean(3.0, 12, relation).sensitivity == factor / 4
    summed = transforms.summed_contributions(3.0, 12, relation)
    assert summed.sensitivity == factor / 4
    assert summed.relation is relation


def test_divisor_is_public():
    """Users who are masked out, or not finite, do not change what the sum is divided by."""
    aggregate = transforms.clipped_mean(1.0, 10)
    updates = jnp.zeros((4, 2)).at[0].set(jnp.array([0.5, 0.0]))
    for mask in (jnp.array([True] * 4), jnp.array([True, False, False, False])):
        np.testing.assert_allclose(total(aggregate, updates, user_mask=mask), [0.05, 0.0])


def test_summed_contributions_only_divides():
    aggregate = transforms.summed_contributions(1.0, 8.0)
    np.testing.assert_array_equal(total(aggregate, jnp.array([100.0, -4.0])), [12.5, -0.5])
    with pytest.raises(ValueError, match="float32"):
        total(aggregate, jnp.ones(2, jnp.bfloat16))


def test_half_precision_is_measured_and_added_in_full_precision():
    # 4096 entries of 16 in float16: the squared norm overflows there, the norm is 1024.
    updates = jnp.full((2, 4096), 16.0, jnp.float16)
    clipped = total(transforms.clipped_sum(1.0), updates)
    assert np.linalg.norm(np.float64(clipped)) == pytest.approx(2.0, rel=1e-3)
    # 4096 users of 1 in bfloat16 would add up to 256.
    users = jnp.ones((4096, 1), jnp.bfloat16)
    assert total(transforms.clipped_sum(1.0, microbatch_size=32), users)[0] == pytest.approx(
        4096, rel=1e-4
    )


def test_temporaries_do_not_grow_with_users():
    def temporaries(users):
        aggregate = transforms.clipped_sum(1.0, microbatch_size=8)
        shape = jax.ShapeDtypeStruct((users, 512), jnp.float32)
        compiled = jax.jit(lambda u: total(aggregate, u)).lower(shape).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # The mask of users apart, a byte each.
    assert temporaries(4096) <= temporaries(256) + 2 * 4096


def test_rows_are_added_in_place():
    """Neither all users' scaled rows nor a copy of them is written out when microbatched."""
    aggregate = transforms.clipped_sum(1.0, microbatch_size=32)
    shape = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    compiled = jax.jit(lambda u: total(aggregate, u)).lower(shape).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * 1024 * 1024 / 8


@pytest.mark.parametrize(
    "aggregate", [transforms.clipped_sum(1.0), transforms.clipped_mean(1.0, 3)]
)
def test_updates_without_a_user_axis_are_no_users(aggregate):
    # Without the check, three coordinates are three users, each clipped by itself.
    summed, params = {"w": jnp.ones(3)}, {"w": jnp.zeros(3)}
    with pytest.raises(ValueError, match=r"updates must be of shape \[users"):
        aggregate.update(summed, aggregate.init(params), params)
    rows = {"w": jnp.ones((2, 3))}
    released, _ = aggregate.update(rows, aggregate.init(params), params)
    assert released["w"].shape == (3,)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint8", "int32"])
def test_sensitivities_are_not_rounded_in_the_dtype_of_the_clip_norm(dtype):
    """2/263 in bfloat16 is 0.5 % too small; 2·200 in uint8 is 144."""
    for clip_norm, users in ((1.0, 263), (200.0, 3)):
        aggregate = transforms.clipped_mean(jnp.asarray(clip_norm, dtype), users)
        assert float(aggregate.sensitivity) == pytest.approx(2 * clip_norm / users, rel=1e-6)
