"""Faults in noise of trees, in smoothed differences and in solvers of losses that are not convex."""

from tests.mutation import Fault

_TWO_POINT = ("tests/oracles/test_two_point.py",)
_O2NC = ("tests/transforms/test_o2nc.py",)
_TREE = ("tests/mechanisms/test_tree.py",)
_PUSH = ("tests/transforms/test_perturb_when_small.py",)

FAULTS = (
    Fault("tree: no root", "mechanisms/tree.py", "return self.num_steps.bit_length()", "return max(1, (self.num_steps - 1).bit_length())", _TREE),
    Fault("tree: blocks that have ended stay in the sum", "mechanisms/tree.py", "jnp.where(ended & (stream.step > 0), -1.0, 0.0)", "jnp.zeros(self.levels)", _TREE),
    Fault("tree: index from 0", "mechanisms/tree.py", "t = stream.step + 1", "t = stream.step", _TREE),
    Fault("tree: a new stream takes back noise of the last one", "mechanisms/tree.py", "gone | (stream.step == 0)", "gone", _TREE),
    Fault("tree: one block short of what a step is in", "mechanisms/tree.py", "return self.levels**0.5", "return max(1, self.levels - 1) ** 0.5", _TREE),
    Fault("tree: segments share noise", "mechanisms/tree.py", "stream = jax.random.fold_in(key, segment)", "stream = jax.random.fold_in(key, 0)", _TREE),
    Fault("tree: index 0 is released without noise", "mechanisms/tree.py", "valid = (t >= 1) & (t <= num_steps)", "valid = t <= num_steps", _TREE),
    Fault("streams: all are taken for disjoint", "mechanisms/_noise_streams.py", "inside | (self.begun > 0) if disjoint else inside", "inside | (self.begun > 0)", _TREE),
    Fault("streams: a restart is not seen", "transforms/privatize.py", "jnp.where(new_stream, 0, stream.step)", "stream.step", _TREE),
    Fault("two points: the ball for the sphere", "oracles/smoothed.py", "direction = uniform_sphere(key, point)", "direction = uniform_ball(key, point, 1.0)", _TWO_POINT),
    Fault("two points: the last direction is left out", "oracles/smoothed.py", "lambda y: (weight * y).astype(y.dtype), direction", "lambda y: (weight * jnp.ones_like(y)).astype(y.dtype), direction", _TWO_POINT),
    Fault("two points: one step of the difference only", "oracles/smoothed.py", "return now - _central(loss, previous, shift, items, mask)", "return now - _central(loss, previous, jax.tree.map(jnp.negative, shift), items, mask)", _TWO_POINT),
    Fault("differences: points are not reflected", "oracles/smoothed.py", "lambda w, v, p: w + v - p, point, previous, drawn", "lambda w, v, p: v + p - w, point, previous, drawn", _TWO_POINT),
    Fault("differences: reflected wherever points are", "oracles/smoothed.py", "jnp.where(inside, 0, a - b)", "a - b", _TWO_POINT),
    Fault("smoothed gradients: the mean over draws is a sum", "oracles/smoothed.py", "lambda leaf: leaf / count, total", "lambda leaf: leaf / 1, total", _TWO_POINT),
    Fault("o2nc: moves are not clipped", "transforms/o2nc.py", "clip_to_norm(against, radius), state.move", "against, state.move", _O2NC),
    Fault("o2nc: the new point for the old in a query", "transforms/o2nc.py", "x + (share * d).astype(x.dtype), state.point, move)", "x + d + (share * d).astype(x.dtype), state.point, move)", _O2NC),
    Fault("o2nc: one share for all steps", "transforms/o2nc.py", "return moves, O2ncState(next_key,", "return moves, O2ncState(state.key,", _O2NC),
    Fault("o2nc: the last block is reported", "transforms/o2nc.py", "block = jax.random.randint(block_key, (), 0, blocks)", "block = jnp.asarray(blocks - 1, jnp.int32)", _O2NC),
    Fault("smallest: the point after the step", "transforms/smallest.py", "jnp.where(better, new.astype(old.dtype), old), params, state.point", "jnp.where(better, old, new.astype(old.dtype)), params, state.point", _PUSH),
    Fault("pushes: as often as one likes", "transforms/perturb_when_small.py", "(global_norm(updates) <= threshold) & (state.frozen <= 0)", "(global_norm(updates) <= threshold)", _PUSH),
    Fault("pushes: all alike", "transforms/perturb_when_small.py", "jax.random.fold_in(key, state.made)", "jax.random.fold_in(key, 0)", _PUSH),
    Fault("pushes: one too late", "transforms/perturb_when_small.py", ".astype(jnp.int32) - 1", ".astype(jnp.int32)", _PUSH),
)  # fmt: skip
