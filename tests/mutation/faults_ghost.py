"""Faults in the sums of clipped gradients that come from activations and cotangents."""

from tests.mutation import Fault

_TESTS = ("tests/oracles/test_ghost.py",)
_TERMS = "oracles/ghost/_terms.py"
_SUMS = "oracles/ghost/sums.py"
_PARTS = "oracles/ghost/_parts.py"
_RULES = "oracles/ghost/rules.py"

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
        _TESTS,
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
        _TESTS,
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
        "there & mask, normalize",
        "there, normalize",
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
        _TESTS,
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
        "zip(bounds, groups, norms, strict=True)",
        "zip(bounds[::-1], groups, norms, strict=True)",
        _TESTS,
    ),
)
