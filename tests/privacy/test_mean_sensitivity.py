"""The sensitivity of a mean of inliers, against adversarial searches on the mechanism's own definition."""

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax.privacy.concentrated.threshold_phase import coupled_sensitivity, mean_sensitivity

REPLACE_ONE, ZERO_OUT = NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL


def scores_weights_and_mean(vectors, keep_level):
    """By definition, for vectors [..., n, d]; rows of infinities stand for users close to nobody."""
    n = vectors.shape[-2]
    with np.errstate(invalid="ignore"):
        gaps = vectors[..., :, None, :] - vectors[..., None, :, :]
    distances = np.sqrt(np.sum(np.nan_to_num(gaps, nan=0.0, posinf=1e9, neginf=1e9) ** 2, -1))
    score = np.mean(np.sum(distances <= 1 + 1e-12, -1), -1)
    degrees = np.sum(distances <= 2 + 1e-12, -1)
    weights = np.clip((degrees - n / 2) / ((keep_level - 0.5) * n), 0, 1)
    finite = np.where(np.isfinite(vectors), vectors, 0.0)
    total = np.maximum(weights.sum(-1), 1e-9)[..., None]
    return score, weights, np.sum(weights[..., None] * finite, -2) / total


def shift(vectors, other, keep_level):
    """Distance of the means of two data sets that differ in user 0, the larger score, and Σ|w - w'|."""
    ours = scores_weights_and_mean(
        np.concatenate([other[..., :1, :], vectors[..., 1:, :]], -2), keep_level
    )
    first = scores_weights_and_mean(vectors, keep_level)
    moved = np.linalg.norm(first[2] - ours[2], axis=-1)
    unshared = np.sum(np.abs(first[1] - ours[1])[..., 1:], -1)
    return moved, np.maximum(first[0], ours[0]), unshared


def clusters(positions, counts):
    return np.repeat(np.asarray(positions, float), counts, axis=0).reshape(-1, 1)


@pytest.mark.parametrize(
    ("relation", "expected"),
    [(REPLACE_ONE, (10.49, 8.51, 6.81, 20.97)), (ZERO_OUT, (6.99, 5.32, 3.90, 15.97))],
)
def test_reference_values(relation, expected):
    levels = (0.85 * 1200 - 1, 0.9 * 1200 - 1, 0.95 * 1200 - 1, 800)
    found = [1200 * mean_sensitivity(1200, level, 2 / 3, relation) for level in levels]
    np.testing.assert_allclose(found, expected, atol=0.006)


def test_reference_values_of_larger_data():
    found = [
        n * mean_sensitivity(n, level, 2 / 3)
        for n, level in ((5000, 4511), (5000, 3663), (1000, 800), (1000, 950))
    ]
    np.testing.assert_allclose(found, (8.41795, 16.4737, 12.7348, 6.77934), rtol=1e-5)
    assert 1200 * coupled_sensitivity(1200, 1019, 2 / 3, 1e-9) == pytest.approx(54.4, abs=0.05)
    assert 1e6 * mean_sensitivity(10**6, 10**6 - 1, 2 / 3) == pytest.approx(16 / 3, rel=1e-4)
    assert 1e6 * mean_sensitivity(10**6, 10**6 - 1, 0.9999) == pytest.approx(4, rel=1e-3)


def test_the_closed_form_maximizes_over_all_degrees():
    rng = np.random.default_rng(0)
    for _ in range(300):
        n, keep = int(rng.integers(6, 400)), rng.uniform(0.51, 0.98)
        if np.ceil(keep * n) > n - 1:
            continue
        level = int(rng.integers(np.ceil(keep * n), n))
        ramp, shared = (keep - 0.5) * n, n - 1

        def reach(a, shared=shared, level=level):
            return (6 * shared - 2 * level - 2 * np.minimum(a, level)) / shared

        f = np.arange(n // 2 + 1, n + 1)
        moved = np.max(np.clip((f - n / 2) / ramp, 0, 1) * reach(f - 1))
        exact = (2 * moved + (shared - level) / ramp * reach((n - 1) / 2)) / level
        # The ramp of float32 weights is steeper, by 2^-21 θ/(θ - ½): section 12 of the proof.
        exact *= 1 + 2**-21 * keep / (keep - 0.5)
        assert mean_sensitivity(n, level, keep) == pytest.approx(exact, rel=1e-9)


def random_pairs(rng, count, n, dim):
    """Data sets of a core, a few clusters at critical distances, and two places for user 0."""
    places = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, -1.0, -2.0, -3.0, 9.0])
    centres = rng.choice(places, (count, 5)) * np.where(rng.random((count, 5)) < 0.8, 1, 0.99)
    angles = rng.choice([0.0, np.pi / 3, np.pi / 2, np.pi], (count, 5)) if dim == 2 else 0.0
    points = np.stack([centres * np.cos(angles), centres * np.sin(angles)], -1)[..., :dim]
    shares = rng.dirichlet([4.0, 2.0, 0.7, 0.5, 0.4], count)
    owner = (rng.random((count, n, 1)) > np.cumsum(shares, -1)[:, None, :-1]).sum(-1)
    vectors = np.take_along_axis(points, owner[..., None], 1)
    other = vectors.copy()
    ends = rng.choice(places, (count, 2, dim))
    vectors[:, 0], other[:, 0] = ends[:, 0], ends[:, 1]
    return vectors, other


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("keep_level", [2 / 3, 0.8])
def test_no_random_pair_is_further_apart(dim, keep_level):
    rng = np.random.default_rng(dim)
    n, largest, checked = 24, 0.0, 0
    for _ in range(12):
        vectors, other = random_pairs(rng, 400, n, dim)
        moved, score, unshared = shift(vectors, other, keep_level)
        for distance, top, change in zip(moved, score, unshared, strict=True):
            level = int(np.ceil(top)) - 1
            if keep_level * n <= level <= n - 1:
                checked += 1
                ratio = distance / mean_sensitivity(n, level, keep_level)
                largest = max(largest, ratio)
                assert change <= (n - 1 - level) / ((keep_level - 0.5) * n) + 1e-9
    assert checked > 300
    assert 0.2 < largest <= 1.0  # and the search does reach a good part of the bound


def test_hill_climbing_finds_no_pair_further_apart():
    """Moves cluster places and sizes in the direction of the ratio to the bound."""
    rng = np.random.default_rng(3)
    n, keep_level, best_of_all = 40, 2 / 3, 0.0

    def ratio(places, counts, ends):
        pair = [clusters((end, *places), (1, *counts)) for end in ends]
        moved, score, _ = shift(*pair, keep_level)
        level = int(np.ceil(score)) - 1
        if not keep_level * n <= level <= n - 1:
            return 0.0
        return float(moved / mean_sensitivity(n, level, keep_level))

    for _ in range(6):
        places, ends = np.array([0.0, 1.0, 3.0, -1.0]), np.array([2.0, -1.0])
        counts = rng.multinomial(n - 1, [0.45, 0.35, 0.12, 0.08])
        best = ratio(places, counts, ends)
        for _ in range(250):
            new_places = places + rng.choice([0, 0, 0.25, -0.25, 1, -1], 4)
            new_ends = ends + rng.choice([0, 0, 0.25, -0.25, 1, -1], 2)
            new_counts = counts.copy()
            source, target = rng.integers(0, 4, 2)
            if new_counts[source] > 0:
                new_counts[source] -= 1
                new_counts[target] += 1
            found = ratio(new_places, new_counts, new_ends)
            if found >= best:
                best, places, ends, counts = found, new_places, new_ends, new_counts
        best_of_all = max(best_of_all, best)
    assert 0.45 < best_of_all <= 1.0


def test_a_user_close_to_nobody_moves_the_mean_by_less():
    rng = np.random.default_rng(5)
    vectors, other = random_pairs(rng, 1500, 24, 1)
    other[:, 0] = np.inf
    moved, score, _ = shift(vectors, other, 2 / 3)
    ratios = [
        distance / mean_sensitivity(24, level, 2 / 3, ZERO_OUT)
        for distance, level in zip(moved, np.ceil(score) - 1, strict=True)
        if 16 <= level <= 23
    ]
    assert len(ratios) > 100
    assert 0.2 < max(ratios) <= 1.0


def test_the_score_moves_by_less_than_two_but_not_for_a_user_drawn_twice():
    n = 30
    near, far = np.zeros((n, 1)), np.zeros((n, 1))
    far[0] = 50.0
    scores = [scores_weights_and_mean(v, 2 / 3)[0] for v in (near, far)]
    assert scores[0] - scores[1] == pytest.approx(2 * (1 - 1 / n))
    far[1] = 50.0  # the same user, drawn twice with replacement
    scores = [scores_weights_and_mean(v, 2 / 3)[0] for v in (near, far)]
    assert scores[0] - scores[1] > 3.5
    # Three copies of one user near an end of the core move the mean beyond the bound for one.
    ends = [clusters((end, 0), (5, 25)) for end in (2.0, -2.0)]
    means = [scores_weights_and_mean(v, 2 / 3)[2] for v in ends]
    assert abs(means[0] - means[1])[0] > mean_sensitivity(30, 24, 2 / 3)


def test_coins_differ_more_than_said_with_at_most_the_failure_probability():
    """The core at 0 and 1, shared users on the ramp: coins coupled vector by vector."""
    n, keep_level, failure = 60, 2 / 3, 1e-2
    pair = [clusters((end, 0, 1, 3), (1, 29, 19, 11)) for end in (2, -1)]
    (_, weights, _), (_, others, _) = (scores_weights_and_mean(v, keep_level) for v in pair)
    uniform = np.random.default_rng(0).random((40_000, n))
    kept, kept_there = uniform < weights, uniform < others
    means = [
        (k @ np.nan_to_num(v[:, 0])) / k.sum(1)
        for k, v in zip((kept, kept_there), pair, strict=True)
    ]
    bound = coupled_sensitivity(n, 41, keep_level, failure)
    assert np.mean(np.abs(means[0] - means[1]) > bound) <= failure
    assert (
        coupled_sensitivity(n, 41, keep_level, 1e-9) > bound > mean_sensitivity(n, 41, keep_level)
    )


@pytest.mark.parametrize(
    "arguments",
    [(1, 1, 0.6), (30, 15, 2 / 3), (30, 25, 2 / 3, NeighboringRelation.ADD_OR_REMOVE_ONE)],
)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        mean_sensitivity(*arguments)
