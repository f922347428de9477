"""Stochastic optimization in nearly all runs, from gradients of which only the mean square is bounded.

What it computes: minimizes F = f + ψ over X from n stochastic gradients g(x) of f, E g(x) ∈ ∂f(x), E‖g(x)‖² ≤
G², whose tail may be heavy: an average of steps is then far off more often than one over a power of the
number of runs. Phases that halve, as in ``heavy_tailed.population_localize``: phase i has J copies of T_i
queries each, of

    x_{t+1} = prox of η_t·(ψ + (λ_i/2)·‖· - x_{i-1}‖²) at x_t - η_t·g(x_t),    η_t = 4/(λ_i(t + 1)),

all from x_{i-1}, averages them with weights t + 4, and goes on from the copy that most are near to.

Source: T, Theorem 12.9.4, by Algorithm 37 (the thesis takes its inner solver from the literature). Correction
H2 (docs/corrections/heavy_tails.md): the printed bound of the localization is false.

Formal guarantee: none of privacy. F(x_I) - min F ≤ ``excess_bound`` but for a share ``failure`` of all runs,
for convex f and ψ, ψ with slopes of at most B, and a minimizer within D of the start; of order G·D·√(log(1/
failure)/n). Proof: docs/theory/heavy_tails.md, with this for a copy: E gap ≤ ``gap(T, G, B)``/λ.

The strengths are those of the least bound, which is for the worst losses: points are pulled to the start more
than a smooth loss needs.

Cost: n queries, those of J copies at once; one program for each phase; memory of J points.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.solvers.convex import high_probability
    >>> def gradient(keys, points):      # of E|x - s|²/2, s by uniform numbers: Pareto
    ...     far = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys) ** -0.4 - 5 / 3
    ...     return points - 0.5 - far
    >>> plan = high_probability.plan(
    ...     second_moment=3.5, distance=1.0, dim=2, num_queries=3000, failure=0.05
    ... )
    >>> result = high_probability.solve(jax.random.key(0), plan, gradient, jnp.zeros(2))
    >>> bool(jnp.all((result.params > 0.05) & (result.params < 0.5))), plan.num_queries <= 3000
    (True, True)
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Count, Inside, Nonnegative, Positive, checked
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry.domains import Domain, whole_space
from dpsco_jax.geometry.prox import Term
from dpsco_jax.mechanisms import robust_point
from dpsco_jax.oracles.resque import BatchGradient
from dpsco_jax.solvers import _arguments, _sequence, plans
from dpsco_jax.solvers._schedules import clipped_descent

__all__ = ["Plan", "Result", "gap", "plan", "solve"]

_COPIES = (1, 3, 5, 9, 17, 33, 65)
_MOST_PHASES = 8
_FEWEST = 4  # queries of a copy


@pytree
class Plan:
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree.

    Attributes:
        dim: d.
        copies: J of every phase.
        phase_steps: T_i, queries of a copy, by phase.
        strengths: λ_i, by phase.
        failure: how often the bound may be exceeded.
        excess_bound: proven but for these runs.
    """

    dim: int = static()
    copies: int = static()
    phase_steps: tuple[int, ...] = static()
    strengths: Number
    failure: Number
    excess_bound: Number

    @property
    def num_queries(self) -> int:
        """Gradients of the whole run."""
        return self.copies * sum(self.phase_steps)

    def __str__(self) -> str:
        return plans.describe("stochastic optimization in nearly all runs (not private)", self)


class Result(NamedTuple):
    """The end of a run.

    Attributes:
        params: x_I, ``[dim]``.
    """

    params: Float[Array, "dim"]


@checked
def gap(num_steps: Count, second_moment: Positive, slope: Nonnegative = 0.0) -> float:
    """λ times the expected gap of a copy, for any λ.

    With W = T(T + 7)/2, H_T = 1 + 1/2 + ... + 1/T and r = (G + B)/λ, within which the minimizer is,
    W·E gap ≤ (2/λ)(T + 3H_T)G² + λ(T - ½)r² + 4Br + (T + 1)B²/λ.

    Args:
        num_steps: T.
        second_moment: G.
        slope: B, of ψ.
    """
    reach, weight = second_moment + slope, num_steps * (num_steps + 7) / 2
    rest = (num_steps - 0.5) * reach**2 + 4 * slope * reach + (num_steps + 1) * slope**2
    return clipped_descent.descent(num_steps) * second_moment**2 + rest / weight


@checked
def plan(
    *,
    second_moment: Positive,
    distance: Positive,
    dim: Count,
    num_queries: Count,
    failure: Inside = 0.05,
    slope: Nonnegative = 0.0,
    num_copies: Count | None = None,
    num_phases: Count | None = None,
) -> Plan:
    """Checks all arguments and takes the copies, phases and strengths of the least bound. Host only.

    Args:
        second_moment: G, E‖g(x)‖² ≤ G² at every x.
        distance: D ≥ ‖x_0 - x*‖ for a minimizer x*.
        dim: d.
        num_queries: n, gradients of a run at most.
        failure: share of runs in which the bound may be exceeded, below ½.
        slope: B, the largest slope of ψ; 0 if there is none.
        num_copies: J of every phase; the best up to 65 if left out. The thesis has ⌈48·log(I/failure)⌉.
        num_phases: I; the best up to 8 if left out. The thesis has ½·log₂ n.

    Raises:
        ValueError: an argument is out of range, or a copy would have fewer than 4 queries.
    """
    _checks.require(failure < 0.5, "failure", failure, "in (0, 1/2)")

    def of(copies: int, count: int) -> Plan:
        sizes = _sequence.block_sizes(num_queries, 0.5, count, copies * _FEWEST)
        steps = tuple(size // copies for size in sizes)
        share = clipped_descent.share_that_may_fail(copies, failure / count)
        apart = 1 if copies == 1 else 3
        ends = [apart * math.sqrt(2 * gap(t, second_moment, slope) / share) for t in steps]
        found = clipped_descent.localized(ends, second_moment + slope, distance)
        return Plan(dim, copies, steps, found.strengths, failure, found.bound)

    found, refusal = [], None
    for copies in _COPIES if num_copies is None else (num_copies,):
        for count in range(1, _MOST_PHASES + 1) if num_phases is None else (num_phases,):
            try:
                found.append(of(copies, count))
            except Infeasible as error:
                refusal = refusal or error
                break
    if refusal is not None and not found:
        least = refusal.needed["num_users"]
        raise Infeasible(
            f"num_queries must be at least {least}, got {num_queries}", {"num_queries": least}
        )
    return min(found, key=lambda each: float(each.excess_bound))


def solve(
    key: Key[Array, ""],
    plan: Plan,
    gradient: BatchGradient,
    start: Float[Array | np.ndarray, "dim"],
    *,
    domain: Domain | None = None,
    term: Term | None = None,
) -> Result:
    """Runs the plan. Pure JAX: jit, and map over key, the plan's numbers and start.

    Args:
        key: a typed key.
        plan: of ``plan``.
        gradient: ``gradient(keys, points)``, independent stochastic gradients of f, ``[J, dim]`` of keys
            ``[J]`` and points ``[J, dim]``.
        start: x_0, ``[dim]``; projected onto the domain.
        domain: X; all of space if left out.
        term: ψ, such as ``geometry.prox.l1(0.1)``, whose proximal point over X is its projection.

    Raises:
        ValueError: if an argument is not what it must be, the start has another dimension than planned, or
            the term does not split over the domain.
    """
    _arguments.require_asked(Plan, key, plan, gradient, start, None)
    domain = whole_space() if domain is None else domain
    _checks.require_instance("domain", domain, Domain)
    if term is not None:
        _checks.require_instance("term", term, Term)
        _checks.require(term.splits(domain), "term", term, "one that splits over the domain")
    point = domain.project(jnp.asarray(start, jnp.result_type(float)))
    for i, (steps, strength) in enumerate(zip(plan.phase_steps, plan.strengths, strict=True)):
        own = jax.random.fold_in(key, i)
        point = _phase(own, plan.copies, steps, strength, gradient, point, domain, term)
    return Result(point)


def _phase(
    key: jax.Array,
    copies: int,
    num_steps: int,
    strength: Any,
    gradient: BatchGradient,
    center: jax.Array,
    domain: Domain,
    term: Term | None,
) -> jax.Array:
    """The point that most copies are near to."""

    def step(t: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        points, average = carry
        slopes = gradient(jax.random.split(jax.random.fold_in(key, t), copies), points)
        average += 2 * (t + 4) / ((t + 1) * (t + 8)) * (points - average)
        pull = 4 / (t + 1)
        eta = pull / strength
        moved = (points - eta * slopes + pull * center) / (1 + pull)
        if term is not None:
            moved = jax.vmap(lambda point: term(point, eta / (1 + pull)))(moved)
        return jax.vmap(domain.project)(moved), average

    begin = jnp.broadcast_to(center, (copies, *center.shape))
    _, averages = jax.lax.fori_loop(0, num_steps, step, (begin, begin))
    return robust_point.aggregate_points(averages)
