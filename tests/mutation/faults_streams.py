"""Faults of Poisson samples that are drawn as streams, written before any ran."""

from tests.mutation import Fault

_SAMPLING, _TESTS = "oracles/sampling.py", "tests/oracles/test_sampling.py"
_STREAMS = "oracles/_streams.py"
_LAWS = (
    f"{_TESTS}::test_words_that_are_nobodys_are_skipped",
    f"{_TESTS}::test_a_user_has_equally_many_words_and_the_others_are_nobodys",
    f"{_TESTS}::test_all_orders_of_poisson_samples_are_equally_likely",
)
_COUNTS, _SIZES = "oracles/_binomial_counts.py", ("tests/oracles/test_binomial_counts.py",)
_USERS = "jnp.minimum(stream, num_users - 1)[_streams.pack(is_new, capacity)]"

FAULTS = (
    Fault("streams: the table is off by one word", _COUNTS, "for place in range(_WORDS)]", "for place in range(-1, _WORDS - 1)]", _SIZES),
    Fault("streams: words of a count are compared from the first", _COUNTS, "zip(limits[::-1], words[::-1], strict=True)", "zip(limits, words, strict=True)", _SIZES),
    Fault("streams: the first unit of a count is the last one's before it", _COUNTS, "reached = jnp.ones(len(ends), bool)", "reached = jnp.zeros(len(ends), bool)", _SIZES),
    Fault("streams: counts are one too many", _COUNTS, "law.first + passed)", "law.first + passed + 1)", _SIZES),
    Fault("streams: ratios are rounded up above the mode", _COUNTS, "units = above[-1] * (num_users - count) * heads // ((count + 1) * tails)", "units = 1 + above[-1] * (num_users - count) * heads // ((count + 1) * tails)", _SIZES),
    Fault("streams: ratios are rounded down below the mode", _COUNTS, "units = -(-units * count * tails // ((num_users - count + 1) * heads))", "units = units * count * tails // ((num_users - count + 1) * heads)", _SIZES),
    Fault("streams: one user more is there to be drawn", _COUNTS, "above[-1] * (num_users - count) * heads", "above[-1] * (num_users - count + 1) * heads", _SIZES),
    Fault("streams: probabilities are odds", _COUNTS, "tails = both - heads", "tails = both", _SIZES),
    Fault("streams: the rarest counts never come", _COUNTS, "is_rare = jnp.all(words[:-2] == 0)", "is_rare = (words[0] > words[0])", _SIZES),
    Fault("streams: the rarest counts come for any first words", _COUNTS, "is_rare = jnp.all(words[:-2] == 0) & (", "is_rare = (", _SIZES),
    Fault("streams: what is left over is not nobody", _COUNTS, "jnp.where(passed == len(ends), 0, law", "jnp.where(passed > len(ends), 0, law", _SIZES),
    Fault("streams: users are drawn twice", _SAMPLING, "_streams.first_by_sorting(stream) & (stream < num_users)", "(stream < num_users)", _LAWS),
    Fault("streams: what stands for nobody is a user", _SAMPLING, "_streams.first_by_sorting(stream) & (stream < num_users)", "_streams.first_by_sorting(stream)", _LAWS),
    Fault("streams: words left over are the last user's", _STREAMS, "jnp.uint32(num_users)).astype", "jnp.uint32(num_users - 1)).astype", _LAWS),
    Fault("streams: users are remainders of words", _STREAMS, "words // jnp.uint32(each)", "words % jnp.uint32(num_users)", _LAWS),
    Fault("streams: samples are in the order of the users", _SAMPLING, f"return UserSample({_USERS}, size)", f'return UserSample(jnp.sort(jnp.where(jnp.arange(capacity) < size, {_USERS}, num_users - 1)), size)', _LAWS),
    Fault("streams: the order begins with the greatest user", _SAMPLING, f"return UserSample({_USERS}, size)", f"return UserSample(-jnp.sort(-jnp.where(jnp.arange(capacity) < size, {_USERS}, 0)), size)", _LAWS),
    Fault("streams: one that is too short is taken", _STREAMS, "return jnp.sum(state[2]) < size", "return jnp.sum(state[2]) < jnp.minimum(size, 1)", _LAWS),
    Fault("streams: all samples that are too long are cut", _SAMPLING, "    size = _binomial_counts.draw(size_key, law)\n", "    size = jnp.minimum(_binomial_counts.draw(size_key, law), max(law.most - 1, 1))\n", _LAWS),
    Fault("streams: users are more likely by a fifth", _SAMPLING, "law = _binomial_counts.counts(num_users, probability)", "law = _binomial_counts.counts(num_users, min(1.2 * probability, 0.99))", _LAWS),
    Fault("streams: users are as likely as in float32", _SAMPLING, "law = _binomial_counts.counts(num_users, probability)", "law = _binomial_counts.counts(num_users, float(__import__('numpy').float32(probability)))", (f"{_TESTS}::test_streams_are_where_they_cost_less_than_coins",)),
    Fault("streams: half of the coins", _SAMPLING, "law = _binomial_counts.counts(num_users, probability)", "law = _binomial_counts.counts(max(num_users // 2, 1), probability)", _LAWS),
    Fault("streams: one key for all sizes", _SAMPLING, "_binomial_counts.draw(size_key, law)", "_binomial_counts.draw(jax.random.key(0), law)", _LAWS),
    Fault("streams: how many are drawn has the key of who", _SAMPLING, "_binomial_counts.draw(size_key, law)", "_binomial_counts.draw(stream_key, law)", (f"{_TESTS}::test_how_many_are_drawn_has_another_key_than_who",)),
    Fault("streams: one key for all users", _SAMPLING, "_streams.long_enough(stream_key, draw, length, size)", "_streams.long_enough(jax.random.key(1), draw, length, size)", _LAWS),
)  # fmt: skip
