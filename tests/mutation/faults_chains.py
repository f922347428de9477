"""Faults of what a ledger says of the stages around a release, and of what a release compares."""

from tests.mutation import Fault

_AROUND = ("tests/privacy/test_wrappers.py",)
_COMPARED = ("tests/transforms/test_agreement.py",)
_CHAIN = ("tests/transforms/test_private_chain.py",)
_WRAPPERS = "privacy/_wrappers.py"
_AGREEMENT = "transforms/_agreement.py"
_PRIVATE = "transforms/private_chain.py"

FAULTS = (
    Fault("chains: MultiSteps is taken for known", _WRAPPERS, "    optax.contrib.ScheduleFreeState,\n)", "    optax.contrib.ScheduleFreeState,\n    optax.MultiStepsState,\n)", _AROUND),
    Fault("chains: the doubts of what is inside are lost", _WRAPPERS, "one.doubts + around + before", "around + before", _AROUND),
    Fault("chains: whoever is around is not asked", _WRAPPERS, "one.doubts + around + before", "one.doubts + before", _AROUND),
    Fault("chains: whoever is before is not asked", _WRAPPERS, "one.doubts + around + before", "one.doubts + around", _AROUND),
    Fault("chains: a mask lets leaves pass", _WRAPPERS, "    if isinstance(node, optax.MaskedState):\n        return (", "    if isinstance(node, optax.MaskedState):\n        return () and (", _AROUND),
    Fault("chains: one label of a partition has a release", _WRAPPERS, "return () if all(spends)", "return () if any(spends)", _AROUND),
    Fault("chains: any wrapper of somebody else is known", _WRAPPERS, 'doubt = "may skip, repeat or go past the release that it wraps"\n    return (', 'doubt = ""\n    return () and (', _AROUND),
    Fault("chains: what cannot be looked into holds nothing", _WRAPPERS, "require(isinstance(leaf, _LEAVES) and not objects, name,", "require(True, name,", _AROUND),
    Fault("chains: a ledger as in a file holds nothing", _WRAPPERS, "require(not is_written(leaf), name,", "require(True, name,", _AROUND),
    Fault("chains: joined draws are amplified", "privacy/ledger.py", "if any(one.joined and one.ledger.sampled for one in found):", "if False:", ("tests/privacy/test_ledger.py", "tests/transforms/test_privatize.py")),
    Fault("compared: any bound of the oracle", _AGREEMENT, 'return _required(_at_most(clipped_to, bound), "clipped_to"', 'return _required(True, "clipped_to"', _COMPARED),
    Fault("compared: a sum without a bound passes", _AGREEMENT, 'require(clipped_to is not None, "clipped_to", clipped_to, wanted)\n', "if clipped_to is None:\n        return True\n", _COMPARED),
    Fault("compared: NaN is within every bound", _AGREEMENT, "return first <= second * _ROUNDED", "return ~(first > second * _ROUNDED)", _COMPARED),
    Fault("compared: any rate of a Poisson sample", _AGREEMENT, 'same = draw.kind == "poisson" and _at_most(draw.taken, sampling.probability)', 'same = draw.kind == "poisson"', _COMPARED),
    Fault("compared: any size of a sample", _AGREEMENT, "return _at_most(population, draw.population) & _at_most(draw.taken, taken)", "return _at_most(population, draw.population)", _COMPARED),
    Fault("compared: from any population", _AGREEMENT, "return _at_most(population, draw.population) & _at_most(draw.taken, taken)", "return _at_most(draw.taken, taken)", _COMPARED),
    Fault("compared: no checksum", _AGREEMENT, "good &= _unchanged(updates,", "good |= _unchanged(updates,", _COMPARED),
    Fault("compared: a checksum of bits as they are", "_compensated.py", "words = (words ^ (words >> 16)) * np.uint32(0x7FEB352D)\n", "return jnp.sum(words, dtype=jnp.uint32)\n", _COMPARED),
    Fault("compared: a release does not ask", "transforms/privatize.py", "        valid &= agreed\n", "", _COMPARED),
    Fault("compared: correlated noise covers draws", "transforms/privatize.py", "counted = noise_correlation is not None", "counted = False", _COMPARED),
    Fault("compared: raw losses reach the stages behind", _AGREEMENT, '_RAW = ("value", "grad", "value_fn", "loss", "obj_fn", "grad_fn")', "_RAW = ()", (*_COMPARED, *_CHAIN)),
    Fault("compared: functions under any other name reach the stages behind", _AGREEMENT, "require(not any(map(callable, jax.tree.leaves(value))), name,", "require(True, name,", _COMPARED),
    Fault("chains: a memory in a chain in front is hidden", _WRAPPERS, "    for child in children:\n        yield from _memories(", "    for child in ():\n        yield from _memories(", _AROUND),
    Fault("chains: states restored as lists are in no order at all", _WRAPPERS, "(*_IN_ORDER, *_IN_NO_ORDER)", "(tuple, *_IN_NO_ORDER)", _AROUND),
    Fault("chains: a dictionary hides what is in front", _WRAPPERS, "(*_IN_ORDER, *_IN_NO_ORDER)", "_IN_ORDER", _AROUND),
    Fault("chains: a dictionary is in the order of its names", _WRAPPERS, "_IN_ORDER = (tuple, list, collections.OrderedDict)", "_IN_ORDER = (tuple, list, collections.OrderedDict, dict)", _AROUND),
    Fault("chains: an account hides what is in front of it", _WRAPPERS, "raw = [not any(one.releases for one in found) for found in inside]", "raw = [not found for found in inside]", _AROUND),
    Fault("chains: containers of a state are not its own", _WRAPPERS, "return _is_container(node) and any(map(_holds_leaves, _children(node)))", "return False", _AROUND),
    Fault("private chain: a stage sees all users", _PRIVATE, "            updates = per_user(updates)", "            updates = before.update(updates, initial, params)[0]", _CHAIN),
    Fault("private chain: a stage in front remembers", _PRIVATE, 'require(not held, "before"', 'require(True, "before"', _CHAIN),
    Fault("private chain: extra arguments go behind the release", _PRIVATE, "after.update(released, state.after, params)", "optax.with_extra_args_support(after).update(released, state.after, params, **extra_args)", _CHAIN),
    Fault("private chain: what is not trained moves", _PRIVATE, "return jnp.zeros_like(param) if _is_masked(move) else move", "return jnp.ones_like(param) if _is_masked(move) else move", _CHAIN),
)  # fmt: skip
