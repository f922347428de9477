"""The spectrum of a symmetric matrix that was released with Gaussian noise: what is noise, what is not.

What it computes: for S = A + noise, the noise symmetric with N(0, s²) off the diagonal, eigenvalues of the
noise fill [-2s√d, 2s√d], and an eigenvalue of A that lies θ from the bulk of A appears at
θ + s²·d/θ if |θ| > s√d, and nowhere if it is less. So an eigenvalue of S within 2s√d of the middle of the
spectrum says nothing about its direction and gets the middle; one outside is moved back to its θ.

Source: Benaych-Georges and Nadakuditi 2011 (where spikes appear); Donoho, Gavish and Johnstone 2018
(shrinkage of eigenvalues in the spiked model). That a floor at the edge is put under what is kept is our own.

Formal guarantee: post-processing of the matrix: no privacy is spent.

Cost: one eigendecomposition, dim³.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax._checks import require_positive


class Spectrum(NamedTuple):
    """A matrix without its noise, as far as it can be told.

    Attributes:
        values: eigenvalues, ascending, positive, ``[dim]``.
        vectors: eigenvectors of what was released, in columns, ``[dim, dim]``.
        edge: 2s√d, how far eigenvalues of the noise reach.
    """

    values: Float[Array, "dim"]
    vectors: Float[Array, "dim dim"]
    edge: Float[Array, ""]


def denoised(
    noisy: Float[Array, "dim dim"], stddev: ArrayLike, largest_middle: ArrayLike
) -> Spectrum:
    """The spectrum behind a noisy symmetric matrix that is positive semi-definite but for the noise.

    Args:
        noisy: symmetric.
        stddev: s > 0, of the noise off the diagonal; on it the noise may have up to √2·s. May be traced.
        largest_middle: positive bound on the middle of the true spectrum, such as the mean of the diagonal if
            that is known. May be traced.

    Returns:
        Eigenvalues of which none is below ``edge``: what a whitening by them magnifies is nothing that the
        noise hides. Where the edge is above all of them the matrix has said nothing, and they are equal.
    """
    require_positive("stddev", stddev)
    require_positive("largest_middle", largest_middle)
    dim = len(noisy)
    found, vectors = jnp.linalg.eigh(noisy)
    variance = jnp.square(jnp.asarray(stddev)) * dim
    edge = 2.0 * jnp.sqrt(variance)
    middle = jnp.clip(jnp.median(found), 0.1 * largest_middle, largest_middle)
    away = found - middle
    root = jnp.sqrt(jnp.maximum(jnp.square(away) - 4.0 * variance, 0.0))
    spike = jnp.where(jnp.abs(away) > edge, 0.5 * (away + jnp.sign(away) * root), 0.0)
    return Spectrum(jnp.maximum(middle + spike, edge), vectors, edge)
