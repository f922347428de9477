"""Conditions under which a formula for a privacy loss is a bound, on numbers that may be traced.

They are for ``loss.unbounded_unless``, and false on NaN, so that whatever is no number costs infinity.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax._checks import require
from dpsco_jax._numerics import array_namespace, as_floats

LEAST_NOISE = 2.0**-100
"""The least scale of noise of which anything is proven: below 2^-126 float32 noise is zero."""

MOST_LENGTH = 2.0**100
"""The longest contribution of which sums are proven: of 2^24 users they are below 2^127, in float32."""


def positive_and_finite(*values: Any) -> Any:
    """Whether all the values are positive and finite; elementwise, if they are arrays.

    Args:
        values: at least one number or array; arrays broadcast against each other. May be traced.
    """
    xp, found = as_floats(*values)
    good = xp.isfinite(found[0]) & (found[0] > 0)
    for value in found[1:]:
        good = good & xp.isfinite(value) & (value > 0)
    return good


def drawable(*scales: Any) -> Any:
    """Whether noise of all these scales can be drawn in float32: at least ``LEAST_NOISE``; elementwise.

    Args:
        scales: numbers or arrays. An infinite scale is drawable: noise without end tells nothing.
    """
    _, found = as_floats(*scales)
    good = found[0] >= LEAST_NOISE
    for scale in found[1:]:
        good = good & (scale >= LEAST_NOISE)
    return good


def same_numbers(found: Any, proven: Any) -> Any:
    """Whether two trees of numbers are the same, NaN for NaN: what was edited proves nothing.

    Args:
        found: the numbers that run; may be traced.
        proven: those of a proof.
    """
    structures: list[Any] = [jax.tree.structure(tree) for tree in (found, proven)]
    if structures[0] != structures[1]:
        return np.bool_(False)
    same: Any = np.bool_(True)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(proven), strict=True):
        xp = array_namespace(one, other)
        a, b = xp.asarray(one), xp.asarray(other)
        same = same & ((a == b) | ((a != a) & (b != b)))
    return same


def within_floats(name: str, value: Any, sensitivity: Any, *lengths: Any) -> Any:
    """The sensitivity, or infinity where sums of users of a traced length might overflow.

    Args:
        name: of the argument that is too long.
        value: of it.
        sensitivity: of the statistic.
        *lengths: of what one user adds, wherever it is added up or divided; may be traced.

    Raises:
        ValueError: a concrete length is above 2^100.
    """
    for length in lengths:
        good = length <= MOST_LENGTH
        wanted = (
            "so small that it is at most 2^100, over num_users too: sums have to fit in float32"
        )
        require(good, name, value, wanted)
        if isinstance(good, jax.core.Tracer):
            sensitivity = jnp.where(good, sensitivity, jnp.inf)
    return sensitivity
