"""How far the result of whitened SGD may be off, by noise and by chance: a sandwich from two releases.

In the coordinates of ``_coordinates``, with H the mean Hessian of the clipped loss at the result, ρ²G the
mean square of the users' clipped gradients, λ the ridge (of the objective and against noise) and s²·I the
covariance of the mean noise of the averaged steps, it is

    (H + λ)⁻¹·(ρ²G/N + s²·I)·(H + λ)⁻¹,

carried back to the parameters (Huber 1967, White 1980; for averaged SGD Polyak and Juditsky 1992). The first
term of the middle is chance: N users were drawn from all the world. The second is the noise of privacy. H and
G are sums of positive semi-definite matrices (``oracles.sandwich``), each released once with Gaussian noise,
of which as much is taken away as can be told (``shrunk``).

That intervals cover is not proven: it rests on averaged steps that have forgotten their start, on a bias by
clipping and ridge that is small, and on matrices that are larger than their noise.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax import privacy
from dpsco_jax.oracles import row_moments, sandwich
from dpsco_jax.oracles.linear import LinearData
from dpsco_jax.oracles.preconditioned import TunedPoint
from dpsco_jax.problems.objective import LinearModel
from dpsco_jax.solvers.user_level import _noisy_sums


def released(
    key: jax.Array, plan: Any, model: LinearModel, curvature: float, rows: LinearData,
    at: TunedPoint, ridge: Float[Array, "dim dim"], noise_variance: Float[Array, ""],
) -> tuple[Float[Array, "dim dim"], privacy.PrivacyLoss]:  # fmt: skip
    """The covariance of the result in the coordinates of ``rows``, and what it costs.

    Args:
        key: of the noise; used once.
        plan: of the solver.
        model: of the objective.
        curvature: bound on the second derivative of the link.
        rows: the data in the coordinates.
        at: the result and the radius there.
        ridge: λ, in the coordinates, positive semi-definite.
        noise_variance: s².
    """
    dim, users = plan.dim, plan.num_users
    # A whitened row has ‖z‖² = dim on average, and a Gaussian one stays below this in 19 of 20 cases.
    bound = curvature * (dim + 2.0 * (2.0 * dim) ** 0.5)
    sums = sandwich.sandwich_sums(model, curvature, bound, plan.matrices_at_once)(at, rows)
    keys = jax.random.split(key, 2)

    multiplier = plan.covariance_multiplier
    first = _noisy_sums.released(keys[0], users, sums.hessian, bound, multiplier, True)
    second = _noisy_sums.released(keys[1], users, sums.gradients, 1.0, multiplier, True)
    hessian = shrunk(*_matrix(first, dim), (0.003 * curvature, curvature))
    gradients = shrunk(*_matrix(second, dim), (0.01 / dim, 1.0 / dim))
    middle = jnp.exp(2.0 * at.log_radius) * gradients / users + noise_variance * jnp.eye(dim)
    inverse = jnp.linalg.inv(hessian + ridge)
    return inverse @ middle @ inverse, privacy.compose(first.loss, second.loss)


def _matrix(found: _noisy_sums.Release, dim: int) -> tuple[Array, Any]:
    """The matrix, and the deviation of the noise on an entry off its diagonal."""
    # The triangle holds these entries times √2.
    return row_moments.from_triangle(found.mean, dim), found.stddev / 2.0**0.5


def shrunk(
    noisy: Float[Array, "dim dim"], stddev: ArrayLike, mean_range: tuple[ArrayLike, ArrayLike]
) -> Float[Array, "dim dim"]:
    """A matrix with noise, moved towards a multiple of the identity as far as its spread is noise.

    The noise has N(0, s²) off the diagonal and N(0, 2s²) on it, so that its squared Frobenius norm is
    s²·dim·(dim + 1) on average: the share of it in the spread around the identity's multiple is taken away.

    Args:
        noisy: symmetric.
        stddev: s.
        mean_range: least and largest that the mean eigenvalue can be.

    Returns:
        A symmetric matrix whose eigenvalues are at least a tenth of their mean.
    """
    dim = len(noisy)
    identity = jnp.eye(dim)
    mean = jnp.clip(jnp.trace(noisy) / dim, *mean_range)
    spread = noisy - mean * identity
    noise = jnp.square(stddev) * dim * (dim + 1)
    kept = jnp.maximum(0.0, 1.0 - noise / jnp.sum(jnp.square(spread)))
    values, vectors = jnp.linalg.eigh(mean * identity + kept * spread)
    return (vectors * jnp.maximum(values, 0.1 * mean)) @ vectors.T
