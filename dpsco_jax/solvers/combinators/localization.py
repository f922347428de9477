"""Iterative localization: population risk from a solver for strongly convex empirical risk.

What it computes: users are cut into blocks that halve. Phase i minimizes, over its own block of N_i users,
F̂_i(w) + (λ_i/2)·‖w - w_{i-1}‖² with λ_i = 2/(η_i·N_i), started and centred at w_{i-1}, where the phase
before has ended, and the steps η_i fall geometrically. ``composite.solve`` runs it with any inner solver.

Source: T, Algorithm 5, Theorem 1.5.1; Feldman, Koren and Talwar 2020. With these corrections: blocks are half
open (consecutive printed blocks share a user); by default they compose in parallel, each phase with the whole
(ε, δ), η falls by 4 and there are ⌈¼·log₂ N⌉ + 1 phases, since the printed ⌈log₂ N⌉ end with blocks of one
user; the term is (1/(η_i·N_i))·‖w - w_{i-1}‖², λ_i-strongly convex. The set that the paper restricts a phase
to, ‖w - w_{i-1}‖ ≤ 2G·η_i·N_i, holds the minimizer anyway and is not needed: the phase stays in the domain.

Formal guarantee: (ε, δ)-DP under REPLACE_ONE if every inner solver meets its budget. Utility, for convex
G-Lipschitz losses, i.i.d. users, an objective (ridge and centred term included) that is m-strongly convex and
S-Lipschitz, R ≥ ‖w_0 - w*‖ and e_i the inner bound of phase i:

    E F(w_k) - F(w*) ≤ λ_1·R²/2 + Σ_i 2G²/((λ_i + m)·N_i) + Σ_{i≥2} e_{i-1}·λ_i/(λ_{i-1} + m)
                       + S·√(2e_k/(λ_k + m))

Proof: let ŵ_i minimize phase i, ŵ_0 = w*. Replacing a user of the block moves ŵ_i by 2G/((λ_i + m)N_i) at
most, so E F(ŵ_i) ≤ E F̂_i(ŵ_i) + g with g = 2G²/((λ_i + m)N_i), and this is at most E F(y) + g +
(λ_i/2)·E‖w_{i-1} - y‖² for any y that does not depend on the block. Take y = ŵ_{i-1}, and add up with
((λ_i + m)/2)·‖w_i - ŵ_i‖² ≤ e_i in expectation. Within a phase the distance is at most S/(λ_i + m).

Cost: that of the phases.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.convex import composite, localization
    >>> from dpsco_jax.solvers.item_level import private_ac_sa as inner
    >>> made = synthetic.mean_estimation(jax.random.key(0), num_users=200, items_per_user=2, dim=3)
    >>> plan = localization.plan(inner.plan, made.problem(distance=2.0), Budget(1.0, 1e-5), num_phases=2)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: composite.solve(inner.solve, key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> len(plan.parts), int(solution.status), plan.certificate().epsilon <= 1.0
    (2, 0, True)
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from dpsco_jax._argument_kinds import Constants, Count, Function, Nonnegative, Positive
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.privacy import Budget
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _sequence
from dpsco_jax.solvers.combinators.composite import Plan, slope, start_distance

_FEWEST_USERS = 20  # with fewer, noise and batches of a phase leave nothing to gain


class _Phases(NamedTuple):
    """Planned phases; ``added`` are their λ_i."""

    sizes: tuple[int, ...]
    step_size: float
    added: tuple[float, ...]
    parts: tuple[Any, ...]
    distances: tuple[float, ...]


@_plan_base.remembers(least_users=2)
def plan(
    inner: Function,
    problem: Problem,
    budget: Budget,
    *,
    regularization: Nonnegative = 0.0,
    constants: Constants = "tight",
    num_phases: Count | None = None,
    step_size: Positive | None = None,
) -> Plan:
    """Checks all arguments and plans all phases. All of them are public.

    Args:
        inner: ``plan`` of a solver for empirical risk; see ``composite``.
        problem: for the objective, N ≥ 2, and R, bound on the distance from the start to a minimizer of the
            population risk; what domain and strong convexity say in its place if it has none.
        budget: (ε, δ) of the run, δ > 0.
        regularization: u ≥ 0 of a term (u/2)·‖w - center‖² in the objective.
        constants: ``"tight"``: every phase has (ε, δ), blocks hold all users. ``"paper"``: phase i has
            (ε, δ)/2^i and ⌊N/2^i⌋ users, and the losses are added.
        num_phases: k; ⌈¼·log₂ N⌉ + 1 or, for ``"paper"``, ⌈log₂ N⌉ if left out. Phases from the end that
            are too small for the inner solver, or smaller than 20 users, are left out; the plan says so.
        step_size: η; what minimizes the bound if left out.

    Raises:
        ValueError: an argument is out of range, R is not finite, or not even one phase is possible.
    """
    objective, num_users = problem.objective, problem.num_users
    distance = start_distance(problem, regularization)
    parallel = constants == "tight"
    decay = 4.0 if parallel else 32.0  # of η from phase to phase
    if num_phases is None:
        log = math.log2(num_users)
        num_phases = math.ceil(log / 4) + 1 if parallel else math.ceil(log)
    convexity = objective.strong_convexity + regularization
    steepest = slope(objective, regularization)

    def phases(count: int, eta: float) -> _Phases:
        halves = [num_users // 2**i for i in range(1, count + 1)]
        sizes = _sequence.block_sizes(num_users, 0.5, count) if parallel else tuple(halves)
        if sizes[-1] < _FEWEST_USERS:
            raise Infeasible(
                f"num_users must leave {_FEWEST_USERS} for each of {count} phases, got {num_users}"
            )
        added = [2 * decay**i / (eta * n) for i, n in enumerate(sizes, start=1)]
        reach = [min(problem.diameter, steepest / (each + convexity)) for each in added]
        shares = [1.0 if parallel else 0.5**i for i in range(1, count + 1)]
        parts = [
            inner(
                dataclasses.replace(problem, num_users=sizes[i], distance=reach[i]),
                dataclasses.replace(
                    budget, epsilon=budget.epsilon * shares[i], delta=budget.delta * shares[i]
                ),
                regularization=added[i] + regularization,
            )
            for i in reversed(range(count))  # the smallest first: it fails first
        ]
        return _Phases(sizes, eta, tuple(added), tuple(reversed(parts)), tuple(reach))

    def bound(found: _Phases) -> tuple[float, float]:
        """The term of the initial distance, which falls with η, and the others, which grow."""
        added, errors = found.added, [part.excess_bound for part in found.parts]
        moved = [
            2 * problem.lipschitz**2 / ((each + convexity) * n)
            for each, n in zip(added, found.sizes, strict=True)
        ]
        handed = [
            error * after / (before + convexity)
            for error, (before, after) in zip(errors, itertools.pairwise(added), strict=False)
        ]
        last = steepest * math.sqrt(2 * errors[-1] / (added[-1] + convexity))
        return added[0] * distance**2 / 2, math.fsum([*moved, *handed, last])

    def under(count: int) -> _Phases:
        guess = distance / problem.lipschitz / math.sqrt(num_users) * decay / 2
        found = phases(count, guess if step_size is None else step_size)
        falling, growing = bound(found)
        if step_size is None and math.isfinite(growing):
            # Both are nearly proportional, to 1/η and to η.
            better = found.step_size * math.sqrt(falling / growing)
            found = min(found, phases(count, better), key=lambda each: sum(bound(each)))
        return found

    found, why = _largest(under, num_phases)
    count = len(found.parts)
    remarks = [("phases", str(count))]
    if count < num_phases:
        remarks.append(("phases left out", f"{num_phases - count}: {why}"))
    return Plan(
        title="iterative localization",
        num_users=num_users,
        on_blocks=True,
        composition="parallel" if parallel else "sequential",
        remarks=tuple(remarks),
        premises=("users are i.i.d.",),
        distance=distance,
        parts=found.parts,
        distances=found.distances,
        strengths=tuple(each + regularization for each in found.added),
        center_shares=tuple(regularization / (regularization + each) for each in found.added),
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=sum(bound(found)),
    )


def _largest(under: Callable[[int], _Phases], most: int) -> tuple[_Phases, str]:
    """The plan with the most phases that is possible, and why there are not more."""
    why = ""
    for count in range(most, 1, -1):
        try:
            return under(count), why
        except Infeasible as refusal:
            why = str(refusal)
    return under(1), why
