"""Localization with dummies: private stochastic convex optimization where every user's slope is bounded.

What it computes: for every user u there is a number S_u, part of what the user holds, that no gradient of
the user's loss on the domain is longer than. Users with S_u > C become dummies, whose loss is 0; on all n
users ``localized_erm`` for slopes of at most C is run.

Source: T, Algorithm 39, Lemma 12.6.4, with C = G_k·(n√ρ/√d)^{1/k}. Corrections: H1 (what the dummies take
away), H6 (the dummies of strongly convex losses, which are not used here), docs/corrections/heavy_tails.md.

Formal guarantee: (ε, δ)-DP for a user's whole data, S_u included, under REPLACE_ONE: whether a user is a
dummy depends on that user alone, so that neighbours stay neighbours, and n does not change. Every gradient is
clipped at C besides: an S_u that is too small costs utility alone. An S_u that is no number makes a dummy.
The S_u are private; C is public and comes from public moments, never from the S_u.

Utility: ``excess_bound``, for convex losses, with a ridge on bounded domains alone, of i.i.d. users with E
S_u^k ≤ G_k^k and E S_u² ≤ G_2², and D at least the distance from the start to a minimizer x*. The dummies'
risk F' has slopes of at most C, and the proof of localization holds against any point within D of the start,
hence against x*, which need not minimize F'. F - F' is E[S_u·1{S_u > C}]-Lipschitz, G_k^k/C^{k-1} at most.
With R the most that the last point can be from x*, the diameter or D and the radii of all phases,

    E F(x_I) - F(x*) ≤ the bound of ``localized_erm`` at L = C + R·G_k^k/C^{k-1}.

Of order G_2·D/√n + G_k·D·(√d/(n√ρ))^{1-1/k} on a domain of diameter D, if T is large. The bound holds for
strongly convex losses, too, of which nothing better is proven here. Where L of the problem is below C take
``localized_erm``, which asks for no S_u.

Cost: T·n user gradients, dummies' too, one program.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.rates.heavy_tailed import Moments
    >>> from dpsco_jax.solvers.heavy_tailed import known_lipschitz
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=150, items_per_user=2, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(1.0, 1e-5)
    >>> # The logistic link has slope one at most, so the longest row of a user bounds the user's gradients.
    >>> slopes = jax.numpy.linalg.norm(made.data.items.features, axis=-1).max(axis=-1)
    >>> moments = Moments(order=4.0, highest=0.5)
    >>> plan = known_lipschitz.plan(problem, budget, moments=moments, num_phases=2, num_steps=20)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(
    ...     lambda key: known_lipschitz.solve(key, plan, made.objective, made.data, start, slopes)
    ... )
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Count, Positive, one_of
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData, num_users
from dpsco_jax.rates.heavy_tailed import Moments, OfMoments
from dpsco_jax.solvers import _arguments, _plan_base, _planning, phased
from dpsco_jax.solvers.heavy_tailed import _phases
from dpsco_jax.solvers.heavy_tailed._terms import always_covered, rho_of
from dpsco_jax.solvers.phased import Phased
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.solution import Solution

__all__ = ["plan", "solve"]


@_plan_base.remembers(least_users=4)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    moments: OfMoments,
    num_phases: Count | None = None,
    strength: Positive | None = None,
    num_steps: Count | None = None,
    clip_norm: Positive | None = None,
    constants: Annotated[str, one_of("practical", "tight")] = "practical",
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
) -> Phased:
    """Checks all arguments, chooses the largest slope that takes part, phases and strengths. All are public.

    Args:
        problem: for the domain, n, the number of parameters d and D, which must be finite.
        budget: (ε, δ) of the run, δ > 0.
        moments: of the bounds on the users' slopes, k ≥ 2; known beforehand, never taken from the data.
        num_phases: I; if left out the best, 8 at most.
        strength: λ, of λ_i = λ·32^i; if left out the best, with the best growth in place of 32.
        num_steps: T of every phase; if left out 1,000 at most.
        clip_norm: C, the largest slope that takes part and the clip; if left out G_k·(n√ρ/√d)^{1/k}.
        constants: ``"practical"``: phases and strengths by what is to be expected of noise and sample;
            ``"tight"``: by the proven bound. The bound stated is that of the numbers chosen.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, D is not finite, or users are too few for the phases.
    """
    rho = rho_of(problem.num_users, budget, "tight", accountant)
    if clip_norm is None:
        signal = problem.num_users * math.sqrt(rho / problem.dim)
        clip_norm = moments.highest * signal ** (1 / moments.order)
    second = min(moments.second, clip_norm)
    taken = Moments(math.inf, clip_norm, second, min(moments.first, second))
    setting = _phases.Setting(problem, budget, taken, num_steps, accountant, chunk_size)
    practical = constants == "practical"
    found = _phases.best_in_the_mean(setting, clip_norm, num_phases, strength, practical)
    distance = problem.require_distance()
    reach = distance + math.fsum(setting.first / each for each in found.localized.strengths)
    dropped = min(reach, problem.diameter) * _dropped(moments, clip_norm)
    covered = always_covered(problem)
    return Phased(
        title="localization at the population's minimizers, with dummies for steep users",
        num_users=problem.num_users,
        parts=_phases.parts(setting, found, 1),
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=found.localized.bound + dropped if covered else math.inf,
        details={"distance": distance, "largest_slope": clip_norm, "dummies_bound": dropped},
        remarks=Remarks([("phases", str(len(found.sizes))), ("constants", constants)]),
        premises=Remarks(
            [
                "users are i.i.d.",
                "bounds on the slopes of their losses hold, and have the moments given",
            ]
        ),
    )


@_sharding.solver
def solve(
    key: jax.Array,
    plan: Phased,
    objective: Objective,
    data: UserData,
    params: Any,
    slopes: Float[Array, " users"],
    trace: Callable[[Any, Any, Any], Any] | None = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data, slopes and params.

    Args:
        key: a typed key.
        plan: of this solver.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users, in an order that does not depend on what they hold.
        params: the starting point; projected onto the domain. Must not depend on the data.
        slopes: of each user a bound on the norm of the gradient of the user's mean loss on the domain. A user
            whose bound is above the largest slope of the plan, or below 0, or no number, takes no part.
        trace: see ``loop.run``; ``unprivate["trace"]`` is a tuple, one entry for each phase.

    Returns:
        The point where the last phase has ended, or what the phase reports that has halted, with status
        HALTED.

    Raises:
        ValueError: if users, slopes or parameters are not as many as planned, the gradients are too many to
            count, or the plan is of another solver.
    """
    _arguments.require_run(Phased, key, plan, objective, data, params, trace)
    own = "largest_slope" in plan.details
    _checks.require(own, "plan", plan.title, "a plan of known_lipschitz")
    _checks.require_number("slopes", slopes, "an array of real numbers")
    users, bounds = num_users(data), jnp.asarray(slopes)
    _checks.require(bounds.shape == (users,), "slopes", bounds.shape, f"of shape ({users},)")
    # A user without items counts as zero, and is one of n all the same. No order holds of NaN.
    kept = (bounds >= 0) & (bounds <= plan.details["largest_slope"])
    shape = jnp.shape(jax.tree.leaves(data.items)[0])[:2]
    there = jnp.ones(shape, bool) if data.mask is None else data.mask
    mask = there & kept[:, None]
    return phased.solve(key, plan, objective, data._replace(mask=mask), params, trace)


def _dropped(moments: Moments, clip_norm: float) -> float:
    """E[S·1{S > C}] at most: the lesser of G_k^k/C^{k-1} and G_1, and nothing where no S is above C."""
    if moments.order == math.inf:
        return 0.0 if clip_norm >= moments.highest else moments.first
    power = (moments.order - 1) * math.log(moments.highest / clip_norm)
    return min(moments.highest * math.exp(min(power, 700.0)), moments.first)
