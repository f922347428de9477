"""Faults in what is asked of keys: of records, in batches, in states."""

from tests.mutation import Fault

_RECORDS = "_record_keys.py"
_OF_RECORDS = ("tests/oracles/test_record_keys.py",)
_OF_KEYS = ("tests/test_keys.py",)
_LEDGER = "privacy/ledger.py"
_IN_BATCHES = "tests/test_keys_in_batches.py"
_OF_BATCHES = (_IN_BATCHES,)
_REFUSES = f"{_IN_BATCHES}::test_every_mechanism_and_sampler_refuses_them"
_SAMPLERS = (f"{_IN_BATCHES}::test_every_sampler_refuses_them",)
_COORDINATES = (f"{_IN_BATCHES}::test_coordinates_of_one_mean_are_drawn_each_by_its_own_key",)
_OWN = (f"{_IN_BATCHES}::test_batches_of_our_own_are_taken_in_turn",)
_CELLS = (f"{_IN_BATCHES}::test_cells_of_a_sweep_have_draws_of_their_own_whatever_the_default_is",)
_OF_STATES = ("tests/transforms/test_privatize.py",)
_DERIVATIVES = "tests/test_released.py"
_OF_CHECKPOINTS = (
    "tests/privacy/test_wrappers.py::test_a_checkpoint_is_restored_under_its_own_relation_alone",
)
_OF_LANES = ("tests/test_lanes_of_one_key.py",)
_OF_DERIVATIVES = (_DERIVATIVES,)
_OF_DRAWS = (f"{_DERIVATIVES}::test_a_draw_that_is_released_has_no_derivatives",)
_SAMPLING = "solvers/sampling/"

FAULTS = (
    Fault("checkpoints: any ledger takes them", _LEDGER, "require(found == wanted, f", "require(True, f", _OF_CHECKPOINTS),
    Fault("checkpoints: whether draws are secret is not written", _LEDGER, "(ledger.relation.value, ledger.sampled, ledger.shareable)", "(ledger.relation.value, True, ledger.shareable)", _OF_CHECKPOINTS),
    Fault("lanes of one key: nothing is seen", "_keys.py", "if any(released_are) and not words_are:", "if False:", _OF_LANES),
    Fault("lanes of one key: a batch around another is not asked", "_keys.py", "return _apart(words, so_far, released), so_far_is", "return so_far, so_far_is", _OF_LANES),
    Fault("lanes of one key: privatize does not ask", "transforms/privatize.py", "valid &= _keys.noise_is_own(noise_key, released)", "pass", _OF_LANES),
    Fault("derivatives of releases: none is refused", "_released.py", "return jax.tree.map(_as_it_is, tree)", "return tree", _OF_DERIVATIVES),
    Fault("derivatives of releases: additive noise has them", "mechanisms/additive.py", "return _released.without_derivatives(jax.tree.unflatten(treedef, noised_leaves))", "return jax.tree.unflatten(treedef, noised_leaves)", _OF_DERIVATIVES),
    Fault("derivatives of releases: a chain that alternates has them", f"{_SAMPLING}alternating_sampler.py", "state = _released.without_derivatives(state)", "pass", _OF_DRAWS),
    Fault("derivatives of releases: attempts at a Gaussian have them", f"{_SAMPLING}restricted_gaussian.py", "return _released.without_derivatives(Drawn(*until_one_counts(attempt, y, num_attempts)))", "return Drawn(*until_one_counts(attempt, y, num_attempts))", _OF_DRAWS),
    Fault("derivatives of releases: rejection from the target has them", f"{_SAMPLING}target_rejection.py", "Drawn(_released.without_derivatives(drawn)", "Drawn(drawn", _OF_DRAWS),
    Fault("derivatives of releases: a draw of the dual has them", f"{_SAMPLING}llt_sampler.py", 'return _released.without_derivatives(psi.draw(key, float64_vector("point", point)))', 'return psi.draw(key, float64_vector("point", point))', _OF_DRAWS),
    Fault("derivatives of releases: a draw of the primal has them", f"{_SAMPLING}llt_sampler.py", "return _released.without_derivatives(found)", "return found", _OF_DRAWS),
    Fault("keys in batches: those of XLA's generator are taken to draw apart", "_keys.py", '_EACH_ITS_OWN = ("threefry2x32"', '_EACH_ITS_OWN = ("rbg", "threefry2x32"', _OF_KEYS),
    Fault("keys of records: losses in batches of users are not looked at", _RECORDS, "        refuse(program, _which_vary(arguments, (*public, *whole)))\n", "", _OF_RECORDS),
    Fault("keys of records: ghost sums do not look at their loss", "oracles/ghost/_program.py", "        _record_keys.refuse(slope, varies)\n", "", _OF_RECORDS),
    Fault("keys of records: a loop carries them unseen", _RECORDS, "        if after == list(carry):\n", "        if True:\n", _OF_RECORDS),
    Fault("keys of records: how often a loop runs is taken to be public", _RECORDS, "if stops else carry", "if False else carry", _OF_RECORDS),
    Fault("keys of records: which branch is taken is taken to be public", _RECORDS, "[operands[0] or any(each)", "[any(each)", _OF_RECORDS),
    Fault("keys of records: raw draws of bits are not looked at", _RECORDS, 'if eqn.primitive.name == "rng_bit_generator":', "if False:", _OF_RECORDS),
    Fault("keys of records: programs of unknown equations are not entered", _RECORDS, "    for program in programs:\n        _varying(program, [True] * len(program.invars))\n", "", _OF_RECORDS),
    Fault("keys of records: a batch of units of users is not looked at", "solvers/element_level/_unit_updates.py", "_record_keys.over_users(lambda", "jax.vmap(lambda", _OF_RECORDS),
    Fault("keys of records: a batch of groups of users is not looked at", "solvers/user_level/phased_sgd.py", "_record_keys.over_users(slope)", "jax.vmap(slope)", _OF_RECORDS),
    Fault("keys of records: stages in front of a release are not looked at", "transforms/private_chain.py", "_record_keys.over_users(lambda", "jax.vmap(lambda", _OF_RECORDS),
    Fault("equal keys: words of keys are not looked at", _LEDGER, "(typed or kind == np.uint32)", "typed", _OF_STATES),
    Fault("equal keys: words of four are not looked at", _LEDGER, "_WORDS_OF_KEYS = (2, 4)", "_WORDS_OF_KEYS = (2,)", _OF_STATES),
    Fault("equal keys: those of other lanes are not looked at", _LEDGER, "same = (keys[first] == keys[second]).all(axis=-1)", "same = (keys[first] == keys[second]).all(axis=-1) & (jnp.asarray(places)[first] == jnp.asarray(places)[second])", _OF_STATES),
    Fault("equal keys: one of two lanes is judged alone", _LEDGER, "for which in (first, second):", "for which in (first,):", _OF_STATES),
    Fault("equal keys: a state beside a batch is not looked at", _LEDGER, "~(shared[:-1] | shared[-1])", "~shared[:-1]", _OF_STATES),
    Fault("keys in batches: nothing is refused", "_keys.py", "in_batched: list[bool], words: jax.Array) -> Any:\n", "in_batched: list[bool], words: jax.Array) -> Any:\n        return words, True\n", _OF_BATCHES),
    Fault("keys in batches: Poisson samples", "oracles/sampling.py", "_poisson(_keys.alone(key)", "_poisson(key", (f"{_REFUSES}[oracles.sampling.poisson]",)),
    Fault("keys in batches: normal noise", "mechanisms/_draws.py", "    key = _keys.alone(key)\n", "", _OF_BATCHES),
    Fault("keys in batches: random subsets of near users", "mechanisms/concentrated/concentrated_mean.py", "jax.random.bernoulli(_keys.alone(key)", "jax.random.bernoulli(key", (f"{_REFUSES}[mechanisms.concentrated.concentrated_mean.select]",)),
    Fault("keys in batches: coordinates of one mean are drawn by one key", "mechanisms/winsorized/winsorized_mean.py", "if block > 1 and _keys.draw_apart(of_run.dtype) else", "if block > 1 else", _COORDINATES),
    Fault("keys in batches: our own are mapped over at once", "_keys.py", "if draw_apart(keys.dtype):", "if True:", _OWN),
    Fault("keys in batches: chains", "solvers/sampling/alternating_sampler.py", "    key = _keys.alone(key)\n", "", _SAMPLERS),
    Fault("keys in batches: attempts on a set", "solvers/sampling/restricted_gaussian.py", "    key = _keys.alone(key)\n", "", _SAMPLERS),
    Fault("keys in batches: attempts at a target", "solvers/sampling/target_rejection.py", "    key = _keys.alone(key)\n", "", _SAMPLERS),
    Fault("keys in batches: draws of powers", "geometry/log_laplace.py", "_power_draw(_keys.alone(key)", "_power_draw(key", _SAMPLERS),
    Fault("keys in batches: cells of sweeps have the kind of the default", "sweeps/compile.py", 'jax.random.key(0, impl="threefry2x32")', "jax.random.key(0)", _CELLS),
)  # fmt: skip
