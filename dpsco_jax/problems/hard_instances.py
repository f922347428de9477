"""Maxima of linear functions with a certified optimum: non-smooth instances to count queries on.

What it computes: f(x) = max_i (<a_i, x> + b_i), with a subgradient for a whole batch of points at once, a
start (the origin), a distance R to a minimizer and the least value over the ball B(R).

- ``orthogonal_maximum``: <v_i, x> - γi with random orthonormal v_i. γ = 0 is Nemirovski's function with
  random signs: from the origin each subgradient shows one v_i. With γ > 0 it is a chain: a batch of queries
  near a point shows the first directions only that this point has not yet moved along, because all others are
  lower by γ and a random direction does not see them. This is what makes parallel queries hard.
- ``regression_instances`` has means over rows.

Source: Nemirovski and Yudin 1983; Nemirovski 1994 (parallel complexity); Bubeck, Jiang, Lee, Li and
Sidford 2019, Complexity of highly parallel non-smooth convex optimization (chains of this kind).

Formal guarantee: f ≥ optimum - gap on B(R), and the minimizer attains the optimum. Proof of the gap: any
weights p in the simplex give f(x) ≥ <Aᵀp, x> + <p, b> ≥ <p, b> - R‖Aᵀp‖ on B(R). The weights are those of
the closed form; the bound is computed in float64 from the rows as they are stored,
whether or not a solver did well.

Cost: a QR decomposition on the host.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse
from jaxtyping import Array, ArrayLike, Float, Key

from dpsco_jax._checks import (
    require,
    require_count,
    require_each,
    require_key,
    require_nonnegative,
    require_number,
    require_positive,
)

_NODES = 65  # of the quadrature: spacing below 0.31ρ


class Instance(NamedTuple):
    """A convex function with what is known of it.

    Attributes:
        value: ``value(point [dim]) -> []``.
        gradient: ``gradient(keys [n], points [n, dim]) -> [n, dim]``, one stochastic subgradient for
            each point: a round of n queries. Unbiased, of norm at most ``lipschitz``.
        smoothed_gradient: ``smoothed_gradient(point [dim], stddev) -> [dim]``, the exact gradient of
            E f(point + N(0, stddev²·I)); ``None`` where there is no closed form.
        dim: d.
        lipschitz: L, everywhere.
        distance: R, from the origin to ``minimizer`` at most.
        minimizer: of f over the ball of radius R around the origin; float64 on the host.
        optimum: f there.
        gap: the least value over that ball is at least ``optimum - gap``.
    """

    value: Callable[[Any], Any]
    gradient: Callable[[Any, Any], Any]
    smoothed_gradient: Callable[[Any, Any], Any] | None
    dim: int
    lipschitz: float
    distance: float
    minimizer: Float[np.ndarray, "dim"]
    optimum: float
    gap: float


def orthogonal_maximum(
    key: Key[Array, ""], dim: int, pieces: int, distance: float = 1.0, drop: float = 0.0
) -> Instance:
    """max_i (<v_i, x> - drop·i) over i = 0 .. pieces - 1, with random orthonormal v_i.

    Args:
        key: of the directions.
        dim: d ≥ pieces.
        pieces: m ≥ 1. For drop = 0 the optimum over the ball is -distance/√m.
        distance: R > 0.
        drop: γ ≥ 0, by which each piece lies below the one before at the origin.
    """
    require_key(key)
    require_each(require_count, dim=dim, pieces=pieces)
    require(1 <= pieces <= dim, "pieces", pieces, f"in [1, dim] = [1, {dim}]")
    require_positive("distance", distance)
    require_nonnegative("drop", drop)
    normal = np.asarray(jax.random.normal(key, (dim, pieces)), np.float64)
    rows = np.linalg.qr(normal)[0].T.astype(np.float32)
    offsets = (-drop * np.arange(pieces)).astype(np.float32)
    # The optimum level t has Σ (b_i - t)₊² = R²: moving by (b_i - t)₊ against v_i levels the top.
    level = scipy.optimize.brentq(
        lambda t: np.sum(np.maximum(offsets - t, 0.0) ** 2) - distance**2,
        -distance - drop * pieces,
        0.0,
        xtol=1e-15,
    )
    moved = np.maximum(offsets - level, 0.0)
    minimizer = -(rows.astype(np.float64).T @ moved)
    minimizer *= distance / np.linalg.norm(minimizer)
    return _maximum(rows, offsets, minimizer, moved / moved.sum(), distance, orthonormal=True)


def _maximum(
    rows: np.ndarray,
    offsets: np.ndarray,
    minimizer: np.ndarray,
    weights: np.ndarray,
    distance: float,
    orthonormal: bool = False,
) -> Instance:
    matrix = rows.astype(np.float64)
    optimum = float(np.max(matrix @ minimizer + offsets))
    lower = float(weights @ offsets - distance * np.linalg.norm(matrix.T @ weights))

    def value(point):
        return jnp.max(rows @ point + offsets)

    def gradient(keys, points):
        del keys  # a subgradient of the maximum needs no draw
        return jnp.asarray(rows)[jnp.argmax(points @ rows.T + offsets, axis=-1)]

    def smoothed_gradient(point, stddev):
        return argmax_probabilities(rows @ point + offsets, stddev) @ rows

    return Instance(
        value=value,
        gradient=gradient,
        smoothed_gradient=smoothed_gradient if orthonormal else None,
        dim=rows.shape[1],
        lipschitz=float(np.max(np.linalg.norm(matrix, axis=1))),
        distance=distance,
        minimizer=minimizer,
        optimum=optimum,
        gap=max(optimum - lower, 0.0),
    )


def argmax_probabilities(means: Float[Array, "m"], stddev: ArrayLike) -> Float[Array, "m"]:
    """P(i = argmax_j of means_j + stddev·N_j) for independent normal N: the gradient of E max.

    One integral over the common level of the maximum, by the trapezoidal rule, which converges
    geometrically for such integrands; weights are normalized to sum to one.
    """
    require_number("means", means)
    require_positive("stddev", stddev)
    scaled = (means - jnp.max(means)) / stddev
    # The maximum lies within [-8, 8 + √(2 log m)] of the top but for a mass of 1e-15.
    reach = 8.0 + math.sqrt(2.0 * math.log(means.shape[0] + 1))
    away = jnp.linspace(-8.0, reach, _NODES)[:, None] - scaled
    # Nothing is further than 8 below, so the tail does not underflow.
    log_below = jnp.log(0.5 * jax.lax.erfc(-away / math.sqrt(2.0)))
    log_others = jnp.sum(log_below, axis=1, keepdims=True) - log_below
    densities = jnp.sum(jnp.exp(log_others - 0.5 * away**2), axis=0)
    return densities / jnp.sum(densities)


def solve_linear_program(cost: Any, constraints: Any, limits: Any, free: int) -> Any:
    """Least <cost, z> with constraints @ z ≤ limits, where the first ``free`` variables have any sign.

    Returns:
        SciPy's result: ``x``, and ``ineqlin.marginals``, minus the multipliers of the constraints.

    Raises:
        ValueError: the solver found no optimum.
    """
    bounds = [(None, None)] * free + [(0, None)] * (len(cost) - free)
    solution = scipy.optimize.linprog(
        cost, A_ub=scipy.sparse.csr_array(constraints), b_ub=limits, bounds=bounds, method="highs"
    )
    if solution.x is None:
        raise ValueError(f"the instance must have a bounded optimum: {solution.message}")
    return solution
