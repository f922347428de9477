"""Randomized smoothing: draws from kernels, and what convolution with them does to a loss.

What it computes: uniform draws from a ball and a sphere, jointly over a whole pytree, and sharp constants of
f_r(w) = E f(w + y) for a convex G-Lipschitz f: its smoothness and its bias, for y uniform in the
ball of radius r and for y ~ N(0, ρ²I).

Source: thesis chapter 1, Claim 1.4.2 and Fact 1.4.3 (there with smoothness √d·G/r and bias G·r);
the sharp constants are derived here.

- Smoothness. The gradients of f_r at two points differ by at most 2G times the total variation distance
  of the two shifted kernels. For the ball that is (V_{d-1} / V_d)·‖a - b‖/r at most, with V_d the
  volume of the unit ball, so f_r is (c_d·G/r)-smooth with c_d = 2V_{d-1}/V_d =
  (2/√π)·Γ(d/2+1)/Γ((d+1)/2), below √d. For the Gaussian it is 2Φ(‖a - b‖/(2ρ)) - 1 ≤
  ‖a - b‖/(ρ√(2π)), so the smoothed loss is √(2/π)·G/ρ-smooth. Both are attained, by G·|<u, w>|.
- Bias. f ≤ f_r ≤ f + G·E‖y‖ by Jensen and by Lipschitzness, with E‖y‖ = r·d/(d+1) for the ball and
  ρ·√2·Γ((d+1)/2)/Γ(d/2) ≤ ρ√d for the Gaussian. Attained by G·‖w‖ at zero.

The loss must be Lipschitz within r of the domain (everywhere, for the Gaussian), not only on it.

Formal guarantee: draws and constants do not look at data.

Cost: d + 2 normal numbers a draw.
"""

import math

import jax
import jax.numpy as jnp
import scipy.special
from jax.flatten_util import ravel_pytree
from jaxtyping import ArrayLike, Float, Key, PyTree

from dpsco_jax._checks import (
    require_count,
    require_key,
    require_nonnegative,
    require_positive,
    require_shape,
    require_tree,
)


def uniform_ball(key: Key[jax.Array, ""], like: PyTree, radius: ArrayLike) -> PyTree:
    """A uniform point of the ℓ2 ball around zero, jointly over all leaves of ``like``.

    The first d coordinates of a uniform point of the sphere in d + 2 dimensions are uniform in the
    unit ball of d dimensions (Archimedes), so no power of a uniform number is needed.

    Args:
        key: used once.
        like: pytree whose structure, shapes and dtypes the draw takes; its values are not used.
        radius: nonnegative, finite; may be traced. At 0 the draw is zero.
    """
    require_key(key)
    require_tree("like", like)
    require_nonnegative("radius", radius)
    dtype = jnp.result_type(jnp.float32, *jax.tree.leaves(like))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), dtype), like)
    flat, unravel = ravel_pytree(zeros)
    normal = jax.random.normal(key, (flat.size + 2,), dtype)
    direction = normal[: flat.size] / jnp.sqrt(jnp.sum(jnp.square(normal)))
    draw = unravel(jnp.asarray(radius, dtype) * direction)
    return jax.tree.map(lambda new, old: new.astype(jnp.result_type(old)), draw, like)


def uniform_sphere(key: Key[jax.Array, ""], like: PyTree) -> PyTree:
    """A uniform point of the unit ℓ2 sphere around zero, jointly over all leaves of ``like``.

    Args:
        key: used once.
        like: pytree whose structure, shapes and dtypes the draw takes; its values are not used.
    """
    require_key(key)
    require_tree("like", like)
    dtype = jnp.result_type(jnp.float32, *jax.tree.leaves(like))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), dtype), like)
    flat, unravel = ravel_pytree(zeros)
    normal = jax.random.normal(key, (flat.size,), dtype)
    draw = unravel(normal / jnp.sqrt(jnp.sum(jnp.square(normal))))
    return jax.tree.map(lambda new, old: new.astype(jnp.result_type(old)), draw, like)


def ball_coordinate(
    key: Key[jax.Array, ""], shape: tuple[int, ...], dim: int
) -> Float[jax.Array, "..."]:
    """Independent draws of one coordinate of a uniform point of the unit ball in ``dim`` dimensions.

    All that a linear function of a uniform point depends on. Two coordinates of the sphere in d + 2
    dimensions have a uniform angle and a squared length of law Beta(1, d/2) (Ulrich 1984).

    Args:
        key: used once.
        shape: of the result, float32.
        dim: at least 1.
    """
    require_count("dim", dim)
    require_key(key)
    require_shape("shape", shape)
    length, angle = jax.random.uniform(key, (2, *shape))
    return jnp.sqrt(-jnp.expm1(2.0 / dim * jnp.log(length))) * jnp.cos(2.0 * jnp.pi * angle)


def smoothness_factor(dim: int) -> float:
    """c_d: the ball-smoothed loss is (c_d·G/r)-smooth; about √(2(d + ½)/π), at most √d."""
    require_count("dim", dim)
    # Γ(x + ½)/Γ(x) in one piece: the difference of two log-gammas loses all digits at large d.
    return 2.0 / math.sqrt(math.pi) * float(scipy.special.poch((dim + 1) / 2, 0.5))


def ball_smoothness(lipschitz: float, radius: float, dim: int) -> float:
    """Smoothness of f_r for the uniform ball: c_d·G/r."""
    require_nonnegative("lipschitz", lipschitz)
    require_positive("radius", radius)
    return smoothness_factor(dim) * lipschitz / radius


def ball_bias(lipschitz: float, radius: float, dim: int) -> float:
    """Bound on f_r - f (which is nonnegative) for the uniform ball: G·r·d/(d+1)."""
    require_count("dim", dim)
    require_nonnegative("lipschitz", lipschitz)
    require_nonnegative("radius", radius)
    return lipschitz * radius * dim / (dim + 1)


def gaussian_smoothness(lipschitz: float, stddev: float) -> float:
    """Smoothness of E f(w + N(0, stddev²·I)): √(2/π)·G/stddev, in any dimension."""
    require_nonnegative("lipschitz", lipschitz)
    require_positive("stddev", stddev)
    return math.sqrt(2 / math.pi) * lipschitz / stddev


def gaussian_bias(lipschitz: float, stddev: float, dim: int) -> float:
    """Bound on E f(w + N(0, stddev²·I)) - f(w) (which is nonnegative): G·stddev·E‖N(0, I)‖."""
    require_count("dim", dim)
    require_nonnegative("lipschitz", lipschitz)
    require_nonnegative("stddev", stddev)
    return lipschitz * stddev * math.sqrt(2) * float(scipy.special.poch(dim / 2, 0.5))
