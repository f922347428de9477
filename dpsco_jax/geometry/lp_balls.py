"""Balls of ℓp and Schatten norms around the origin, as domains.

What it computes: the Euclidean projection onto {‖x‖_p <= R}, p in [1, inf]: exact for p = 1, 2 and inf, by a
monotone root otherwise (``_powers``); and onto the matrices whose singular values are such a vector, by
projecting the singular values.

Source: elementary; for matrices von Neumann's trace inequality: of all matrices with given singular values
the nearest to X has the singular vectors of X.

Formal guarantee: a projection does not look at data. Those for p = 1 and 2 are sets of ``geometry.domains``
and known to ``proven_diameter``; the others are projections up to some roundings, and are not: privacy that
rests on them would rest on rounding. For p near 1 an error is some roundings over p - 1; what is returned has
norm at most R, up to the rounding of the norm itself.

Cost: p = 1 a sort; p = 2 and inf a pass; other p some 30 × 10 passes in float32 (6 ms for 1,000 entries),
twice as many in float64; for matrices a singular value decomposition besides. No derivative is right through
the root outside of the ball.

Example:
    >>> import jax.numpy as jnp
    >>> from dpsco_jax.geometry import lp_balls
    >>> ball = lp_balls.lp_ball(1.0, p=1.5, dim=2)
    >>> [round(float(x), 4) for x in ball.project(jnp.asarray([3.0, 3.0]))]
    [0.63, 0.63]
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PyTree

from dpsco_jax._checks import require_count, require_positive
from dpsco_jax.geometry import _moves, _powers, domains
from dpsco_jax.geometry.domains import Domain
from dpsco_jax.geometry.lp import flat_entries, lp_norm, require_matrix, schatten_norm
from dpsco_jax.rates.norms import norm_ratio, require_exponent


def lp_ball(radius: ArrayLike, p: float, dim: int) -> Domain:
    """The points with ‖x‖_p at most ``radius``, over all leaves together.

    Args:
        radius: positive, finite; may be traced.
        p: in [1, inf].
        dim: d, the number of entries of a point.

    Returns:
        For p = 1 and 2 the domains of ``geometry.domains``. Only p = 1, 2 and inf know their ``moves``.

    Example:
        >>> lp_ball(2.0, math.inf, 9).diameter
        12.0
    """
    require_positive("radius", radius)
    p, dim = require_exponent("p", p), require_count("dim", dim)
    if p == 1.0:
        return domains.l1_ball(radius)
    if p == 2.0:
        return domains.ball(radius)

    def project(point: PyTree) -> PyTree:
        vector, back = flat_entries(point, dim)
        moved = back(_project(vector, radius, p))
        inside = _powers.norm(vector, p) <= radius
        return jax.tree.map(lambda leaf, new: jnp.where(inside, leaf, new), point, moved)

    farthest = norm_ratio(2.0, p, dim) * radius
    domain = Domain(
        project=project,
        diameter=2 * farthest,
        contains=lambda point, tol: lp_norm(flat_entries(point, dim)[0], p) <= radius + tol,
        # A term λ‖w‖₁ lowers entries until they vanish; the multiplier of a ball that is symmetric in every
        # coordinate then shrinks what is left, and that is what the projection does.
        thresholds=True,
        moves=_moves.box(-1.0 * radius, radius) if p == math.inf else None,
        norm=farthest,
    )
    return domains.enter_moves(domain) if p == math.inf else domain


def schatten_ball(radius: ArrayLike, p: float, rows: int, columns: int) -> Domain:
    """The matrices whose singular values have ℓp norm at most ``radius``.

    Args:
        radius: positive, finite; may be traced.
        p: in [1, inf]; 1 is the ball of the nuclear norm, ``inf`` that of the spectral norm.
        rows: of a point, which is one array ``[rows, columns]``.
        columns: of a point.

    Returns:
        For p = 2 the ball of ``geometry.domains``.

    Example:
        >>> ball = schatten_ball(1.0, 1, 2, 3)
        >>> nearest = ball.project(jnp.asarray([[3.0, 0.0, 0.0], [0.0, 2.5, 0.0]]))
        >>> [round(float(x), 3) for x in jnp.diag(nearest)], float(ball.diameter)
        ([0.75, 0.25], 2.0)
    """
    require_positive("radius", radius)
    p, sides = (
        require_exponent("p", p),
        (require_count("rows", rows), require_count("columns", columns)),
    )
    if p == 2.0:
        return domains.ball(radius)

    def project(point: Any) -> Array:
        require_matrix("point", point, sides)
        point = jnp.asarray(point)
        wide = point.astype(jnp.result_type(point, jnp.float32))
        left, values, right = jnp.linalg.svd(wide, full_matrices=False)
        moved = ((left * _project(values, radius, p)) @ right).astype(point.dtype)
        return jnp.where(_powers.norm(values, p) <= radius, point, moved)

    def contains(point: Any, tol: ArrayLike) -> Array:
        require_matrix("point", point, sides)
        return schatten_norm(point, p) <= radius + tol

    farthest = norm_ratio(2.0, p, min(sides)) * radius
    return Domain(project=project, diameter=2 * farthest, contains=contains, norm=farthest)


def _project(vector: Array, radius: ArrayLike, p: float) -> Array:
    """The nearest point of the ℓp ball to one outside of it."""
    if p == 1.0:
        return domains.l1_ball(radius).project(vector)
    if p == math.inf:
        return jnp.clip(vector, -1.0 * radius, radius)
    return jnp.sign(vector) * _powers.nearest(jnp.abs(vector), radius, p)
