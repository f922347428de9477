"""Private AC-SA: accelerated stochastic approximation on a smoothed loss, with noisy large batches.

What it computes: minimizes the mean over users of convex G-Lipschitz losses. Each step draws a batch of
exactly B users, takes their gradients at points shifted within a small ball (which makes the loss smooth in
expectation), clips them to G, sums, adds Gaussian noise, divides by B, and feeds the AC-SA recursion.

Source: thesis, Algorithm 4, Lemmas 1.4.4 and 1.4.5; parameters of Theorem 1.4.9; the convex case by
regularization (Lemma 1.4.10) or directly by AC-SA's convex policy. With these corrections: one replaced
user moves the sum by 2G (not G); the smoothing radius is that of the proof, R·d^(1/4)/T (not
R/(T·d^(1/4))); the regularizer is centred at the start; it stays outside of clip and noise.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, at every point of the run. Nothing is
assumed of the losses: gradients are clipped to G. Smoothing, steps and projection are post-processing.
Assumed: the key and the batches stay secret. Utility, for losses convex and G-Lipschitz within r of the
domain and R ≥ the distance from the start to a minimizer, with V = G²/B + dim·σ²/B²:

    strongly convex: E F(w) - F* ≤ β + 2LR²/(T(T+1)) + 2V/(μ(T+1))
    direct:          E F(w) - F* ≤ β + 4LR²/(T(T+1)) + 2R·√(V(2T+1)/(3T(T+1)))
    regularize:      the first line with μ = u, L + u, plus uR²/2

where β = G·r·d/(d+1) and L = c_d·G/r with smoothing; β = 0 and L the loss's own constant without it.

Cost: T·B user gradients; memory of one chunk of them, shifts included; a linear model's
data are held in a second copy, prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import private_ac_sa
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = private_ac_sa.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=8)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: private_ac_sa.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import math
from typing import Annotated, NamedTuple

import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Constants, Count, Nonnegative, Positive, one_of
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry import smoothing
from dpsco_jax.privacy.curves import tcdp
from dpsco_jax.privacy.releases import GaussianReleases
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, means, methods
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.transforms import balanced_smoothness

__all__ = ["plan", "solve"]

_POLICIES = ("strongly_convex", "direct", "regularize")
_PAPER_NOISE = 12.0  # c_2 for sensitivity 2G; with c_1 = 1
_TYPICAL_NOISE = (
    2.5  # what an accountant finds in its place; sets step counts only, never the noise
)


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    constants: Constants = "tight",
    policy: Annotated[str, one_of("auto", *_POLICIES)] = "auto",
    num_steps: Count | None = None,
    batch_size: int | None = None,
    clip_norm: Positive | None = None,
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
    regularization: Nonnegative = 0.0,
) -> FirstOrder:
    """Checks all arguments, sets the schedule and calibrates the noise. All of them are public.

    Args:
        problem: for the objective, N ≥ 2, the number of parameters, and R; the diameter of the domain in its
            place if it has none.
        budget: (ε, δ) of the run, δ > 0; both at most 1/2 for ``constants="paper"``.
        constants: ``"tight"``: no smoothing where the loss is smooth enough, sharp smoothing constants,
            few steps, noise from ``accountant``. ``"paper"``: the theorem's schedule, noise from its closed
            form, checked by its own accountant (tCDP).
        policy: ``"strongly_convex"``, ``"direct"``, ``"regularize"``, or ``"auto"``: of the first two, if
            both apply, the one that proves more (``"paper"``: the first).
        num_steps: T, in place of the schedule's.
        batch_size: B, in place of the schedule's; N for full batches.
        clip_norm: G, in place of the objective's Lipschitz constant. A smaller one means less noise and
            gradients that are biased: nothing is proved of the excess risk then.
        accountant: for ``"tight"``: ``"pld"`` (least noise) or ``"rdp"`` (the ledger meets ε as well).
        chunk_size: users whose gradients are held at once.
        regularization: u ≥ 0; if positive, the objective is the loss plus (u/2)·‖w - center‖², with the
            centre given to ``solve``: R and ``excess_bound`` speak of that sum. Strongly convex policy.

    Raises:
        ValueError: an argument is out of range, R is not finite, or a precondition of the paper's theorem
            fails; the message says which.
    """
    paper = constants == "paper"
    most = 0.5 + 1e-12  # the paper's theorem holds up to one half
    if paper:
        _checks.require_real("budget.epsilon", budget.epsilon, 0, most)
        _checks.require_real("budget.delta", budget.delta, 0, most)
    num_users, distance, lipschitz = (
        problem.num_users,
        problem.require_distance(),
        problem.lipschitz,
    )
    clip = _checks.require_real("clip_norm", lipschitz if clip_norm is None else clip_norm, 0)
    if paper and clip < lipschitz:
        raise ValueError(f"clip_norm must be at least {lipschitz:g} for 'paper', got {clip:g}")
    if batch_size is not None:
        batch_size = _checks.require_integer("batch_size", batch_size, 1, num_users)

    if regularization > 0:
        _checks.require_choice("policy", policy, ("auto", "strongly_convex"))
        policy = "strongly_convex"

    setting = _Setting(problem, budget, paper, clip, regularization)

    def under(policy: str) -> FirstOrder:
        steps, batch = _sizes(setting, policy, num_steps, batch_size)
        if paper:
            multiplier = _paper_noise_multiplier(setting, steps, batch)
        else:
            multiplier = _planning.fixed_size(num_users, batch, steps).noise_multiplier(
                budget.epsilon, budget.delta, accountant
            )
        numbers = _step_sizes(setting, policy, steps, batch, multiplier)
        releases = GaussianReleases(num_users, batch, steps, "fixed", multiplier, budget.delta)
        radius = numbers.smoothing_radius if numbers.smoothing_radius > 0 else None
        reach = numbers.smoothing_radius
        within = f"losses are convex and {clip:.4g}-Lipschitz within {reach:.3g} of the domain"
        return FirstOrder(
            title="private AC-SA",
            dim=problem.dim,
            mean=means.Clipped(chunk_size, "user", releases, clip, radius),
            method=methods.AcSa(numbers.smoothness, numbers.strong_convexity),
            pull=numbers.regularization,
            epsilon=budget.epsilon,
            delta=budget.delta,
            excess_bound=numbers.excess_bound,
            details={"distance": distance},
            remarks=Remarks(
                [
                    ("constants", constants),
                    ("policy", policy),
                    ("excess_of_doing_nothing", f"at most {clip * distance:.5g}"),
                ]
            ),
            premises=Remarks([within]),
            promised_relation=_planning.REPLACE_ONE,
        )

    if policy == "strongly_convex":
        _checks.require_real("strong_convexity", setting.strong_convexity, 0)
    policies = _candidates(setting) if policy == "auto" else (policy,)
    best = min(map(under, policies), key=lambda candidate: candidate.excess_bound)
    return best if clip >= lipschitz else dataclasses.replace(best, excess_bound=math.inf)


class _Setting(NamedTuple):
    """The public numbers that a schedule depends on."""

    problem: Problem
    budget: privacy.Budget
    paper: bool
    clip_norm: float
    regularization: float = 0.0

    @property
    def objective(self) -> Objective:
        """What is minimized, without the regularization."""
        return self.problem.objective

    @property
    def distance(self) -> float:
        """R."""
        return self.problem.require_distance()

    @property
    def strong_convexity(self) -> float:
        """μ of all that is minimized: loss, ridge and the regularization that was asked for."""
        return self.objective.strong_convexity + self.regularization

    @property
    def log_delta(self) -> float:
        """The natural logarithm of 1/δ."""
        return math.log(1 / self.budget.delta)

    @property
    def accuracy(self) -> float:
        """The relative accuracy that privacy allows, a = √(d·log(1/δ))/(εN)."""
        root = math.sqrt(self.problem.dim * self.log_delta)
        return root / (self.budget.epsilon * self.problem.num_users)


class _StepSizes(NamedTuple):
    """The numbers of a plan that sizes and noise determine."""

    smoothness: float
    strong_convexity: float
    smoothing_radius: float
    regularization: float
    excess_bound: float


def _candidates(p: _Setting) -> tuple[str, ...]:
    """The policies among which the bound decides: of little strong convexity, none proves more."""
    if p.objective.strong_convexity == 0:
        return ("direct",)
    return _POLICIES[:1] if p.paper else _POLICIES[:2]


def _sizes(
    p: _Setting, policy: str, num_steps: int | None, batch_size: int | None
) -> tuple[int, int]:
    """T and B, each as given or by the schedule, of base = εN/(d^(1/4)·√log(1/δ)).

    - ``"paper"``: T = ⌈100·base⌉, B = ⌈N√(ε/T) + 1/(a²T)⌉.
    - ``"tight"``: with smoothing T = ⌈8·base⌉. Without, T is as large as the bias of the initial distance
      needs to fall to half of the privacy error. B = ⌈N√(ε/(10T)) + 1/(a²T)⌉: the first term keeps the noise
      of T subsampled steps within a few percent of its limit for large batches, the second keeps the sampling
      error below the privacy error.
    """
    n, a = p.problem.num_users, p.accuracy
    if num_steps is None:
        base = p.budget.epsilon * n / (p.problem.dim**0.25 * math.sqrt(p.log_delta))
        num_steps = math.ceil((100 if p.paper else 8) * base)
        # The loss needs no smoothing where its own constant is the smaller; then fewer steps do.
        if not p.paper and not _needs_smoothing(p, policy, num_steps):
            num_steps = min(num_steps, _steps_without_smoothing(p, policy))
    if batch_size is None:
        privacy_share = p.budget.epsilon / ((1 if p.paper else 10) * num_steps)
        batch_size = min(n, math.ceil(n * math.sqrt(privacy_share) + 1 / (a**2 * num_steps)))
    return num_steps, batch_size


def _paper_noise_multiplier(p: _Setting, num_steps: int, batch_size: int) -> float:
    """The noise of Theorem 1.3.1 over the sensitivity 2G, accepted only if tCDP confirms it.

    Raises:
        ValueError: if a precondition of the theorem fails, or tCDP finds more than ε.
    """
    fraction = batch_size / p.problem.num_users
    if p.budget.epsilon > fraction**2 * num_steps:
        raise Infeasible(
            "epsilon must be at most num_steps·(batch_size/num_users)² for constants='paper', got "
            f"epsilon = {p.budget.epsilon:g} > {fraction**2 * num_steps:g}",
            {"epsilon": fraction**2 * num_steps},
        )
    root = math.sqrt(num_steps * p.log_delta)
    multiplier = _PAPER_NOISE / 2 * fraction * root / p.budget.epsilon
    step = tcdp.subsampled(tcdp.gaussian(multiplier), fraction)
    spent = tcdp.epsilon(tcdp.scale(step, num_steps), p.budget.delta)
    if spent > p.budget.epsilon:
        raise Infeasible(
            f"epsilon must be at least {spent:g} (tCDP) for these sizes, got {p.budget.epsilon:g}",
        )
    return _planning.float32_above(multiplier)


def _step_sizes(
    p: _Setting, policy: str, num_steps: int, batch_size: int, noise_multiplier: float
) -> _StepSizes:
    """What AC-SA is run with, and the bound that this proves."""
    t = num_steps
    radius = _radius(p, policy, t) if p.paper or _needs_smoothing(p, policy, t) else 0.0
    if radius > 0:
        own = _factor(p) * p.problem.lipschitz / radius
        bias = smoothing.ball_bias(p.problem.lipschitz, radius, p.problem.dim)
    else:
        assert p.objective.smoothness is not None
        own, bias = p.objective.smoothness, 0.0
    smoothness = own + p.objective.ridge + p.regularization
    # A full batch has no sampling error, but its smoothing shifts are still random.
    sampling_error = (
        p.clip_norm**2 / batch_size if batch_size < p.problem.num_users or radius > 0 else 0.0
    )
    noise = 2 * p.clip_norm * noise_multiplier / batch_size
    variance = sampling_error + p.problem.dim * noise**2
    if policy == "direct":
        step_parameter = float(np.asarray(balanced_smoothness(smoothness, variance, t, p.distance)))
        initial = 2 * step_parameter * p.distance**2 / (t * (t + 1))
        return _StepSizes(
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
    return _StepSizes(smoothness, convexity, radius, p.regularization + added, bound)


def _regularization(p: _Setting, num_steps: int, variance: float) -> float:
    """u: balances its own bias uR²/2 with the noise error 2V/(uT)."""
    if p.paper:
        # The noise error is at most C·G²a²/u with C = 2(c_2² + 1).
        return p.problem.lipschitz / p.distance * math.sqrt(4 * (_PAPER_NOISE**2 + 1)) * p.accuracy
    return 2 * math.sqrt(variance / num_steps) / p.distance


def _factor(p: _Setting) -> float:
    return math.sqrt(p.problem.dim) if p.paper else smoothing.smoothness_factor(p.problem.dim)


def _radius(p: _Setting, policy: str, num_steps: int) -> float:
    """r: balances the bias G·r with the smoothness term 2LR²/T² (4LR²/T² for the direct policy)."""
    if p.paper:
        return p.distance * p.problem.dim**0.25 / num_steps
    doubled = 4.0 if policy == "direct" else 2.0
    return p.distance * math.sqrt(doubled * _factor(p)) / num_steps


def _needs_smoothing(p: _Setting, policy: str, num_steps: int) -> bool:
    ball = smoothing.ball_smoothness(
        p.problem.lipschitz, _radius(p, policy, num_steps), p.problem.dim
    )
    return p.objective.smoothness is None or p.objective.smoothness > ball


def _steps_without_smoothing(p: _Setting, policy: str) -> int:
    """T at which the term of the initial distance is half of the privacy error."""
    assert p.objective.smoothness is not None
    smoothness = p.objective.smoothness + p.objective.ridge + p.regularization
    if policy == "strongly_convex":
        privacy_error = 2 * (_TYPICAL_NOISE * p.clip_norm * p.accuracy) ** 2 / p.strong_convexity
        return math.ceil(p.distance * math.sqrt(4 * smoothness / privacy_error))
    privacy_error = p.clip_norm * p.distance * p.accuracy
    return math.ceil(p.distance * math.sqrt(8 * smoothness / privacy_error))
