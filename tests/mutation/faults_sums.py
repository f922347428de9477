"""Faults of sums in two parts, written before any ran."""

from tests.mutation import Fault

_TESTS = ("tests/geometry/test_sums.py",)
_SUMS = "_sums.py"

FAULTS = (
    Fault("sums: the error of an addition is dropped", _SUMS,
          "return total, (a - (total - of_b)) + (b - of_b)", "return total, 0 * total", _TESTS),
    Fault("sums: half of the error is dropped", _SUMS,
          "return total, (a - (total - of_b)) + (b - of_b)", "return total, b - of_b", _TESTS),
    Fault("sums: the rest is never moved up", _SUMS,
          "return Split(*_two_sum(high, low + (a.low + b.low)))",
          "return Split(high, low + (a.low + b.low))", _TESTS),
    Fault("sums: what was lost before is forgotten", _SUMS,
          "return Split(*_two_sum(high, low + (a.low + b.low)))",
          "return Split(*_two_sum(high, low))", _TESTS),
    Fault("sums: no room", _SUMS, "    return left\n", "    return 1.0 + 0 * left\n", _TESTS),
    Fault("sums: a product adds up all users", _SUMS,
          "    if count <= group:\n        total = product(*arrays)",
          "    if count:\n        total = product(*arrays)", _TESTS),
    Fault("sums: integers are rounded away from zero", _SUMS,
          "second = jnp.trunc((scaled - first) * 2.0**bits)",
          "second = jnp.ceil((scaled - first) * 2.0**bits)", _TESTS),
    Fault("sums: the rest of a quotient is dropped", _SUMS,
          "(rest + total.low) / divisor", "total.low / divisor", _TESTS),
    Fault("sums: chunks are rounded one by one", "oracles/chunks.py",
          "lambda i, total: _sums.add(total, trip(i)), nothing)",
          "lambda i, total: jax.tree.map(lambda s: _sums.Split(s.high + s.low, 0 * s.low) "
          "if _sums.is_split(s) else s, _sums.add(total, trip(i)), is_leaf=_sums.is_split), nothing)",
          _TESTS),
    Fault("sums: blocks are rounded one by one", "geometry/clipping.py",
          "return _sums.add(total, _unrolled(block, weights))",
          "return jax.tree.map(lambda s: _sums.Split(s.high + s.low, 0 * s.low), "
          "_sums.add(total, _unrolled(block, weights)), is_leaf=_sums.is_split)", _TESTS),
    Fault("sums: the remainder of an oracle is ignored", "transforms/aggregates.py",
          "if remainder is None else remainder", "", _TESTS),
    Fault("sums: rounded before the noise", "transforms/privatize.py",
          'extra_args["in_parts"] = True', 'extra_args["in_parts"] = False', _TESTS),
    Fault("sums: the rest of a product is that of the product itself", _SUMS,
          "high = lax.reduce_precision(total.high * factor, kind.nexp, kind.nmant - 1)",
          "high = total.high * factor", _TESTS),
    Fault("sums: noise meets the large part first", "mechanisms/additive.py",
          "return leaf.high + noised(leaf.low, leaf_key)",
          "return noised(leaf.high + leaf.low, leaf_key)", _TESTS),
)  # fmt: skip
