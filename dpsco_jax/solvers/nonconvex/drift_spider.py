"""Spider that begins anew once it has drifted: stationary points with high probability, and past saddles.

What it computes: x_{t+1} = x_t - η·v_t, η = 1/M, where v_t is a private estimate of ∇F(x_t): begun anew from
gradients once Σ‖x_s - x_{s-1}‖² since it began is at least κ, and kept up in between by clipped differences
∇f_u(x_t) - ∇f_u(x_{t-1}), whose noise is in proportion to the length of the step. Everybody takes part in
every step (``sampling="full"``), for the risk on the data; or everybody in one step at most (``"one_pass"``),
for the risk on the population that users are drawn from.

For first-order goals the point with the shortest v_t is reported. With ``second_order`` a step is pushed at
random where v_t is short, at most every Γ steps, which is meant to leave saddles; the last point is reported,
and ``find_sosp`` looks among all of them for one that is no saddle.

Source: thesis, Algorithm 17, Lemmas 6.3.3 to 6.3.7, with the oracles (6.2) and (6.3), corrected: the noise of
differences (C6-1), pushes that ask for no gradients (C6-2), the drift after a reset (C6-3), a cap N on how
often v_t begins anew (C6-4), and true noise of one pass (C6-6, C6-7): docs/corrections/nonconvex.md.

Formal guarantee: (ε, δ)-DP for a user's whole data, at every point of the run, under REPLACE_ONE, or
REPLACE_SPECIAL: Gaussian releases of clipped sums, at most N of gradients and T - 1 of differences, paid for
in full whatever is released; a run that would begin anew once more halts. Nothing is assumed of the loss.
Utility, for losses that are G-Lipschitz and M-smooth on the whole space and F(x_0) - inf F ≤ B: with
probability 1 - ω all estimates are off by at most e, of the plan, and then, pushes or not, the point of the
shortest estimate has

    ‖∇F(x)‖ ≤ (2BM/T + e²)^½ + 2e

(docs/theory/nonconvex.md, section 3), so that the plan takes the T, κ and split that make this least. Neither
this nor anything else proves that a saddle is left (C6-5). Beside its bound the plan says what noisy gradient
descent proves, in expectation.

Cost: 2·T·n user gradients, or 2·n in one pass; memory of one chunk of user gradients.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import fixtures
    >>> from dpsco_jax.solvers.nonconvex import drift_spider
    >>> made = fixtures.two_wells(jax.random.key(0), num_users=100, items_per_user=1, dim=2)
    >>> plan = drift_spider.plan(made.problem(), Budget(4.0, 1e-5), initial_gap=1.0, most_steps=20)
    >>> start = jax.numpy.zeros(2)
    >>> run = jax.jit(lambda key: drift_spider.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 4.0
    ((2,), 0, True)
"""

import math
from typing import Annotated, Any

from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Constants, Count, Flag, Inside, Positive, one_of
from dpsco_jax._numerics import float32_above
from dpsco_jax.privacy.releases import fixed_size
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, methods
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.nonconvex import _stationary, noisy_descent
from dpsco_jax.solvers.nonconvex._drift_schedule import (
    Goal,
    concentrated,
    paper_schedule,
    pushed,
    schedule,
)
from dpsco_jax.solvers.nonconvex._spider_mean import Spider, SpiderReleases
from dpsco_jax.solvers.plans import Remarks

__all__ = ["plan", "solve"]

Sampling = Annotated[str, one_of("full", "one_pass")]


@_plan_base.remembers(least_users=2, convex=False)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    initial_gap: Positive | None = None,
    second_order: Flag = False,
    sampling: Sampling = "full",
    failure_probability: Inside = 0.05,
    most_steps: Count = 10_000,
    num_steps: Count | None = None,
    drift: Positive | None = None,
    gradient_clip: Positive | None = None,
    difference_clip: Positive | None = None,
    chunk_size: Count = 64,
    accountant: _planning.Accountant = "pld",
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
    constants: Constants = "tight",
) -> FirstOrder:
    """Chooses steps, refreshes and noise by the bound. All arguments are public.

    Args:
        problem: for n, d, and the constants of the loss up to the second derivative, with ``second_order``
            the third.
        budget: (ε, δ) of the run, δ > 0.
        initial_gap: B ≥ F(x_0) - inf F; the range of the loss, if it has one, if left out.
        second_order: whether steps are pushed where the gradient is small, and the last point is reported.
        sampling: ``"full"``, everybody in every step, for the risk on the data; or ``"one_pass"``, everybody
            in one step at most, in the order of the data, for that on the population.
        failure_probability: ω.
        most_steps: T is at most this; the bound often wants more steps than one cares to wait for.
        num_steps: T; the best that is at most ``most_steps`` if left out.
        drift: κ; the best if left out.
        gradient_clip: G; the objective's Lipschitz constant if left out.
        difference_clip: M; the objective's smoothness constant if left out.
        chunk_size: users whose gradients are held at once.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        relation: of neighbours: REPLACE_ONE, or REPLACE_SPECIAL, where a user is replaced by nobody.
        constants: ``"tight"``; or ``"paper"``, those of the paper's proof: errors of a quarter of the goal γ,
            T = ⌈11·BM/γ²⌉, a half of the budget, or of the users, for each kind of release.

    Raises:
        ValueError: an argument is out of range; the loss is not smooth and no ``difference_clip`` given, or
            its Hessian is not Lipschitz for ``second_order``; or there are too few users for one pass.
    """
    users, objective = problem.num_users, problem.objective
    gap = _stationary.gap_of(problem, initial_gap)
    clip = _stationary.smoothness_of(problem, difference_clip, "difference_clip")
    lipschitz = problem.lipschitz if gradient_clip is None else gradient_clip
    goal = Goal(
        initial_gap=gap,
        lipschitz=lipschitz,
        smoothness=clip,
        curvature=clip + objective.ridge,
        dim=problem.dim,
        num_users=users,
        per_norm=_stationary.per_norm(relation),
        failure=failure_probability,
        one_pass=sampling == "one_pass",
    )
    joint = fixed_size(users, users, 1).noise_multiplier(budget.epsilon, budget.delta, accountant)
    drifts = None if drift is None else [drift]
    if constants == "paper":
        for name, given in (("num_steps", num_steps), ("drift", drift)):
            _checks.require(given is None, name, given, 'None for constants="paper"')
        squared = 2 * concentrated(budget)
        found = paper_schedule(goal, squared, most_steps)
    else:
        squared = float(joint) ** -2
        steps = _stationary.grid(most_steps, 100) if num_steps is None else [num_steps]
        found = schedule(goal, squared, steps, drifts)
    releases = SpiderReleases(
        population_size=users,
        num_steps=found.num_steps,
        most_refreshes=found.most_refreshes,
        most_differences=found.num_steps - 1,
        batch_sizes=found.batch_sizes,
        refresh_multiplier=float32_above(found.gradient_share**-0.5),
        difference_multiplier=float32_above(found.difference_share**-0.5),
        delta=budget.delta,
        neighbours=relation,
    )
    proven = math.isinf(problem.diameter)
    bound = found.bound if proven else math.inf
    sensitivity = goal.per_norm * lipschitz / users
    descent = noisy_descent.schedule(
        gap, goal.curvature, sensitivity, problem.dim, float(joint) ** -2, most_steps
    ).bound
    details = {"gradient_norm_bound": bound, "estimate_error_bound": found.error}
    if sampling == "full":
        details["noisy_descent_proves"] = descent if proven else math.inf
    method: Any = methods.ShortestGradient(1 / goal.curvature)
    if second_order:
        third = _checks.require_real("hessian_lipschitz", objective.hessian_lipschitz, 0)
        method = methods.Perturbed(*pushed(goal, found.bound, found.error, third))
    likely = f"the point of the shortest estimate, with probability {1 - failure_probability:g}"
    return FirstOrder(
        title="drift-triggered private Spider" + (", second order" if second_order else ""),
        dim=problem.dim,
        mean=Spider(chunk_size, "drift", releases, lipschitz, clip, found.drift),
        method=method,
        pull=None,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=math.inf,
        details=details,
        remarks=Remarks(
            (
                (
                    "reported",
                    "the last point" if second_order else "where the estimate is shortest",
                ),
                ("gradient norm bound is of", likely),
            )
        ),
        premises=Remarks(
            _stationary.PREMISES
            + (("users are drawn independently",) if sampling == "one_pass" else ())
        ),
        promised_relation=_stationary.promised(relation),
    )
