"""What ``auto`` expects of a plan: its excess risk on the nominal problem (``_schedules.nominal_model``).

Each prediction takes the plan's own noise, steps, batches and clip norm, and the exact response of its method
to errors and noise (``_schedules.nominal_descent``). A direction of curvature h that starts with the squared
error e² ends with p(h)²·e² + c(h)·V, V the variance of a released gradient in this direction, by noise and by
the draw of users. Where a step is too long for the curvature, the error is at most what one clipped step
moves. Constraints are not modelled.

``preconditioned_sgd`` and ``whitened_sgd`` work in coordinates of their own, in which rows have mean squares
ν_j in place of the nominal λ_j, 1 on average:

- ``preconditioned_sgd`` scales columns: directions differ by the square roots of what they did, but that in
  which rows with an intercept agree keeps its share; the ridge is part of the scales;
- ``whitened_sgd`` centres rows and whitens them, so that ν_j = 1; where its plan releases no matrix of second
  moments, columns are scaled only, and ν_j ∝ λ_j^(1/4). It has two phases, the second averaged.

They clip users' gradients to a quantile of their norms, which are taken to be lognormal, with a deviation of
0.3 of the logarithm. The share 1 - q of users who are clipped counts by direction only. Of two classes, whose
slopes are skewed, this moves the minimizer by about (1 - q)/m of its length; residuals of numbers are taken
to be symmetric. Their ridges weigh noise against signal: of the variances N of the noise and P of the start,
N·P/(N + P) is left.

A prediction is no bound. It reads no data, so that a choice made by it is private.
"""

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax.privacy import Budget
from dpsco_jax.problems.labels import TWO_CLASSES
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers._schedules import nominal_descent as descent
from dpsco_jax.solvers._schedules import nominal_model
from dpsco_jax.solvers._schedules.nominal_descent import Response
from dpsco_jax.solvers._schedules.nominal_model import Nominal
from dpsco_jax.solvers.user_level import _linear_models

_NORMS = 0.3  # standard deviation of the logarithms of users' gradients' norms


class Setting(NamedTuple):
    """What a candidate may depend on; all of it is public.

    Attributes:
        problem: what is to be solved.
        budget: of the run.
        columns_per_row: entries of a one-hot row; ``None`` for dense features.
        passes: how often all items may be read.
        unit_noise: noise multiplier of one Gaussian release at this budget.
        intercept: which column of dense rows is the constant 1; ``None`` if none is.
        entry_bound: no entry of a dense row is larger; ``None`` if that is not known.
    """

    problem: Problem
    budget: Budget
    columns_per_row: int | None
    passes: int
    unit_noise: float
    intercept: int | None = None
    entry_bound: float | None = None

    @property
    def nominal(self) -> Nominal:
        """The problem that predictions are made for."""
        return nominal_model.nominal(
            self.problem, self.columns_per_row, self.intercept, self.entry_bound
        )

    def enough_steps(self, most: int) -> int:
        """T at which C²/T is a quarter of the noise of all T steps, d·(2Cs/n)²; at most ``most``."""
        noise = self.problem.dim * (2 * self.unit_noise / self.problem.num_users) ** 2
        return max(1, min(most, math.ceil(4 / noise)))


def risk(p: Setting, response: Response, variance: Any, longest: float = math.inf) -> float:
    """Excess risk of what a method with this response reports.

    ``variance`` is that of a released gradient in one direction, a number or one for each group; ``longest``
    is what one step moves at most, and an error is in a direction in which steps diverge.
    """
    model = p.nominal
    grown = np.minimum(response.kept**2 * model.starts, np.maximum(longest**2, model.starts))
    left = np.where(response.kept**2 > 1, grown, response.kept**2 * model.starts)
    return model.excess(left + response.noise * variance)


def sampled(p: Setting, batch_size: int) -> np.ndarray:
    """Variance of a direction of the mean over a batch of users drawn without replacement."""
    model = p.nominal
    share = (1 - batch_size / p.problem.num_users) / batch_size
    return model.spread * model.curvatures / model.size * share


def sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``sgd``, with batches of fixed size."""
    clip, step = float(plan.clip_norm), float(plan.step_size)
    response = descent.averaged(p.nominal.hessian(clip), step, plan.num_steps)
    return risk(p, response, _of_batches(p, plan, clip), step * clip)


def momentum_sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``momentum_sgd``, with batches of fixed size."""
    clip, t = float(plan.clip_norm), plan.num_steps
    falling = (t - np.arange(t)) / (t + 1) if plan.step_decay == "linear" else np.ones(t)
    steps = float(plan.step_size) * falling
    response = descent.heavy_ball(p.nominal.hessian(clip), steps, float(plan.momentum))
    return risk(p, response, _of_batches(p, plan, clip))


def item_sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``item_group_privacy``."""
    model, clip, step = p.nominal, float(plan.clip_norm), float(plan.step_size)
    # Each draw is one item, whose gradient differs from the mean as items do.
    drawn = 1.0 / plan.batch_size if plan.sampling == "replacement" else 0.0
    each = model.typical**2 * model.curvatures * drawn
    response = descent.averaged(model.hessian(clip), step, plan.num_steps)
    return risk(p, response, plan.noise_stddev**2 + each, step * clip)


def winsorized_erm(p: Setting, plan: Any) -> float:
    """Prediction for ``winsorized_erm``: an average of the steps of its schedule."""
    steps, shares = np.asarray(plan.step_sizes, float), np.asarray(plan.shares, float)
    response = descent.scheduled(p.nominal.hessian(), steps, shares)
    return risk(p, response, float(plan.noise_stddev) ** 2)


def ac_sa(p: Setting, plan: Any) -> float:
    """Prediction for ``private_ac_sa``."""
    clip, radius = float(plan.clip_norm), float(plan.smoothing_radius or 0.0)
    batch, added, model = plan.batch_size, float(plan.pull), p.nominal
    hessian = model.hessian(clip)
    response = descent.ac_sa(
        hessian + added, float(plan.smoothness), float(plan.strong_convexity), plan.num_steps
    )
    # Points where gradients are taken are shifted at random, and the loss is averaged over a ball of the
    # radius of the shifts, by which it rises: quadratic in small ones.
    per_shift = model.typical**2 * model.curvatures / (p.problem.items_per_user * batch)
    shifted = per_shift if radius else 0.0
    flattened = model.excess(np.full_like(model.starts, radius**2 / (p.problem.dim + 2)))
    variance = _of_batches(p, plan, clip, shifted)
    return risk(p, response.pulled(hessian, added), variance) + flattened


def _of_batches(p: Setting, plan: Any, clip: float, shifted: Any = 0.0) -> Any:
    """Variance of a released gradient in each direction: of the noise, of who is drawn, of shifted points."""
    stddev = 2 * float(plan.noise_multiplier) * clip / plan.batch_size
    return stddev**2 + p.nominal.kept(clip) ** 2 * (sampled(p, plan.batch_size) + shifted)


def preconditioned_sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``preconditioned_sgd``: columns are scaled until the Hessian's diagonal is 1."""
    model = p.nominal
    shares = _leveled(p, 0.5, centred=False)
    # The scales know the ridge.
    squares = shares / (model.bend + model.ridge / model.curvatures)
    clip = _clipping(p, plan, squares)
    response = descent.averaged(clip.kept * shares, 1 / float(plan.smoothness), plan.num_steps)
    return _scaled(p, squares, response, clip, float(plan.noise_multiplier))


def whitened_sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``whitened_sgd``: directions of rows that are whitened, and two phases."""
    model = p.nominal
    squares = _leveled(p, 0.25 if plan.matrix_multiplier is None else 0.0, centred=True)
    clip = _clipping(p, plan, squares)
    hessian = squares * (clip.kept * model.bend + model.ridge / model.curvatures)
    bends = _linear_models.Bends(model.bend, 1.0, model.bend)
    rates = [
        float(plan.step_size(phase, bends, clip.radius, plan.margin_scale)) for phase in (0, 1)
    ]
    warm = (1 - np.minimum(rates[0] * hessian, 1)) ** plan.warm_steps
    response = descent.averaged(hessian, rates[1], plan.num_steps)
    response = response._replace(kept=response.kept * warm)
    return _scaled(p, squares, response, clip, float(plan.noise_multiplier))


class _Clipping(NamedTuple):
    """Of users' gradients in coordinates of a solver's own.

    Attributes:
        radius: of the clip.
        kept: what it leaves of the gradient of the data.
        off: by how much of its length the minimizer is moved.
    """

    radius: float
    kept: float
    off: float


def _clipping(p: Setting, plan: Any, squares: np.ndarray) -> _Clipping:
    """Where a plan clips to a quantile of the norms of users' gradients; rows have these mean squares."""
    model = p.nominal
    norm = model.user_gradient * math.sqrt(float(model.counts @ squares) / model.size)
    quantile = NormalDist().inv_cdf(float(plan.quantile))
    radius = norm * math.exp(_NORMS * quantile)
    classes = p.problem.objective.label_range == TWO_CLASSES
    off = (1 - float(plan.quantile)) / p.problem.items_per_user if classes else 0.0
    return _Clipping(radius, model.kept(model.user_gradient * radius / norm), off)


def _leveled(p: Setting, power: float, centred: bool) -> np.ndarray:
    """Mean squares in coordinates with 1 on average: logarithms as in the nominal problem, times ``power``.

    In the direction in which rows with an intercept agree scales change nothing, and centring all.
    """
    model, dim = p.nominal, p.problem.dim
    first = 0 if p.intercept is None or dim == 1 else 1
    common = 1.0 if centred else dim * model.curvatures[0] / model.size
    rest = model.curvatures[first:] ** power
    rest *= (dim - first * common) / float(model.counts[first:] @ rest)
    return np.append(np.full(first, common), rest)


def _scaled(
    p: Setting, squares: np.ndarray, response: Response, clip: _Clipping, noise_multiplier: float
) -> float:
    """Excess risk of a descent in coordinates in which rows have these mean squares in each direction."""
    model = p.nominal
    stddev = 2 * clip.radius * noise_multiplier / p.problem.num_users
    longer = squares / model.curvatures  # a squared length in parameters over that in coordinates
    starts = model.starts / longer
    noise = response.noise * stddev**2
    # The ridge takes from every direction what is more likely to be noise.
    noise *= starts / (noise + starts)
    return model.excess(longer * ((response.kept**2 + clip.off**2) * starts + noise))
