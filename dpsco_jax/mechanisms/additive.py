"""Additive noise: Gaussian, Laplace and bounded Laplace noise on a statistic, any pytree of arrays.

What it computes: every entry plus independent noise. The statistic and the noise meet in at least float32;
a narrower leaf is rounded after the noise is on it, which is post-processing. A number in two parts
(``dpsco_jax._compensated.Split``) has the noise added to the smaller one first, so that their exact sum is
rounded after.

Source: Dwork, McSherry, Nissim and Smith 2006 (Laplace); Dwork et al. 2006 and Mironov 2017 (Gaussian);
thesis, Lemma 12.7.4 (bounded Laplace, with another δ: docs/theory/sparse_vector.md, section 1).

Formal guarantee: if neighbouring data sets move the statistic by at most ``sensitivity`` in the norm named
(l2 over all leaves together for the Gaussian, l1 for both kinds of Laplace), one release costs
``gaussian_loss(stddev, sensitivity)``, ``laplace_loss(scale, sensitivity)`` or ``bounded_laplace_loss(scale,
bound, sensitivity)`` under that neighbouring relation. Nothing here checks the sensitivity:
``transforms.privatize`` ties the noise to an aggregate that knows its own.

Cost: one noise array per leaf; of a leaf that is spread over devices each draws its own part
(``_own_draws``).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _compensated, _released, privacy
from dpsco_jax._checks import (
    require,
    require_key,
    require_multiplier,
    require_nonnegative,
    require_positive,
    require_tree,
    require_within,
)
from dpsco_jax._given import floats_of
from dpsco_jax._numerics import as_floats, at_least_float32, round_up
from dpsco_jax._parts import require_same_everywhere
from dpsco_jax.mechanisms import _draws, _own_draws

_ROUNDING_ULPS = 64.0


def gaussian(key: jax.Array, tree: Any, stddev: jax.typing.ArrayLike) -> Any:
    """The tree plus Gaussian noise.

    Args:
        key: a typed key, used up.
        tree: the statistic, real leaves of any shape; at least float32 in arithmetic.
        stddev: standard deviation of the noise on each entry (not a multiplier), a nonnegative scalar; may
            be traced.

    Returns:
        The noised tree, floating leaves in their own dtype, integer leaves in float32.

    Raises:
        ValueError: a leaf of ``tree`` is not real: the imaginary part of a complex number would be released
            as it is.
    """
    require_nonnegative("stddev", stddev)
    return _add_noise(key, tree, stddev, _draws.normal_of_words)


def laplace(key: jax.Array, tree: Any, scale: jax.typing.ArrayLike) -> Any:
    """The tree plus Laplace noise.

    Args:
        key: a typed key, used up.
        tree: the statistic, real leaves of any shape; at least float32 in arithmetic.
        scale: the scale b of the density exp(-|x| / b) / 2b (the standard deviation is b√2), a
            nonnegative scalar; may be traced.

    Returns:
        The noised tree, floating leaves in their own dtype, integer leaves in float32.

    Raises:
        ValueError: a leaf of ``tree`` is not real: the imaginary part of a complex number would be released
            as it is.
    """
    require_nonnegative("scale", scale)
    return _add_noise(key, tree, scale, _draws.laplace_of_words)


def bounded_laplace(
    key: jax.Array, tree: Any, scale: jax.typing.ArrayLike, bound: jax.typing.ArrayLike
) -> Any:
    """The tree plus Laplace noise that is never larger than a bound.

    Args:
        key: a typed key, used up.
        tree: the statistic, real leaves of any shape; at least float32 in arithmetic.
        scale: R of the Laplace density exp(-|x| / R) / 2R, of which the noise is what lies within the bound;
            a positive scalar, may be traced.
        bound: on the size of the noise on each entry, in the units of the statistic; a positive scalar, may
            be traced. The law is inverted, so that no draw is rejected.

    Returns:
        The noised tree, floating leaves in their own dtype, integer leaves in float32.

    Raises:
        ValueError: a leaf of ``tree`` is not real, or a number is not positive.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpsco_jax.mechanisms import additive
        >>> noise = additive.bounded_laplace(jax.random.key(0), jnp.zeros(1000), scale=1.0, bound=2.0)
        >>> 1.5 < float(jnp.max(jnp.abs(noise))) <= 2.0
        True
    """
    require_positive("scale", scale)
    require_positive("bound", bound)
    require(jnp.ndim(bound) == 0, "bound", bound, "one number")
    require_same_everywhere("bound", bound)

    def law(high: jax.Array, low: jax.Array, dtype: Any) -> jax.Array:
        most = jnp.asarray(bound, dtype) / jnp.asarray(scale, dtype)
        return _draws.bounded_laplace_of_words(high, low, dtype, most)

    return _add_noise(key, tree, scale, law)


def gaussian_loss(
    stddev: jax.typing.ArrayLike, sensitivity: jax.typing.ArrayLike
) -> privacy.PrivacyLoss:
    """What one ``gaussian`` release costs, for a statistic of the given l2 sensitivity.

    Args:
        stddev: of the noise, nonnegative; may be traced. No noise costs ``inf``.
        sensitivity: how far neighbouring data sets move the statistic in l2 norm, positive; may be traced.

    A traced number that is out of its range, or NaN, has an unbounded loss.
    """
    require_multiplier("stddev", stddev)
    require_positive("sensitivity", sensitivity)
    return _of_ratio(privacy.gaussian, stddev, sensitivity)


def laplace_loss(
    scale: jax.typing.ArrayLike, sensitivity: jax.typing.ArrayLike
) -> privacy.PrivacyLoss:
    """What one ``laplace`` release costs, for a statistic of the given l1 sensitivity.

    Args:
        scale: b of the noise, positive; may be traced.
        sensitivity: how far neighbouring data sets move the statistic in l1 norm, positive; may be traced.

    A traced number that is out of its range, or NaN, has an unbounded loss.
    """
    require_within("scale", scale, 0.0, np.inf, open_low=True)
    require_positive("sensitivity", sensitivity)
    return _of_ratio(privacy.laplace, scale, sensitivity)


def bounded_laplace_loss(
    scale: jax.typing.ArrayLike, bound: jax.typing.ArrayLike, sensitivity: jax.typing.ArrayLike
) -> privacy.PrivacyLoss:
    """What a ``bounded_laplace`` release costs: (ε, δ)-DP with ε = Δ/R and δ = (e^ε - 1) / (2(e^(τ/R) - 1)).

    No smaller δ is true at this ε for one number (docs/theory/sparse_vector.md, section 1).

    Args:
        scale: R of the noise, positive; may be traced.
        bound: τ on its size, at least ``sensitivity``; may be traced.
        sensitivity: Δ, how far neighbouring data sets move the statistic in l1 norm, positive; may be traced.

    Returns:
        The loss of randomized response at this ε that fails with probability δ. A traced number that is out
        of its range, or NaN, has an unbounded loss.

    Raises:
        ValueError: a number is not positive, or ``bound`` is below ``sensitivity``.
    """
    require_positive("scale", scale)
    require_positive("bound", bound)
    require_positive("sensitivity", sensitivity)
    xp, (size, most, change) = as_floats(scale, bound, sensitivity)
    enough = change <= most
    require(enough, "bound", bound, f"at least the sensitivity, {sensitivity}")
    valid = enough & (size > 0) & (size < xp.inf) & (most < xp.inf) & (change > 0)
    size, most, change = (xp.where(valid, x, 1.0) for x in (size, most, change))
    spent, room = change / size, most / size
    # (e^ε - 1) / (e^(τ/R) - 1), of which neither exponential overflows.
    outside = 0.5 * xp.exp(spent - room) * (xp.expm1(-spent) / xp.expm1(-room))
    loss = privacy.approximate_dp(spent, round_up(xp.minimum(outside, 0.5), _ROUNDING_ULPS))
    return privacy.unbounded_unless(valid, loss)


def _of_ratio(
    curve: Callable[[Any], privacy.PrivacyLoss], size: Any, sensitivity: Any
) -> privacy.PrivacyLoss:
    """The curve at size / sensitivity, if both are what the checks demand of concrete numbers."""
    xp, (above, below) = as_floats(size, sensitivity)
    valid = (above >= 0) & (below > 0) & (below < xp.inf)
    # Two bad numbers may have a good ratio.
    ratio = xp.where(valid, above, 1.0) / xp.where(valid, below, 1.0)
    return privacy.unbounded_unless(valid, curve(ratio))


def _add_noise(key: jax.Array, tree: Any, size: jax.typing.ArrayLike, law: _draws.Law) -> Any:
    require_key(key)
    require(jnp.ndim(size) == 0, "the size of the noise", size, "one number")
    require_tree("tree", tree)
    require_same_everywhere("tree", tree)
    require_same_everywhere("the size of the noise", size)
    leaves, treedef = jax.tree.flatten(tree, is_leaf=_compensated.is_split)
    keys = jax.random.split(key, len(leaves))

    def noised(leaf: Any, leaf_key: jax.Array) -> jax.Array:
        if _compensated.is_split(leaf):
            return leaf.high + noised(leaf.low, leaf_key)
        # Integers that were wrapped would move by 2^32 where a user moves them by one.
        leaf = floats_of(leaf)
        dtype = at_least_float32(leaf.dtype)
        noise = jnp.asarray(size, dtype) * _own_draws.like(leaf, law, leaf_key, dtype)
        return (leaf.astype(dtype) + noise).astype(leaf.dtype)

    noised_leaves = [noised(leaf, k) for leaf, k in zip(leaves, keys, strict=True)]
    return _released.without_derivatives(jax.tree.unflatten(treedef, noised_leaves))
