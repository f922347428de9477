"""Faults of sums in two parts, written before any ran."""

from tests.mutation import Fault

_TESTS = ("tests/geometry/test_sums.py",)
_SUMS = "_compensated.py"
_STREAMS, _GHOST = "oracles/_streams.py", "oracles/_ghost_norms.py"
_SAMPLING = "oracles/sampling.py"
_LAWS, _GHOSTS = ("tests/oracles/test_sampling.py",), ("tests/oracles/test_ghost_norms.py",)

FAULTS = (
    Fault("sums: the error of an addition is dropped", _SUMS, "return total, (a - (total - of_b)) + (b - of_b)", "return total, 0 * total", _TESTS),
    Fault("sums: half of the error is dropped", _SUMS, "return total, (a - (total - of_b)) + (b - of_b)", "return total, b - of_b", _TESTS),
    Fault("sums: the rest is never moved up", _SUMS, "return Split(*_two_sum(high, low + (a.low + b.low)))", "return Split(high, low + (a.low + b.low))", _TESTS),
    Fault("sums: what was lost before is forgotten", _SUMS, "return Split(*_two_sum(high, low + (a.low + b.low)))", "return Split(*_two_sum(high, low))", _TESTS),
    Fault("sums: off a CPU rests are added alone", _SUMS, "lambda a, b: _plus(a, b), (0,)", "lambda a, b: Split(a.high + b.high, a.low + b.low), (0,)", _TESTS),
    Fault("sums: off a CPU the rest is dropped", _SUMS, "return Split(*summed)", "return Split(summed[0], 0 * summed[1])", _TESTS),
    Fault("sums: no room", _SUMS, "    return left\n", "    return 1.0 + 0 * left\n", _TESTS),
    Fault("sums: a product adds up all users", _SUMS, "    if count <= group:\n        total = product(*arrays)", "    if count:\n        total = product(*arrays)", _TESTS),
    Fault("sums: integers are rounded away from zero", _SUMS, "second = jnp.trunc((scaled - first) * 2.0**bits)", "second = jnp.ceil((scaled - first) * 2.0**bits)", _TESTS),
    Fault("sums: the rest of a quotient is dropped", _SUMS, "(rest + total.low) / divisor", "total.low / divisor", _TESTS),
    Fault("sums: chunks are rounded one by one", "oracles/chunks.py", "lambda i, total: _compensated.add(total, trip(i)), nothing)", "lambda i, total: jax.tree.map(lambda s: _compensated.Split(s.high + s.low, 0 * s.low) if _compensated.is_split(s) else s, _compensated.add(total, trip(i)), is_leaf=_compensated.is_split), nothing)", _TESTS),
    Fault("sums: blocks are rounded one by one", "geometry/clipping.py", "return _compensated.add(total, _unrolled(block, weights))", "return jax.tree.map(lambda s: _compensated.Split(s.high + s.low, 0 * s.low), _compensated.add(total, _unrolled(block, weights)), is_leaf=_compensated.is_split)", _TESTS),
    Fault("sums: the remainder of an oracle is ignored", "transforms/aggregates.py", "if remainder is None:", "if True:", _TESTS),
    Fault("sums: rounded before the noise", "transforms/privatize.py", 'extra_args["in_parts"] = True', 'extra_args["in_parts"] = False', _TESTS),
    Fault("sums: the rest of a product is that of the product itself", _SUMS, "high = lax.reduce_precision(total.high * factor, kind.nexp, kind.nmant - 1)", "high = total.high * factor", _TESTS),
    Fault("sums: noise meets the large part first", "mechanisms/additive.py", "return leaf.high + noised(leaf.low, leaf_key)", "return noised(leaf.high + leaf.low, leaf_key)", _TESTS),
    Fault("samples: in the order of the users", _SAMPLING, "    indices = indices.at[:length].set(first)\n", "", _LAWS),
    Fault("samples: Poisson's in the order of the users, as sums see them", _SAMPLING, "    indices = indices.at[:length].set(first)\n", "", ("tests/geometry/test_sums.py::test_errors_of_users_chosen_for_their_places_do_not_add_up",)),
    Fault("samples: of few of many a user may be drawn twice", _STREAMS, "numbers[1:] != numbers[:-1]", "numbers[1:] >= numbers[:-1]", _LAWS),
    Fault("samples: of few of many the last of equal draws counts", _STREAMS, "at[places].set(new)", "at[places].set(jnp.roll(new, -1))", _LAWS),
    Fault("samples: of more than half in the order of the users", _SAMPLING, "return _in_random_order(order_key, _streams.pack(kept, most), size, most, size)", "return _streams.pack(kept, most)", _LAWS),
    Fault("samples: users with the same bits stay in their order", _SAMPLING, "undecided = jnp.any(equal) | (size > length)", "undecided = size > length", _LAWS),
    Fault("samples: what is longer is sorted in part", _SAMPLING, "undecided = jnp.any(equal) | (size > length)", "undecided = jnp.any(equal)", _LAWS),
    Fault("samples: nobody keeps a place in a shuffle", _SAMPLING, "(), 0, place + 1)", "(), 0, jnp.maximum(place, 1))", _LAWS),
    Fault("samples: who does not count is sorted too", _SAMPLING, "jnp.where(places < size, jnp.stack([words[:length], low]), jnp.uint32(2**32 - 1))", "jnp.stack([words[:length], low])", _LAWS),
    Fault("samples: ties of who does not count, and no others", _SAMPLING, "& (places[1:] < size)", "& (places[1:] >= size)", _LAWS),
    Fault("sums: draws with replacement count as users", "oracles/chunks.py", "    return len(sample.indices)\n", "    return jax.tree.leaves(data)[0].shape[0]\n", _TESTS),
    Fault("sums: room for one group", _SUMS, "own = (4 * own_group", "own = (2 * own_group", _TESTS),
    Fault("sums: products of 64 users pay for eight", "oracles/linear.py", "room = _compensated.room(rows_added, whole, group_rounding=product**2)", "room = _compensated.room(rows_added, whole)", _TESTS),
    Fault("sums: by halves the rest of an odd number is dropped", _SUMS, "slice(2 * half, None))", "slice(2 * half, 2 * half))", _TESTS),
    Fault("sums: by halves rests are added alone", _SUMS, "both = _plus(first, second)", "both = Split(first.high + second.high, first.low + second.low)", _TESTS),
    Fault("ghost norms: items may cancel all but nothing", _GHOST, "return jnp.maximum(root, longest / _LONGEST)", "return root", _GHOSTS),
    Fault("ghost norms: a product of 16 users, whatever their items", _GHOST, "_MOST_ROUNDINGS = 1024", "_MOST_ROUNDINGS = 10**9", _GHOSTS),
    Fault("ghost norms: no room for their products", "oracles/linear.py", "room = _compensated.room(rows_added, product, group_rounding=rounding)", "room = _compensated.room(rows_added, product)", _GHOSTS),
    Fault("ghost norms: products of more users than is paid for", "oracles/linear.py", "group=_ghost_norms.group(items)", "group=ROW_GROUP", ("tests/oracles/test_ghost_norms.py",)),
)  # fmt: skip
