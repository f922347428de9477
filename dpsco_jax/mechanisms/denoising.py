"""Denoising: what many nonnegative numbers were, given a noisy release of all of them.

What it computes: the posterior means of θ_1, ..., θ_d from y_j = θ_j + N(0, σ_j²), under the prior on
[0, upper] that fits the y best (empirical Bayes). Small numbers that drown in the noise one by one are shrunk
to a value that is right for them on average, large ones are left alone.

Source: Kiefer and Wolfowitz 1956 (the nonparametric maximum-likelihood prior); Jiang and Zhang 2009 (its
posterior means are nearly as good as if the prior were known). Fitted by EM on fixed cells: an atom is for
the numbers up to half-way to its neighbours, as a Gaussian of their standard deviation. Where noise is less
than the distance between atoms, a number that stands out is kept and not moved to the nearest atom.

Formal guarantee: post-processing of ``noisy``: no privacy is spent.

Cost: ``num_iterations`` products with a matrix of d × 192.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax._checks import require_integer, require_number, require_positive

NUM_ATOMS = 192
NUM_ITERATIONS = 300


def posterior_means(
    noisy: Float[Array, "dim"],
    stddev: ArrayLike,
    upper: ArrayLike,
    num_iterations: int = NUM_ITERATIONS,
) -> Float[Array, "dim"]:
    """Estimates of nonnegative numbers from noisy values, in (0, upper].

    Args:
        noisy: ``[dim]``, independent Gaussian errors.
        stddev: positive standard deviation of the errors, one for all or ``[dim]``; may be traced.
        upper: positive bound on the numbers; may be traced.
        num_iterations: of EM, at least 1, static.
    """
    require_positive("stddev", stddev)
    require_positive("upper", upper)
    require_number("noisy", noisy, "an array of real numbers")
    require_integer("num_iterations", num_iterations, 1)
    stddev = jnp.broadcast_to(jnp.asarray(stddev, noisy.dtype), noisy.shape)
    # Geometric, from far below what the noise can resolve: the mean of many small numbers is resolved.
    lowest = jnp.minimum(jnp.min(stddev) / 1000.0, upper / 2.0)
    span = upper / lowest
    atoms = lowest * span ** jnp.linspace(0.0, 1.0, NUM_ATOMS)
    half_width = 0.5 * atoms * (span ** (1.0 / (NUM_ATOMS - 1)) - 1.0)
    within = half_width / 3.0**0.5
    wide = jnp.hypot(stddev[:, None], within[None])
    offset = noisy[:, None] - atoms[None]
    log_likelihood = -0.5 * jnp.square(offset / wide) - jnp.log(wide)

    def posterior(log_prior: Float[Array, "atoms"]) -> Float[Array, "dim atoms"]:
        return jax.nn.softmax(log_likelihood + log_prior[None], axis=1)

    def step(_: Any, log_prior: Float[Array, "atoms"]) -> Float[Array, "atoms"]:
        # The floor keeps atoms that float32 lost from being lost for ever.
        return jnp.log(jnp.maximum(jnp.mean(posterior(log_prior), axis=0), 1e-30))

    uniform = jnp.full(NUM_ATOMS, -jnp.log(float(NUM_ATOMS)))
    prior = jax.lax.fori_loop(0, num_iterations, step, uniform)
    reach = 2 * half_width[None]
    moved = jnp.clip(jnp.square(within[None] / wide) * offset, -reach, reach)
    return jnp.minimum(jnp.sum(posterior(prior) * (atoms[None] + moved), axis=1), upper)
