"""What to expect of a plan: predictions of its excess risk on the nominal problem, for ``auto``.

What it computes: for each solver the excess risk of its plan, with the plan's own noise, steps, batches and
clip norm, on one and the same problem (``_schedules.nominal_model``), by the exact response of its method to
errors and noise in each direction (``_schedules.nominal_descent``): a direction of curvature h that starts
with the squared error e² ends with p(h)²·e² + c(h)·V, V the variance of a released gradient in this
direction, that of the noise and of the draw of users.

- ``sgd``, ``item_group_privacy``, ``multipass_sgd``, ``localized_sgd`` (its last block, from its distance):
  averages of equal steps; ``winsorized_erm``: of the steps of its schedule; ``momentum_sgd``: a heavy ball;
- ``private_ac_sa``, ``accelerated_*``: AC-SA with its restarts and pulls towards the starts of phases;
- ``output_perturbation``: the pull of its regularizer, and noise once;
- those of ``preconditioned_sgd`` and ``whitened_sgd`` are in ``_auto_scaled``;
- ``phased_sgd``, ``phased_erm``: their proven bounds, far above what they reach.

In a direction in which a step is too long for the curvature, the error is at most what one clipped step
moves. Constraints are not modelled.

Source: own.

Formal guarantee: none: a prediction is no bound. It reads no data, so a choice made by it is private.

Cost: some milliseconds.
"""

import math
from typing import Any

import numpy as np

from dpsco_jax.solvers._schedules import nominal_descent as descent
from dpsco_jax.solvers._schedules.nominal_descent import Response
from dpsco_jax.solvers.user_level._auto_setting import Setting


def risk(p: Setting, response: Response, variance: Any, longest: float = math.inf) -> float:
    """Excess risk of what a method with this response reports.

    Args:
        p: the setting.
        response: of the method, in each group of directions of the nominal problem.
        variance: of a released gradient in one direction: a number, or one for each group.
        longest: what one step moves at most, and an error is in a direction in which steps diverge.
    """
    model = p.nominal
    grown = np.minimum(response.kept**2 * model.starts, np.maximum(longest**2, model.starts))
    left = np.where(response.kept**2 > 1, grown, response.kept**2 * model.starts)
    return model.excess(left + response.noise * variance)


def least(p: Setting, clip_norm: float) -> float:
    """No linear method whose gradients are clipped there predicts less, if it has no less noise than this.

    One Gaussian release of the whole budget has the standard deviation 2·C·s/n in each direction, s the unit
    noise; many releases of sums over all users tell as much about a direction as one, and sampled ones no
    more by the central limit theorem. So a direction of curvature h is known up to N = (2Cs/(nh))², and with
    what is known of the start, P, up to N·P/(N + P).
    """
    model = p.nominal
    stddev = 2 * clip_norm * p.unit_noise / p.num_users
    noise = (stddev / model.hessian(clip_norm)) ** 2
    return model.excess(noise * model.starts / (noise + model.starts))


def sampled(p: Setting, batch_size: int) -> np.ndarray:
    """Variance of a direction of the mean over a batch of users drawn without replacement."""
    model = p.nominal
    share = (1 - batch_size / p.num_users) / batch_size
    return model.spread * model.curvatures / model.size * share


def sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``sgd``, with batches of fixed size."""
    clip, step = float(plan.clip_norm), float(plan.step_size)
    stddev = 2 * float(plan.noise_multiplier) * clip / plan.batch_size
    response = descent.averaged(p.nominal.hessian(clip), step, plan.num_steps)
    kept = p.nominal.kept(clip) ** 2
    return risk(p, response, stddev**2 + kept * sampled(p, plan.batch_size), step * clip)


def momentum_sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``momentum_sgd``, with batches of fixed size."""
    clip, t = float(plan.clip_norm), plan.num_steps
    stddev = 2 * float(plan.noise_multiplier) * clip / plan.batch_size
    falling = (t - np.arange(t)) / (t + 1) if plan.step_decay == "linear" else np.ones(t)
    steps = float(plan.step_size) * falling
    response = descent.heavy_ball(p.nominal.hessian(clip), steps, float(plan.momentum))
    kept = p.nominal.kept(clip) ** 2
    return risk(p, response, stddev**2 + kept * sampled(p, plan.batch_size))


def item_sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``item_group_privacy``."""
    model, clip, step = p.nominal, float(plan.clip_norm), float(plan.step_size)
    # Each draw is one item, whose gradient differs from the mean as items do.
    drawn = 0.0 if plan.batch_size is None else 1.0 / plan.batch_size
    each = model.typical**2 * model.curvatures * drawn
    response = descent.averaged(model.hessian(clip), step, plan.num_steps)
    return risk(p, response, plan.noise_stddev**2 + each, step * clip)


def multipass_sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``multipass_sgd``."""
    clip, step = float(plan.clip_norm), float(plan.step_size)
    response = descent.averaged(p.nominal.hessian(clip), step, plan.num_steps)
    return risk(p, response, float(plan.noise_stddev) ** 2, step * clip)


def localized_sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``localized_sgd``: all blocks, each from the point of the one before."""
    model = p.nominal
    left = model.starts
    for part in plan.parts:
        hessian = model.hessian(float(part.clip_norm))
        response = descent.averaged(hessian, float(part.step_size), part.num_steps)
        variance = float(part.noise_stddev) ** 2
        # The minimizer of a block is off as well, since its users are a sample.
        block = part.releases.population_size
        off = sampled(p, block) / model.hessian() ** 2
        left = response.kept**2 * left + response.noise * variance + off
    return model.excess(left)


def winsorized_erm(p: Setting, plan: Any) -> float:
    """Prediction for ``winsorized_erm``."""
    phase = plan.phase
    steps, shares = np.asarray(phase.step_sizes, float), np.asarray(phase.shares, float)
    response = descent.scheduled(p.nominal.hessian(), steps, shares)
    return risk(p, response, float(phase.releases.noise_stddev) ** 2)


def ac_sa(p: Setting, plan: Any) -> float:
    """Prediction for ``private_ac_sa``."""
    clip, batch, radius = float(plan.clip_norm), plan.batch_size, float(plan.smoothing_radius)
    stddev = 2 * float(plan.noise_multiplier) * clip / batch
    added = float(plan.regularization)
    hessian = p.nominal.hessian(clip)
    response = descent.ac_sa(
        hessian + added, float(plan.smoothness), float(plan.strong_convexity), plan.num_steps
    )
    variance = stddev**2 + p.nominal.kept(clip) ** 2 * (
        sampled(p, batch) + shifted(p, batch, radius)
    )
    return risk(p, response.pulled(hessian, added), variance) + flattened(p, radius)


def shifted(p: Setting, batch_size: int, radius: float) -> Any:
    """Variance of a direction by random shifts of the points where gradients are taken."""
    if radius == 0:
        return 0.0
    model = p.nominal
    return model.typical**2 * model.curvatures / (p.items_per_user * batch_size)


def flattened(p: Setting, radius: float) -> float:
    """What a loss rises by if it is averaged over a ball of this radius: quadratic in small ones."""
    model = p.nominal
    return model.excess(np.full_like(model.starts, radius**2 / (p.dim + 2)))


def accelerated(p: Setting, plan: Any) -> float:
    """Prediction for ``accelerated_sgd``, ``accelerated_phased_erm`` and ``accelerated_strongly_convex``."""
    model = p.nominal
    left = model.starts
    for part in _parts(plan):
        batch, radius = part.batch_size, float(part.smoothing_radius)
        hessian, added = model.hessian(float(part.clip_norm)), float(part.regularization)
        stage = descent.ac_sa(
            hessian + added, float(part.smoothness), float(part.strong_convexity), part.stage_length
        )
        response = stage
        for _ in range(part.num_stages - 1):
            response = response.then(stage)
        response = response.pulled(hessian, added)
        drawn = sampled(p, min(batch, part.num_users)) + shifted(p, batch, radius)
        variance = float(part.noise_stddev) ** 2 + drawn
        left = response.kept**2 * left + response.noise * variance
    return model.excess(left) + flattened(p, radius)


def _parts(plan: Any) -> tuple[Any, ...]:
    """The phases of a plan, of all of its blocks in order."""
    parts = getattr(plan, "parts", None)
    return (plan,) if parts is None else tuple(phase for part in parts for phase in _parts(part))


def output_perturbation(p: Setting, plan: Any) -> float:
    """Prediction for ``output_perturbation``."""
    model, added = p.nominal, float(plan.regularization)
    off = added / (model.hessian() + added)
    return model.excess(off**2 * model.starts + plan.noise_stddev**2)
