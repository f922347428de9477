"""The sum of clipped contributions, formed without writing the clipped contributions out.

What it computes: Σ_u clip(v_u) over the users who count, where v_u is a pytree and clip is
``norms.clip_to_norm``.

Source: per-user clipping as in McMahan et al. 2018 (DP-FedSGD).

Formal guarantee: every term is a function of its own row, has joint l2 norm at most ``clip_norm``,
and is zero if the row is not finite or does not count; see ``geometry.norms``. The sum is rounded
to about users · clip_norm · 2^-24.

Cost: two passes over the rows for the factors and one for the sum; no temporary of their size.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike, Bool

from dpsco_jax._checks import require_mask, require_number
from dpsco_jax.geometry import norms

_BLOCK = 16


def sum_of_clipped(rows: Any, clip_norm: ArrayLike, counted: Bool[jax.Array, "users"]) -> Any:
    """Σ of the rows, each clipped to ``clip_norm``.

    Args:
        rows: pytree of real floating leaves ``[users, ...]``.
        clip_norm: bound on the joint norm of one row over all leaves; may be traced.
        counted: which rows are to be summed.

    Returns:
        A pytree of leaves ``[...]``, in at least float32.
    """
    require_mask("counted", counted)
    require_number("rows", rows)
    factors = jax.vmap(lambda row: norms.clip_factor(row, clip_norm))(rows)
    # Without the barrier the factors are computed again for every entry that they multiply.
    factors = lax.optimization_barrier(jnp.where(counted, factors, 0))
    num_rows = len(counted)

    def at_once(rows: Any, factors: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: jnp.sum(_scaled(leaf, factors), axis=0), rows)

    def in_blocks(rows: Any, factors: jax.Array) -> Any:
        def add_block(index: jax.Array, total: Any) -> Any:
            block, weights = jax.tree.map(
                lambda x: lax.dynamic_slice_in_dim(x, index * _BLOCK, _BLOCK), (rows, factors)
            )
            return jax.tree.map(jnp.add, total, _unrolled(block, weights))

        whole = num_rows // _BLOCK
        rest, weights = jax.tree.map(lambda x: x[whole * _BLOCK :], (rows, factors))
        return lax.fori_loop(0, whole, add_block, _unrolled(rest, weights))

    if num_rows <= _BLOCK:
        return _unrolled(rows, factors)
    # A CPU sums along a leading axis many times slower than it adds whole rows.
    return lax.platform_dependent(rows, factors, cpu=in_blocks, default=at_once)


def _unrolled(rows: Any, factors: jax.Array) -> Any:
    """The weighted sum as one fused loop over the entries of a row."""

    def sum_rows(leaf: jax.Array) -> jax.Array:
        terms = [_scaled(leaf[i], factors[i]) for i in range(len(factors))]
        while len(terms) > 1:
            odd = terms[-1:] if len(terms) % 2 else []
            terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + odd
        return terms[0] if terms else jnp.zeros(leaf.shape[1:], _wide(leaf))

    return jax.tree.map(sum_rows, rows)


def _scaled(leaf: jax.Array, factor: jax.Array) -> jax.Array:
    # A row of factor zero may hold NaN, so it is replaced, not multiplied.
    factor = factor.reshape(factor.shape + (1,) * (leaf.ndim - factor.ndim))
    scaled = (leaf.astype(factor.dtype) * factor).astype(_wide(leaf))
    return jnp.where(factor > 0, scaled, 0)


def _wide(leaf: jax.Array) -> jnp.dtype:
    return jnp.promote_types(leaf.dtype, jnp.float32)
