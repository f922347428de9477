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
from typing import Annotated

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Constants, Count, Nonnegative, Positive, one_of
from dpsco_jax.privacy.releases import GaussianReleases
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, means, methods
from dpsco_jax.solvers._schedules import private_ac_sa as schedule
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.plans import Remarks

__all__ = ["plan", "solve"]


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    constants: Constants = "tight",
    policy: Annotated[str, one_of("auto", *schedule.POLICIES)] = "auto",
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

    setting = schedule.Setting(
        num_users=num_users,
        dim=problem.dim,
        epsilon=budget.epsilon,
        delta=budget.delta,
        distance=distance,
        paper=paper,
        objective=problem.objective,
        clip_norm=clip,
        regularization=regularization,
    )

    def under(policy: str) -> FirstOrder:
        steps, batch = schedule.sizes(setting, policy, num_steps, batch_size)
        if paper:
            multiplier = schedule.paper_noise_multiplier(setting, steps, batch)
        else:
            multiplier = _planning.fixed_size(num_users, batch, steps).noise_multiplier(
                budget.epsilon, budget.delta, accountant
            )
        numbers = schedule.step_sizes(setting, policy, steps, batch, multiplier)
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
    policies = schedule.candidates(setting) if policy == "auto" else (policy,)
    best = min(map(under, policies), key=lambda candidate: candidate.excess_bound)
    return best if clip >= lipschitz else dataclasses.replace(best, excess_bound=math.inf)
