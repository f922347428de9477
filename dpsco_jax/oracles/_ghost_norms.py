"""Norms of users' gradients of a matrix of parameters, from inner products of their items alone.

An upper bound of ‖Σ_j x_j·c_jᵀ‖ for every user of a chunk, the root of the sum Σ_ij ⟨c_i, c_j⟩·⟨x_i, x_j⟩ and
of what rounding may have taken from it, and no less than a 16th of Σ_j ‖x_j‖‖c_j‖.

Source: Goodfellow 2015; Li, Tramèr, Liang and Hashimoto 2022, section 4 ("ghost clipping").

The bound holds in exact arithmetic for the numbers as stored. Inner products of length n,
in any order, are off by at most γ_n·‖a‖·‖b‖ with γ_n = n·u/(1 - n·u), u the unit roundoff (Higham 2002,
section 3.1). So ⟨c_i, c_j⟩·⟨x_i, x_j⟩ is off by γ_(K + d + 1)·‖c_i‖‖c_j‖‖x_i‖‖x_j‖, and the sum over m² pairs
by γ_(K + d + m² + 1)·(Σ_i ‖c_i‖‖x_i‖)², which is added before the root is taken, with norms that are bounds.
Where a user's items cancel each other that is an overestimate, of at most √γ of the sum of their norms.

What is clipped by such a bound to norm C has Σ_j ‖x_j‖‖c_j‖ ≤ 16·C. One product of G users of m items is, in
whatever order, off by at most G·m·u times the sum of these over the users: by G²·m·16·u·C. ``group`` takes G
so small that this, four times, is at most 2^-8·C (up to 1,024 items), and ``_compensated.room`` pays for it.
Users whose items cancel all but less than a 16th get shorter than C if they are clipped; of items in random
directions, 256 of them do that.

Numbers must not leave the range of float32: coefficients are relative to a user's largest, norms of rows
count as a millionth of the feature bound at least, and an extreme feature bound is left to other oracles.

Cost: m²·(d + K) products for a user of m items, in place of m·d·K and of d·K numbers held for every user.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax.geometry import norms
from dpsco_jax.oracles._linear_rows import FULL, is_sparse
from dpsco_jax.problems.objective import LinearModel

_LEAST_ENTRIES = 1024  # of smaller matrices a chunk fits into cache
_OTHER_ROUNDINGS = 16
_LONGEST = 16.0  # what the norms of a user's items may add up to, over the bound of their sum
_MOST_ROUNDINGS = 1024
# Of features, whose products are then in float32's range.
_LEAST_BOUND, _GREATEST_BOUND = 2.0**-20, 2.0**40


def pays(model: LinearModel, rows: Any) -> bool:
    """Whether inner products of items are cheaper than a matrix for every user, and within float32's range.

    A function of shapes and of the feature bound.
    """
    if model.outputs is None or is_sparse(rows):
        return False
    if not _LEAST_BOUND <= model.feature_bound <= _GREATEST_BOUND:
        return False
    items, dim = rows.features.shape[1:]
    entries = dim * model.outputs
    return entries >= _LEAST_ENTRIES and items**2 * (dim + model.outputs) < 4 * entries


def norm_bounds(
    coefficients: Float[Array, "users items outputs"], rows: Any
) -> Float[Array, "users"]:
    """Upper bounds of the norms of Σ_j x_j·c_jᵀ, one for each user, up to the rounding of a root.

    None is below a 16th of Σ_j ‖x_j‖‖c_j‖.
    """
    (items, dim), outputs = rows.features.shape[1:], coefficients.shape[2]
    of_coefficients = jnp.einsum("uik,ujk->uij", coefficients, coefficients, precision=FULL)
    of_rows = jnp.einsum("uid,ujd->uij", rows.features, rows.features, precision=FULL)
    square = jnp.sum(of_coefficients * of_rows, axis=(1, 2))
    # A factor below one is at most limit/norm, by the proof of ``geometry.norms``.
    limit = 1e-6
    factor = jax.vmap(jax.vmap(lambda c: norms.clip_factor(c, limit)))(coefficients)
    longest = jnp.sum(limit / factor * rows.row_norms, axis=1)
    terms = dim + outputs + items**2 + _OTHER_ROUNDINGS
    unit = float(jnp.finfo(square.dtype).eps) / 2
    root = jnp.sqrt(jnp.maximum(square, 0.0) + terms * unit / (1 - terms * unit) * longest**2)
    return jnp.maximum(root, longest / _LONGEST)


def group(items: int) -> int:
    """How many users with that many items one product adds up: a power of two, 1 to 16."""
    count = 16
    while count > 1 and count**2 * items > _MOST_ROUNDINGS:
        count //= 2
    return count


def rounding(users: int, items: int) -> float:
    """What the product of a group is off by at most, over u·C, and the last rounding of its factors."""
    return _LONGEST * (users**2 * items + 1)
