"""Faults of users on disk, written before any ran."""

from tests.mutation import Fault

_STREAMED, _STORED, _CHUNKS = "oracles/streamed.py", "problems/stored.py", "oracles/chunks.py"
_FILES, _LOOP = "problems/_row_files.py", "solvers/_stored_loop.py"
_SUMS = ("tests/oracles/test_streamed.py",)
_ROWS = ("tests/problems/test_stored.py",)
_RUNS = ("tests/solvers/test_out_of_core.py",)

FAULTS = (
    Fault("stored: a block is dropped", _STREAMED, "for first in range(0, max(trips, 1), together):", "for first in range(0, max(trips - together, 1), together):", _SUMS),
    Fault("stored: a block is counted twice", _STREAMED, "starts = (first + np.arange(together, dtype=np.int64)) * at_once", "starts = (max(first - together, 0) + np.arange(together, dtype=np.int64)) * at_once", _SUMS),
    Fault("stored: users who fill up a block are not masked", _STREAMED, "counted = (place >= starts[:, None]) & (place < count)", "counted = place >= starts[:, None]", _SUMS),
    Fault("stored: users of the last chunk count twice", _STREAMED, "counted = (place >= starts[:, None]) & (place < count)", "counted = place < count", _SUMS),
    Fault("stored: users are added in the order of the disk", _STORED, "return found if place is None else found[place]", "return found[: len(wanted)]", _ROWS),
    Fault("stored: drawn rows are off by one", _FILES, "self._offset + int(numbers[first]) * self._row,", "self._offset + (int(numbers[first]) + 1) % self.shape[0] * self._row,", _ROWS),
    Fault("stored: room of a block, not of all users", _STREAMED, "return self.oracle.parts(other_key, params, self.data.shapes, self.sample_shape)", "some = jax.tree.map(lambda x: jax.ShapeDtypeStruct((min(len(x), self.data.block_users), *x.shape[1:]), x.dtype), self.data.shapes)\n        return self.oracle.parts(other_key, params, some, self.sample_shape)", _SUMS),
    Fault("stored: room of one user, not of the sample", _STREAMED, "return UserSample(shape, *fixed)", "return UserSample(jax.ShapeDtypeStruct((1,), shape.dtype), *fixed)", _SUMS),
    Fault("stored: chunks are rounded one by one", _CHUNKS, "        return _compensated.add(so_far, chunk_sum(*chunk))\n", "        return jax.tree.map(lambda s: _compensated.Split(s.high + s.low, 0 * s.low) if _compensated.is_split(s) else s, _compensated.add(so_far, chunk_sum(*chunk)), is_leaf=_compensated.is_split)\n", _SUMS),
    Fault("stored: shifts have the key of the sample", _STREAMED, "other_key = self.oracle.keys(key)[1]", "other_key = self.oracle.keys(key)[0]", _SUMS),
    Fault("stored: all steps have the sample of the first", _LOOP, "keys = (of_step(key, t) for t in range(first, num_steps))", "keys = (of_step(key, 0 * t) for t in range(first, num_steps))", _RUNS),
    Fault("stored: a changed file is not noticed", _FILES, "    if found != state:", "    if found[1] != state[1]:", _RUNS),
    Fault("stored: a checkpoint of another run is taken", _LOOP, "if form != _FORM or found.tobytes() != hashlib.sha256(known_by).digest():", "if form != _FORM:", _RUNS),
    Fault("stored: a run goes on one step too late", _LOOP, "known_by, t + 1, carry)", "known_by, t + 2, carry)", _RUNS),
    Fault("stored: an edited checkpoint is taken", _LOOP, "if not hmac.compare_digest(seal.tobytes(), _seal(known_by, step, arrays)):", "if False:", _RUNS),
    Fault("stored: arrays are told apart by their sizes only", _FILES, "return (*sizes, digest.hexdigest())", "return sizes", _ROWS),
    Fault("stored: parts of one map are not told apart", _FILES, "self._place = (start, array.strides)", "self._place = ()", _ROWS),
    Fault("stored: a copy has the descriptor of the first", _FILES, "def __reduce__(self)", "def _unused(self)", _ROWS),
    Fault("stored: a byte of a mask may be anything", _STORED, "found = found.view(np.uint8) != 0", "found = found.view(bool)", _ROWS),
    Fault("stored: a total goes on where another was left", _STREAMED, "                is_whole = False\n", "                is_whole = True\n", _SUMS),
    Fault("stored: the sample of one key, the shifts of another", _STREAMED, "next_one = _are_same(announced.popleft(), key)", "next_one = True", _SUMS),
    Fault("stored: draws of few users come in small chunks", _CHUNKS, "chunk_size = min(chunk_size, len(sample.indices))", "chunk_size = min(chunk_size, num_users)", ("tests/oracles/test_chunks.py",)),
    Fault("stored: what is written into a map that copies is not looked at", _FILES, 'self._in_file = whole is not None and whole.mode != "c"', "self._in_file = whole is not None", _ROWS),
    Fault("stored: every process sums its own files", _STREAMED, "alone, wanted = jax.process_count() == 1,", "alone, wanted = jax.process_count() > 0,", _SUMS),
    Fault("stored: a plan for others is taken", "solvers/_planning.py", "found = data.num_users if isinstance(data, StoredUsers) else num_users(data)", "found = planned if isinstance(data, StoredUsers) else num_users(data)", _RUNS),
)  # fmt: skip
