"""Faults in the sums of clipped gradients that come from activations and cotangents."""

from tests.mutation import Fault

_TESTS = ("tests/oracles/test_ghost.py",)
_OF_BOUNDS = ("tests/oracles/test_ghost_bounds.py",)
_OF_LOOK_UPS = ("tests/oracles/test_ghost_look_ups.py",)
_OF_RULES = ("tests/oracles/test_ghost_rules.py",)
_TERMS = "oracles/ghost/_terms.py"
_SUMS = "oracles/ghost/sums.py"
_PARTS = "oracles/ghost/_parts.py"
_BACKWARD = "oracles/ghost/_backward.py"
_RULES = "oracles/ghost/rules.py"
_WALK = "oracles/ghost/_walk.py"
_ADDING = "oracles/ghost/_adding.py"
_MERGED = "oracles/ghost/_parts.py"
_PROGRAM = "oracles/ghost/_program.py"
_CONVOLUTIONS = "oracles/_convolutions.py"
_EFFECTS = "_effects.py"
_OF_MEMORY = ("tests/oracles/test_ghost_rematerialized.py",)
_OF_STRANGERS = ("tests/oracles/test_ghost_foreign.py",)
_OF_EFFECTS = ("tests/oracles/test_effects.py",)
_OF_CONVOLUTIONS = ("tests/oracles/test_convolutions.py",)

FAULTS = (
    Fault("ghost: cross terms of tied weights are dropped", _TERMS, "square = square + 2 * _added(pairs)", "square = square + 0 * _added(pairs)", _TESTS),
    Fault("ghost: what rounding takes from cancelling items is not added", _TERMS, "slack = gamma * jnp.square(longest)", "slack = 0 * jnp.square(longest)", _OF_BOUNDS),
    Fault("ghost: what is flushed to zero is not added", _TERMS, "slack = slack + jnp.square(", "slack = slack + 0 * jnp.square(", _TESTS),
    Fault("ghost: lengths vanish", _TERMS, "jnp.sqrt(square + vectors.shape[-1] * FLUSHED)", "jnp.sqrt(square)", _OF_BOUNDS),
    Fault("ghost: a leaf is forgotten in the joint norm", _PARTS, "for leaf in group:\n            made", "for leaf in group[1:]:\n            made", _TESTS),
    Fault("ghost: gradients that are built are forgotten in the joint norm", _PARTS, "if built:", "if built and not lengths:", _TESTS),
    Fault("ghost: an example with NaN counts", _SUMS, "counted = counted & jnp.isfinite(norm)", "counted = counted & (norm != -1.0)", _TESTS),
    Fault("ghost: everybody counts", _SUMS, "there & mask, how", "there, how", _TESTS),
    Fault("ghost: trips that share parameters are not added up", _BACKWARD, "return [jnp.sum(x, axis=0) if s else x", "return [x[0] if s else x", _TESTS),
    Fault("ghost: places of a convolution in another order than its patches", _RULES, "order = (image_axis, *places, channel_axis)", "order = (*places, image_axis, channel_axis)", _OF_RULES),
    Fault("ghost: patches know nothing of dilated kernels", _RULES, 'entries = np.arange(window[axis]) * p["rhs_dilation"][axis]', "entries = np.arange(window[axis])", _TESTS),
    Fault("ghost: all axes of a convolution have the strides of the first", _RULES, 'p["window_strides"][axis]', 'p["window_strides"][0]', _TESTS),
    Fault("ghost: the entries of a patch are in another order than the kernel's", _RULES, "((), (*window, in_axis), (out_axis,))", "((), (in_axis, *window), (out_axis,))", _TESTS),
    Fault("ghost: an image that is spread out is read as it was", _RULES, "(low, high, step - 1) for", "(low, high + (step - 1) * 99, 0) for", _TESTS),
    Fault("ghost: exchanged axes of tied weights are taken for the same", _TERMS, "(u.right, u.left) if s else (u.left, u.right)", "(u.left, u.right) if s else (u.left, u.right)", _TESTS),
    Fault("ghost: a layer is held to another layer's bound", _SUMS, "zip(how.layers, groups, norms, strict=True)", "zip(how.layers[::-1], groups, norms, strict=True)", _TESTS),
    Fault("ghost: an offset below zero makes contributions longer", _SUMS, "jnp.where(offset > 0, limit / (norm + offset), 0)", "limit / (norm + offset)", _OF_BOUNDS),
    Fault("ghost: items that cancel count as nothing where others round with them", _TERMS, "jnp.maximum(bound, share * (1 + 2 * gamma) * whole)", "jnp.maximum(bound, 0 * whole)", _OF_BOUNDS),
    Fault("ghost: bounds are not made smaller by what rounding may take", _SUMS, "_HEAD_ROOM * room * jnp", "_HEAD_ROOM * jnp", _OF_BOUNDS),
    Fault("ghost: products are added up in one float", _ADDING, "_compensated.add(total, several(index * (strip * group), strip))", "jax.tree.map(jnp.add, total, several(index * (strip * group), strip))", _OF_BOUNDS),
    Fault("ghost: uses whose results are complex are none", _WALK, "jnp.issubdtype(aval.dtype, jnp.inexact)", "jnp.issubdtype(aval.dtype, jnp.floating)", _OF_RULES),
    Fault("ghost: a rule may number rows from below zero", _BACKWARD, "there = (left >= 0) & (left < rows)", "there = left < rows", _OF_RULES),
    Fault("ghost: a rule may give factors of other shapes", _BACKWARD, "if found != wanted or not all(right_kinds):", "if not all(right_kinds):", _OF_RULES),
    Fault("ghost: what integers carry is forgotten", _ADDING, "sums[i - 1] = sums[i - 1] + (sums[i] >> bits)", "sums[i - 1] = sums[i - 1]", _OF_BOUNDS),
    Fault("ghost: rows of a table that are met share one place", _ADDING, ".at[at].max(", ".at[at].min(", _OF_BOUNDS),
    Fault("ghost: what products round is counted in one of two data sets", _ADDING, "return 2 * sum(max(", "return 1 * sum(max(", _OF_BOUNDS),
    Fault("ghost: the rounding to one float is not paid for", _SUMS, "0 if in_parts else 1", "0 if in_parts else 0", _OF_BOUNDS),
    Fault("ghost: products of as many examples as there may be", _ADDING, "_MOST_LOST = 1.0625 * 2.0**-8", "_MOST_LOST = 2.0**-2", _OF_BOUNDS),
    Fault("ghost: look-ups beyond the table count", _RULES, "right = jnp.where(((at >= 0) & (at <= last))[..., None], right, 0)", "right = jnp.where(((at >= 0) | (at <= last))[..., None], right, 0)", _OF_RULES),
    Fault("ghost: slices that begin beyond the table are not moved into it", _RULES, "jnp.clip(_wide(operands[1 + axis]), 0, shape[axis] - 1)", "_wide(operands[1 + axis])", _OF_RULES),
    Fault("ghost: loops around a use change places", _BACKWARD, "own = [1 + i for i, s in enumerate(stacked) if s]", "own = [1 + i for i, s in enumerate(stacked) if s][::-1]", _OF_RULES),
    Fault("ghost: a user with NaN in one of several items counts", _TERMS, "jnp.where(bad, jnp.inf,", "jnp.where(bad, 1.0,", _OF_BOUNDS),
    Fault("ghost: gradients of weight zero are multiplied", _PARTS, "jnp.tensordot(weights, jnp.where(there, rows, 0), 1", "jnp.tensordot(weights, rows, 1", _TESTS),
    Fault("ghost: the remainder is the sum", _SUMS, "(whole, _compensated.remainder(total)) if", "(whole, _compensated.rounded(total)) if", _OF_BOUNDS),
    Fault("ghost: equal look-ups are not added up", _MERGED, "more = jnp.where(same[..., None], vectors[..., :-step, :], 0)", "more = 0 * jnp.where(same[..., None], vectors[..., :-step, :], 0)", _OF_LOOK_UPS),
    Fault("ghost: look-ups are not sorted before equal ones are added up", _MERGED, "both = lax.sort(both, dimension=2)", "both = both + 0", _OF_LOOK_UPS),
    Fault("ghost: look-ups of any two rows are added up", _MERGED, "same = number[..., step:] == number[..., :-step]", "same = number[..., step:] >= number[..., :-step]", _OF_LOOK_UPS),
    Fault("ghost: what rounding takes from equal look-ups that cancel is not added", _MERGED, "(1 + 2 * gamma) + gamma * whole", "(1 + 2 * gamma)", _OF_LOOK_UPS),
    Fault("ghost: the last row that is met is lost", _MERGED, "constant_values=True", "constant_values=False", _OF_LOOK_UPS),
    Fault("ghost: equal look-ups are added up in steps that end too early", _MERGED, "while step < products:", "while 2 * step < products:", _OF_LOOK_UPS),
    Fault("ghost: vectors stay in the order in which they were looked up", _MERGED, "return number, jnp.take_along_axis(use.right, place[..., None], axis=2)", "return number, use.right", _OF_LOOK_UPS),
    Fault("ghost: an example with NaN in one of many look-ups counts", _MERGED, "jnp.where(bad, jnp.inf,", "jnp.where(bad, 1.0,", _OF_LOOK_UPS),
    Fault("ghost: look-ups that cancel count as nothing where others round with them", _MERGED, "jnp.maximum(bound, share * (1 + 2 * gamma) * whole)", "jnp.maximum(bound, 0 * whole)", _OF_LOOK_UPS),
    Fault("ghost: stacks of tables beyond the first are not measured", _MERGED, "squares = jnp.sum(jnp.square(_sums_of_equal(use, rows)), axis=3)", "squares = jnp.sum(jnp.square(_sums_of_equal(use, rows)[:, :1]), axis=3)", _OF_LOOK_UPS),
    Fault("ghost: gradients of kernels of grouped convolutions in batches", _BACKWARD, "over = _convolutions.in_turn if use.mixes(one) else jax.vmap", "over = jax.vmap", _OF_CONVOLUTIONS),
    Fault("gradients: grouped convolutions in batches of users", _CONVOLUTIONS, "mixed = any(grouped(each) or of_batches(each) for each in (program, slope))", "mixed = any(of_batches(each) for each in (program, slope))", _OF_CONVOLUTIONS),
    Fault("ghost: convolutions with kernels of data are not seen", _CONVOLUTIONS, 'if eqn.primitive.name == "conv_general_dilated" and all(operands):', 'if eqn.primitive.name == "conv" and all(operands):', _OF_CONVOLUTIONS),
    Fault("ghost: convolutions inside of other equations are not seen", _CONVOLUTIONS, "or any(holds(body, asked) for body in _bodies(eqn))", "or False", _OF_CONVOLUTIONS),
    Fault("ghost: rules for derivatives are not looked into", _CONVOLUTIONS, 'in ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")', 'in ("custom_jvp_call",)', _OF_CONVOLUTIONS),
    Fault("ghost: rules for derivatives of data are not looked into", "oracles/ghost/_program.py", "self.mixes = mixes or (grouped and _convolutions.grouped_in_rules(self._program))", "self.mixes = mixes", _OF_CONVOLUTIONS),
    Fault("ghost: operands of a linear solve are those of its last program", _CONVOLUTIONS, 'elif len(operands) == number and "linear_solve" not in eqn.primitive.name:\n                inside = operands', "elif len(operands) >= number:\n                inside = operands[len(operands) - number :]", _OF_CONVOLUTIONS),
    Fault("element level: grouped convolutions in batches of units", "solvers/element_level/_unit_updates.py", "gradient = _convolutions.kept_apart(jax.grad(loss), loss)", "gradient = jax.grad(loss)", _OF_CONVOLUTIONS),
    Fault("phased SGD: grouped convolutions in batches of groups", "solvers/user_level/phased_sgd.py", "slope = _convolutions.kept_apart(jax.grad(objective.loss), objective.loss)", "slope = jax.grad(objective.loss)", _OF_CONVOLUTIONS),
    Fault("queries: grouped convolutions in batches of queries", "oracles/resque.py", "at_point = _convolutions.kept_apart(jax.grad(loss), loss)", "at_point = jax.grad(loss)", _OF_CONVOLUTIONS),
    Fault("cells: grouped convolutions in batches of tangents", "solvers/sampling/_cells.py", "slope = _convolutions.kept_apart(jax.grad(loss), loss)", "slope = jax.grad(loss)", _OF_CONVOLUTIONS),
    Fault("ghost: slices of a loop belong to nobody", _CONVOLUTIONS, "*inside[shared:end], *operands[end:]]", "*inside[shared:end], *([False] * number)[end:]]", _OF_CONVOLUTIONS),
    Fault("ghost: what a loop carries stays whose it was", _CONVOLUTIONS, 'in ("scan", "while")', 'in ("scan",)', _OF_CONVOLUTIONS),
    Fault("ghost: operands of branches are off by one", _CONVOLUTIONS, "inside = operands[1:]", "inside = operands[:-1]", _OF_CONVOLUTIONS),
    Fault("ghost: groups of images are not seen", _CONVOLUTIONS, 'eqn.params["feature_group_count"] * eqn.params["batch_group_count"] > 1', 'eqn.params["feature_group_count"] > 1', _OF_CONVOLUTIONS),
    Fault("ghost: collectives over axes of others", _EFFECTS, '== "NamedAxisEffect"', '== "NoEffect"', _TESTS),
    Fault("effects: callbacks for debugging may stand in a loss", _EFFECTS, 'eqn.primitive.name == "debug_print" and', 'eqn.primitive.name in ("debug_print", "debug_callback") and', _OF_EFFECTS),
    Fault("effects: prints in order may stand in a loss", _EFFECTS, 'and not eqn.params["ordered"]', "", _OF_EFFECTS),
    Fault("effects: loops are refused for the print in them", _EFFECTS, "if type(effect) not in named and not _is_harmless(eqn):", "if not _is_harmless(eqn):", _OF_EFFECTS),
    Fault("effects: those on the way back are not looked at", _CONVOLUTIONS, "for each in (program, slope):", "for each in (program,):", _OF_EFFECTS),
    Fault("effects: those on the way back of a ghost sum are not looked at", _PROGRAM, '_effects.require_none("loss", slope)', "", _OF_EFFECTS),
    Fault("ghost: rules that ask what is differentiated are asked for less", _PROGRAM, "        if asking:", "        if False:", _OF_STRANGERS),
    Fault("ghost: what is to be computed again is held", _WALK, "again = kind == Kind.DATA and eqn.primitive.name in _AGAIN", "again = False", _OF_MEMORY),
    Fault("ghost: of what is computed again, anything may be saved", _PROGRAM, 'how = {name: eqn.params[name] for name in ("policy", "prevent_cse")}', "how = {}", _OF_MEMORY),
    Fault("ghost: of trips in turn the last one counts", _BACKWARD, "return [t + x for t, x in zip(totals, added, strict=True)], rest", "return [0 * t + x for t, x in zip(totals, added, strict=True)], rest", _OF_MEMORY),
    Fault("gradients: who asks for a batch is asked in one", _CONVOLUTIONS, "mixed = any(grouped(each) or of_batches(each) for each in (program, slope))", "mixed = any(grouped(each) for each in (program, slope))", _OF_STRANGERS),
    Fault("ghost: who asks for a batch is asked in one", _PROGRAM, "mixes = mixes or any(map(_convolutions.of_batches, (self._program, slope)))", "", _OF_STRANGERS),
    Fault("ghost: who asks for a batch in a branch is not seen", _CONVOLUTIONS, "if any(map(of_batches, bodies)):", "if False:", _OF_STRANGERS),
    Fault("ghost: whole gradients of grouped convolutions in batches", _PROGRAM, "self.slope_mixes = mixes or grouped or _convolutions.grouped(self._program)", "self.slope_mixes = False", _OF_CONVOLUTIONS),
    Fault("effects: losses are batched before they are looked at", "problems/users.py", '_effects.require_none_of("loss", of_item, params, item)', "del item, of_item", _OF_EFFECTS),
    Fault("effects: functions of users that are kept are not looked at", "oracles/chunks.py", "chunk_rows = _effects.checked(_NAME, chunk_rows)", "", _OF_EFFECTS),
    Fault("ghost: a loop that is stopped is differentiated", _WALK, 'if eqn.primitive.name == "stop_gradient" and kind == Kind.HELD:', 'if eqn.primitive.name == "stop" and kind == Kind.HELD:', _TESTS),
    Fault("ghost: elsewhere than on a CPU half of every group counts twice", _ADDING, "made[:, 0] + made[:, 1] if halves == 2", "made[:, 0] + made[:, 0] if halves == 2", _OF_BOUNDS),
    Fault("ghost: built gradients are of full precision whatever the loss asks", _BACKWARD, "asked if named else _terms.FULL)", "_terms.FULL)", _OF_BOUNDS),
)  # fmt: skip
