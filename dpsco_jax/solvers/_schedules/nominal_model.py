"""The nominal problem: what plans take the unknown data for, made of public numbers only.

It is a quadratic with as many directions as there are parameters. Of a linear model with the link
ℓ(⟨w, x⟩, y), of curvature b and slope at most s, whose slope at w = 0 is typically g (that of the labels of
two classes; half of the largest for bounded labels; s for any):

- rows x have E‖x‖² = S: the squared feature bound B², or for dense entries bounded by a, if less, what
  uniform ones have: a²/3 for each number and a² for the intercept. In each direction rows have a mean square
  λ_j ∝ 1/j if entries are bounded one by one, so that columns may differ in scale, and ∝ 1/√j else. With an
  intercept half of S is in one direction more, in which all rows agree; for k entries of one-hot rows it is
  S/k²;
- the start errs by margins ⟨w, x⟩ of mean square τ², shared equally by all directions, made smaller by what
  the ridge takes of them, and by R, the distance to the minimizer: τ = max(½, g/(2b)) is half of what would
  undo the slope at zero;
- gradients of items have the mean square g²·S about that of the data; a user's has (α + (1 - α)/m) of it,
  with α = 0.05 for what the items of a user have in common;
- clipping to C makes the gradient of the data, and its slope, smaller by (1 + (G/C)⁴)^(-1/4), G the norm of a
  user's gradient half-way from the start, and adds no bias.

Of other losses all directions are alike: λ_j = 1, b is the smoothness and the start is R/2 away; gradients of
items are L/4 long about the mean, or L where the loss is not smooth. Of losses that are not smooth, b = 4s
of a linear model, as for residuals half as large as margins of ½, and 2L/R of others.

With the errors e_j of a point, v = Σ_j λ_j·E e_j² is the mean square of its margins. The excess risk is
b·v/2 while that is small, and grows like s·√v beyond: (b·v/2)/(1 + b·√v/(2s)), plus the ridge's part.

The numbers above were set by hand while looking at ``auto-choice``; none depends on a problem. This is a
model and no bound. Directions of nearly equal λ_j count as equal, in at most 48 groups.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax.problems.labels import TWO_CLASSES
from dpsco_jax.problems.problem import Problem

MARGIN = 0.5
"""Typical size of a margin, in units of the label's; also what solvers of linear models take."""

_COMMON = 0.5  # share of the rows' mean square in the direction of their mean
_ALIKE = 0.05  # share of the variance of gradients that the items of a user have in common
_GROUPS = 48


class Nominal(NamedTuple):
    """The nominal problem.

    Attributes:
        curvatures: λ_j of each group, ``[groups]``.
        counts: directions of each group.
        starts: squared errors of the start in one direction of each group.
        bend: b.
        slope: s.
        typical: g.
        ridge: of the objective.
        items: m.
    """

    curvatures: np.ndarray
    counts: np.ndarray
    starts: np.ndarray
    bend: float
    slope: float
    typical: float
    ridge: float
    items: int

    @property
    def size(self) -> float:
        """S, the mean square of a row."""
        return float(self.counts @ self.curvatures)

    @property
    def spread(self) -> float:
        """Mean square of a user's gradient about that of the data."""
        return self.typical**2 * self.size * (_ALIKE + (1 - _ALIKE) / self.items)

    @property
    def user_gradient(self) -> float:
        """G, root mean square of the norm of a user's gradient at the start."""
        common = self.counts @ ((self.bend * self.curvatures) ** 2 * self.starts) / 4
        return math.sqrt(min(float(common), self.typical**2 * self.size) + self.spread)

    def kept(self, clip_norm: float) -> float:
        """What clipping leaves of the gradient of the data."""
        return (1 + (self.user_gradient / clip_norm) ** 4) ** -0.25

    def hessian(self, clip_norm: float = math.inf) -> np.ndarray:
        """What steps see: curvatures of clipped gradients and of the ridge, ``[groups]``."""
        kept = 1.0 if math.isinf(clip_norm) else self.kept(clip_norm)
        return kept * self.bend * self.curvatures + self.ridge

    def excess(self, squares: np.ndarray) -> float:
        """Excess risk of a point with these mean squared errors in a direction of each group."""
        margin = float(self.counts @ (self.curvatures * squares))
        curved = self.bend * margin / 2
        loss = curved / (1 + self.bend * math.sqrt(margin) / (2 * self.slope))
        return loss + self.ridge / 2 * float(self.counts @ squares)


def nominal(
    problem: Problem,
    columns_per_row: int | None = None,
    intercept: int | None = None,
    entry_bound: float | None = None,
) -> Nominal:
    """The nominal problem of public numbers, each as for ``auto.plan``."""
    objective, dim = problem.objective, problem.dim
    model, smooth = objective.vector_model, objective.smoothness
    if model is None:
        counts, curvatures = np.array([float(dim)]), np.ones(1)
        near = problem.farthest / 2
        bend = problem.lipschitz / near if smooth is None else smooth
        starts = np.array([near**2 / dim])
        typical = problem.lipschitz / (4 if smooth is not None else 1)
        return Nominal(
            curvatures, counts, starts, bend, problem.lipschitz, typical / math.sqrt(dim),
            objective.ridge, problem.items_per_user,
        )  # fmt: skip
    bound = model.feature_bound
    slope = problem.lipschitz / bound
    typical = min(slope, at_zero(problem))
    bend = 2 * slope / MARGIN if smooth is None else smooth / bound**2
    size = bound**2
    if entry_bound is not None:
        numbers = dim - (intercept is not None)
        size = min(size, entry_bound**2 * (numbers / 3 + (intercept is not None)))
    if columns_per_row is not None:
        curvatures, counts = spectrum(dim, size, 1 / columns_per_row**2, 0.5)
    else:
        common, power = (
            (0.0 if intercept is None else _COMMON),
            (0.5 if entry_bound is None else 1.0),
        )
        curvatures, counts = spectrum(dim, size, common, power)
    margin = max(MARGIN, typical / (2 * bend))
    starts = margin**2 / (dim * curvatures)
    starts *= (bend * curvatures / (bend * curvatures + objective.ridge)) ** 2
    starts *= min(1.0, problem.farthest**2 / float(counts @ starts))
    return Nominal(
        curvatures, counts, starts, bend, slope, typical, objective.ridge, problem.items_per_user
    )


def at_zero(problem: Problem) -> float:
    """The largest slope of the link at zero over the labels that there are; half of the bound if unknown."""
    model, known = problem.objective.vector_model, problem.objective.label_range
    assert model is not None
    if known is None or not math.isfinite(known.high - known.low):
        return problem.lipschitz / model.feature_bound
    largest = _largest_slope(model.derivative, known.low, known.high)
    return largest if known == TWO_CLASSES else largest / 2


# Operation by operation, each a program of its own: once for all candidates of a search.
@functools.lru_cache(maxsize=16)
def _largest_slope(derivative: Callable[..., Any], low: float, high: float) -> float:
    ends = np.asarray([low, high], np.float32)
    slopes = derivative(np.zeros(2, np.float32), ends)
    return float(np.max(np.abs(np.asarray(slopes))))


def spectrum(dim: int, total: float, common: float, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean squares of directions, which sum to ``total``, and how many have each.

    The first has the share ``common`` of it, unless that is 0; the others fall like j^(-power).
    """
    first = 1 if common > 0 and dim > 1 else 0
    ranks = np.arange(1, dim - first + 1, dtype=float)
    values = ranks**-power
    values *= total * (1 - common if first else 1.0) / values.sum()
    edges = np.unique(np.geomspace(1, len(ranks) + 1, _GROUPS).astype(int))
    if len(ranks) < _GROUPS:
        edges = np.arange(1, len(ranks) + 2)
    counts = np.diff(edges).astype(float)
    grouped = np.add.reduceat(values, edges[:-1] - 1) / counts
    if first:
        grouped, counts = np.append(total * common, grouped), np.append(1.0, counts)
    return grouped, counts
