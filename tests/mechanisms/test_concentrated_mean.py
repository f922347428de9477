"""Score, weights and mean of concentrated vectors: exact values, invariances, sensitivity."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.privacy.concentrated.threshold_phase import mean_sensitivity
from tests.support.neighbours import worst_pair

THIRD = 2.0 / 3.0
_average = jax.jit(concentrated_mean._mean_on_grid)
REPLACE, SPECIAL = NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL


@jax.jit
def measure(vectors, radius, anchor=None, mask=None, keep_level=THIRD):
    """Score, weights and mean."""
    found = concentrated_mean.concentration(vectors, radius, anchor=anchor, user_mask=mask)
    weights = concentrated_mean.inlier_weights(found.degrees, len(vectors), keep_level)
    return found.score, weights, concentrated_mean.weighted_mean(vectors, weights, anchor)


def on_a_line(*groups):
    """``(count, position)`` pairs as vectors of dimension 1."""
    return np.concatenate([np.full((count, 1), x, np.float32) for count, x in groups])


def test_vectors_at_one_point_are_all_kept():
    score, weights, mean = measure(np.full((40, 3), 2.5, np.float32), 1.0)
    assert score == 40
    np.testing.assert_array_equal(weights, 1.0)
    np.testing.assert_array_equal(mean, 2.5)


def test_vectors_apart_from_each_other_are_all_left_out():
    anchor = jnp.array([7.0])
    score, weights, mean = measure(3.0 * np.arange(40, dtype=np.float32)[:, None], 1.0, anchor)
    # Those within reach of the anchor are near themselves, the others near nobody.
    np.testing.assert_allclose(score, 8 / 40, rtol=1e-4)
    np.testing.assert_array_equal(weights, 0.0)
    np.testing.assert_array_equal(mean, anchor)
    found = concentrated_mean.concentration(np.float32([[0.0], [90.0]]), 1.0, reach=100.0)
    np.testing.assert_array_equal(found.degrees, 1)
    score, weights, _ = measure(np.arange(40, dtype=np.float32)[:, None], 0.3, anchor * 2.5)
    assert score <= 1
    np.testing.assert_array_equal(weights, 0.0)


def test_half_at_one_point_and_half_at_another_have_no_majority():
    score, weights, mean = measure(on_a_line((20, 0.0), (20, 9.0)), 1.0)
    assert score == 20
    np.testing.assert_array_equal(weights, 0.0)
    np.testing.assert_array_equal(mean, 0.0)


@pytest.mark.parametrize(
    ("users", "moved", "change"), [(50, 9.0, 2 - 2 / 50), (64, np.nan, 2 - 1 / 64)]
)
def test_the_score_moves_by_as_much_as_is_said_and_not_more(users, moved, change):
    """A user who leaves the common point; one whose vector is no number is not near itself either."""
    first = measure(on_a_line((users, 0.0)), 1.0)[0]
    second = measure(on_a_line((1, moved), (users - 1, 0.0)), 1.0)[0]
    np.testing.assert_allclose(first - second, change, rtol=1e-5)
    assert first - second <= 2


@pytest.mark.parametrize("relation", [REPLACE, SPECIAL])
def test_no_record_moves_the_score_by_more_than_two(relation):
    """Searched over huge, tiny, opposite, infinite and undefined records, replaced or masked out."""

    def score(data, mask):
        return concentrated_mean.concentration(data, 1.2, user_mask=mask, block_size=4).score

    worst = worst_pair(score, 6, (3,), relation, rounds=4, population=64)
    assert 1.4 < worst.distance <= 2.0


def test_weights_rise_from_one_half_to_the_keep_level():
    degrees = jnp.array([0, 60, 61, 70, 80, 81, 120])
    weights = concentrated_mean.inlier_weights(degrees, 120, THIRD)
    np.testing.assert_allclose(weights, [0, 0, 0.05, 0.5, 1, 1, 1], atol=1e-5)
    np.testing.assert_allclose(
        concentrated_mean.inlier_weights(degrees, 120, 0.75)[3], 10 / 30, rtol=1e-5
    )


@pytest.mark.parametrize("users", [3, 100, 601, 1234, 99_999])
def test_the_weight_is_exactly_one_from_the_keep_level_on(users, rng):
    """Levels that are fractions of the users, half of which float32 rounds up."""
    least = np.unique(rng.integers(int(0.55 * users) + 1, users, 300))
    weigh = jax.jit(jax.vmap(lambda f, level: concentrated_mean.inlier_weights(f, users, level)))
    weights = weigh(jnp.stack([least, least + 1, least - 1], axis=1), jnp.asarray(least / users))
    np.testing.assert_array_equal(weights[:, :2], 1.0)
    expected = (least - 1 - users / 2) / (least - users / 2)
    np.testing.assert_allclose(weights[:, 2], np.maximum(expected, 0), rtol=1e-4, atol=1e-6)


def test_weights_of_others_can_move_by_seven_in_total():
    """The circle: everybody's degree crosses the ramp's steepest part when one user moves."""
    users, radius = 600, 1.0
    angles = 2 * np.pi * np.arange(users - 1) / (users - 1)
    circle = 1.25 * radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    rows = np.concatenate([[[0.0, 0.0]], circle]).astype(np.float32)
    weights = measure(rows, radius)[1]
    far = rows.copy()
    far[0] = 9.0
    moved = measure(far, radius)[1]
    np.testing.assert_allclose(np.sum(np.abs(weights - moved)), 7 - 6 / users, rtol=1e-4)


@pytest.mark.parametrize(
    ("others", "positions", "scores", "shift"),
    [
        (((29, 0.0), (19, 1.0), (11, 3.0)), (2.0, -1.0), (0.690556, 0.69), 7.06098),
        (((8, 0.0), (12, 1.0), (3, 3.0)), (3.0, -1.0), (0.72222, 0.73958), 5.67742),
        (((251, 0.0), (300, 1.0), (48, 3.0)), (2.0, -1.0), (0.8517, 0.8511), 4.30851),
    ],
)
def test_known_bad_pairs_move_the_mean_as_computed_by_hand(others, positions, scores, shift):
    """Pairs found by search, which use up about a third of the proven sensitivity."""
    users = 1 + sum(count for count, _ in others)
    first, second = (measure(on_a_line((1, x), *others), 1.0) for x in positions)
    np.testing.assert_allclose([first[0] / users, second[0] / users], scores, atol=6e-5)
    moved = np.abs(first[2] - second[2])[0]
    np.testing.assert_allclose(moved, shift / users, rtol=1e-4)
    level = math.ceil(max(first[0], second[0])) - 1
    assert 0.3 * shift / users < moved < mean_sensitivity(users, level, THIRD)


def test_no_replacement_moves_the_mean_beyond_its_sensitivity(rng):
    """Ten thousand random neighbours in clusters around one or two points, in up to three dimensions."""
    users, trials, found = 24, 10_000, 0.0
    sensitivity = {level: mean_sensitivity(users, level, THIRD) for level in range(16, 24)}
    batched = jax.jit(jax.vmap(lambda v: measure(v, 1.0)))
    for dim in (1, 2, 3):
        shape = (trials // 3, users + 1, dim)
        at = rng.choice([0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 3.0, -1.0], (*shape[:2], 1))
        direction = np.eye(dim)[rng.integers(dim, size=shape[:2])]
        rows = (at * direction + rng.choice([0.0, 0.4]) * rng.standard_normal(shape)).astype("f4")
        first, second = batched(rows[:, 1:]), batched(np.concatenate([rows[:, :1], rows[:, 2:]], 1))
        level = np.ceil(np.maximum(first[0], second[0])).astype(int) - 1
        distance = np.linalg.norm(np.float64(first[2]) - np.float64(second[2]), axis=-1)
        for core, bound in sensitivity.items():
            at_core = distance[level == core]
            if at_core.size:
                found = max(found, np.max(at_core) / bound)
    assert 0.2 < found <= 1.0


@pytest.fixture(scope="module")
def cloud():
    generator = np.random.default_rng(4)
    # Most within 2 of each other, some on the ramp, some far away.
    spread = generator.choice([0.4, 0.9, 3.0], (60, 1), p=[0.4, 0.4, 0.2])
    return (spread * generator.standard_normal((60, 4)) / 2).astype(np.float32)


def test_translation_with_the_anchor_rotation_and_scaling(cloud, rng):
    score, weights, mean = measure(cloud, 1.0)
    shift = jnp.array([64.0, -32.0, 128.0, 0.0])
    rotation = np.linalg.qr(rng.standard_normal((4, 4)))[0].astype(np.float32)
    for moved, image in (
        (measure(cloud + shift, 1.0, shift), mean + shift),
        (measure(cloud @ rotation, 1.0), mean @ rotation),
        (measure(1000.0 * cloud, 1000.0), 1000.0 * mean),
        (measure(1e-20 * cloud, 1e-20), 1e-20 * mean),
    ):
        assert moved[0] == score
        np.testing.assert_array_equal(moved[1], weights)
        np.testing.assert_allclose(moved[2], image, rtol=1e-4, atol=1e-5 * np.max(np.abs(image)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38, 1e6])
def test_a_vector_that_is_no_number_counts_as_one_far_away(cloud, bad):
    spoiled, far = cloud.copy(), cloud.copy()
    spoiled[0, 2], far[0] = bad, 1e5
    first, second = measure(spoiled, 1.0), measure(far, 1.0)
    masked = measure(cloud, 1.0, None, np.arange(60) > 0)
    for a, b, c in zip(first, second, masked, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert np.all(np.isfinite(first[2]))


def test_concentrated_vectors_have_their_plain_mean(rng):
    tree = {"w": rng.standard_normal((500, 3, 2)) / 9 + 1.0, "b": rng.standard_normal(500) / 9}
    tree = jax.tree.map(np.float32, tree)
    found = concentrated_mean.concentration(tree, 2.0)
    weights = concentrated_mean.inlier_weights(found.degrees, 500, 0.7)
    assert found.score == 500
    for anchor in (None, {"w": np.ones((3, 2)), "b": np.zeros(())}):
        mean = concentrated_mean.weighted_mean(tree, weights, anchor)
        for name, value in mean.items():
            np.testing.assert_allclose(value, np.mean(np.float64(tree[name]), 0), atol=1e-6)


def test_a_mean_of_many_users_is_right_to_the_last_place(rng):
    """Without compensation the error is ten times larger."""
    mean = jax.jit(concentrated_mean.weighted_mean)
    rows = (0.9 + 0.1 * rng.random((200_000, 2))).astype(np.float32)
    for weights in (np.ones(200_000, np.float32), rng.random(200_000).astype(np.float32)):
        exact = np.average(np.float64(rows), axis=0, weights=np.float64(weights))
        np.testing.assert_allclose(mean(rows, weights), exact, rtol=1.3e-7)


def test_half_precision_is_averaged_in_full():
    rows = jnp.asarray(np.full((300, 2), 1 / 3), jnp.bfloat16)
    mean = concentrated_mean.weighted_mean(rows, np.ones(300, np.float32))
    assert mean.dtype == jnp.float32
    np.testing.assert_allclose(mean, np.float32(rows[0]), rtol=1e-6)


def test_the_random_subset_has_the_weights_as_probabilities():
    weights = jnp.array([0.0, 0.2, 0.75, 1.0])
    kept = jax.vmap(lambda k: concentrated_mean.select(k, weights))(
        jax.random.split(jax.random.key(0), 20_000)
    )
    np.testing.assert_allclose(np.mean(kept, axis=0), weights, atol=0.02)
    np.testing.assert_array_equal(kept[:, 0], 0)
    np.testing.assert_array_equal(kept[:, 3], 1)
    assert set(np.unique(kept)) == {0.0, 1.0}


def test_coins_of_neighbours_drawn_from_one_key_differ_as_the_coupling_says(rng):
    """The number of differing coins is a sum of independent coins of probability |w - w'|."""
    weights = rng.random(50).astype(np.float32)
    other = np.clip(weights + rng.choice([0.0, 0.05, -0.05], 50), 0, 1).astype(np.float32)
    keys = jax.random.split(jax.random.key(1), 100_000)
    differ = jax.jit(
        jax.vmap(
            lambda k: jnp.sum(
                concentrated_mean.select(k, weights)
                != concentrated_mean.select(jax.random.clone(k), other)
            )
        )
    )(keys)
    gaps = np.abs(np.float64(weights) - other)
    law = np.ones(1)
    for gap in gaps:
        law = np.convolve(law, [1 - gap, gap])
    shares = np.bincount(np.asarray(differ), minlength=len(law))[: len(law)] / len(keys)
    error = np.sqrt(law * (1 - law) / len(keys))
    assert np.all(np.abs(shares - law) < 5 * error + 1e-5)


def test_scores_of_many_users_are_exact_to_their_grid():
    """The sum of 2^24 counts needs 48 bits."""
    for users in (1, 2, 3, 1000, 8192, 65_537, 200_000, 2**20 + 1):
        for counts in (
            np.full(users, users),
            np.random.default_rng(users).integers(0, users + 1, users, np.int32),
        ):
            exact = Fraction(int(np.sum(counts, dtype=np.int64)), users)
            grid = Fraction(1, 2 ** (24 - users.bit_length()))
            found = Fraction(float(_average(counts.astype(np.int32))))
            assert found == exact // grid * grid


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 3999))
def test_rounding_does_not_raise_the_sensitivity_of_the_score(seed, moved):
    users = 2000
    counts = np.random.default_rng(seed).integers(1, users, users).astype(np.int32)
    neighbour = counts.copy()
    # A user's row and column, and its pair with itself.
    neighbour[0] = max(counts[0] - moved, 0)
    for user in range(1, 1 + min(moved - counts[0] + neighbour[0], users - 1)):
        neighbour[user] -= 1
    assert float(_average(counts)) - float(_average(neighbour)) <= 2


def test_the_score_of_most_users_moves_by_two_and_not_more():
    """One of 2^24 - 1 users leaves all others: the grid has steps of 1 there."""
    users = 2**24 - 1
    counts = np.full(users, users, np.int32)
    assert _average(counts) == users
    counts[1:] -= 1
    counts[0] = 0
    assert users - float(_average(counts)) == 2


def test_bad_arguments_are_refused():
    rows = np.zeros((3, 2), np.float32)
    with pytest.raises(ValueError, match=r"block_size must be an integer in \[1, 2048\]"):
        concentrated_mean.concentration(rows, 1.0, block_size=4096)
    with pytest.raises(
        ValueError, match="vectors must be arrays with one leading axis, of the same"
    ):
        concentrated_mean.concentration({"a": rows, "b": rows[:2]}, 1.0)
    many = jax.ShapeDtypeStruct((2**24, 1), np.float32)
    with pytest.raises(ValueError, match="users must be between 1 and 16777215"):
        jax.eval_shape(lambda rows: concentrated_mean.concentration(rows, 1.0), many)
