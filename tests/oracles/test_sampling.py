"""Samples have exactly the law that amplification assumes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax.oracles import sampling

DRAWS = 30_000


def _draw(sampler, seed=0, draws=DRAWS):
    return jax.jit(jax.vmap(sampler))(jax.random.split(jax.random.key(seed), draws))


def _subsets(indices):
    """How often each subset was drawn; ``indices`` is ``[draws, size]``."""
    masks = np.sum(1 << np.asarray(indices, np.int64), axis=1)
    return np.unique(masks, return_counts=True)


# Size 2 of 6 draws a stream, 4 of 6 draws the complement.
@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_subsets_are_equally_likely(size):
    sample = _draw(lambda key: sampling.without_replacement(key, 6, size).indices)
    subsets, counts = _subsets(sample)
    assert len(subsets) == len(list(itertools.combinations(range(6), size)))
    assert stats.chisquare(counts).pvalue > 1e-4


# Of 2 of 5 the order is that of a stream, of 3 and 4 it is drawn; few bits tie often.
@pytest.mark.parametrize("bits", [32, 1])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_orders_are_equally_likely(monkeypatch, size, bits):
    _with_bits(monkeypatch, bits)
    sample = _draw(lambda key: sampling.without_replacement(key, 5, size).indices, seed=5)
    _, counts = np.unique(np.asarray(sample) @ 5 ** np.arange(size), return_counts=True)
    assert len(counts) == len(list(itertools.permutations(range(5), size)))
    assert stats.chisquare(counts).pvalue > 1e-4


def _with_bits(monkeypatch, number):
    """Orders are drawn by words of so many random bits, and samples as they were."""
    draw = jax.random.bits

    def narrow(key, shape, dtype):
        return draw(key, shape, dtype) >> (32 - number if len(shape) == 2 else 0)

    monkeypatch.setattr(jax.random, "bits", narrow)


def _always_streamed(monkeypatch):
    """Poisson samples are streams, however few the users and however likely."""
    monkeypatch.setattr(sampling, "_STREAMED_BELOW", 0)


# As all orders are sorted, as many of them tie, as samples are longer than what is sorted; and as streams,
# which are long enough or have to be drawn again often.
@pytest.mark.parametrize(
    ("bits", "sorted_users"), [(32, 4), (1, 4), (32, 2), (32, 1), (32, None), (16, None)]
)
def test_all_orders_of_poisson_samples_are_equally_likely(monkeypatch, bits, sorted_users):
    """Given who is in it; and who is in it has the law that it had."""
    if sorted_users is None:
        _always_streamed(monkeypatch)
        if bits < 32:
            monkeypatch.setattr(sampling._streams, "words_needed", lambda *_: 5)
    else:
        _with_bits(monkeypatch, bits)
        monkeypatch.setattr(sampling, "_seldom_exceeded", lambda *_: sorted_users)
    draws = DRAWS if sorted_users else 6_000
    drawn = _draw(lambda key: sampling.poisson(key, 4, 0.6), seed=3, draws=draws)
    size, indices = np.asarray(drawn.size), np.asarray(drawn.indices)
    counted = np.arange(4) < size[:, None]
    words = np.sum(np.where(counted, (indices + 1) * 5 ** np.arange(4), 0), axis=1)
    found, counts = np.unique(words, return_counts=True)
    length = {
        sum((user + 1) * 5**place for place, user in enumerate(order)): len(order)
        for k in range(5)
        for order in itertools.permutations(range(4), k)
    }
    assert set(found) <= set(length)
    assert len(found) == len(length)
    sizes = np.array([length[word] for word in found])
    orders = np.array([1, 1, 2, 6, 24])[sizes]
    expected = draws * 0.6**sizes * 0.4 ** (4 - sizes) / orders
    assert stats.chisquare(counts, expected).pvalue > 1e-4


@pytest.mark.parametrize("traced", [False, True])
def test_who_is_in_a_sample_does_not_depend_on_its_order(traced):
    """They are those whose bits are below the threshold."""
    key, q = jax.random.key(7), np.float32(0.3)
    bits = jax.random.bits(jax.random.split(key)[0], (500,), jnp.uint32)
    below = np.asarray(bits) < np.floor(float(q) * 2.0**32)
    sample = sampling.poisson(jax.random.clone(key), 500, jnp.asarray(q) if traced else float(q))
    users = np.asarray(sample.indices)[: int(sample.size)]
    np.testing.assert_array_equal(np.sort(users), np.flatnonzero(below))
    assert np.any(np.diff(users) < 0)


def test_samples_are_seldom_longer_than_what_is_sorted():
    for n, q in ((10, 0.1), (1000, 0.001), (1000, 0.5), (10**6, 1e-4), (10**6, 0.3), (50, 1.0)):
        length = sampling._seldom_exceeded(n, q)
        assert length <= n
        assert stats.binom.sf(length, n, q) < 1e-7
    assert sampling._seldom_exceeded(10**6, 0.01) < 11_000


def test_draws_are_told_apart_by_sorting_as_by_a_list_of_all_users(monkeypatch):
    stream = np.random.default_rng(0).integers(0, 50, 80).astype(np.int32)
    seen = {}
    wanted = [seen.setdefault(user, place) == place for place, user in enumerate(stream.tolist())]
    for below in (0, 10**6):  # always, and never by sorting
        monkeypatch.setattr(sampling._streams, "_SORTED_BELOW", below)
        found = sampling._streams.first_of_equals(jnp.asarray(stream), 50)
        np.testing.assert_array_equal(found, wanted)


def test_few_of_many_are_drawn_without_memory_for_all():
    def temporaries(num_users):
        drawn = jax.jit(lambda key: sampling.without_replacement(key, num_users, 16))
        return drawn.lower(jax.random.key(0)).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(2**20) == temporaries(2**14) < 2**14


def test_streams_that_are_too_short_are_drawn_again_without_a_bias(monkeypatch):
    monkeypatch.setattr(
        sampling._streams, "stream_length", lambda num_users, batch_size: batch_size
    )
    sample = _draw(lambda key: sampling.without_replacement(key, 6, 3).indices, seed=1)
    subsets, counts = _subsets(sample)
    assert len(subsets) == 20
    assert stats.chisquare(counts).pvalue > 1e-4


def test_consecutive_samples_are_independent():
    def pair(key):
        first, second = jax.random.split(key)
        one = sampling.without_replacement(first, 4, 2).indices
        return jnp.concatenate([one, 4 + sampling.without_replacement(second, 4, 2).indices])

    subsets, counts = _subsets(_draw(pair, seed=2))
    assert len(subsets) == 36
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(("num_users", "size"), [(2, 1), (7, 7), (50, 49), (1000, 90)])
def test_nobody_is_drawn_twice(num_users, size):
    sample = np.asarray(
        _draw(lambda key: sampling.without_replacement(key, num_users, size).indices, draws=200)
    )
    assert sample.shape == (200, size)
    assert sample.min() >= 0
    assert sample.max() < num_users
    assert all(len(set(row)) == size for row in sample)


@pytest.mark.parametrize("size", [0, 8, -1])
def test_sizes_out_of_range_are_refused(size):
    with pytest.raises(ValueError, match=r"batch_size must be an integer in \[1, 7\]"):
        sampling.without_replacement(jax.random.key(0), 7, size)


def test_draws_with_replacement_are_independent_and_may_repeat():
    sample = np.asarray(_draw(lambda key: sampling.with_replacement(key, 3, 2).indices))
    _, counts = np.unique(sample[:, 0] * 3 + sample[:, 1], return_counts=True)
    assert len(counts) == 9
    assert stats.chisquare(counts).pvalue > 1e-4
    assert sampling.with_replacement(jax.random.key(0), 3, 5).size == 5
    with pytest.raises(ValueError, match="num_draws must be an integer at least 1, got 0"):
        sampling.with_replacement(jax.random.key(0), 3, 0)


def test_poisson_users_are_independent():
    sample = _draw(lambda key: sampling.poisson(key, 4, 0.3), seed=3)
    chosen = np.arange(4) < np.asarray(sample.size)[:, None]
    masks = np.sum(np.where(chosen, 1 << np.asarray(sample.indices, np.int64), 0), axis=1)
    counts = np.bincount(masks, minlength=16)
    ones = np.array([bin(m).count("1") for m in range(16)])
    expected = DRAWS * 0.3**ones * 0.7 ** (4 - ones)
    assert stats.chisquare(counts, expected).pvalue > 1e-4


# 0.1·2^32 = 429496729.6: a comparison of float32 uniforms would include up to 429496831.
@pytest.mark.parametrize("traced", [False, True])
def test_the_probability_never_exceeds_the_one_asked_for(monkeypatch, traced):
    q = np.float32(0.1) if traced else 0.1
    threshold = int(np.floor(float(q) * 2.0**32))
    bits = jnp.asarray([0, threshold - 1, threshold, threshold + 1, 2**32 - 1], jnp.uint32)
    draw = jax.random.bits
    drawn = lambda key, shape, dtype: bits if shape == (5,) else draw(key, shape, dtype)  # noqa: E731
    monkeypatch.setattr(jax.random, "bits", drawn)
    sampler = lambda q: sampling.poisson(jax.random.key(0), 5, q)  # noqa: E731
    sample = jax.jit(sampler)(q) if traced else sampler(q)
    assert sample.size == 2
    assert set(sample.indices[:2].tolist()) == {0, 1}


def test_extreme_probabilities():
    bits_exhausted = 2.0**-33
    for q, size in ((0.0, 0), (bits_exhausted, 0), (1.0, 64), (1, 64)):
        assert sampling.poisson(jax.random.key(0), 64, q).size == size
        if isinstance(q, float):
            assert jax.jit(lambda q: sampling.poisson(jax.random.key(0), 64, q).size)(q) == size


@pytest.mark.parametrize("num_users", [0, 2**31, 2**32, 2**33])
def test_users_without_a_number_in_int32_are_refused(num_users):
    key = jax.random.key(0)
    for draw in (
        lambda: sampling.poisson(key, num_users, 1e-8),
        lambda: sampling.without_replacement(key, num_users, 1),
        lambda: sampling.with_replacement(key, num_users, 1),
    ):
        with pytest.raises(ValueError, match=r"num_users must be an integer in \[1, 2147483647\]"):
            draw()


def test_a_user_has_equally_many_words_and_the_others_are_nobodys():
    for num_users in (1, 3, 2**16, 10**6, 2**31 - 1):
        each = min(2**32 // num_users, 2**32 - 1)
        wanted = {0: 0, each - 1: 0, each: 1, num_users * each - 1: num_users - 1}
        wanted |= {word: num_users for word in (num_users * each, 2**32 - 1) if word < 2**32}
        if num_users * each == 2**32:
            wanted[2**32 - 1] = num_users - 1
        found = sampling._streams.users_of(jnp.asarray(np.array([*wanted], np.uint32)), num_users)
        np.testing.assert_array_equal(found, [*wanted.values()])


def test_words_that_are_nobodys_are_skipped(monkeypatch):
    """A quarter of two bits is: the law is uniform on the other three, and nobody is not in a sample."""
    _always_streamed(monkeypatch)
    exact = sampling._streams.users_of
    monkeypatch.setattr(sampling._streams, "users_of", lambda words, n: exact(words, n + 1))
    monkeypatch.setattr(
        sampling._streams, "words_needed", lambda num_users, batch_size: 4 * batch_size
    )
    sample = _draw(lambda key: sampling.poisson(key, 3, 0.5), seed=4, draws=8_000)
    indices, size = np.asarray(sample.indices), np.asarray(sample.size)
    assert indices.min() >= 0
    assert indices.max() == 2
    masks = np.sum(np.where(np.arange(3) < size[:, None], 1 << indices, 0), axis=1)
    assert stats.chisquare(np.bincount(masks, minlength=8)).pvalue > 1e-4


def test_how_many_are_drawn_has_another_key_than_who(monkeypatch):
    keys, key = [], jax.random.key(0)
    monkeypatch.setattr(sampling._binomial_counts, "draw", lambda key, _: keys.append(key))

    def stop(key, *_):
        keys.append(key)
        raise StopIteration

    monkeypatch.setattr(sampling._streams, "long_enough", stop)
    with pytest.raises(StopIteration):
        sampling.poisson(key, 10**6, 1e-6)
    words = {tuple(jax.random.key_data(each).tolist()) for each in [*keys, key]}
    assert len(words) == 3


def test_streams_are_where_they_cost_less_than_coins():
    """An eighth of the words there are users, at most; never for a probability that is not known yet."""

    def capacity(n, q):
        return jax.eval_shape(lambda k: sampling.poisson(k, n, q), jax.random.key(0)).indices.size

    for n, q in ((10**6, 1e-3), (10**6, 0.1), (2_000, 0.01), (10**7, 1e-4)):
        law = sampling._few_of_many(n, q)
        assert capacity(n, q) == law.most
        assert law == sampling._binomial_counts.counts(n, q)  # of this very float, in float64
        assert 8 * sampling._streams.words_needed(n, law.most) <= n
    for n, q in ((10**6, 0.125), (300, 0.01), (10, 0.5), (8, 1.0)):
        assert sampling._few_of_many(n, q) is None
        assert capacity(n, q) == n
    traced = jax.eval_shape(lambda q: sampling.poisson(jax.random.key(0), 2_000, q), 0.01)
    assert traced.indices.shape == (2_000,)


@pytest.mark.parametrize("streamed", [False, True])
def test_users_drawn_in_blocks_are_drawn_independently_and_alike(monkeypatch, streamed):
    """Three blocks, the last of them not full: inclusions, all pairs of them, and who is in the list."""
    monkeypatch.setattr(sampling, "_BLOCK", 8)
    if streamed:
        _always_streamed(monkeypatch)
    num_users, draws, q = 20, 4_000 if streamed else 20_000, 0.3
    sample = _draw(lambda key: sampling.poisson(key, num_users, q), draws=draws)
    indices, size = np.asarray(sample.indices), np.asarray(sample.size)
    assert indices.shape == (draws, num_users)
    counted = np.arange(num_users) < size[:, None]
    assert np.all((indices >= 0) & (indices < num_users))
    chosen = np.zeros((draws, num_users))
    np.add.at(chosen, (np.nonzero(counted)[0], indices[counted]), 1.0)
    assert np.max(chosen) == 1.0  # different users
    centred = chosen - q
    assert np.max(np.abs(centred.mean(0))) < 5 * np.sqrt(q * (1 - q) / draws)
    products = centred.T @ centred / draws
    away = products - q * (1 - q) * np.eye(num_users)
    np.fill_diagonal(away, 0.0)
    assert np.max(np.abs(away)) < 5.5 * q * (1 - q) / np.sqrt(draws)
    if streamed:
        return  # A probability of one is never drawn as a stream.
    everybody = sampling.poisson(jax.random.key(0), num_users, 1.0)
    assert everybody.size == num_users
    np.testing.assert_array_equal(np.sort(everybody.indices), np.arange(num_users))
    assert sampling.poisson(jax.random.key(0), num_users, jnp.float32(1.0)).size == num_users
    assert sampling.poisson(jax.random.key(0), num_users, 0.0).size == 0


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_no_block_of_a_step_is_that_of_another(monkeypatch, impl):
    """Steps fold their number into a key, as loops do: every kind of key must tell blocks of steps apart."""
    monkeypatch.setattr(sampling, "_BLOCK", 64)
    key, blocks, steps = jax.random.key(0, impl=impl), 4, 4
    rows = set()
    for step in range(steps):
        drawn = sampling.poisson(jax.random.fold_in(key, step), 64 * blocks, 0.5)
        chosen = np.zeros(64 * blocks, bool)
        chosen[np.asarray(drawn.indices)[: int(drawn.size)]] = True
        rows |= {row.tobytes() for row in chosen.reshape(blocks, 64)}
    assert len(rows) == blocks * steps


def test_memory_of_a_streamed_draw_does_not_know_the_users():
    def memory(num_users):
        draw = jax.jit(lambda key: sampling.poisson(key, num_users, 64 / num_users))
        analysis = draw.lower(jax.random.key(0)).compile().memory_analysis()
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes

    assert memory(2**24) < 1.1 * memory(2**14) < 2**14


def test_memory_of_a_draw_by_coins_is_the_list_of_the_sample(monkeypatch):
    monkeypatch.setattr(sampling, "_few_of_many", lambda *_: None)

    def temporaries(num_users):
        draw = jax.jit(lambda key: sampling.poisson(key, num_users, 0.01))
        analysis = draw.lower(jax.random.key(0)).compile().memory_analysis()
        return analysis.temp_size_in_bytes

    few, many = 4 * sampling._BLOCK, 40 * sampling._BLOCK
    assert temporaries(many) - temporaries(few) <= 4 * (many - few) + 1000
