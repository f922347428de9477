"""Noisy counts of users: exact without noise, a unit moves one count by one, orders by brute force."""

import itertools

import jax
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax.mechanisms import heavy_hitters
from dpsco_jax.rates import element_level


def _key():
    return jax.random.key(0)


def _exact(users, items, num_users, num_items):
    """Another way to count: a set of pairs."""
    pairs = {(int(u), int(i)) for u, i in zip(users, items, strict=True)}
    found = np.zeros(num_items)
    for u, i in pairs:
        if 0 <= u < num_users and 0 <= i < num_items:
            found[i] += 1
    return found


def test_counts_without_noise_are_exact(rng):
    users = rng.integers(-2, 15, 300)
    items = rng.integers(-3, 25, 300)
    count = jax.jit(heavy_hitters.heavy_hitter_counts, static_argnums=(3, 4))
    found = count(_key(), users, items, 12, 20, 0.0)
    np.testing.assert_array_equal(found, _exact(users, items, 12, 20))
    # Numbers that a narrower integer would wrap around into the range.
    far = np.array([2**32 + 1, 2**31, -(2**40), 1])
    found = heavy_hitters.heavy_hitter_counts(_key(), far, np.zeros(4, int), 12, 20, 0.0)
    np.testing.assert_array_equal(found, _exact([1], [0], 12, 20))
    narrow = np.array([0, 255, 44], np.uint8)
    found = count(_key(), narrow, narrow, 300, 300, 0.0)
    np.testing.assert_array_equal(found, _exact(narrow, narrow, 300, 300))
    none = np.zeros(0, np.int32)
    found = count(_key(), none, none, 3, 4, 0.0)
    np.testing.assert_array_equal(found, np.zeros(4))


def test_one_unit_moves_one_count_by_one(rng):
    count = jax.jit(lambda u, i: heavy_hitters.heavy_hitter_counts(_key(), u, i, 4, 5, 0.0))
    largest = 0.0
    for _ in range(60):
        users, items = rng.integers(0, 4, 12), rng.integers(0, 5, 12)
        unit = rng.integers(0, 4), rng.integers(0, 5)
        inside = (users == unit[0]) & (items == unit[1])
        without = np.where(inside, 9, users)  # all that the unit holds, replaced by nothing
        many = np.where(rng.random(12) < 0.2, unit[0], without)
        more = np.where(many != without, unit[1], items)
        moved = [count(u, i) for u, i in ((users, items), (without, items))]
        largest = max(largest, np.linalg.norm(moved[0] - moved[1]))
        kept = many != without
        only = count(np.where(kept, many, 9), more)
        assert np.linalg.norm(only) <= 1.0  # a unit that repeats is one
    assert largest == 1.0


def test_noise_has_its_variance_and_its_price():
    users = items = np.zeros(1, np.int32)
    found = heavy_hitters.heavy_hitter_counts(_key(), users, items, 1, 40_000, 3.0)
    noise = np.asarray(found) - _exact(users, items, 1, 40_000)
    # chi-square with 40,000 degrees of freedom: standard error 0.7 %
    assert abs(np.mean(noise**2) / 9.0 - 1) < 4 * (2 / 40_000) ** 0.5
    relation = NeighboringRelation.REPLACE_ONE
    exact = privacy.certificate(privacy.events.gaussian(3.0), 1e-5, relation).epsilon
    spent = float(privacy.epsilon(heavy_hitters.heavy_hitter_loss(3.0), 1e-5))
    assert exact <= spent < 1.1 * exact
    assert np.isinf(privacy.epsilon(heavy_hitters.heavy_hitter_loss(0.0), 1e-5))


def test_the_sensitivity_of_whole_users_is_attained():
    m, d = 3, 10
    first = heavy_hitters.heavy_hitter_counts(_key(), np.zeros(m, int), np.arange(m), 1, d, 0.0)
    other = heavy_hitters.heavy_hitter_counts(_key(), np.zeros(m, int), m + np.arange(m), 1, d, 0.0)
    moved = np.linalg.norm(np.asarray(first) - np.asarray(other))
    assert moved == pytest.approx(heavy_hitters.user_level_sensitivity(m, d))
    assert heavy_hitters.user_level_sensitivity(8, d) == pytest.approx(d**0.5)


def _brute(noisy, p, gap):
    pairs = itertools.permutations(range(len(p)), 2)
    return sum(p[j] - p[l] >= gap and noisy[j] < noisy[l] for j, l in pairs)


def test_wrong_orders_are_counted(rng):
    for size in (1, 2, 13, 64, 65):
        p = rng.integers(0, 12, size) / 10.0  # ties, and differences that rounding touches
        noisy = rng.integers(0, 9, size).astype(float)
        for gap in (0.1, 0.3, 0.30000000000000004, 5.0):
            assert heavy_hitters.ordering_loss(noisy, p, gap) == _brute(noisy, p, gap)
    p = np.arange(1000) / 1000.0
    assert heavy_hitters.ordering_loss(p, p, 0.01) == 0
    assert heavy_hitters.ordering_loss(-p, p, 0.0105) == 989 * 990 // 2
    with pytest.raises(ValueError, match="gap"):
        heavy_hitters.ordering_loss(p, p, 0.0)
    with pytest.raises(ValueError, match="noisy"):
        heavy_hitters.ordering_loss(p[:3], p, 0.1)


def test_two_items_are_misordered_as_the_normal_law_says(rng):
    n, m, p, sigma, runs = 400, 10, (0.05, 0.045), 6.0, 4000
    draws = rng.multinomial(m, [*p, 1 - sum(p)], (runs, n))
    counts = np.sum(draws[..., :2] > 0, axis=1) + sigma * rng.standard_normal((runs, 2))
    wrong = np.mean(counts[:, 0] < counts[:, 1])
    assert abs(wrong - element_level.misorder_probability(*p, n, m, sigma)) < 0.03
