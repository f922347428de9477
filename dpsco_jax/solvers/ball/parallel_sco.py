"""Parallel stochastic convex optimization: few rounds of many queries for a non-smooth function.

What it computes: minimizes a convex L-Lipschitz f over the ball of radius R around the start, from stochastic
gradients that are asked for in rounds, as many as one likes in each. f is convolved with N(0, ρ²I);
ball acceleration minimizes the result with balls of radius r = ρ = ε/(3L√d), and each of its subproblems is
solved from one round of queries around its center, reweighted along the steps that follow.

Source: thesis, chapter 2, Theorems 2.3.2 (``oracle="epoch_sgd"``) and 2.3.3 (``oracle="ac_sa"``); Carmon,
Jambulapati, Jin, Lee, Liu, Sidford and Tian 2023.

Formal guarantee: with ``constants="paper"`` or ``"tight"``, E f(x) ≤ min f + ε: a third for the smoothing,
which costs at most ρL√d, a third for ball acceleration at its proved accuracies, a third for a line search
that fails: f is at most 2LR above its minimum on the ball, and any of them fails with probability at
most ε/(6LR). ``"practical"`` is not proved: line searches of a single run, whose answer is used again, few
queries, longer dual steps. Not private.

Cost: with K = (R/r)^(2/3) = O(d^(1/3)·κ^(2/3)), κ = LR/ε, a logarithm times K rounds; ``query_cost`` counts
them. Proved line searches take 10⁸ queries and more even at κ = 5: such plans are for counting.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.solvers.convex import parallel_sco
    >>> def gradient(keys, points):
    ...     return jnp.sign(points - 0.5) / 2**0.5
    >>> plan = parallel_sco.plan(lipschitz=1.0, distance=1.0, dim=2, excess=0.3)
    >>> result = parallel_sco.solve(jax.random.key(0), plan, gradient, jnp.zeros(2))
    >>> cost = parallel_sco.query_cost(plan, result)
    >>> bool(abs(result.params - 0.5).sum() / 2**0.5 < 0.3), cost.rounds < cost.queries
    (True, True)
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Count, Positive, checked, one_of
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import smoothing
from dpsco_jax.geometry.domains import ball
from dpsco_jax.oracles.resque import BatchGradient
from dpsco_jax.solvers import _arguments, plans
from dpsco_jax.solvers.ball import ball_ac_sa, ball_acceleration, epoch_sgd
from dpsco_jax.solvers.ball.ball_oracles import (
    BallOracle,
    BallOracles,
    from_ball_oracle,
)

ORACLES = ("epoch_sgd", "ac_sa")
CONSTANTS = ("paper", "tight", "practical")
_PRACTICAL = (1 / 25, 1 / 48, 1 / 50)  # φ/(λr²) of line search, ball and prox
_INNER = {"epoch_sgd": epoch_sgd, "ac_sa": ball_ac_sa}


class QueryCost(NamedTuple):
    """The cost of a run, in exact integers.

    Attributes:
        rounds: query depth: batches of queries of which none waits for an answer within its batch. All
            runs of one line search are one round; so are ball and prox problem of one iteration, which
            have the same center and regularization, with all levels of the prox.
        queries: stochastic gradients evaluated.
        depth: vector steps in a row. The runs of one line search are side by side; all other problems
            count one after another, even where they could be side by side too.
        work: queries times dimension: numbers in the gradients.
    """

    rounds: Any
    queries: Any
    depth: Any
    work: Any


@pytree
class Plan:
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree.

    Attributes:
        oracle: ``"epoch_sgd"`` or ``"ac_sa"``.
        constants: ``"paper"``, ``"tight"`` or ``"practical"``.
        dim: d.
        search_runs: problems that a line search aggregates.
        lipschitz: L.
        distance: R.
        excess: ε.
        smoothing_radius: ρ = r.
        outer: of ball acceleration.
        inner: of the ball problems: line search, ball, then the levels of the prox; the first alone where
            its answer is reused.
    """

    oracle: str = static(choices=ORACLES)
    constants: str = static(choices=CONSTANTS)
    dim: int = static()
    search_runs: int = static()
    lipschitz: Number
    distance: Number
    excess: Number
    smoothing_radius: Number
    outer: Any
    inner: Any

    @property
    def prox_levels(self) -> int:
        """Levels of the prox; one if it is plain, none if the line search's answer is reused."""
        return max(0, len(self.inner.accuracies) - 2)

    @property
    def most_rounds(self) -> int:
        """Rounds that a run makes at most."""
        return self.outer.num_iterations * (self.outer.max_searches + (not self.outer.reuse))

    def __str__(self) -> str:
        condition = float(self.lipschitz) * float(self.distance) / float(self.excess)
        remarks = [
            ("condition LR/excess", f"{condition:.5g}"),
            ("rounds at most", self.most_rounds),
        ]
        return plans.describe("parallel stochastic convex optimization", self, remarks)


class Result(NamedTuple):
    """The end of a run.

    Attributes:
        params: ``[dim]``.
        trajectory: of ball acceleration, in coordinates relative to the start. Its ``calls`` are by oracle
            (line search, ball, prox) and size, flat; ``query_cost`` reads them. Never ``certified`` with
            practical constants.
    """

    params: Float[Array, "dim"]
    trajectory: ball_acceleration.Trajectory


@checked
def plan(
    *,
    lipschitz: Positive,
    distance: Positive,
    dim: Count,
    excess: Positive,
    oracle: Annotated[str, one_of(*ORACLES)] = "epoch_sgd",
    constants: Annotated[str, one_of(*CONSTANTS)] = "practical",
    search: str | None = None,
    prox: str | None = None,
    num_iterations: int | None = None,
) -> Plan:
    """Checks all arguments and sets all sizes. Host only.

    Args:
        lipschitz: L > 0: f is L-Lipschitz on the whole space, and the stochastic gradients have second
            moment at most L².
        distance: R > 0, from the start to the minimizer at most.
        dim: d.
        excess: ε in (0, LR].
        oracle: solver of the ball problems, ``"epoch_sgd"`` or ``"ac_sa"`` (fewer steps in a row).
        constants: ``"practical"``: what can be run; nothing is proved. ``"tight"``: what is proved here.
            ``"paper"``: sizes and radius as printed.
        search: of ball acceleration: ``"bisection"``, the proved one; with practical constants also
            ``"doubling"``, their default, and ``"fixed"``.
        prox: ``"mlmc"``: multilevel Monte Carlo, the default of the proved constants; not to be mapped over
            keys (``lax.switch`` runs every level then). ``"plain"``: one ball problem; under the proved
            constants accurate enough for its bias to be as small, with more queries. ``"reuse"``: the
            accepted answer of the line search, which is the next iterate too; the default of the practical
            constants (plain where nothing is searched), not allowed with others.
        num_iterations: cap on the outer iterations in place of the proved number.

    Raises:
        ValueError: an argument is out of range.
    """
    ball_acceleration.require_target(lipschitz, distance, excess)
    proved = constants != "practical"
    searches = ("bisection",) if proved else ("doubling", "bisection", "fixed")
    search = _checks.require_choice("search", search or searches[0], searches)
    proxes = ("mlmc", "plain") if proved else ("reuse", "plain", "mlmc")[search == "fixed" :]
    prox = _checks.require_choice("prox", prox or proxes[0], proxes)

    share = excess / 3  # for smoothing, for acceleration, for failed line searches
    length = math.sqrt(dim) if constants == "paper" else smoothing.gaussian_bias(1.0, 1.0, dim)
    radius = share / (lipschitz * length)
    outer = ball_acceleration.plan(
        lipschitz=lipschitz,
        distance=distance,
        ball_radius=min(radius, distance),
        excess=share,
        search=search,
        reuse=prox == "reuse",
        log_power={"paper": 2.0, "tight": 1.0, "practical": 0.0}[constants],
        num_iterations=num_iterations,
        max_searches=None if proved or search == "fixed" else 4,
    )
    if not proved:
        outer = dataclasses.replace(outer, step=1.0)  # as for exact oracles: twice the proved one
    wanted = outer.accuracies(excess / (6 * lipschitz * distance))
    accuracies = (wanted.search, wanted.ball, *wanted.levels[0 if prox == "mlmc" else -1 :])
    if not proved:
        halvings = range(3 + math.ceil(2 / 3 * math.log2(outer.ratio)) if prox == "mlmc" else 1)
        accuracies = (*_PRACTICAL[:2], *(_PRACTICAL[2] * 2.0**-j for j in halvings))
    printed = {"paper": "paper", "practical": "practical" if oracle == "epoch_sgd" else "proved"}
    inner = _INNER[oracle].plan(
        lipschitz=lipschitz,
        ball_radius=outer.ball_radius,
        smoothing_radius=radius,
        min_regularization=float(outer.regularization),
        accuracies=accuracies[:1] if prox == "reuse" else accuracies,
        sizes=printed.get(constants, "proved"),
    )
    return Plan(
        oracle=oracle,
        constants=constants,
        dim=dim,
        search_runs=wanted.search_runs if proved else 1,
        lipschitz=lipschitz,
        distance=distance,
        excess=excess,
        smoothing_radius=radius,
        outer=outer,
        inner=inner,
    )


def solve(
    key: Key[Array, ""],
    plan: Plan,
    gradient: BatchGradient,
    start: Float[Array | np.ndarray, "dim"],
    *,
    mesh: jax.sharding.Mesh | None = None,
    stop: Callable[[Any], Any] | None = None,
) -> Result:
    """Runs the plan. Pure JAX: jit the whole; map over key (with a plain prox), numbers and start.

    Args:
        key: a typed key.
        plan: of ``plan``.
        gradient: ``gradient(keys [n], points [n, dim]) -> [n, dim]``, unbiased, anywhere in space.
        start: the center of the ball B(R), ``[dim]``.
        mesh: devices over whose first axis each batch of queries is divided; everything else is done by
            all of them alike.
        stop: ``stop(params)`` ends the run early, for study.

    Raises:
        ValueError: if an argument is not what it must be, or the start has another dimension than planned.
    """
    _arguments.require_asked(Plan, key, plan, gradient, start, stop)
    if mesh is not None:
        _checks.require_instance("mesh", mesh, jax.sharding.Mesh)
    start = jnp.asarray(start, jnp.result_type(float))
    asked = gradient if mesh is None else _divided(gradient, mesh)

    def relative(keys: Any, points: Any) -> Any:
        return asked(keys, start + points)

    by_accuracy = _INNER[plan.oracle].ball_oracles(plan.inner, relative, plan.distance)
    end = ball_acceleration.run(
        key,
        plan.outer,
        _by_role(by_accuracy, plan.search_runs),
        jnp.zeros_like(start),
        ball(plan.distance).project,
        stop=None if stop is None else lambda moved: stop(start + moved),
    )
    proved = end.certified & (plan.constants != "practical")
    return Result(start + end.params, end._replace(certified=proved))


def query_cost(plan: Plan, result: Result) -> QueryCost:
    """The exact cost of a finished run, as Python integers; of one run, not of a batch."""
    end, queries = result.trajectory, plan.inner.queries
    searches, balls, proxes = (int(count) for count in end.oracle_calls)
    table = [[int(n) for n in row] for row in np.asarray(end.calls).reshape(3, len(queries))]
    total = [sum(column) for column in zip(*table, strict=True)]
    # All problems of a line search have the same accuracy and regularization, hence size.
    rows = [[count // plan.search_runs for count in table[0]], *table[1:]]
    made = sum(count * size for count, size in zip(total, queries, strict=True))
    return QueryCost(
        rounds=searches + max(balls, proxes),
        queries=made,
        depth=sum(n * size for row in rows for n, size in zip(row, plan.inner.depths, strict=True)),
        work=made * plan.dim,
    )


def _by_role(by_accuracy: Sequence[BallOracle], search_runs: int) -> BallOracles:
    """The three oracles, each with counters of its own."""

    def counted(oracle: BallOracle, role: int) -> BallOracle:
        def counting(key: Any, center: Any, regularization: Any) -> Any:
            answer = oracle(key, center, regularization)
            table = jnp.zeros((3, *answer.calls.shape), answer.calls.dtype)
            return answer._replace(calls=table.at[role].set(answer.calls).ravel())

        return counting

    if len(by_accuracy) == 1:
        return BallOracles(*(3 * (counted(by_accuracy[0], 0),)))
    line_search, ball_oracle, *levels = by_accuracy
    return from_ball_oracle(
        counted(line_search, 0),
        counted(ball_oracle, 1),
        [counted(level, 2) for level in levels],
        search_runs=search_runs,
    )


def _divided(gradient: BatchGradient, mesh: jax.sharding.Mesh) -> BatchGradient:
    # The compiler places what surrounds the queries, whatever the kind of the axes.
    automatic = jax.sharding.Mesh(mesh.devices, mesh.axis_names)
    rows = jax.sharding.NamedSharding(automatic, jax.sharding.PartitionSpec(mesh.axis_names[0]))
    whole = jax.sharding.NamedSharding(automatic, jax.sharding.PartitionSpec())

    def on_devices(keys: Any, points: Any) -> Any:
        answers = gradient(keys, jax.lax.with_sharding_constraint(points, rows))
        answers = jax.lax.with_sharding_constraint(answers, rows)
        return jax.lax.with_sharding_constraint(answers, whole)

    return on_devices
