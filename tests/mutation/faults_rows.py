"""Faults between users who are drawn and their rows: numbers of nobody, leaves of other lengths."""

from tests.mutation import Fault

_CHUNKS, _CHECKS = "oracles/chunks.py", "_checks.py"
_FOREIGN = ("tests/oracles/test_foreign_samples.py",)
_MANY = ("tests/transforms/test_too_many_rows.py",)

FAULTS = (
    Fault("rows: samplers of more users are taken", _CHUNKS, 'require(population <= users, "sampler", population, wanted)', "del wanted", _FOREIGN),
    Fault("rows: a number beyond the last user is the last user's", _CHUNKS, "there = indices < users\n", "there = indices <= users\n", _FOREIGN),
    Fault("rows: numbers of nobody are taken as they are", _CHUNKS, "return UserSample(inside(sample.indices, users), size)", "return UserSample(sample.indices, size)", _FOREIGN),
    Fault("rows: who is nobody counts in sums of one chunk", _CHUNKS, "            rows, there = _take(data, sample.indices[:count])\n", "            rows, _ = _take(data, sample.indices[:count])\n", _FOREIGN),
    Fault("rows: who is nobody counts in sums of several chunks", _CHUNKS, "return chunk_sum(rows, there & (position < count), place)", "return chunk_sum(rows, position < count, place)", _FOREIGN),
    Fault("rows: a sample is longer than its places", _CHUNKS, "size if isinstance(size, int) else jnp.minimum(size, len(sample.indices))", "size", _FOREIGN),
    Fault("rows: a fixed sample is longer than its places", _CHUNKS, "sample.size <= capacity,", "True,", _FOREIGN),
    Fault("rows: who does not count has a row, of one chunk", _CHUNKS, "return _zeros_unless(there, chunk_rows(chosen, there, first + position))", "return chunk_rows(chosen, there, first + position)", _FOREIGN),
    Fault("rows: who does not count has a row, of several chunks", _CHUNKS, "return found if sample is None else _zeros_unless(there, found)", "return found", _FOREIGN),
    Fault("rows: leaves may have different users", _CHECKS, 'same = len(found) == 1 and len(found[0]) == 1\n    require(same, name, found, "arrays with one', 'same = len(found) >= 1\n    require(same, name, found, "arrays with one', _FOREIGN),
    Fault("rows: microbatches of leaves of other lengths", "transforms/aggregates.py", 'num_rows = require_same_rows("updates", updates)', "num_rows = jax.tree.leaves(updates)[0].shape[0]", _MANY),
    Fault("rows: one mask for all", "geometry/clipping.py", 'counted = require_mask("counted", counted, (require_same_rows("rows", rows),))', 'counted = require_mask("counted", counted)', _MANY),
    Fault("rows: a batch of everybody", "transforms/_agreement.py", 'return _required(found <= most, "updates"', 'return _required(True, "updates"', _MANY),
    Fault("rows: everybody of a mask", "transforms/_agreement.py", 'return _required(counted <= most, "user_mask"', 'return _required(True, "user_mask"', _MANY),
    Fault("rows: draws with replacement are not counted", "transforms/_agreement.py", "case WithoutReplacement(_, most) | WithReplacement(_, most):", "case WithoutReplacement(_, most):", _MANY),
    Fault("rows: sums may overflow", "_conditions.py", "MOST_LENGTH = 2.0**100", "MOST_LENGTH = 2.0**127", _MANY),
    Fault("rows: a traced length may overflow", "_conditions.py", "sensitivity = jnp.where(good, sensitivity, jnp.inf)", "pass", _MANY),
    Fault("rows: a mean over a small number may overflow", "transforms/aggregates.py", 'within_floats("clip_norm", clip_norm, sensitivity, bound, sensitivity)', 'within_floats("clip_norm", clip_norm, sensitivity, bound)', _MANY),
    Fault("rows: a radius of which sums overflow", "transforms/centred_clip.py", 'sensitivity = within_floats("radius", radius, bound / num_users, longest)', "sensitivity, longest = bound / num_users, within_floats", _MANY),
)  # fmt: skip
