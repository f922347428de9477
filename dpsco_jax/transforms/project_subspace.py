"""Projection of a statistic onto a subspace, before isotropic noise in all coordinates.

What it computes: with V ``[dim, rank]`` orthonormal and ḡ the statistic of an aggregate, say the mean of
clipped gradients, ``privatize`` of the projected aggregate releases

    VVᵀḡ + noise_multiplier · sensitivity · N(0, I_dim).

What the subspace does not hold of the signal is lost; the noise has full rank. It is how T measures what
the leading directions of gradients are worth, and it is no way to have less noise. Projecting a release
*after* the noise is another algorithm: post-processing, noise of rank ``rank``, the same loss, and no part
of this file. The two cannot be confused: an aggregate has no noise yet, and nothing else is taken here.

Source: T §11.4.2, which takes V from the principal components of private gradients and describes the
re-training as private (docs/corrections.md, G8).

Formal guarantee: given V, ‖VVᵀ(s - s')‖ ≤ ‖VVᵀ‖·‖s - s'‖ ≤ (1 + ‖VᵀV - I‖_F)·‖s - s'‖ for any two values
of the statistic (``geometry.subspaces``), and the sensitivity of the projected aggregate is that of the inner
one times this factor: for orthonormal columns 1 up to rounding, and a bound for any other V, traced ones
included. With the first r columns alone V is multiplied by a projection, which lengthens nothing. What is
proven depends on where V comes from, which the caller states as ``provenance``:

- ``"public"``: V is independent of the data. The ledger is that of the inner aggregate.
- ``"private_history"``: V is a function of what was released before, in this run or another, on the same
  data, and of public numbers. Adaptive composition: given the history V is a constant, and the ledger is that
  of the inner aggregate again. The releases that V was made of are charged where they were made; the run as a
  whole costs both (one optimizer state that went through both parts holds both).
- ``"private_nonreleasable"``: V depends on the data in any other way, as principal components of gradients
  without noise do. Nothing is proven of the release, V itself being no release: ``privatize`` charges an
  unbounded loss, ε = inf. Such a run is an analysis, whose results are not to be published as private.

The bounds are those of real arithmetic, as in ``aggregates``: products are rounded to about √dim·2^-24.

Cost: 2·dim·rank multiplications and the memory of V.

Example:
    >>> import jax, jax.numpy as jnp, optax
    >>> from dpsco_jax import privacy, transforms
    >>> mean = transforms.clipped_mean(1.0, num_users=2)
    >>> projected = transforms.project_subspace(mean, jnp.eye(3)[:, :1], provenance="public")
    >>> user_gradients = jnp.array([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]])
    >>> statistic, _ = projected.update(user_gradients, projected.init(jnp.zeros(3)), jnp.zeros(3))
    >>> [round(float(number), 3) for number in statistic]
    [0.3, 0.0, 0.0]
    >>> optimizer = optax.chain(transforms.privatize(projected, jax.random.key(0), 4.0), optax.adam(0.1))
    >>> updates, state = optimizer.update(user_gradients, optimizer.init(jnp.zeros(3)), jnp.zeros(3))
    >>> bool(jnp.all(updates != 0))
    True
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from dpsco_jax import privacy
from dpsco_jax._checks import (
    require,
    require_choice,
    require_instance,
    require_integer,
    require_integers,
)
from dpsco_jax._redact import described
from dpsco_jax.geometry import subspaces
from dpsco_jax.privacy.certificates import accounted_by
from dpsco_jax.transforms.aggregate import Aggregate

PUBLIC, PRIVATE_HISTORY = "public", "private_history"
PRIVATE_NONRELEASABLE = "private_nonreleasable"
PROVENANCES = (PUBLIC, PRIVATE_HISTORY, PRIVATE_NONRELEASABLE)
_ASSUMED = {
    PUBLIC: "the basis of the projection is independent of the data",
    PRIVATE_HISTORY: "the basis of the projection is a function of releases that are charged here",
    PRIVATE_NONRELEASABLE: "nothing: the basis depends on private data, and the run is an analysis",
}
_TOLERANCE = 1e-4  # of ‖VᵀV - I‖_F, which float32 meets up to some thousand columns


def project_subspace(
    aggregate: Aggregate,
    basis: Float[Array | np.ndarray, "dim rank"],
    *,
    provenance: str,
    rank: Any = None,
) -> Aggregate:
    """The aggregate whose statistic is projected onto the span of a basis; ``privatize`` adds noise to it.

    Args:
        aggregate: what is projected: its statistic, raveled as by ``jax.flatten_util.ravel_pytree``.
        basis: V, orthonormal columns, rows in the order of the raveled statistic; may be traced.
        provenance: ``"public"``, ``"private_history"`` or ``"private_nonreleasable"``: where V comes from,
            which decides what is charged.
        rank: project on the first so many columns only; all if None. May be traced, so that nested
            subspaces are one program; a traced number below 1 leaves nothing of the statistic.

    Raises:
        ValueError: ``aggregate`` has added its noise already, or the columns of ``basis`` are not orthonormal
            (‖VᵀV - I‖_F > 1e-4).
    """
    require_instance("aggregate", aggregate, Aggregate)
    provenance = require_choice("provenance", provenance, PROVENANCES)
    error = subspaces.orthonormality_error(basis)
    dim, columns = np.shape(basis)
    require(columns <= dim, "basis", described(basis), "of at most as many columns as rows")
    # So that NaN is refused: no condition on it holds.
    require(error <= _TOLERANCE, "basis", f"‖VᵀV - I‖ = {error}", "orthonormal up to 1e-4")
    if rank is not None and isinstance(rank, jax.Array):
        require_integers("rank", rank)
    elif rank is not None:
        rank = require_integer("rank", rank, 1, columns)
    # A copy: an array that its owner writes to later is another basis than the one that was measured.
    directions = jnp.array(basis, jnp.promote_types(jnp.result_type(basis), jnp.float32))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        # Rounded as one number before it is projected: both parts are rows of no basis.
        statistic, state = aggregate.update(updates, state, params, **{**extra, "in_parts": False})
        vector, unravel = ravel_pytree(statistic)
        found = f"{dim} rows for {vector.size} numbers"
        require(vector.size == dim, "basis", found, "of one row for each number of the statistic")
        high = jax.lax.Precision.HIGHEST
        # Never narrower than the basis whose length was measured.
        wide = vector.astype(jnp.promote_types(vector.dtype, directions.dtype))
        along = jnp.matmul(wide, directions, precision=high)
        if rank is not None:
            along = jnp.where(jnp.arange(columns) < rank, along, 0)
        projected = jnp.matmul(directions, along, precision=high)
        return unravel(projected.astype(vector.dtype)), state

    return aggregate._replace(
        update=update,
        sensitivity=aggregate.sensitivity * (1 + error),
        proven=aggregate.proven and provenance != PRIVATE_NONRELEASABLE,
    )


def projected_certificate(certificate: privacy.Certificate, provenance: str) -> privacy.Certificate:
    """The certificate of a run of projected releases, with what it assumes of the basis.

    Args:
        certificate: of the same run without the projection, the releases that the basis was made of included.
        provenance: where the basis comes from; ``"private_nonreleasable"`` gives ε = inf.
    """
    require_instance("certificate", certificate, privacy.Certificate)
    sentence = _ASSUMED[require_choice("provenance", provenance, PROVENANCES)]
    assumptions = (*certificate.assumptions, sentence)
    if provenance != PRIVATE_NONRELEASABLE:
        return certificate._replace(assumptions=assumptions)
    return certificate._replace(
        epsilon=math.inf, accountant=accounted_by("definition"), assumptions=assumptions
    )
