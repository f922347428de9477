"""Mean gradient and mean Hessian of users, each user bounded: what a test of a stationary point looks at.

What it computes: at a point w the means over all users of clip(∇f_u(w)), to a norm, and of the Hessians of
f_u with eigenvalues clipped to an interval [-a, b] around 0, f_u the mean loss of user u. Of a linear model
every item's curvature is clipped as a number: its Hessian is φ''·x·xᵀ. The least eigenvalue is that of the
whole matrix: of a few Lanczos steps it would depend on data in ways that nothing bounds.

Source: thesis, Algorithm 18 and Lemma 6.3.8; Weyl's inequality.

Formal guarantee: replacing one of n users moves the mean gradient by at most 2·clip_norm/n, and the mean
Hessian by at most (a + b)/n in operator norm, which moves no eigenvalue by more. Proof: the difference of two
matrices with eigenvalues in [-a, b] has them in [-(a + b), a + b]. Nothing is assumed of the loss: a
gradient, a curvature or a Hessian that is not finite counts as zero, which lies in both sets. In float64
computed eigenvalues of neighbours are apart by ``rounding`` more, relatively: a chunk has at most 4,096
terms, chunks are added without error, and an eigenvalue is off by at most 128·d roundings of the norm.

Cost: a Hessian of each user; of a linear model two products with the features. Memory of 16 MiB.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax import _checks, _record_keys
from dpsco_jax.geometry import norms
from dpsco_jax.oracles import _linear_rows, linear
from dpsco_jax.oracles._linear_rows import FULL
from dpsco_jax.oracles.chunks import sum_over_users
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.problems.users import UserData, user_loss

__all__ = ["LARGEST_DIM", "SecondOrder", "rounding", "second_order"]

LARGEST_DIM = 512
_NUMBERS, _TERMS = 2**21, 2**12  # of a chunk


class SecondOrder(NamedTuple):
    """Means over users at a point.

    Attributes:
        gradient: of the clipped gradients, ``[dim]``.
        hessian: of the clipped Hessians, ``[dim, dim]``.
    """

    gradient: Float[Array, "dim"]
    hessian: Float[Array, "dim dim"]


def rounding(num_users: int, dim: int) -> float:
    """How much farther apart two computed eigenvalues are, over their sensitivity: n·(d + 64)·2⁻⁴⁵.

    Args:
        num_users: n.
        dim: d.
    """
    _checks.require_each(_checks.require_count, num_users=num_users, dim=dim)
    return num_users * (dim + 64) * 2.0**-45


def second_order(
    objective: Objective,
    data: UserData,
    params: Any,
    clip_norm: ArrayLike,
    least_curvature: ArrayLike,
    most_curvature: ArrayLike,
) -> Callable[[Any], SecondOrder]:
    """The function from a point to the means over all users, of their losses without the regularizer.

    Args:
        objective: of the loss.
        data: all users; those of a linear model are made ready here, once.
        params: a point, for its shapes: at most ``LARGEST_DIM`` numbers.
        clip_norm: positive, of a user's gradient.
        least_curvature: -a, at most 0; may be traced, as may ``clip_norm`` and:
        most_curvature: b > 0.
    """
    _checks.require_instance("objective", objective, Objective)
    _checks.require_instance("data", data, UserData)
    _checks.require_real_leaves("params", params)
    _checks.require_positive("clip_norm", clip_norm)
    _checks.require_within("least_curvature", least_curvature, -jnp.inf, 0.0, open_low=True)
    _checks.require_positive("most_curvature", most_curvature)
    dim = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    _checks.require(
        1 <= dim <= LARGEST_DIM, "params", f"{dim} numbers", f"in [1, {LARGEST_DIM}], for a Hessian"
    )
    users, slots = jax.tree.leaves(data.items)[0].shape[:2]
    model = objective.vector_model
    # Of the numbers that are held of a user, and of the terms in a sum.
    held, terms = (dim**2, 1) if model is None else (slots * dim, slots)
    chunk = max(1, min(users, _NUMBERS // held, _TERMS // terms))
    kept: Any = data if model is None else linear.prepare(model, data, dim)

    def of_any_loss(point: Any, rows: UserData, counted: Array) -> tuple[Array, Array]:
        flat, restored = ravel_pytree(point)
        loss = user_loss(objective)

        def one_user(row: UserData) -> tuple[Array, Array]:
            def value(numbers: Array) -> Array:
                return loss(restored(numbers), row.items, row.mask)

            gradient, hessian = jax.grad(value)(flat), jax.hessian(value)(flat)
            # Halves first: a sum of two entries may be too large.
            whole = 0.5 * hessian + 0.5 * hessian.T
            whole = jnp.where(jnp.all(jnp.isfinite(whole)), whole, 0.0)
            bends, vectors = jnp.linalg.eigh(whole)
            bends = jnp.clip(bends, least_curvature, most_curvature)
            clipped = (vectors * bends) @ vectors.T
            # Nor does a matrix count whose decomposition is no number.
            clipped = jnp.where(jnp.all(jnp.isfinite(clipped)), clipped, 0.0)
            return norms.clip_to_norm(gradient, clip_norm), clipped

        gradients, hessians = _record_keys.over_users(one_user)(rows)
        shares = counted.astype(flat.dtype)
        return shares @ gradients, jnp.einsum("u,ude->de", shares, hessians, precision=FULL)

    def of_linear_model(
        point: Array, rows: linear.LinearData, counted: Array
    ) -> tuple[Array, Array]:
        assert model is not None
        square = model.feature_bound**2
        features = _dense(model, rows, dim).astype(point.dtype)
        margins = jnp.einsum("umd,d->um", features, point, precision=FULL)
        slopes, bends = jax.jvp(
            lambda m: model.derivative(m, rows.labels), (margins,), (jnp.ones_like(margins),)
        )
        weights = jnp.where(counted[:, None], rows.weights, 0.0).astype(point.dtype)
        slopes = jnp.where(weights > 0, slopes, 0.0)
        gradients = jnp.einsum("um,umd->ud", weights * slopes, features, precision=FULL)
        clipped = jax.vmap(lambda g: norms.clip_to_norm(g, clip_norm))(gradients)
        bends = jnp.where((weights > 0) & jnp.isfinite(bends), bends, 0.0)
        bends = jnp.clip(bends, least_curvature / square, most_curvature / square)
        scaled = (weights * bends)[..., None] * features
        hessian = jnp.einsum("umd,ume->de", scaled, features, precision=FULL)
        return jnp.sum(clipped, axis=0), hessian

    def evaluate(point: Any) -> SecondOrder:
        def chunk_sum(rows: Any, counted: Array, position: Array) -> Any:
            del position
            evaluated = of_any_loss if model is None else of_linear_model
            return evaluated(point, rows, counted)

        gradient, hessian = sum_over_users(chunk_sum, kept, None, chunk)
        hessian = hessian / users
        return SecondOrder(gradient / users, 0.5 * (hessian + hessian.T))

    return evaluate


def _dense(model: LinearModel, rows: linear.LinearData, dim: int) -> Array:
    """The rows themselves, ``[users, items, dim]``, where they are one-hot too."""
    if not _linear_rows.is_sparse(rows):
        return jnp.asarray(rows.features)
    entry = _linear_rows.entry(model, rows)
    users, items, _ = rows.features.shape
    places = jnp.arange(users)[:, None, None], jnp.arange(items)[None, :, None], rows.features
    return jnp.zeros((users, items, dim + 1)).at[places].set(entry)[..., :dim]
