"""The stages of AC-SA: how long each is, its step parameter, and the bound that this proves.

What it computes: for an L-smooth, μ-strongly convex f, gradients of variance V and a start within R of a
minimizer of F = f + h over K, in float64, one of three schedules of ``transforms.ac_sa``:

    strongly convex (μ > 0)  one stage of T steps:  E F - F* ≤ 2LR²/(T(T+1)) + 2V/(μ(T+1))
    convex                   one stage of T steps:  E F - F* ≤ 2ΓR²/(T(T+1)) + V(2T+1)/(6Γ)
    multi-stage (μ > 0)      stage k = 1, 2, ... of N_k = ⌈max(4√(2L/μ), 128·2^k·V/(3μ·V_0))⌉ steps of the
                             convex kind from where the last has ended: E F - F* ≤ 2^-k·V_0

with Γ = L if V = 0 and otherwise the larger of 2L and √(V·T(T+1)(2T+1)/12)/R, in every stage with its own
T and R. V_0 = μR²/2 may be less than the gap at the start: a stage uses of its start only that the expected
squared distance to the minimizer is at most R_k². Stages start with R_1 = R and go on with R_{k+1}² =
2·bound_k/μ, where bound_k is that of the second line for the lengths as rounded; the last one is the bound
that a schedule states.

Source: Ghadimi and Lan 2012 (one stage) and 2013 (several); thesis, Theorem 1.4.1 and section 2.8. The
constants are those of docs/corrections/accelerated.md, C. Proof of the third line: let R_k² ≤ 2^(1-k)·2V_0/μ.
Γ minimizes the second line over [2L, ∞), and the sum of both candidates bounds what it makes of it:
4LR_k²/N² + 2R_k√(2V/(3N)). As N² ≥ 32L/μ the first is at most μR_k²/8 ≤ 2^-k·V_0/2, as N ≥ 128·2^k·V/(3μV_0)
so is the second; so bound_k ≤ 2^-k·V_0 and R_{k+1}² ≤ 2^-k·2V_0/μ. With V = 0 and Γ = L it is an eighth,
not a half, and N_k is within 4 % of the length that is best for the product of all stages.

Formal guarantee: the bounds are theorems under the assumptions named. Nothing looks at data.

Cost: none.

Example:
    >>> from dpsco_jax.solvers.convex import ac_sa_stages
    >>> numbers = {"smoothness": 1.0, "gradient_variance": 0.0, "strong_convexity": 0.1}
    >>> setting = ac_sa_stages.Setting(**numbers, distance=1.0)
    >>> stages = ac_sa_stages.stages_within(setting, num_steps=100)
    >>> stages.policy, sum(stages.lengths) <= 100, stages.excess_bound < 1e-4
    ('multi_stage', True, True)
"""

import dataclasses
import math

import numpy as np

from dpsco_jax import _checks
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.transforms import balanced_smoothness

POLICIES = ("strongly_convex", "convex", "multi_stage")

MOST_STEPS = 2**31 - 1


@pytree
class Stages:
    """A schedule of AC-SA. Sizes are static, numbers are leaves of the pytree.

    Attributes:
        policy: one of ``POLICIES``.
        lengths: steps of each stage.
        smoothness: L, or the step parameter Γ, of each stage, ``[stages]``.
        strong_convexity: μ as the steps use it: 0 except under ``"strongly_convex"``.
        excess_bound: proven bound on the expected gap at the end.
    """

    policy: str = static(choices=POLICIES)
    lengths: tuple[int, ...] = static()
    smoothness: Number
    strong_convexity: Number
    excess_bound: Number

    @property
    def num_steps(self) -> int:
        """Steps of all stages together."""
        return sum(self.lengths)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the bounds depend on; all public.

    Attributes:
        smoothness: L > 0 of f.
        strong_convexity: μ in [0, L] of f.
        gradient_variance: V ≥ 0, bound on E‖gradient - its mean‖².
        distance: R > 0, bound on the distance from the start to a minimizer.
    """

    smoothness: float
    strong_convexity: float
    gradient_variance: float
    distance: float

    def __post_init__(self) -> None:
        _checks.require_real("smoothness", self.smoothness, 0)
        most = math.nextafter(self.smoothness, math.inf)
        _checks.require_real("strong_convexity", self.strong_convexity, 0, most, closed=True)
        _checks.require_real("gradient_variance", self.gradient_variance, 0, closed=True)
        _checks.require_real("distance", self.distance, 0)


def one_stage(setting: Setting, policy: str, num_steps: int) -> Stages:
    """The schedule of one stage of T steps, ``"strongly_convex"`` or ``"convex"``."""
    if policy == "convex":
        return convex_stages(setting, policy, (num_steps,))
    if policy != "strongly_convex":
        raise ValueError(f"policy of one stage must be one of {POLICIES[:2]}, got {policy!r}")
    convexity = _checks.require_real("strong_convexity", setting.strong_convexity, 0)
    bound = 2 * setting.smoothness * setting.distance**2 / (num_steps * (num_steps + 1))
    bound += 2 * setting.gradient_variance / (convexity * (num_steps + 1))
    return Stages(policy, (num_steps,), np.array([setting.smoothness]), convexity, bound)


def stages_within(setting: Setting, num_steps: int) -> Stages:
    """As many stages as fit into T steps, the last as long as there is room.

    Raises:
        ValueError: if not even the first stage fits.
    """
    lengths = [_length(setting, 1)]
    if lengths[0] > num_steps:
        raise Infeasible(
            f"num_steps must be at least {lengths[0]} for 'multi-stage', got {num_steps}",
            {"num_steps": lengths[0]},
        )
    while sum(lengths) + (following := _length(setting, len(lengths) + 1)) <= num_steps:
        lengths.append(following)
    lengths[-1] += num_steps - sum(lengths)
    return convex_stages(setting, "multi_stage", tuple(lengths))


def stages_to(setting: Setting, excess: float) -> Stages:
    """As many stages as it takes for the bound to be at most ``excess``.

    Raises:
        ValueError: if that takes 2^31 steps or more.
    """
    lengths: tuple[int, ...] = ()
    while sum(lengths) <= MOST_STEPS:
        lengths += (_length(setting, len(lengths) + 1),)
        stages = convex_stages(setting, "multi_stage", lengths)
        if stages.excess_bound <= excess:
            return stages
    raise Infeasible(f"excess must be reached in fewer than 2^31 steps, got {excess:g}")


def convex_stages(p: Setting, policy: str, lengths: tuple[int, ...]) -> Stages:
    """The schedule of stages of the convex kind, of the given lengths, and what it proves."""
    distance, bound, parameters = p.distance, math.inf, []
    for stage, steps in enumerate(lengths):
        if stage > 0:
            distance = math.sqrt(2 * bound / p.strong_convexity)
        parameter = p.smoothness
        if p.gradient_variance > 0:
            balanced = balanced_smoothness(p.smoothness, p.gradient_variance, steps, distance)
            parameter = float(np.asarray(balanced))
        bound = 2 * parameter * distance**2 / (steps * (steps + 1))
        bound += p.gradient_variance * (2 * steps + 1) / (6 * parameter)
        parameters.append(parameter)
    return Stages(policy, lengths, np.array(parameters), 0.0, bound)


def _length(setting: Setting, stage: int) -> int:
    """N_k."""
    _checks.require_real("strong_convexity", setting.strong_convexity, 0)
    gap = 0.5 * setting.strong_convexity * setting.distance**2
    for_start = 4 * math.sqrt(2 * setting.smoothness / setting.strong_convexity)
    for_noise = 128 * 2.0**stage * setting.gradient_variance
    return math.ceil(max(for_start, for_noise / (3 * setting.strong_convexity * gap)))
