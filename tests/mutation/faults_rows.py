"""Faults between users who are drawn and their rows: numbers of nobody, leaves of other lengths."""

from tests.mutation import Fault

_CHUNKS, _CHECKS = "oracles/chunks.py", "_checks.py"
_FOREIGN = ("tests/oracles/test_foreign_samples.py",)

FAULTS = (
    Fault("rows: samplers of more users are taken", _CHUNKS,
          'require(population <= users, "sampler", population, wanted)', "del wanted", _FOREIGN),
    Fault("rows: a number beyond the last user is the last user's", _CHUNKS,
          "there = indices < users\n", "there = indices <= users\n", _FOREIGN),
    Fault("rows: numbers of nobody are taken as they are", _CHUNKS,
          "return UserSample(inside(sample.indices, users), size)",
          "return UserSample(sample.indices, size)", _FOREIGN),
    Fault("rows: who is nobody counts in sums of one chunk", _CHUNKS,
          "            rows, there = _take(data, sample.indices[:count])\n",
          "            rows, _ = _take(data, sample.indices[:count])\n", _FOREIGN),
    Fault("rows: who is nobody counts in sums of several chunks", _CHUNKS,
          "return chunk_sum(rows, there & (position < count), place)",
          "return chunk_sum(rows, position < count, place)", _FOREIGN),
    Fault("rows: a sample is longer than its places", _CHUNKS,
          "size if isinstance(size, int) else jnp.minimum(size, len(sample.indices))", "size", _FOREIGN),
    Fault("rows: a fixed sample is longer than its places", _CHUNKS,
          "sample.size <= capacity,", "True,", _FOREIGN),
    Fault("rows: who does not count has a row, of one chunk", _CHUNKS,
          "return _zeros_unless(there, chunk_rows(chosen, there, first + position))",
          "return chunk_rows(chosen, there, first + position)", _FOREIGN),
    Fault("rows: who does not count has a row, of several chunks", _CHUNKS,
          "return found if sample is None else _zeros_unless(there, found)", "return found", _FOREIGN),
    Fault("rows: leaves may have different users", _CHECKS,
          "same = len(found) == 1 and len(found[0]) == 1\n    require(same, name, found, \"arrays with one",
          "same = len(found) >= 1\n    require(same, name, found, \"arrays with one", _FOREIGN),
)  # fmt: skip
