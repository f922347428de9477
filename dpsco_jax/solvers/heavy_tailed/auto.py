"""Chooses a solver for heavy tails from public numbers: plans each of them, and runs the best.

What it computes: the plans of ``clipped_gd`` with a clip level that follows a quantile and with one of the
moments, of ``user_level.sgd`` on everybody with that level, of ``population_localize``, ``localized_erm``
and ``phased_clipped_glm``; of each the proven bound on its excess risk and what is to be expected; and the
choice.

What is to be expected is, for all of them, of the same few numbers (``_schedules.clipped_descent``): with n
users a mean of gradients is off by about r, of noise, clip and sample; a run on all of them by r·D, and by
r²/(2μ) and what the pull does where the risk is μ-strongly convex; steps of worst-case length by what
they prove; phases by the sum over phases with the r of each; ``phased_clipped_glm`` by its bound. Such
numbers are for comparing: on smooth losses clipped descent is far better than r·D (docs/heavy_tails.md). Its
pull is λ = r/(16D) here, which was near the best wherever it was measured, and for a β-smooth loss at least
16β/T or β/100, without which most of the T steps would be too long to settle. Both rules were found on data
that docs/heavy_tails.md reports; privacy does not depend on them.

Source: own.

Formal guarantee: that of the chosen solver: (ε, δ)-DP for a user's whole data under REPLACE_ONE. Nothing
here reads data, so choosing costs nothing.

Cost: that of the plans; then that of the chosen solver.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import heavy_tailed as laws
    >>> from dpsco_jax.solvers.heavy_tailed import auto
    >>> made = laws.linear_model(laws.Tail("student", 4.0), dim=3, radius=2.0)
    >>> problem, budget = made.problem(500, distance=1.0), Budget(4.0, 1e-6)
    >>> plan = auto.plan(problem, budget, moments=made.moments(3.0))
    >>> data, start = made.draw(jax.random.key(0), 500), jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: auto.solve(key, plan, made.objective, data, start))
    >>> plan.choice, run(jax.random.key(1)).params.shape
    ('clipped_gd, quantile', (3,))
"""

import dataclasses
import math
from typing import Annotated, Any

import jax

from dpsco_jax import _float64, _sharding, privacy
from dpsco_jax._argument_kinds import checked, one_of
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates.heavy_tailed import Moments, OfMoments
from dpsco_jax.solvers._schedules import clipped_descent
from dpsco_jax.solvers._schedules.clipped_descent import Answer
from dpsco_jax.solvers.heavy_tailed import (
    _quantile_clip,
    clipped_gd,
    localized_erm,
    phased_clipped_glm,
    population_localize,
)
from dpsco_jax.solvers.heavy_tailed._terms import MOST_STEPS, known_slope
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.user_level import auto as choice
from dpsco_jax.solvers.user_level import sgd
from dpsco_jax.solvers.user_level._auto_predictions import Setting
from dpsco_jax.solvers.user_level.auto import Candidate, Plan

__all__ = ["plan", "solve"]

_PULL = 1 / 16
_LOW = 1e-2  # of G_1: a clip level that follows a quantile should begin low


@checked
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    moments: OfMoments,
    gradient_budget: int | None = None,
    rank_by: Annotated[str, one_of("prediction", "bound")] = "prediction",
) -> Plan:
    """Plans the candidates and chooses one. All arguments are public.

    Args:
        problem: for the objective, the domain, n, the number of parameters and D, which must be finite.
        budget: (ε, δ) of the run, δ > 0.
        moments: of the users' slopes, k ≥ 2; known beforehand or guessed, never taken from the data. The
            choice of a quantile minds a wrong guess least.
        gradient_budget: item gradients that a run may take; 1000·n·m if left out.
        rank_by: ``"prediction"``: what is to be expected. ``"bound"``: the least proven bound on the expected
            excess risk of the population.

    Raises:
        ValueError: an argument is out of range, D is not finite, or no candidate is possible (with
            ``"bound"``: none has a finite bound); the message has the reasons.
    """
    made = choice.plan(
        problem,
        budget,
        candidates=_candidates(moments),
        gradient_budget=gradient_budget,
        rank_by=rank_by,
    )
    what = "is expected to have" if rank_by == "prediction" else "is proven to have"
    title = (
        f"solvers for heavy tails, k = {moments.order:.4g}, of {problem.num_users} users and {problem.dim} "
        f"parameters: {made.choice} {what} the least excess risk"
    )
    return dataclasses.replace(made, title=title)


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the chosen plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with the planned number of users.
        params: the starting point; projected onto the domain.

    Raises:
        ValueError: if the chosen solver refuses the data's sizes, or the plan is of another room.
    """
    # Names and solvers of the candidates do not depend on the moments.
    return choice.solve(key, plan, objective, data, params, _candidates(Moments(math.inf, 1.0)))


def _candidates(moments: Moments) -> tuple[Candidate, ...]:
    """All of them, with the moments in their settings and predictions."""

    def typical(p: Setting, users: int | None = None, clip: float | None = None) -> Answer:
        """Of so many users; of the clip level where slopes are bounded by it."""
        users = p.problem.num_users if users is None else users
        second = moments.second if clip is None else min(moments.second, clip)
        taken = (
            moments if clip is None else Moments(math.inf, clip, second, min(moments.first, second))
        )
        # The deviation of the mean of n users over C, with the whole budget.
        noise = math.sqrt(p.problem.dim) * 2 * p.unit_noise / users
        return clipped_descent.typical(taken, users, noise)

    def pull(p: Setting) -> float:
        usual = _PULL * typical(p).distance / p.problem.require_distance()
        smoothness = p.problem.objective.smoothness
        if smoothness is None:
            return usual
        # Steps 4/(λ(t+1)) contract from t = 2β/λ on: for most of them, if that takes no strong pull.
        return max(usual, float(smoothness) * min(16.0 / steps(p), 0.01))

    def steps(p: Setting) -> int:
        return min(p.passes, MOST_STEPS)

    def common(p: Setting) -> dict[str, Any]:
        return {"moments": moments, "regularization": pull(p), "num_steps": steps(p)}

    def by_quantile(p: Setting) -> dict[str, Any]:
        share = _quantile_clip.best_share(
            p.problem.num_users, p.problem.dim, 1 / (2 * p.unit_noise**2)
        )
        low = _LOW * moments.first
        return common(p) | {"quantile": share, "clip_norm": low}

    def by_moments(p: Setting) -> dict[str, Any]:
        return common(p) | {"clip_norm": typical(p).clip_norm}

    def descent(p: Setting, made: Any) -> float:
        """r·D, or r²/(2μ) and the pull's λD²/2."""
        off, far = typical(p).distance, p.problem.require_distance()
        convexity = p.problem.objective.strong_convexity
        curved = off**2 / (2 * convexity) if convexity > 0 else math.inf
        return min(off * far, curved + made.method.strength * far**2 / 2)

    def everybody(p: Setting) -> dict[str, Any]:
        return {"num_steps": steps(p), "sampling": "full", "clip_norm": typical(p).clip_norm}

    def long_steps(p: Setting, made: Any) -> float:
        """What averaged steps prove of clipped gradients, R√(V/T), and what clip and sample are off by."""
        noise = p.problem.dim * float(made.noise_stddev) ** 2
        square = (float(made.mean.clip_norm) + known_slope(p.problem)) ** 2 + noise
        still = math.sqrt(p.problem.dim) * 2 * p.unit_noise / p.problem.num_users
        off = typical(p).distance - float(made.mean.clip_norm) * still
        far = p.problem.require_distance()
        return far * (math.sqrt(square / made.num_steps) + off)

    def phases(p: Setting, made: Any, clip: float | None = None) -> float:
        """The sum over the phases of the last round, with what each is to be expected to end within."""
        rounds = [made] if not hasattr(made.parts[0], "parts") else made.parts
        first = moments.first if clip is None else min(moments.first, clip)
        first, far = first + known_slope(p.problem), p.problem.require_distance()
        convexity, risk = p.problem.objective.strong_convexity, math.inf
        for one in rounds:
            if math.isfinite(risk):
                far = min(2 * first / convexity, math.sqrt(2 * risk / convexity))
            bases = [getattr(part, "base", part) for part in one.parts]
            ends = [typical(p, base.num_users, clip).distance for base in bases]
            strengths = tuple(float(base.strength) for base in bases)
            risk = clipped_descent.bound_of(strengths, ends, first, far)
        return risk

    def bounded(p: Setting) -> dict[str, Any]:
        slope = p.problem.lipschitz
        return {"second_moment": min(moments.second, slope), "num_steps": steps(p)}

    def localized(p: Setting) -> dict[str, Any]:
        return {"moments": moments, "num_steps": steps(p)}

    def one_pass(p: Setting) -> dict[str, Any]:
        del p
        _float64.require_x64("phased_clipped_glm")
        return {"moments": moments}

    def slopes(p: Setting, made: Any) -> float:
        return phases(p, made, p.problem.lipschitz)

    def proven(p: Setting) -> dict[str, Any]:
        return localized(p) | {"constants": "tight"}

    # What is proven of the first three is of these very users, not of the population.
    return (
        Candidate("clipped_gd, quantile", clipped_gd, by_quantile, descent, nominal=True),
        Candidate("clipped_gd, moments", clipped_gd, by_moments, descent, nominal=True),
        Candidate("sgd, full", sgd, everybody, long_steps, nominal=True),
        Candidate("population_localize", population_localize, localized, phases),
        Candidate("population_localize, tight", population_localize, proven, phases),
        Candidate("localized_erm", localized_erm, bounded, slopes),
        Candidate("phased_clipped_glm", phased_clipped_glm, one_pass),
    )
