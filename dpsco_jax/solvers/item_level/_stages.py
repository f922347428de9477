"""What ``erm`` and ``sco`` share: a stage of private AC-SA, the choice among sequences of stages, their run.

What it computes: steps and batch of one stage for its distance and its budget, in the form that
``solvers.combinators.composite`` asks of an inner solver; and of several sequences the one that proves most.

Source: T, Theorem 1.4.9 (empirical risk) and Lemma 1.5.4 (population risk, where an error of G²/(μN) is
allowed, so fewer steps do), with B = ⌈N/T + N√(ε/T)⌉ for the latter.

- ``"paper"``: the printed T and B.
- ``"tight"``: with a = √(d·log(1/δ))/(εN) and the error n = (2G²/μ)(c²a² + 1/N) that noise and sampling leave
  anyway (c = 2.5; without 1/N for empirical risk), T is what brings the term of the distance R down to n:
  2√2·√c_d·GR/n steps with smoothing, or R√(2L/n) without where that is less. It is cut at 8·d^(1/4)/a and,
  for population risk, 8·√N·d^(1/4), which a restart from nearer makes up for. B keeps the noise near its
  limit for large batches and the sampling error below n.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from dpsco_jax import _sharding
from dpsco_jax.geometry import smoothing
from dpsco_jax.privacy import Budget
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.combinators import composite
from dpsco_jax.solvers.combinators.composite import Plan
from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.solution import Solution

_TYPICAL_NOISE = 2.5  # sets step counts only, never the noise
_FEWEST_STEPS = 20


def best(under: Callable[[str], Plan], methods: Sequence[str], title: str) -> Plan:
    """Of the plans by these methods the one that proves the least excess risk."""
    plans = {name: under(name) for name in methods}
    name, found = min(plans.items(), key=lambda item: item[1].excess_bound)
    return dataclasses.replace(found, title=f"{title}, {name}")


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``erm.plan`` or ``sco.plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users, in an order that does not depend on what they hold.
        params: the starting point, public; projected onto the domain.

    Raises:
        ValueError: if the number of users is not the planned one.
    """
    return composite.solve(private_ac_sa.solve, key, plan, objective, data, params)


def plan(
    problem: Problem,
    budget: Budget,
    *,
    regularization: float = 0.0,
    constants: str,
    population: bool,
    chunk_size: int,
) -> Any:
    """The plan of ``private_ac_sa`` for one stage.

    Args:
        problem: with an objective that is strongly convex unless ``regularization`` is positive, and R.
        budget: (ε, δ) of the stage.
        regularization: strength of the centred term.
        constants: ``"tight"`` or ``"paper"``.
        population: whether an error of G²/(μN) is small enough.
        chunk_size: users whose gradients are held at once.
    """
    steps, batch = None, None
    if constants == "paper":
        if population:
            steps, batch = paper_population_sizes(
                problem.num_users, problem.dim, budget.epsilon, budget.delta
            )
    else:
        steps, batch = _sizes(problem, budget, regularization, population)
    return private_ac_sa.plan(
        problem,
        budget,
        constants=constants,
        policy="strongly_convex",
        num_steps=steps,
        batch_size=batch,
        accountant="rdp",  # fast; the joint event of the stages is what has to meet the budget
        chunk_size=chunk_size,
        regularization=regularization,
    )


def paper_population_sizes(
    num_users: int, dim: int, epsilon: float, delta: float
) -> tuple[int, int]:
    """T and B of Lemma 1.5.4, with c_1 = 1."""
    base = min(
        math.sqrt(num_users) * dim**0.25, dim**0.25 / _accuracy(num_users, dim, epsilon, delta)
    )
    steps = 400 * math.ceil(base)
    return steps, math.ceil(num_users / steps + num_users * math.sqrt(epsilon / steps))


def _accuracy(num_users: int, dim: int, epsilon: float, delta: float) -> float:
    return math.sqrt(dim * math.log(1 / delta)) / (epsilon * num_users)


def _sizes(
    problem: Problem, budget: Budget, regularization: float, population: bool
) -> tuple[int, int]:
    objective, num_users, dim = problem.objective, problem.num_users, problem.dim
    convexity, distance = objective.strong_convexity + regularization, problem.farthest
    slope, factor = problem.lipschitz, smoothing.smoothness_factor(dim)
    a = _accuracy(num_users, dim, budget.epsilon, budget.delta)
    sampling = 1 / num_users if population else 0.0
    floor = 2 * slope**2 / convexity * ((_TYPICAL_NOISE * a) ** 2 + sampling)
    needed = 2 * math.sqrt(2 * factor) * slope * distance / floor
    if objective.smoothness is not None:
        curvature = objective.smoothness + objective.ridge + convexity
        own = distance * math.sqrt(2 * curvature / floor)
        needed = own if own <= needed / 2 else needed
    most = 8 * dim**0.25 * (min(1 / a, math.sqrt(num_users)) if population else 1 / a)
    steps = max(_FEWEST_STEPS, math.ceil(min(needed, most)))
    passes = 1.0 if population else 1 / (a**2 * num_users)
    batch = num_users * (math.sqrt(budget.epsilon / (10 * steps)) + passes / steps)
    return steps, min(num_users, math.ceil(batch))
