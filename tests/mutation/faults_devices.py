"""Faults of users who are spread over devices, written before any ran."""

from tests.mutation import Fault

_TESTS = ("tests/devices/test_devices.py",)
_PAIRS = ("tests/mechanisms/test_pairwise.py",)
_CONCENTRATED = "mechanisms/concentrated/"
_COORDINATES = "mechanisms/winsorized/_by_coordinate.py"
_CHUNKS, _SUMS, _DRAWS = "oracles/chunks.py", "_device_sums.py", "mechanisms/_own_draws.py"

FAULTS = (
    Fault("by hand: nothing varies", "_parts.py", "varying = axes & frozenset()", "varying = frozenset() & frozenset()", _TESTS),
    Fault("by hand: what JAX does not track is whole", "_parts.py", "tracked = len(axes) == 1 and axes <= _varies_over(number)", "tracked = True", _TESTS),
    Fault("by hand: parts of parts are tracked", "_parts.py", "tracked = len(axes) == 1 and axes <= _varies_over(number)", "tracked = bool(_varies_over(number))", _TESTS),
    Fault("by hand: keys may differ", "_checks.py", "    require_same_everywhere(name, key)\n", "", _TESTS),
    Fault("by hand: loops over users take parts", "_sharding.py", '    _parts.require_same_everywhere("rows", rows)\n', "", _TESTS),
    Fault("by hand: oracles take parts", "_sharding.py", "            _parts.require_same_everywhere(name, value)\n", "            pass\n", _TESTS),
    Fault("by hand: noise is added to parts", "mechanisms/additive.py", '    require_same_everywhere("tree", tree)\n', "", _TESTS),
    Fault("by hand: the size of noise may differ", "mechanisms/additive.py", '    require_same_everywhere("the size of the noise", size)\n', "", _TESTS),
    Fault("by hand: parts of scores", "mechanisms/selection.py", '    require_same_everywhere("scores", scores)\n', "", _TESTS),
    Fault("devices: sums are rounded", _SUMS, "return _compensated.add(sum_so_far, _compensated.Split(*parts[device]))", "return _compensated.Split(sum_so_far.high + parts[device][0], sum_so_far.low + parts[device][1])", _TESTS),
    Fault("devices: the first is counted twice", _SUMS, "lax.fori_loop(1, len(parts)", "lax.fori_loop(0, len(parts)", _TESTS),
    Fault("devices: the last is left out", _SUMS, "lax.fori_loop(1, len(parts)", "lax.fori_loop(1, len(parts) - 1", _TESTS),
    Fault("devices: any number of them", _SUMS, "num_devices <= MOST_DEVICES or users_each >= LEAST_USERS", "num_devices > 0", _TESTS),
    Fault("devices: who is not drawn is counted", _CHUNKS, "mine = (places < sample.size) & (here >= 0)", "mine = (here >= 0)", _TESTS),
    Fault("devices: a neighbour's user is counted too", _CHUNKS, "(here < each)", "(here <= each)", _TESTS),
    Fault("devices: places in the sample are those on the device", _CHUNKS, "place = position if places is None else places[entry]", "place = position", _TESTS),
    Fault("devices: all start at the first user", "_sharding.py", "return lax.axis_index(spread.axis) * spread.each", "return 0 * lax.axis_index(spread.axis)", _TESTS),
    Fault("devices: all draw the same noise", _DRAWS, "lax.axis_index(axis) * width", "0 * lax.axis_index(axis)", _TESTS),
    Fault("devices: places are counted in the part", _DRAWS, "_draws.places(part.shape, leaf.shape, starts)", "_draws.places(part.shape, part.shape, starts)", _TESTS),
    Fault("ring: the last turn is left out", _CONCENTRATED + "_ring.py", "lax.fori_loop(1, half + 1", "lax.fori_loop(1, half", _PAIRS),
    Fault("ring: who is half a round away is met twice", _CONCENTRATED + "_ring.py", "jnp.where(number < half, 1, 2)", "0", _PAIRS),
    Fault("ring: both of a shared meeting do the same part", _CONCENTRATED + "_ring.py", "jnp.where(number < half, 1, 2)", "1", _PAIRS),
    Fault("ring: axes in another order than the mesh's", _CONCENTRATED + "_ring.py", "tuple(name for name in spread.mesh.axis_names if name in given)", "given", _PAIRS),
    Fault("ring: the first rows of each device are the first of all", _CONCENTRATED + "concentrated_mean.py", "counted = jnp.where(jnp.arange(len(counted)) < num_users, counted, 0)", "pass", _PAIRS),
    Fault("ring: tallies of guests are dropped", _CONCENTRATED + "_ring.py", "return tally + _sent(of_guest, -half, devices, axis)", "return tally", _PAIRS),
    Fault("ring: tallies go home to another", _CONCENTRATED + "_ring.py", "_sent(of_guest, -half,", "_sent(of_guest, half - 1,", _PAIRS),
    Fault("ring: tallies stay where guests leave", _CONCENTRATED + "_ring.py", "guest, of_guest = _sent((guest, of_guest), 1, devices, axis)", "guest = _sent(guest, 1, devices, axis)", _PAIRS),
    Fault("ring: the rows of all are gathered", _CONCENTRATED + "_ring.py", "        own, tally = alone(rows, *others)\n", "        own, tally = alone(rows, *others)\n        tally += 0 * jnp.sum(lax.all_gather(rows[1], axis))\n        tally += jnp.isnan(lax.all_gather(jax.tree.leaves(rows[0])[0], axis, tiled=True)[0, 0])\n", _PAIRS),
    Fault("ring: the guest's absent users count", _CONCENTRATED + "_blocks.py", "squares = squares + theirs.own(norms[1], second, other, pair[1])[None]", "squares = squares + theirs.block_norms(pair[1])[None]", _PAIRS),
    Fault("ring: one half of a shared meeting is met twice", _CONCENTRATED + "_pairwise.py", "guest_start = jnp.where(part == 2, middle, 0)", "guest_start = 0 * part", _PAIRS),
    Fault("ring: both take the score of the rows", _CONCENTRATED + "_blocks.py", "return counts(of_rows), counts(of_columns)", "return counts(of_rows), counts(of_rows)", _PAIRS),
    Fault("masks: bytes of a device are taken as they are", "_sharding.py", "data._replace(mask=_checks.of_true_and_false(mask))", "data._replace(mask=mask != False)", ("tests/solvers/test_sgd.py", "tests/test_masks.py")),
    Fault("masks: bytes of a program are taken as they are", "_checks.py", "return mask.astype(jnp.uint8) != 0", "return mask", ("tests/test_masks.py",)),
    Fault("masks: what was looked at is not what is counted", "transforms/aggregates.py", 'user_mask = require_mask("user_mask"', 'require_mask("user_mask"', ("tests/test_masks.py",)),
    Fault("coordinates: those of each device have the keys of the first", _COORDINATES, "lax.axis_index(axis) * each + jnp.arange(each)", "jnp.arange(each)", _TESTS),
    Fault("coordinates: the values of all are gathered", _COORDINATES, "lax.all_to_all(columns, axis, split_axis=0, concat_axis=1, tiled=True)", "lax.dynamic_slice_in_dim(lax.all_gather(columns, axis, axis=1, tiled=True), lax.axis_index(axis) * each, each)", _TESTS),
    Fault("coordinates: of a device's own users alone", _COORDINATES, "lax.all_to_all(columns, axis, split_axis=0, concat_axis=1, tiled=True)", "lax.dynamic_slice_in_dim(columns, lax.axis_index(axis) * each, each)", _TESTS),
    Fault("coordinates: results in the order of axes that the mesh has not", _COORDINATES, "lax.all_gather(results, axis, tiled=True)", "lax.all_gather(results, given, tiled=True)", _TESTS),
    Fault("coordinates: the last are dropped", _COORDINATES, "each = -(-num_columns // spread.devices)", "each = num_columns // spread.devices", _TESTS),
    Fault("processes: dtypes of a process are its own", "problems/users.py", "shown = [(leaf.shape[1:], leaf.dtype.str)", "shown = [(leaf.shape[1:], 0)", _TESTS),
    Fault("processes: who is refused tells nobody", "problems/users.py", "        everywhere = _told_to_all(own, local)", '        require(good, "items", found, "of one number of users")\n        everywhere = _told_to_all(own, local)', _TESTS),
    Fault("devices: numbers of a schedule stay on another mesh", "_sharding.py", "outside = not found.empty and found.axis_types != mesh.axis_types", "outside = False", _TESTS),
    Fault("devices: noise of the whole on each", "_sharding.py", "known = _mesh_of(other) is not None and other.shape == leaf.shape", "known = False", _TESTS),
)  # fmt: skip
