"""Predictions for solvers of linear models that work in coordinates of their own; see ``_auto_predictions``.

What it computes: the excess risk of averaged descent in coordinates in which rows have mean squares ν_j in
place of the nominal λ_j, 1 on average:

- ``preconditioned_sgd`` scales columns: directions differ by the square roots of what they did, but that in
  which rows with an intercept agree keeps its share; the ridge is part of the scales;
- ``whitened_sgd`` centres rows and whitens them, so that ν_j = 1; where its plan releases no matrix of second
  moments, columns are scaled only, and ν_j ∝ λ_j^(1/4). It has two phases, the second averaged.

Users' gradients are clipped to the plan's quantile of their norms, which are taken to be lognormal, with a
deviation of 0.3 of the logarithm. The share 1 - q of users who are clipped counts by direction only. Of two
classes, whose slopes are skewed, this moves the minimizer by about (1 - q)/m of its length; residuals of
numbers are taken to be symmetric.
Ridges weigh noise against signal: of variances N of the noise and P of the start, N·P/(N + P) is left.

Source: own; the numbers are those of the plans.

Formal guarantee: none. Reads no data.

Cost: none.
"""

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax.problems.labels import TWO_CLASSES
from dpsco_jax.solvers._schedules import nominal_descent as descent
from dpsco_jax.solvers._schedules.nominal_descent import Response
from dpsco_jax.solvers.user_level import _typical_link, _whitened_descent
from dpsco_jax.solvers.user_level._auto_setting import Setting

_NORMS = 0.3  # standard deviation of the logarithms of users' gradients' norms


class Clipping(NamedTuple):
    """Of users' gradients in coordinates of a solver's own.

    Attributes:
        radius: of the clip.
        kept: what it leaves of the gradient of the data.
        off: by how much of its length the minimizer is moved.
    """

    radius: float
    kept: float
    off: float


def clipping(p: Setting, plan: Any, squares: np.ndarray) -> Clipping:
    """Where a plan clips to a quantile of the norms of users' gradients.

    Norms are lognormal, with a deviation of 0.3 of the logarithm.

    Args:
        p: the setting.
        plan: with a ``quantile``.
        squares: mean squares of the rows in each direction, in the coordinates of the solver.
    """
    model = p.nominal
    norm = model.user_gradient * math.sqrt(float(model.counts @ squares) / model.size)
    quantile = NormalDist().inv_cdf(float(plan.quantile))
    radius = norm * math.exp(_NORMS * quantile)
    classes = p.objective.label_range == TWO_CLASSES
    off = (1 - float(plan.quantile)) / p.items_per_user if classes else 0.0
    return Clipping(radius, model.kept(model.user_gradient * radius / norm), off)


def preconditioned_sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``preconditioned_sgd``: columns are scaled until the Hessian's diagonal is 1."""
    model = p.nominal
    shares = _leveled(p, 0.5, centred=False)
    # The scales know the ridge.
    squares = shares / (model.bend + model.ridge / model.curvatures)
    clip = clipping(p, plan, squares)
    response = descent.averaged(clip.kept * shares, 1 / float(plan.smoothness), plan.num_steps)
    return scaled(p, squares, response, clip, float(plan.noise_multiplier))


def whitened_sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``whitened_sgd``: directions of rows that are whitened, and two phases."""
    model = p.nominal
    squares = _leveled(p, 0.25 if plan.matrix_multiplier is None else 0.0, centred=True)
    clip = clipping(p, plan, squares)
    hessian = squares * (clip.kept * model.bend + model.ridge / model.curvatures)
    steps = plan.warm_steps, plan.num_steps
    bends = _typical_link.Bends(model.bend, 1.0, model.bend)
    rates = [float(_whitened_descent.step(plan, phase, bends, clip.radius)) for phase in (0, 1)]
    warm = (1 - np.minimum(rates[0] * hessian, 1)) ** steps[0]
    response = descent.averaged(hessian, rates[1], steps[1])
    response = response._replace(kept=response.kept * warm)
    return scaled(p, squares, response, clip, float(plan.noise_multiplier))


def _leveled(p: Setting, power: float, centred: bool) -> np.ndarray:
    """Mean squares in coordinates with 1 on average: logarithms as in the nominal problem, times ``power``.

    In the direction in which rows with an intercept agree scales change nothing, and centring all.
    """
    model = p.nominal
    first = 0 if p.intercept is None or p.dim == 1 else 1
    common = 1.0 if centred else p.dim * model.curvatures[0] / model.size
    rest = model.curvatures[first:] ** power
    rest *= (p.dim - first * common) / float(model.counts[first:] @ rest)
    return np.append(np.full(first, common), rest)


def scaled(
    p: Setting, squares: np.ndarray, response: Response, clip: Clipping, noise_multiplier: float
) -> float:
    """Excess risk of a descent in coordinates in which rows have these mean squares in each direction.

    The ridge takes from every direction what is more likely to be noise: N and P, the variances of noise and
    of the start, leave N·P/(N + P).

    Args:
        p: the setting.
        squares: mean squares of the rows in each direction.
        response: of the descent.
        clip: of users' gradients.
        noise_multiplier: of a step, over the sensitivity of twice the radius.
    """
    model = p.nominal
    stddev = 2 * clip.radius * noise_multiplier / p.num_users
    longer = squares / model.curvatures  # a squared length in parameters over that in coordinates
    starts = model.starts / longer
    noise = response.noise * stddev**2
    noise *= starts / (noise + starts)
    return model.excess(longer * ((response.kept**2 + clip.off**2) * starts + noise))
