"""Faults in noise of trees, in smoothed differences and in solvers of losses that are not convex."""

from tests.mutation import Fault, rows

_TWO_POINT = ("tests/oracles/test_two_point.py",)
_O2NC = ("tests/transforms/test_o2nc.py",)
_SOLVERS = "tests/solvers/test_o2nc.py"
_PASS = ("o2nc_single_pass, buffers",)
_TREE = ("tests/mechanisms/test_tree.py",)
_PUSH = ("tests/transforms/test_perturb_when_small.py",)

FAULTS = (
    Fault("tree: no root", "mechanisms/tree.py", "return int(self.num_steps).bit_length()", "return max(1, (self.num_steps - 1).bit_length())", _TREE),
    Fault("tree: blocks that have ended stay in the sum", "mechanisms/tree.py", "jnp.where(levels < lowest, -1.0, 0.0)", "jnp.zeros(self.levels)", _TREE),
    Fault("tree: index from 0", "mechanisms/tree.py", "t = stream.step + 1", "t = stream.step", _TREE),
    Fault("tree: one block short of what a step is in", "mechanisms/tree.py", "return self.levels**0.5", "return max(1, self.levels - 1) ** 0.5", _TREE),
    Fault("tree: segments share noise", "mechanisms/tree.py", "stream = jax.random.fold_in(key, stream_number)", "stream = jax.random.fold_in(key, 0)", _TREE),
    Fault("tree: index 0 is released without noise", "mechanisms/tree.py", "valid = (t >= 1) & (t <= num_steps)", "valid = (t <= num_steps)", _TREE),
    Fault("tree: segments of more than 32 bits share noise", "mechanisms/tree.py", "& (stream_number >= 0) & (stream_number <= 2**31 - 1)", "", _TREE),
    Fault("streams: all are taken for disjoint", "mechanisms/_noise_streams.py", "inside | (self.begun > 0) if disjoint else inside", "inside | (self.begun > 0)", _TREE),
    Fault("streams: a restart is not seen", "transforms/privatize.py", "jnp.where(new_stream, 0, stream.step)", "stream.step", _TREE),
    Fault("two points: the ball for the sphere", "oracles/smoothed.py", "direction = uniform_sphere(key, point)", "direction = uniform_ball(key, point, 1.0)", _TWO_POINT),
    Fault("two points: the last direction is left out", "oracles/smoothed.py", "lambda y: (weight * y).astype(y.dtype), direction", "lambda y: (weight * jnp.ones_like(y)).astype(y.dtype), direction", _TWO_POINT),
    Fault("two points: one step of the difference only", "oracles/smoothed.py", "then = _central(loss, previous, shift, items, mask)", "then = _central(loss, previous, jax.tree.map(jnp.negative, shift), items, mask)", _TWO_POINT),
    Fault("differences: points are not reflected", "oracles/smoothed.py", "lambda w, v, p: w + v - p, point, previous, drawn", "lambda w, v, p: v + p - w, point, previous, drawn", _TWO_POINT),
    Fault("differences: reflected wherever points are", "oracles/smoothed.py", "jnp.where(inside, 0, a - b)", "a - b", _TWO_POINT),
    Fault("smoothed gradients: the mean over draws is a sum", "oracles/smoothed.py", "lambda leaf: leaf / count, total", "lambda leaf: leaf / 1, total", _TWO_POINT),
    Fault("o2nc: moves are not clipped", "transforms/o2nc.py", "clip_to_norm(against, radius), state.move", "against, state.move", _O2NC),
    Fault("o2nc: the new point for the old in a query", "transforms/o2nc.py", "x + (share * d).astype(x.dtype), state.point, move)", "x + d + (share * d).astype(x.dtype), state.point, move)", _O2NC),
    Fault("o2nc: one share for all steps", "transforms/o2nc.py", "jax.random.fold_in(shares_key, state.steps)", "jax.random.fold_in(shares_key, 0)", _O2NC),
    Fault("o2nc: the last block is reported", "transforms/o2nc.py", "block = jax.random.randint(block_key, (), 0, blocks)", "block = jnp.asarray(blocks - 1, jnp.int32)", _O2NC),
    Fault("smallest: the point after the step", "transforms/smallest.py", "jnp.where(better, new.astype(old.dtype), old), params, state.point", "jnp.where(better, old, new.astype(old.dtype)), params, state.point", _PUSH),
    Fault("pushes: as often as one likes", "transforms/perturb_when_small.py", "(global_norm(updates) <= threshold) & (state.frozen <= 0)", "(global_norm(updates) <= threshold)", _PUSH),
    Fault("pushes: all alike", "transforms/perturb_when_small.py", "jax.random.fold_in(key, state.made)", "jax.random.fold_in(key, 0)", _PUSH),
    Fault("pushes: one too late", "transforms/perturb_when_small.py", ".astype(jnp.int32) - 1", ".astype(jnp.int32)", _PUSH),
    Fault("o2nc, one pass: users of a step are those of the one before", "solvers/nonconvex/_smoothed_means.py", "first = of.first_of(state.made)", "first = of.first_of(jnp.maximum(state.made - 1, 0))", (f"{_SOLVERS}::test_users_are_read_once_in_their_order",)),
    Fault("o2nc, one pass: more users than there are", "solvers/nonconvex/_smoothed_means.py", 'read <= there, "batch_sizes", self.batch_sizes, wanted', 'True, "batch_sizes", self.batch_sizes, wanted', (f"{_SOLVERS}::test_users_are_read_once_in_their_order",)),
    Fault("o2nc, one pass: an estimate is never begun anew", "solvers/nonconvex/_smoothed_means.py", "lambda old, new: jnp.where(fresh, 0.0, old) + share", "lambda old, new: old + share", (f"{_SOLVERS}::test_every_estimate_is_noised_anew_in_every_period_and_paid_once",)),
    Fault("o2nc: the clip of differences is dropped", "oracles/spider.py", "gradients.clipped_gradient_sum(estimate, 1.0, sampler, chunk_size)", "gradients.clipped_gradient_sum(estimate, 1.0, sampler, chunk_size) if sampler is None else gradients.clipped_gradient_sum(estimate, 2.0, sampler, chunk_size)", (f"{_SOLVERS}::test_one_user_moves_a_step_by_no_more_than_is_paid_for", *rows(*_PASS))),
    Fault("o2nc, many passes: more steps than are paid for", "solvers/nonconvex/_smoothed_means.py", 'of.num_steps == made, "num_steps"', 'True, "num_steps"', ("tests/solvers/test_contract.py::test_a_size_that_lets_a_run_draw_more_costs_more[o2nc_multi_pass]",)),
    Fault("o2nc: the bias of a clip is left out", "solvers/nonconvex/_goldstein_bounds.py", "return float(_excess(room * self.lipschitz, self._spread, longest, self.draws))", "return 0.0", (f"{_SOLVERS}::test_clips_take_no_more_of_a_mean_than_is_counted",)),
)  # fmt: skip
