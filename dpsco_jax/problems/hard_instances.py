"""Maxima of linear functions with a certified optimum, to count queries on; and selection as a loss.

What it computes: f(x) = max_i (<a_i, x> + b_i), with a subgradient for a whole batch of points at once, a
start (the origin), a distance R to a minimizer and the least value over the ball B(R).

- ``orthogonal_maximum``: <v_i, x> - γi with random orthonormal v_i. γ = 0 is Nemirovski's function with
  random signs: from the origin each subgradient shows one v_i. With γ > 0 it is a chain: a batch of queries
  near a point shows the first directions only that this point has not yet moved along, because all others are
  lower by γ and a random direction does not see them. This is what makes parallel queries hard.
- ``selection``: bumps of slope 1 around k points of a packing, a user's bump i is there unless coin i shows
  one. The population's risk at the centre of a bump is that of choosing its coin, so whoever minimizes losses
  that are not convex selects among k = 2^Θ(d) coins: risk Ω(√(log(k)/n)), private or not.
- ``low_switching_adversary``: one vector of fair coins for each epoch of a stream of experts' losses.
- ``regression_instances`` has means over rows.

Source: Nemirovski and Yudin 1983; Nemirovski 1994 (parallel complexity); Bubeck, Jiang, Lee, Li and
Sidford 2019, Complexity of highly parallel non-smooth convex optimization (chains of this kind). T, Theorems
6.4.9 to 6.4.11 (selection) and 13.4.2 (epochs).

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
import scipy.special
from jaxtyping import Array, ArrayLike, Float, Key

from dpsco_jax._checks import (
    require,
    require_count,
    require_each,
    require_key,
    require_nonnegative,
    require_number,
    require_positive,
    require_real,
)
from dpsco_jax.geometry.domains import ball
from dpsco_jax.problems import _proofs, streams
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData

_NODES = 65  # of the quadrature: spacing below 0.31ρ
_TRIES, _DRAWN = 50, 200  # how often, and how many points are tried for a packing


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


class Selection(NamedTuple):
    """Coins of unknown chances as one loss on the unit ball.

    Attributes:
        objective: the loss of a user's coins, ``[k]``: -Σ (1 - z_i)·(r - ‖x - p_i‖)₊, 1-Lipschitz, neither
            convex nor smooth.
        points: p_i, ``[k, dim]``, at least 2r apart.
        chances: q_i, the chance of a one, ``[k]``.
        radius: r.
        draw: ``draw(key, num_users) -> UserData``, independent users of one item.
        excess: ``excess(params) -> []``, the population's risk above its minimum r·(min q - 1): at p_i it is
            r·(q_i - min q).
    """

    objective: Objective
    points: Float[np.ndarray, "coins dim"]
    chances: Float[np.ndarray, "coins"]
    radius: float
    draw: Callable[[Any, int], UserData]
    excess: Callable[[Any], Any]


def selection(
    key: Key[Array, ""], dim: int, chances: Float[np.ndarray, "coins"], radius: float = 0.25
) -> Selection:
    """A selection problem as a loss that is not convex.

    Args:
        key: of the packing.
        dim: d.
        chances: q_i in [0, 1], one for each of k ≥ 2 coins.
        radius: r in (0, ½]; smaller ones leave room for more coins.

    Raises:
        ValueError: an argument is out of range, or so many points at a distance of 2r were not found.

    Example:
        >>> made = selection(jax.random.key(0), 2, np.array([0.5, 0.3, 0.5]))
        >>> float(made.excess(made.points[1])), round(float(made.excess(made.points[0])), 3)
        (0.0, 0.05)
    """
    require_key(key)
    require_count("dim", dim)
    require_real("radius", radius, 0.0, 0.5 * (1 + 1e-12))
    require_number("chances", chances)
    chances = np.asarray(chances, np.float64)
    require(chances.ndim == 1 and len(chances) >= 2, "chances", chances.shape, "[k], k >= 2")
    require(np.all((chances >= 0) & (chances <= 1)), "chances", chances, "in [0, 1]")
    points = _packing(key, dim, len(chances), radius)

    def height(params: Any) -> Any:
        squares = jnp.sum((params - points.astype(params.dtype)) ** 2, axis=1)
        # A root whose derivative at the centre is zero.
        return jnp.maximum(radius - jnp.sqrt(jnp.maximum(squares, 1e-30)), 0.0)

    def loss(params: Float[Array, "dim"], coins: Any) -> Any:
        return -jnp.sum(jnp.where(coins, 0.0, height(params)))

    def excess(params: Any) -> Any:
        best = radius * (1.0 - np.min(chances))
        return jnp.maximum(best - jnp.sum((1.0 - chances) * height(jnp.asarray(params))), 0.0)

    def draw(key: Key[Array, ""], num_users: int) -> UserData:
        uniform = jax.random.uniform(key, (num_users, 1, len(chances)))
        return UserData(uniform < chances.astype(np.float32))

    made = Objective(
        loss=loss,
        lipschitz=1.0,
        smoothness=None,
        domain=ball(1.0),
        loss_strong_convexity=-math.inf,
        loss_range=radius,
    )
    return Selection(_proofs.register(made), points, chances, radius, draw, excess)


def _packing(key: Key[Array, ""], dim: int, count: int, radius: float) -> np.ndarray:
    """Points of the unit ball at least 2r apart: random ones, each kept unless it is near one that is."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    kept = np.empty((0, dim))
    for _ in range(_TRIES):
        # Towards the sphere, where there is most room.
        new = rng.standard_normal((_DRAWN, dim))
        new *= (
            rng.uniform(0.0, 1.0, (_DRAWN, 1)) ** (1.0 / dim) / np.linalg.norm(new, axis=1)[:, None]
        )
        for point in new:
            if np.all(np.linalg.norm(kept - point, axis=1) >= 2.0 * radius):
                kept = np.append(kept, point[None], axis=0)
                if len(kept) == count:
                    return kept
    raise ValueError(
        f"chances must be of at most {len(kept)} coins in {dim} dimensions at radius = {radius}, got {count}"
    )


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


class LowSwitching(NamedTuple):
    """A stream of losses on which whoever moves rarely loses.

    Attributes:
        losses: ``losses(t) -> [dim]``, the same for all rounds of an epoch.
        num_epochs: E; the last one may be longer than it is.
        length: rounds of an epoch.
        advantage: by how much the best expert is expected to be below half of the rounds: about length·√E·E
            max of d normals / 2, for E so large that sums of coins are normal.
    """

    losses: Callable[[Any], Any]
    num_epochs: int
    length: int
    advantage: float


def low_switching_adversary(
    key: Key[Array, ""], num_rounds: int, dim: int, epsilon: float
) -> LowSwitching:
    """The stream of the lower bound for private algorithms that switch rarely (T, Theorem 13.4.2).

    E = ⌈(Tε)^(4/3)⌉ epochs of ⌊T/E⌋ rounds. Any ε²-zCDP algorithm that keeps its point or draws a fresh one
    is claimed to have regret of the order of √T + T^(1/3)/ε^(2/3) on it; see docs/corrections.md, C13-9 and
    C13-10. ``streams.repeated`` has epochs of any length, such as that of the batches of an algorithm.

    Args:
        key: of the coins.
        num_rounds: T.
        dim: d ≥ 2.
        epsilon: ε > 0, at most about T^(-1/4), so that epochs have a round or more.

    Example:
        >>> import jax
        >>> from dpsco_jax.problems import hard_instances
        >>> made = hard_instances.low_switching_adversary(jax.random.key(0), 10**6, 10, 1e-3)
        >>> made.num_epochs, made.length
        (10000, 100)
    """
    require_key(key)
    require_each(require_count, num_rounds=num_rounds, dim=dim)
    require(dim >= 2, "dim", dim, "at least 2")
    epsilon = require_real("epsilon", epsilon, 0.0)
    # A power that is whole but for rounding is that number.
    epochs = max(1, math.ceil((num_rounds * epsilon) ** (4.0 / 3.0) * (1.0 - 1e-12)))
    most = num_rounds**-0.25
    require(
        epochs <= num_rounds, "epsilon", epsilon, f"at most about num_rounds^(-1/4) = {most:.4g}"
    )
    length = num_rounds // epochs
    grid = np.linspace(-10.0, 10.0, 20_001)
    below = scipy.special.ndtr(grid) ** dim
    largest = float(np.sum(0.5 * (grid[1:] + grid[:-1]) * np.diff(below)))
    advantage = 0.5 * largest * length * math.sqrt(epochs)
    return LowSwitching(streams.repeated(key, dim, length), epochs, length, advantage)


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
