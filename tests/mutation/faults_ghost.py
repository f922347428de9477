"""Faults in the sums of clipped gradients that come from activations and cotangents."""

from tests.mutation import Fault

_TESTS = ("tests/oracles/test_ghost.py",)
_OF_BOUNDS = ("tests/oracles/test_ghost_bounds.py",)
_OF_RULES = ("tests/oracles/test_ghost_rules.py",)
_TERMS = "oracles/ghost/_terms.py"
_SUMS = "oracles/ghost/sums.py"
_PARTS = "oracles/ghost/_parts.py"
_RULES = "oracles/ghost/rules.py"
_WALK = "oracles/ghost/_walk.py"
_ADDING = "oracles/ghost/_adding.py"

FAULTS = (
    Fault(
        "ghost: cross terms of tied weights are dropped",
        _TERMS,
        "square = square + 2 * _added(pairs)",
        "square = square + 0 * _added(pairs)",
        _TESTS,
    ),
    Fault(
        "ghost: what rounding takes from cancelling items is not added",
        _TERMS,
        "slack = gamma * jnp.square(longest)",
        "slack = 0 * jnp.square(longest)",
        _OF_BOUNDS,
    ),
    Fault(
        "ghost: what is flushed to zero is not added",
        _TERMS,
        "slack = slack + jnp.square(",
        "slack = slack + 0 * jnp.square(",
        _TESTS,
    ),
    Fault(
        "ghost: lengths vanish",
        _TERMS,
        "jnp.sqrt(square + vectors.shape[-1] * _FLUSHED)",
        "jnp.sqrt(square)",
        _OF_BOUNDS,
    ),
    Fault(
        "ghost: a leaf is forgotten in the joint norm",
        _PARTS,
        "for leaf in group:\n            made",
        "for leaf in group[1:]:\n            made",
        _TESTS,
    ),
    Fault(
        "ghost: gradients that are built are forgotten in the joint norm",
        _PARTS,
        "if built:",
        "if built and not lengths:",
        _TESTS,
    ),
    Fault(
        "ghost: an example with NaN counts",
        _SUMS,
        "counted = counted & jnp.isfinite(norm)",
        "counted = counted & (norm != -1.0)",
        _TESTS,
    ),
    Fault(
        "ghost: everybody counts",
        _SUMS,
        "there & mask, how",
        "there, how",
        _TESTS,
    ),
    Fault(
        "ghost: trips that share parameters are not added up",
        _PARTS,
        "return jnp.sum(gradient, axis=shared) if shared else gradient",
        "return jnp.max(gradient, axis=shared) if shared else gradient",
        _TESTS,
    ),
    Fault(
        "ghost: places of a convolution in another order than its patches",
        _RULES,
        "order = (image_axis, *places, channel_axis)",
        "order = (*places, image_axis, channel_axis)",
        _OF_RULES,
    ),
    Fault(
        "ghost: patches know nothing of dilated kernels",
        _RULES,
        'entries = np.arange(window[axis]) * p["rhs_dilation"][axis]',
        "entries = np.arange(window[axis])",
        _TESTS,
    ),
    Fault(
        "ghost: all axes of a convolution have the strides of the first",
        _RULES,
        'p["window_strides"][axis]',
        'p["window_strides"][0]',
        _TESTS,
    ),
    Fault(
        "ghost: the entries of a patch are in another order than the kernel's",
        _RULES,
        "((), (*window, in_axis), (out_axis,))",
        "((), (in_axis, *window), (out_axis,))",
        _TESTS,
    ),
    Fault(
        "ghost: an image that is spread out is read as it was",
        _RULES,
        "(low, high, step - 1) for",
        "(low, high + (step - 1) * 99, 0) for",
        _TESTS,
    ),
    Fault(
        "ghost: exchanged axes of tied weights are taken for the same",
        _TERMS,
        "(u.right, u.left) if s else (u.left, u.right)",
        "(u.left, u.right) if s else (u.left, u.right)",
        _TESTS,
    ),
    Fault(
        "ghost: a layer is held to another layer's bound",
        _SUMS,
        "zip(how.layers, groups, norms, strict=True)",
        "zip(how.layers[::-1], groups, norms, strict=True)",
        _TESTS,
    ),
    Fault(
        "ghost: an offset below zero makes contributions longer",
        _SUMS,
        "jnp.where(offset > 0, limit / (norm + offset), 0)",
        "limit / (norm + offset)",
        _OF_BOUNDS,
    ),
    Fault(
        "ghost: items that cancel count as nothing where others round with them",
        _TERMS,
        "jnp.maximum(bound, share * (1 + 2 * gamma) * whole)",
        "jnp.maximum(bound, 0 * whole)",
        _OF_BOUNDS,
    ),
    Fault(
        "ghost: bounds are not made smaller by what rounding may take",
        _SUMS,
        "_HEAD_ROOM * room * jnp",
        "_HEAD_ROOM * jnp",
        _OF_BOUNDS,
    ),
    Fault(
        "ghost: products are added up in one float",
        _ADDING,
        "_sums.add(total, several(index * (strip * group), strip))",
        "jax.tree.map(jnp.add, total, several(index * (strip * group), strip))",
        _OF_BOUNDS,
    ),
    Fault(
        "ghost: uses whose results are complex are none",
        _WALK,
        "jnp.issubdtype(aval.dtype, jnp.inexact)",
        "jnp.issubdtype(aval.dtype, jnp.floating)",
        _OF_RULES,
    ),
    Fault(
        "ghost: a rule may number rows from below zero",
        _PARTS,
        "there = (left >= 0) & (left < rows)",
        "there = left < rows",
        _OF_RULES,
    ),
    Fault(
        "ghost: a rule may give factors of other shapes",
        _PARTS,
        "if found != wanted or not all(right_kinds):",
        "if not all(right_kinds):",
        _OF_RULES,
    ),
    Fault(
        "ghost: what integers carry is forgotten",
        _ADDING,
        "sums[i - 1] = sums[i - 1] + (sums[i] >> bits)",
        "sums[i - 1] = sums[i - 1]",
        _OF_BOUNDS,
    ),
    Fault(
        "ghost: rows of a table that are met share one place",
        _ADDING,
        ".at[at].max(",
        ".at[at].min(",
        _OF_BOUNDS,
    ),
    Fault(
        "ghost: what products round is counted in one of two data sets",
        _ADDING,
        "return 2 * sum(max(",
        "return 1 * sum(max(",
        _OF_BOUNDS,
    ),
    Fault(
        "ghost: the rounding to one float is not paid for",
        _SUMS,
        "0 if in_parts else 1",
        "0 if in_parts else 0",
        _OF_BOUNDS,
    ),
    Fault(
        "ghost: products of as many examples as there may be",
        _ADDING,
        "_MOST_LOST = 1.0625 * 2.0**-8",
        "_MOST_LOST = 2.0**-2",
        _OF_BOUNDS,
    ),
    Fault(
        "ghost: look-ups beyond the table count",
        _RULES,
        "right = jnp.where(((at >= 0) & (at <= last))[..., None], right, 0)",
        "right = jnp.where(((at >= 0) | (at <= last))[..., None], right, 0)",
        _OF_RULES,
    ),
    Fault(
        "ghost: slices that begin beyond the table are not moved into it",
        _RULES,
        "jnp.clip(_wide(operands[1 + axis]), 0, shape[axis] - 1)",
        "_wide(operands[1 + axis])",
        _OF_RULES,
    ),
    Fault(
        "ghost: loops around a use change places",
        _PARTS,
        "own = [1 + i for i, s in enumerate(stacked) if s]",
        "own = [1 + i for i, s in enumerate(stacked) if s][::-1]",
        _OF_RULES,
    ),
    Fault(
        "ghost: a user with NaN in one of several items counts",
        _TERMS,
        "jnp.where(bad, jnp.inf,",
        "jnp.where(bad, 1.0,",
        _OF_BOUNDS,
    ),
    Fault(
        "ghost: gradients of weight zero are multiplied",
        _PARTS,
        "jnp.tensordot(weights, jnp.where(there, rows, 0), 1",
        "jnp.tensordot(weights, rows, 1",
        _TESTS,
    ),
    Fault(
        "ghost: the remainder is the sum",
        _SUMS,
        "(whole, _sums.remainder(total)) if",
        "(whole, _sums.rounded(total)) if",
        _OF_BOUNDS,
    ),
)
