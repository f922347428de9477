"""Faults of users who are spread over devices, written before any ran."""

from tests.mutation import Fault

_TESTS = ("tests/devices/test_devices.py",)
_CHUNKS, _SUMS, _DRAWS = "oracles/chunks.py", "_device_sums.py", "mechanisms/_own_draws.py"

FAULTS = (
    Fault("devices: sums are rounded", _SUMS,
          "return _sums.add(sum_so_far, _sums.Split(*parts[device]))",
          "return _sums.Split(sum_so_far.high + parts[device][0], sum_so_far.low + parts[device][1])",
          _TESTS),
    Fault("devices: the first is counted twice", _SUMS,
          "lax.fori_loop(1, len(parts)", "lax.fori_loop(0, len(parts)", _TESTS),
    Fault("devices: the last is left out", _SUMS,
          "lax.fori_loop(1, len(parts)", "lax.fori_loop(1, len(parts) - 1", _TESTS),
    Fault("devices: any number of them", _SUMS,
          "num_devices <= MOST_DEVICES or users_each >= LEAST_USERS", "num_devices > 0", _TESTS),
    Fault("devices: who is not drawn is counted", _CHUNKS,
          "mine = (places < sample.size) & (here >= 0)", "mine = (here >= 0)", _TESTS),
    Fault("devices: a neighbour's user is counted too", _CHUNKS,
          "(here < each)", "(here <= each)", _TESTS),
    Fault("devices: places in the sample are those on the device", _CHUNKS,
          "place = position if places is None else places[entry]", "place = position", _TESTS),
    Fault("devices: all start at the first user", "_spread.py",
          "return lax.axis_index(spread.axis) * spread.each",
          "return 0 * lax.axis_index(spread.axis)", _TESTS),
    Fault("devices: all draw the same noise", _DRAWS,
          "lax.axis_index(axis) * width", "0 * lax.axis_index(axis)", _TESTS),
    Fault("devices: both numbers of a pair are the cosine", _DRAWS,
          "jnp.where(second, jnp.sin(angle), jnp.cos(angle))", "jnp.cos(angle)", _TESTS),
    Fault("devices: words are used twice", _DRAWS,
          "pair + jnp.uint32(which * pairs)", "pair + jnp.uint32(which)", _TESTS),
    Fault("devices: noise of the whole on each", "transforms/privatize.py",
          "statistic = _spread.like(statistic, params)", "pass", _TESTS),
)  # fmt: skip
