"""The schedule of private AC-SA: steps, batch, radius, step sizes and the bound they prove.

What it computes: everything in a plan of ``private_ac_sa`` that follows from public numbers, in float64.

Source: thesis, Theorem 1.3.1 (noise), Lemma 1.4.5, Theorems 1.4.9 and 1.4.11, read with the corrections
named in ``private_ac_sa``; Ghadimi and Lan 2012 (the bounds of AC-SA). Write a = √(d·log(1/δ))/(εN), the
relative accuracy that privacy allows, and base = εN/(d^(1/4)·√log(1/δ)).

- ``"paper"``: T = ⌈100·base⌉, B = ⌈N√(ε/T) + 1/(a²T)⌉, σ = 12·G·B·√(T·log(1/δ))/(εN), smoothing always,
  with the constants √d in place of c_d.
- ``"tight"``: with smoothing T = ⌈8·base⌉. Without, T is as large as the bias of the initial distance needs
  to fall to half of the privacy error. B = ⌈N√(ε/(10T)) + 1/(a²T)⌉: the first term keeps the noise of T
  subsampled steps within a few percent of its limit for large batches, the second keeps the sampling error
  below the privacy error. The noise comes from an accountant for the sizes as rounded.

Formal guarantee: the bound is a theorem under the assumptions that the plan names. Privacy depends on the
noise multiplier, the sizes and the clip only.

Cost: none.
"""

import math
from typing import NamedTuple

import numpy as np

from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry import smoothing
from dpsco_jax.privacy.curves import tcdp
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers._planning import float32_above
from dpsco_jax.transforms import balanced_smoothness

POLICIES = ("strongly_convex", "direct", "regularize")

_PAPER_NOISE = 12.0  # c_2 for sensitivity 2G; with c_1 = 1
_TYPICAL_NOISE = (
    2.5  # what an accountant finds in its place; sets step counts only, never the noise
)


class Setting(NamedTuple):
    """The public numbers that a schedule depends on."""

    num_users: int
    dim: int
    epsilon: float
    delta: float
    distance: float
    paper: bool
    objective: Objective
    clip_norm: float
    regularization: float = 0.0

    @property
    def strong_convexity(self) -> float:
        """μ of all that is minimized: loss, ridge and the regularization that was asked for."""
        return self.objective.strong_convexity + self.regularization

    @property
    def log_delta(self) -> float:
        """The natural logarithm of 1/δ."""
        return math.log(1 / self.delta)

    @property
    def accuracy(self) -> float:
        """The relative accuracy a of the file's docstring."""
        return math.sqrt(self.dim * self.log_delta) / (self.epsilon * self.num_users)


class StepSizes(NamedTuple):
    """The numbers of a plan that sizes and noise determine."""

    smoothness: float
    strong_convexity: float
    smoothing_radius: float
    regularization: float
    excess_bound: float


def candidates(setting: Setting) -> tuple[str, ...]:
    """The policies among which the bound decides: of little strong convexity, none proves more."""
    if setting.objective.strong_convexity == 0:
        return ("direct",)
    return POLICIES[:1] if setting.paper else POLICIES[:2]


def sizes(
    setting: Setting, policy: str, num_steps: int | None, batch_size: int | None
) -> tuple[int, int]:
    """T and B, each as given or by the schedule."""
    n, a = setting.num_users, setting.accuracy
    if num_steps is None:
        base = setting.epsilon * n / (setting.dim**0.25 * math.sqrt(setting.log_delta))
        num_steps = math.ceil((100 if setting.paper else 8) * base)
        # The loss needs no smoothing where its own constant is the smaller; then fewer steps do.
        if not setting.paper and not _needs_smoothing(setting, policy, num_steps):
            num_steps = min(num_steps, _steps_without_smoothing(setting, policy))
    if batch_size is None:
        privacy_share = setting.epsilon / ((1 if setting.paper else 10) * num_steps)
        batch_size = min(n, math.ceil(n * math.sqrt(privacy_share) + 1 / (a**2 * num_steps)))
    return num_steps, batch_size


def paper_noise_multiplier(setting: Setting, num_steps: int, batch_size: int) -> float:
    """The noise of Theorem 1.3.1 over the sensitivity 2G, accepted only if tCDP confirms it.

    Raises:
        ValueError: if a precondition of the theorem fails, or tCDP finds more than ε.
    """
    fraction = batch_size / setting.num_users
    if setting.epsilon > fraction**2 * num_steps:
        raise Infeasible(
            "epsilon must be at most num_steps·(batch_size/num_users)² for constants='paper', got "
            f"epsilon = {setting.epsilon:g} > {fraction**2 * num_steps:g}",
            {"epsilon": fraction**2 * num_steps},
        )
    root = math.sqrt(num_steps * setting.log_delta)
    multiplier = _PAPER_NOISE / 2 * fraction * root / setting.epsilon
    step = tcdp.subsampled(tcdp.gaussian(multiplier), fraction)
    spent = tcdp.epsilon(tcdp.scale(step, num_steps), setting.delta)
    if spent > setting.epsilon:
        raise Infeasible(
            f"epsilon must be at least {spent:g} (tCDP) for these sizes, got {setting.epsilon:g}",
        )
    return float32_above(multiplier)


def step_sizes(
    setting: Setting, policy: str, num_steps: int, batch_size: int, noise_multiplier: float
) -> StepSizes:
    """What AC-SA is run with, and the bound that this proves."""
    p, t = setting, num_steps
    radius = _radius(p, policy, t) if p.paper or _needs_smoothing(p, policy, t) else 0.0
    if radius > 0:
        own = _factor(p) * p.objective.lipschitz / radius
        bias = smoothing.ball_bias(p.objective.lipschitz, radius, p.dim)
    else:
        assert p.objective.smoothness is not None
        own, bias = p.objective.smoothness, 0.0
    smoothness = own + p.objective.ridge + p.regularization
    # A full batch has no sampling error, but its smoothing shifts are still random.
    sampling_error = p.clip_norm**2 / batch_size if batch_size < p.num_users or radius > 0 else 0.0
    noise = 2 * p.clip_norm * noise_multiplier / batch_size
    variance = sampling_error + p.dim * noise**2
    if policy == "direct":
        step_parameter = float(np.asarray(balanced_smoothness(smoothness, variance, t, p.distance)))
        initial = 2 * step_parameter * p.distance**2 / (t * (t + 1))
        return StepSizes(
            step_parameter,
            0.0,
            radius,
            0.0,
            bias + initial + variance * (2 * t + 1) / (6 * step_parameter),
        )
    added = _regularization(p, t, variance) if policy == "regularize" else 0.0
    convexity = p.strong_convexity + added
    smoothness = max(smoothness + added, convexity)
    bound = (
        bias + 2 * smoothness * p.distance**2 / (t * (t + 1)) + 2 * variance / (convexity * (t + 1))
    )
    bound += added * p.distance**2 / 2
    return StepSizes(smoothness, convexity, radius, p.regularization + added, bound)


def _regularization(p: Setting, num_steps: int, variance: float) -> float:
    """u: balances its own bias uR²/2 with the noise error 2V/(uT)."""
    if p.paper:
        # The noise error is at most C·G²a²/u with C = 2(c_2² + 1).
        return (
            p.objective.lipschitz / p.distance * math.sqrt(4 * (_PAPER_NOISE**2 + 1)) * p.accuracy
        )
    return 2 * math.sqrt(variance / num_steps) / p.distance


def _factor(p: Setting) -> float:
    return math.sqrt(p.dim) if p.paper else smoothing.smoothness_factor(p.dim)


def _radius(p: Setting, policy: str, num_steps: int) -> float:
    """r: balances the bias G·r with the smoothness term 2LR²/T² (4LR²/T² for the direct policy)."""
    if p.paper:
        return p.distance * p.dim**0.25 / num_steps
    doubled = 4.0 if policy == "direct" else 2.0
    return p.distance * math.sqrt(doubled * _factor(p)) / num_steps


def _needs_smoothing(p: Setting, policy: str, num_steps: int) -> bool:
    ball = smoothing.ball_smoothness(p.objective.lipschitz, _radius(p, policy, num_steps), p.dim)
    return p.objective.smoothness is None or p.objective.smoothness > ball


def _steps_without_smoothing(p: Setting, policy: str) -> int:
    """T at which the term of the initial distance is half of the privacy error."""
    assert p.objective.smoothness is not None
    smoothness = p.objective.smoothness + p.objective.ridge + p.regularization
    if policy == "strongly_convex":
        privacy_error = 2 * (_TYPICAL_NOISE * p.clip_norm * p.accuracy) ** 2 / p.strong_convexity
        return math.ceil(p.distance * math.sqrt(4 * smoothness / privacy_error))
    privacy_error = p.clip_norm * p.distance * p.accuracy
    return math.ceil(p.distance * math.sqrt(8 * smoothness / privacy_error))
