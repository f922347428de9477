"""The private interval: its exact law against a histogram, its guarantee, its window."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpsco_jax.mechanisms.winsorized import private_range as ranges

draw = jax.jit(jax.vmap(ranges.private_range, in_axes=(0, None, None, None, None, None)))


@pytest.fixture
def in_few_programs(monkeypatch):
    """What is drawn from is computed as in a draw, in one program for each number of values."""
    monkeypatch.setattr(ranges, "_segments", jax.jit(ranges._segments))


def histogram_law(values, epsilon, bound, width):
    """The definition: counts below and above every bin."""
    half = int(np.ceil(bound / width))
    bins = np.clip(np.floor(np.clip(values, -bound, bound) / width), -half, half - 1)
    places = np.arange(-half, half)
    below, above = (np.sum(op(bins[:, None], places), 0) for op in (np.less, np.greater))
    weight = np.exp(-epsilon * (np.maximum(below, above) - len(values) / 2) / 2)
    return (places + 0.5) * width, weight / weight.sum()


def data_sets(rng):
    """Few values among many bins, with ties, ends, gaps and outliers."""
    yield np.full(7, 0.3)
    yield np.array([-1.0, 1.0] * 4)
    yield np.array([-1.0] * 8)
    yield np.array([5.0, -7.0, 0.0, -0.0, 1.0])
    for _ in range(6):
        yield np.round(rng.normal(0, 0.5, rng.choice([1, 5, 7, 8])), 1)  # few shapes, few programs


def test_law_is_that_of_the_histogram(rng, in_few_programs):
    for values in data_sets(rng):
        centers, found = ranges.law(values.astype(np.float32), 0.7, 0.25, 1.0, 0.125)
        expected_centers, expected = histogram_law(values.astype(np.float32), 0.7, 1.0, 0.125)
        np.testing.assert_allclose(centers, expected_centers, atol=1e-7)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_draws_follow_the_law(rng):
    values = jnp.asarray(np.float32(rng.normal(0.2, 0.3, 9)))
    trials = 100_000
    drawn = draw(jax.random.split(jax.random.key(0), trials), values, 0.8, 0.25, 1.0, 0.125)
    centers, expected = ranges.law(values, 0.8, 0.25, 1.0, 0.125)
    observed = np.bincount(np.searchsorted(centers, np.asarray(drawn.center)), minlength=16)
    assert scipy.stats.chisquare(observed, expected * trials).pvalue > 1e-3
    np.testing.assert_allclose(drawn.half_width, 0.5625)


def test_guarantee_is_exact_on_neighbours(rng, in_few_programs):
    """log P/P' within ±ε and of range ε at most, over random pairs and the worst one."""
    epsilon, worst, worst_range = 0.9, 0.0, 0.0
    pairs = []
    for _ in range(100):
        values = np.round(rng.normal(0, 0.5, 6), 1)
        other = values.copy()
        other[0] = rng.choice([-1.0, 1.0, np.nan, rng.normal()])
        pairs.append((values, other))
    # One of them moves from below all others to above them.
    pairs.append((np.array([-1.0, *np.zeros(5)]), np.array([1.0, *np.zeros(5)])))
    for values, other in pairs:
        laws = [ranges.law(np.float32(x), epsilon, 0.25, 1.0, 0.125)[1] for x in (values, other)]
        ratio = np.log(laws[0] / laws[1])
        worst, worst_range = max(worst, np.abs(ratio).max()), max(worst_range, np.ptp(ratio))
    assert worst <= epsilon * (1 + 1e-9)
    assert 0.99 * epsilon < worst_range <= epsilon * (1 + 1e-9)


def test_the_window_holds_all_values(rng):
    """For values in a window of half-width τ, wherever it is, whatever is drawn with cost below n."""
    users, tau = 400, 0.1
    keys = jax.random.split(jax.random.key(1), 500)
    for center in rng.uniform(-0.9, 0.9, 6):
        values = jnp.asarray(np.float32(center + tau * rng.choice([-1.0, 0.999], users)))
        drawn = draw(jax.random.clone(keys), values, 0.2, tau, 1.0, None)
        left_out = np.abs(values[None] - drawn.center[:, None]) > drawn.half_width[:, None] + 1e-6
        assert ranges.miss_probability(users, 0.2, 1.0, tau / 2) < 1e-6
        assert not left_out.any()


def test_bad_bins_are_as_rare_as_stated():
    users, epsilon, trials = 60, 0.25, 20_000
    values = jnp.zeros(users).at[: users // 2].set(0.5)
    drawn = draw(
        jax.random.split(jax.random.key(2), trials), values, epsilon, 0.25, 100.0, 0.125
    ).center
    missed = np.mean((drawn < 0) | (drawn > 0.625))
    bound = ranges.miss_probability(users, epsilon, 100.0, 0.125)
    assert 0.2 * bound < missed < bound


def test_radius_beyond_the_bound_reveals_nothing():
    for values in (jnp.zeros(5), jnp.full(5, 7.0)):
        interval = ranges.private_range(jax.random.key(0), values, 1.0, 0.5, 1.0)
        assert (float(interval.center), float(interval.half_width)) == (0.0, 1.0)


def test_many_bins_and_traced_numbers():
    """2^29 bins: the center is as near as float32 can say."""
    values = jnp.full(2000, 0.37)

    @jax.jit
    def run(radius):
        return ranges.private_range(jax.random.key(0), values, 0.5, radius, 1000.0).center

    np.testing.assert_allclose(run(2**-17), 0.37, atol=2**-18 + 1e-6)
    np.testing.assert_allclose(run(0.1), 0.37, atol=0.05)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_counts_as_zero(bad):
    values = jnp.asarray([bad, 0.4, -0.2])
    plain = ranges.law(values.at[0].set(0.0), 1.0, 0.25, 1.0)
    np.testing.assert_array_equal(ranges.law(values, 1.0, 0.25, 1.0)[1], plain[1])


def test_arguments():
    key, values = jax.random.key(0), jnp.zeros(3)
    for arguments, named in [
        ((values, 1.0, 1e-9, 1.0), "bins"),
        ((jnp.zeros(0), 1.0, 1.0, 1.0), "values"),
    ]:
        with pytest.raises(ValueError, match=named):
            ranges.private_range(key, *arguments)
