"""Clipped gradient descent with a pull to the start: private ERM when gradients have heavy tails.

What it computes: with all n users in every step t = 0, ..., T - 1, from x_0,

    g_t = (1/n)·Σ_users clip(∇f_u(x_t), C) + noise
    x_{t+1} = the x of X ∩ B(x_0, r) with the least η_t·⟨g_t, x⟩ + (η_t·λ/2)·‖x - x_0‖² + ½‖x - x_t‖²,
    η_t = 4/(λ(t + 1)),

and the average of x_0, ..., x_{T-1} of weights t + 4. It minimizes (1/n)·Σ f_u + (λ/2)·‖x - x_0‖². Only the
users' gradients are clipped, neither the pull nor the noise.

Source: T, Algorithm 36, Proposition 12.3.1, Corollary 12.3.3. Corrections: B-a, B-d
(docs/corrections/heavy_tails.md). The tight constants are a quarter of those printed, and hold for all T.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, at every point of the run: replacing a
user moves the mean by 2C/n, whatever the losses are, and T Gaussian releases compose exactly. All arguments
are public; moments that were taken from the data void it. Utility: ``gap_bound`` on the excess of the
objective of these users, exceeded in a share ``failure`` of all runs and samples, for convex losses of i.i.d.
users whose slopes L_u = max over X of ‖∇f_u‖ have the moments given; with a ridge on bounded domains alone.

Without moments, or with a ``quantile``, the clip level is that of the users' gradients themselves: with each
mean the share of users within 0.9·C is released, in one Gaussian release of the same sensitivity, and C
follows it (``transforms.centred_clip``). Nothing is proven of the error.

Cost: T·n user gradients; memory of one chunk of them, and of all with a quantile. The noise is proportional
to √T and is worth the same for every T: beyond a few hundred steps nothing is gained.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.rates.heavy_tailed import Moments
    >>> from dpsco_jax.solvers.heavy_tailed import clipped_gd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(1.0, 1e-5)
    >>> moments = Moments(order=4.0, highest=1.0)
    >>> plan = clipped_gd.plan(problem, budget, moments=moments, regularization=0.1, num_steps=20)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: clipped_gd.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import math

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Constants, Count, Inside, Positive
from dpsco_jax.problems.problem import Problem
from dpsco_jax.rates.heavy_tailed import Moments, OfMoments
from dpsco_jax.solvers import _plan_base, _planning, means, methods
from dpsco_jax.solvers._schedules import clipped_descent
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.heavy_tailed import _quantile_clip
from dpsco_jax.solvers.heavy_tailed._terms import (
    MOST_STEPS,
    PREMISES,
    always_covered,
    known_slope,
    rho_of,
)
from dpsco_jax.solvers.plans import Remarks

__all__ = ["plan", "solve"]


@_plan_base.remembers(least_users=1)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    regularization: Positive,
    moments: OfMoments | None = None,
    num_steps: Count | None = None,
    clip_norm: Positive | None = None,
    quantile: Inside | None = None,
    radius: Positive | None = None,
    failure: Inside = 0.4,
    constants: Constants = "tight",
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
) -> FirstOrder:
    """Checks all arguments, chooses the clip level and calibrates the noise. All of them are public.

    Args:
        problem: for the domain, n and the number of parameters d.
        budget: (ε, δ) of the run, δ > 0.
        regularization: λ > 0.
        moments: of the users' slopes, k ≥ 2; known beforehand, never taken from the data. If left out, the
            clip level follows a quantile.
        num_steps: T; what the proposition asks for, ⌈max(n, n²ρ/d)⌉, but 1,000 at most for ``"tight"``, if
            left out.
        clip_norm: C, in place of the one with the least bound. With a quantile that of the first step: from
            below it rises by e^½ a step, up to 10⁶ times as far, from above it sinks slowly, so that it
            should be low. If left out then G_1, or without moments the Lipschitz constant over 10⁶, which is
            of no use where that is huge because labels are free.
        quantile: γ: the clip level follows the length that a share γ of the users' gradients is within, which
            is released in each step at no cost of privacy. No bound is known then. If moments are left out
            1 - 8√(2d/ρ)/n, but 1/2 at least.
        radius: r, how far points may be from the start; if left out G_1/λ (with a ridge, which is at most B
            steep, (G_1 + B)/λ), within which the minimizer of the population's objective lies, and twice
            that, as printed, for ``"paper"``; the diameter of the domain without moments.
        failure: how often the bound may be exceeded; of the corollary 2/5.
        constants: ``"tight"``: noise by the accountant, the clip level and the bound of the proof in
            docs/theory/heavy_tails.md. ``"paper"``: those of the corollary, with noise for the ρ of zCDP from
            which the budget follows by ε = ρ + 2√(ρ·log(1/δ)).
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range.
    """
    users, dim, paper = problem.num_users, problem.dim, constants == "paper"
    known = known_slope(problem)
    rho = rho_of(users, budget, constants, accountant)
    if num_steps is None:
        printed = clipped_descent.paper_steps(users, dim, rho)
        num_steps = printed if paper else min(printed, MOST_STEPS)
    if moments is None or quantile is not None:
        _checks.require(not paper, "quantile", quantile, "left out, and moments given, for 'paper'")
        sizes = num_steps, accountant, chunk_size
        numbers = moments, clip_norm, radius, regularization
        return _adaptive(problem, budget, rho, quantile, numbers, sizes)
    if radius is None:
        radius = (2 if paper else 1) * (moments.first + known) / regularization
    radius = min(radius, problem.diameter)
    variance = 2 * dim * num_steps / (users**2 * rho)
    found = _numbers(
        moments,
        problem,
        rho,
        num_steps,
        variance,
        failure,
        clip_norm,
        radius * regularization,
        known,
        paper,
    )
    mean = means.clipped(
        problem,
        budget,
        num_steps=num_steps,
        sampling="full",
        clip_norm=found.clip_norm,
        accountant=accountant,
        chunk_size=chunk_size,
    )
    if paper:
        # σ = C·√(2T/ρ)/n, over the sensitivity 2C/n.
        multiplier = _planning.float32_above(math.sqrt(num_steps / (2 * rho)))
        releases = dataclasses.replace(mean.releases, noise_multiplier=multiplier)
        mean = dataclasses.replace(mean, releases=releases)
    # The printed numbers know no ridge.
    covered = always_covered(problem) and not (paper and problem.objective.ridge)
    always = moments.order == math.inf and found.clip_norm >= moments.highest
    mean_gap = clipped_descent.in_the_mean(
        moments, users, num_steps, variance, found.clip_norm, radius * regularization, known
    ).gap
    return FirstOrder(
        title="clipped gradient descent, pulled to its start",
        dim=dim,
        mean=mean,
        method=methods.PulledSteps(regularization, radius),
        pull=None,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=mean_gap / regularization if covered and always else math.inf,
        details={
            "failure": failure,
            "gap_bound": found.gap / regularization if covered else math.inf,
        },
        remarks=Remarks([("constants", constants)]),
        premises=PREMISES,
        promised_relation=_planning.REPLACE_ONE,
    )


def _adaptive(
    problem: Problem,
    budget: privacy.Budget,
    rho: float,
    quantile: float | None,
    numbers: tuple[Moments | None, float | None, float | None, float],
    sizes: tuple[int, _planning.Accountant, int],
) -> FirstOrder:
    """The plan of a clip level that follows a quantile, of which no bound is known."""
    (moments, clip_norm, radius, strength), (num_steps, accountant, chunk_size) = numbers, sizes
    if clip_norm is None:
        least = problem.lipschitz / _quantile_clip.RANGE
        clip_norm = least if moments is None else moments.first
    if radius is None:
        first = math.inf if moments is None else moments.first + known_slope(problem)
        radius = first / strength
    radius = _checks.require_real("radius", min(radius, problem.diameter), 0)
    fixed = means.clipped(
        problem,
        budget,
        num_steps=num_steps,
        sampling="full",
        clip_norm=clip_norm,
        accountant=accountant,
        chunk_size=chunk_size,
    )
    if quantile is None:
        quantile = _quantile_clip.best_share(problem.num_users, problem.dim, rho)
    return FirstOrder(
        title="gradient descent clipped to a quantile, pulled to its start",
        dim=problem.dim,
        mean=_quantile_clip.QuantileClipped(
            chunk_size, fixed.releases, clip_norm, quantile, _quantile_clip.RATE
        ),
        method=methods.PulledSteps(strength, radius),
        pull=None,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=math.inf,
        promised_relation=_planning.REPLACE_ONE,
    )


def _numbers(
    moments: Moments,
    problem: Problem,
    rho: float,
    num_steps: int,
    variance: float,
    failure: float,
    clip_norm: float | None,
    radius: float,
    known: float,
    paper: bool,
) -> clipped_descent.Answer:
    """The clip level, and λ times what the gap exceeds rarely."""
    users, dim = problem.num_users, problem.dim
    if not paper:
        return clipped_descent.in_most_runs(
            moments, users, num_steps, variance, failure, clip_norm, radius, False, known
        )
    clip = clipped_descent.paper_clip(moments, users, dim, rho) if clip_norm is None else clip_norm
    # Corollary 12.3.3, with the factor 5 of Markov's inequality on the last term, too (B-d).
    gap = 320 * moments.highest**2 * (dim / (users**2 * rho)) ** moments.power
    gap += 35 * radius**2 / users
    enough = num_steps >= clipped_descent.paper_steps(users, dim, rho) and failure >= 0.4
    return clipped_descent.Answer(clip, math.nan, gap if enough and clip_norm is None else math.inf)
