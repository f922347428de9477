"""Faults in mechanisms, transforms, geometry and oracles: what is released, and who enters."""

from tests.mutation import Fault, rows

_ADDITIVE = ("tests/mechanisms/test_additive.py", "tests/test_private_steps.py")
_AGGREGATES = ("tests/transforms/test_aggregates.py", "tests/test_private_steps.py")
_PRIVATIZE = ("tests/transforms/test_privatize.py", "tests/test_private_steps.py")
_REMOVED = ("tests/transforms/test_outlier_removed_mean.py", *rows("multipass_sgd, tested"))
_CENTRED = ("tests/transforms/test_centred_clip.py",)
_CLIPPING = ("tests/geometry/test_clipping.py",)
_NORMS = ("tests/geometry/test_norms.py", "tests/geometry/test_clipping.py")
_SAMPLING = ("tests/oracles/test_sampling.py",)
_VECTOR = ("tests/mechanisms/test_sparse_vector.py",)
_RANGE = ("tests/mechanisms/test_private_range.py",)
_SELECTION = ("tests/mechanisms/test_selection.py",)
_WINSORIZED = (
    "tests/mechanisms/test_winsorized_mean.py",
    *rows("winsorized_erm, winsorized"),
)
_CORRELATED = ("tests/mechanisms/test_correlated_noise.py",)
_BUFFERED = ("tests/mechanisms/test_buffered_noise.py",)
_CONCENTRATED = ("tests/mechanisms/test_concentrated_mean.py", "tests/mechanisms/test_pairwise.py")

FAULTS = (
    Fault("additive noise times 0.9", "mechanisms/additive.py", "noise = jnp.asarray(size, dtype) *", "noise = jnp.asarray(0.9 * size, dtype) *", _ADDITIVE),
    Fault("one key for all leaves", "mechanisms/additive.py", "for leaf, k in zip(leaves, keys, strict=True)", "for leaf, k in zip(leaves, [keys[0]] * len(leaves), strict=True)", _ADDITIVE),
    Fault("loss of additive noise: sensitivity upside down", "mechanisms/additive.py", "ratio = xp.where(valid, above, 1.0) / xp.where", "ratio = xp.where(valid, above, 1.0) * xp.where", _ADDITIVE),
    Fault("Laplace noise without sign", "mechanisms/_draws.py", "return _sign(low, dtype) * exponential_of_words", "return exponential_of_words", ("tests/mechanisms/test_draws.py",)),
    Fault("normal noise without sign", "mechanisms/_draws.py", "return _sign(low, dtype) * smaller", "return smaller", ("tests/mechanisms/test_draws.py",)),
    Fault("normal noise: tails end where the centre does", "mechanisms/_draws.py", "    far = w > _JOINT**2\n", "    far = w > 2 * _JOINT**2\n", ("tests/mechanisms/test_draws.py",)),
    Fault("normal noise: one word for sign and size", "mechanisms/_draws.py", "    upper, distance = _nearer_end(high, low | 1, dtype)\n    # Of", "    upper, distance = _nearer_end(low, high, dtype)\n    # Of", ("tests/mechanisms/test_draws.py",)),
    Fault("noise: blocks are those that make keys", "mechanisms/_draws.py", "apart = jnp.full_like(counters, _NOISE)", "apart = jnp.zeros_like(counters)", ("tests/mechanisms/test_draws.py",)),
    Fault("noise: rows of a symbol's length share their blocks", "mechanisms/_draws.py", "return jnp.uint32(stride % _MOST) if known else jnp.asarray(stride).astype(jnp.uint32)", "return jnp.uint32(stride % _MOST if known else 1)", ("tests/mechanisms/test_draws.py",)),
    Fault("noise: a symbol may be as large as it likes", "mechanisms/_draws.py", "        few = False\n", "        few = True\n", ("tests/mechanisms/test_draws.py",)),
    Fault("noise: columns share their blocks", "mechanisms/_draws.py", "stride = math.prod(shape[axis + 1 :])", "stride = math.prod(shape[axis:])", ("tests/mechanisms/test_draws.py",)),
    Fault("sensitivity of a sum for replacement halved", "transforms/aggregates.py", "factor = 2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0", "factor = 1.0", (*_AGGREGATES, *rows("sgd, full"))),
    Fault("nonnegative sums: divided by 2", "transforms/aggregates.py", "sensitivity / 2.0**0.5", "sensitivity / 2.0", (*rows("preconditioned_sgd"), *_AGGREGATES)),
    Fault("chunks count users at the seam twice", "transforms/aggregates.py", "counted &= start + jnp.arange(microbatch_size) >= index * microbatch_size", "counted &= start >= 0", _AGGREGATES),
    Fault("noise in units of the divisor", "transforms/privatize.py", "additive.gaussian(noise_key, statistic, used * sensitivity)", "additive.gaussian(noise_key, statistic, used * sensitivity * sensitivity)", (*_PRIVATIZE, *rows("sgd, full"))),
    Fault("the key of the state is not advanced", "transforms/privatize.py", "return released, PrivatizeState(next_key, ledger, inner, stream)", "return released, PrivatizeState(state.key, ledger, inner, stream)", (*rows("sgd, full"), *_PRIVATIZE)),
    Fault("privatize charges nothing", "transforms/privatize.py", "ledger = privacy.charge(state.ledger, charged)", "ledger = state.ledger", (*_PRIVATIZE, *rows("sgd, full"))),
    Fault("correlated noise is charged at no step", "transforms/privatize.py", "jnp.where(paid & valid, 0, x)", "jnp.where(valid, 0, x)", ("tests/mechanisms/test_correlated_noise.py", *_PRIVATIZE)),
    Fault("correlated noise: a later step is paid for whatever it releases", "transforms/privatize.py", "jnp.where(paid & valid, 0, x)", "jnp.where(paid, 0, x)", _CORRELATED),
    Fault("correlated noise: a later step is judged by a multiplier that it does not use", "transforms/privatize.py", "used = jnp.where(paid, stream.multiplier, used)", "used = used * 1.0", _CORRELATED),
    Fault("outlier-removed mean without headroom", "transforms/outlier_removed_mean.py", "head = 1 + concentrated_mean.headroom(centre, reach)", "head = 0.9", _REMOVED),
    Fault("a mean that failed its test is released", "transforms/outlier_removed_mean.py", "halted = state.halted | over | ~passed", "halted = state.halted | over", _REMOVED),
    Fault("the halt is forgotten", "transforms/outlier_removed_mean.py", "halted = state.halted | over | ~passed", "halted = over | ~passed", _REMOVED),
    Fault("released beyond the last step", "transforms/outlier_removed_mean.py", "over = state.steps >= run.num_steps", "over = state.steps > run.num_steps", _REMOVED),
    Fault("centred clip: weight of the quantile", "transforms/centred_clip.py", "weight = math.sqrt(bound**2 - (bound - 1 + _INSIDE) ** 2)", "weight = math.sqrt(bound**2 - _INSIDE**2)", _CENTRED),
    Fault("centred clip: who is inside by another radius", "transforms/centred_clip.py", "norms.clip_factor(row, _INSIDE * reach)", "norms.clip_factor(row, reach)", _CENTRED),
    Fault("winsorized transformation answers for ever", "transforms/winsorized_mean.py", "open_still = state.queries < planned.num_queries", "open_still = state.queries <= planned.num_queries", ("tests/transforms/test_winsorized_mean.py",)),
    Fault("halt_when freezes the ledger", "transforms/halt_when.py", "is_leaf=_is_ledger,", "is_leaf=None,", ("tests/transforms/test_halt_when.py",)),
    Fault("clip factor: one more than the norm", "geometry/norms.py", "shrink = bound / jnp.where(outside, norm, 1.0)", "shrink = 1.01 * bound / jnp.where(outside, norm, 1.0)", _NORMS),
    Fault("an infinite user is not dropped", "geometry/norms.py", "return jnp.where(jnp.isfinite(norm), jnp.where(outside, shrink, 1.0), 0.0)", "return jnp.where(outside, shrink, 1.0)", (*_NORMS, "tests/test_private_steps.py")),
    Fault("huge squares are not added up again", "geometry/norms.py", "fits = jnp.isfinite(ordinary)", "fits = ordinary == ordinary", _NORMS),
    Fault("huge squares: a scale that vanishes", "geometry/norms.py", "2.0 ** (half - 4))", "2.0 ** (half + 36))", _NORMS),
    Fault("norms: a last piece is left out", "geometry/norms.py", "for piece in range(1, pieces):", "for piece in range(1, pieces - 1):", _NORMS),
    Fault("grid: rounding is not paid for", "geometry/clipping.py", "(1 - math.sqrt(dim) * 2.0**-_BITS)", "(1 + 1e-3)", _CLIPPING),
    Fault("grid: more rows at once than words hold", "geometry/clipping.py", "_MOST = 2**18", "_MOST = 2**22", _CLIPPING),
    Fault("grid: the lower half is dropped", "geometry/clipping.py", "jnp.sum(low, axis=0), cut", "0 * jnp.sum(low, axis=0), cut", _CLIPPING),
    Fault("grid: a bound beyond float32 has steps", "geometry/clipping.py", "jnp.where(clip_norm <= largest, factors, 0)", "factors", _CLIPPING),
    Fault("words: what a conversion rounds away is dropped", "_compensated.py", "lower = rest * 2.0**bits + ", "lower = ", _CLIPPING),
    Fault("no room for the rounding of norms", "geometry/norms.py", "return 1.0 - (computed + stored)", "return 1.0", _NORMS),
    Fault("no room for the rounding of a leaf that is narrower than the norm", "geometry/norms.py", "return 1.0 - (computed + stored)", "return 1.0 - computed", _NORMS),
    Fault("masked rows are summed", "geometry/clipping.py", "lax.optimization_barrier(jnp.where(counted, factors, 0))", "lax.optimization_barrier(factors)", (*_AGGREGATES, *_NORMS)),
    Fault("Poisson: everybody half as often again", "oracles/sampling.py", "jnp.uint32) < threshold) | certain", "jnp.uint32) // 2 < threshold // 3 * 2) | certain", _SAMPLING),
    Fault("without replacement: users twice", "oracles/sampling.py", "return stream[_streams.pack(is_new, batch.most_few)]", "return stream[: batch.most_few]", _SAMPLING),
    Fault("local columns: a repeated column counts once", "oracles/linear.py", "numbers.at[row, local.place].add(", "numbers.at[row, local.place].set(", ("tests/oracles/test_local_columns.py",)),
    Fault("local columns: a user's repeated column has several places", "oracles/linear.py", "place.reshape(features.shape)", "jnp.broadcast_to(jnp.arange(items * nnz).reshape(items, nnz), features.shape)", ("tests/oracles/test_local_columns.py",)),
    Fault("linear gradients are not clipped", "oracles/linear.py", "limit = HEAD_ROOM * room * clip_norm / unit", "limit = 10 * HEAD_ROOM * clip_norm / unit", ("tests/oracles/test_linear.py",)),
    Fault("rows of users are clipped to twice the norm", "oracles/gradients.py", "contributions = jax.vmap(lambda g: norms.clip_to_norm(g, clip_norm))(contributions)", "contributions = jax.vmap(lambda g: norms.clip_to_norm(g, 2 * clip_norm))(contributions)", ("tests/oracles/test_gradients.py",)),
    Fault("last chunk of a sample: one user more", "oracles/chunks.py", "return chunk_sum(rows, there & (position < count), place)", "return chunk_sum(rows, there & (position <= count), place)", ("tests/oracles/test_chunks.py", "tests/oracles/test_gradients.py")),
    Fault("preconditioned: joint bound without the component", "oracles/preconditioned.py", "return (1.0 + component_weight**2 + inside_weight**2 / 4.0) ** 0.5", "return (1.0 + inside_weight**2 / 4.0) ** 0.5", ("tests/oracles/test_preconditioned.py", "tests/solvers/test_preconditioned_sgd.py")),
    Fault("preconditioned: moments not clipped", "oracles/preconditioned.py", "norms.clip_factor, (0, None))(means, room * bound / square)", "norms.clip_factor, (0, None))(means, 4 * room * bound / square)", ("tests/oracles/test_preconditioned.py", *rows("preconditioned_sgd"))),
    Fault("sparse vector: queries with the threshold's noise", "mechanisms/sparse_vector.py", "query_scale = 4 * sensitivity * max_answers / epsilon", "query_scale = 2 * sensitivity * max_answers / epsilon", _VECTOR),
    Fault("sparse vector: the threshold is not noisy", "mechanisms/sparse_vector.py", "jnp.asarray(threshold, noise.dtype) + threshold_scale * noise", "jnp.asarray(threshold, noise.dtype) + 0 * noise", _VECTOR),
    Fault("sparse vector: a threshold drawn anew after each answer", "mechanisms/sparse_vector.py", "answers, loss, redraw=False)", "answers, loss, redraw=True)", _VECTOR),
    Fault("sparse vector: a fixed threshold without noise", "mechanisms/sparse_vector.py", "scales = change / first, 2 * change / each", "scales = 1e-9 * change / first, 2 * change / each", _VECTOR),
    Fault("sparse vector: queries of a fixed threshold with half the noise", "mechanisms/sparse_vector.py", "scales = change / first, 2 * change / each", "scales = change / first, change / each", _VECTOR),
    Fault("sparse vector: answers of a fixed threshold as randomized response", "mechanisms/sparse_vector.py", "privacy.threshold_answer(each), max_answers)", "privacy.pure_dp(each), max_answers)", _VECTOR),
    Fault("sparse vector: one answer of a fixed threshold is paid for", "mechanisms/sparse_vector.py", "privacy.scale(privacy.threshold_answer(each), max_answers)", "privacy.threshold_answer(each)", _VECTOR),
    Fault("sparse vector: bounded noise of less than the proven scale", "mechanisms/sparse_vector.py", 'require(scale >= least, "scale"', 'require(scale > 0, "scale"', _VECTOR),
    Fault("bounded Laplace: no failure is charged", "mechanisms/additive.py", "round_up(xp.minimum(outside, 0.5), _ROUNDING_ULPS)", "0.0 * outside", ("tests/mechanisms/test_additive.py",)),
    Fault("bounded Laplace: a bound below the sensitivity", "mechanisms/additive.py", "enough = change <= most", "enough = most > 0", ("tests/mechanisms/test_additive.py",)),
    Fault("sparse vector: one answer is paid for", "mechanisms/sparse_vector.py", "privacy.scale(one_answer, max_answers)", "one_answer", _VECTOR),
    Fault("interval: exp(-εc)", "mechanisms/winsorized/private_range.py", "price = 0.5 * jnp.asarray(epsilon, dtype)", "price = 1.0 * jnp.asarray(epsilon, dtype)", _RANGE),
    Fault("interval: half of the Gumbel noise", "mechanisms/winsorized/private_range.py", "chosen = jnp.argmax(weight + _gumbel", "chosen = jnp.argmax(weight + 0.5 * _gumbel", _RANGE),
    Fault("argmax: the monotone scale for all scores", "mechanisms/selection.py", "scale = (1 if monotone else 2) *", "scale = 1 *", _SELECTION),
    Fault("selection costs two candidates", "mechanisms/private_selection.py", "pure_dp(3 * wide_number(", "pure_dp(2 * wide_number(", ("tests/mechanisms/test_private_selection.py", *rows("finite_class, plain"))),
    Fault("selection: one draw more than the law", "mechanisms/private_selection.py", "draws = 1 + jnp.floor(", "draws = 2 + jnp.floor(", ("tests/mechanisms/test_private_selection.py",)),
    Fault("winsorized: as many coordinates as given", "mechanisms/winsorized/winsorized_releases.py", "2 * self.half_width * self.padded**0.5 / self.num_users", "2 * self.half_width * self.dim**0.5 / self.num_users", _WINSORIZED),
    Fault("winsorized: intervals paid for once", "mechanisms/winsorized/winsorized_releases.py", "parts.append(privacy.scale(privacy.bounded_range(self.range_epsilon), self.padded))", "parts.append(privacy.bounded_range(self.range_epsilon))", _WINSORIZED),
    Fault("winsorized: the coarse mean is free", "mechanisms/winsorized/winsorized_releases.py", "parts.append(privacy.gaussian(self.coarse_multiplier))", "pass", (*rows("winsorized_erm, recentred"), *_WINSORIZED)),
    Fault("winsorized: final ball without its factor 2", "mechanisms/winsorized/winsorized_releases.py", "return 2 * self.ball_radius / self.num_users", "return self.ball_radius / self.num_users", (*rows("winsorized_erm, recentred"), *_WINSORIZED)),
    Fault("winsorized: rows are not clipped", "mechanisms/winsorized/winsorized_mean.py", "norms.clip_to_norm(row, run.bound))(jnp.asarray(vectors))", "norms.clip_to_norm(row, 3 * run.bound))(jnp.asarray(vectors))", _WINSORIZED),
    Fault("winsorized in one dimension: all of ε for the interval", "mechanisms/winsorized/winsorized_mean.py", "scale = 4 * interval.half_width / (values.shape[0] * epsilon)", "scale = 2 * interval.half_width / (values.shape[0] * epsilon)", _WINSORIZED),
    Fault("correlated noise: not stretched", "mechanisms/_noise_streams.py", "(correlation.stretch() * (1 + 1e-6))", "1.0", _CORRELATED),
    Fault("correlated noise: one participation counted", "mechanisms/_noise_streams.py", "last = min(max_participations * min_separation, steps)", "last = min(min_separation, steps)", _CORRELATED),
    Fault("correlated noise: any coefficients", "mechanisms/correlated_noise.py", "first == 1 and all(number <= 0 for number in others)", "first == 1", _CORRELATED),
    Fault("correlated noise: any first coefficient", "mechanisms/correlated_noise.py", "first == 1 and all(", "first != 0 and all(", _CORRELATED),
    Fault("correlated noise: columns may rise", "mechanisms/correlated_noise.py", "require(np.all(np.diff(response) <= 0),", "require(True,", _CORRELATED),
    Fault("correlated noise: nobody takes part", "mechanisms/_noise_streams.py", 'require_integer("max_participations", max_participations, 1, steps)', 'require_integer("max_participations", max_participations, 0, steps)', _CORRELATED),
    Fault("correlated noise: participations at no distance", "mechanisms/_noise_streams.py", 'require_integer("min_separation", min_separation, 1, steps)', 'require_integer("min_separation", min_separation, -1, steps)', _CORRELATED),
    Fault("correlated noise: bands of a stream before", "mechanisms/correlated_noise.py", "jnp.where(ago < stream.step, ", "jnp.where(True, ", _CORRELATED),
    Fault("correlated noise: bands at wrong places", "mechanisms/correlated_noise.py", "(stream.step - 1 - jnp.arange(memory))", "(stream.step - jnp.arange(memory))", _CORRELATED),
    Fault("buffers: of a stream before", "mechanisms/buffered_noise.py", "jnp.where(later, rates * past, 0) + new", "rates * past + new", _BUFFERED),
    Fault("buffers: the first step takes back noise", "mechanisms/buffered_noise.py", "jnp.where(later, -np.asarray(self.taken_back), 0.0)", "jnp.asarray(-np.asarray(self.taken_back))", _BUFFERED),
    Fault("buffers: none decays", "mechanisms/buffered_noise.py", "jnp.where(later, rates * past, 0)", "jnp.where(later, past, 0)", _BUFFERED),
    Fault("buffers: columns may rise", "mechanisms/buffered_noise.py", "require(np.all(rates <= 1),", "require(True,", _BUFFERED),
    Fault("buffers: numbers that float32 rounds", "mechanisms/buffered_noise.py", "require(float(np.float32(number)) == number, name, number, wanted)", "pass", _BUFFERED),
    Fault("buffers: the stretch of D", "mechanisms/buffered_noise.py", "return np.append(1.0, powers @ weights)", "return np.append(1.0, -powers @ weights)", _BUFFERED),
    Fault("buffers: the matrix of D is that of C", "mechanisms/buffered_noise.py", "np.diag(np.asarray(self.decays, float)) + np.outer(root, root)", "np.diag(np.asarray(self.decays, float)) - np.outer(root, root)", _BUFFERED),
    Fault("near at twice the radius by the first threshold", "mechanisms/concentrated/_blocks.py", "(squares <= 4 + 9 * error)", "(squares <= 2 + 9 * error)", _CONCENTRATED),
    Fault("score: a vector out of reach is near itself", "mechanisms/concentrated/_blocks.py", "present = counted & (norms <= reach**2)", "present = counted", _CONCENTRATED),
    Fault("score: a pair of blocks half a round apart is met twice", "mechanisms/concentrated/_blocks.py", "half = (2 * turn == self.blocks) & (2 * block < self.blocks)", "half = 2 * turn == self.blocks", _CONCENTRATED),
    Fault("score: a carry is lost", "_counts.py", "return Count(a.high + b.high + carry, low)", "return Count(a.high + b.high, low)", ("tests/test_counts.py", *_CONCENTRATED)),
    Fault("score: rounded to the next", "mechanisms/concentrated/concentrated_mean.py", "fraction = (rest << bits) // num_users", "fraction = (rest << bits) // num_users + 1", _CONCENTRATED),
)  # fmt: skip
