"""Ball oracles: what ball acceleration asks of a solver of small subproblems, and how one gives all three.

What it computes: for a convex F, a center y and λ > 0 let x̂ be the minimizer of F(x) + (λ/2)·‖x - y‖² over
‖x - y‖ ≤ r. Ball acceleration needs three approximations of x̂: one that is near with high probability (line
search), one whose objective is small in expectation (ball), one that is nearly unbiased (prox).
``from_ball_oracle`` makes the three out of solvers of the second kind: robust aggregation of several runs,
and multilevel Monte Carlo.

Source: thesis, Definitions 2.2.5 to 2.2.7 and Proposition 2.2.9; the accuracies are derived here (see
``oracle_accuracies``) for the outer loop of ``ball_acceleration``.

Formal guarantee: with every oracle at the accuracy of ``oracle_accuracies`` the run certifies its own
accuracy, see ``ball_acceleration``. Nothing is private by itself; what the oracles release is theirs to
account for.

Cost: counted, not timed: every answer says how many ball problems of each static kind were solved.

Example:
    >>> from dpsco_jax.solvers.convex import ball_oracles
    >>> sizes = {"ratio": 10.0, "least_factor": 1.0, "num_iterations": 50, "search_failure": 1e-3}
    >>> found = ball_oracles.oracle_accuracies(**sizes)
    >>> found.ball <= 1 / 48, found.search_runs
    (True, 139)
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Count, Function, Inside, Positive, checked, real
from dpsco_jax.mechanisms import robust_point
from dpsco_jax.oracles import multilevel


class OracleCalls(NamedTuple):
    """How often each oracle was called.

    Attributes:
        line_search: the one that looks for λ.
        ball: the one that finds the next point.
        prox: the one that finds the gradient of the dual step.
    """

    line_search: Int[Array, ""]
    ball: Int[Array, ""]
    prox: Int[Array, ""]


class BallAnswer(NamedTuple):
    """What a ball oracle returns.

    Attributes:
        point: approximation of x̂, ``[dim]``.
        multiplier: λ_o for which λ_o·(center - point) is a subgradient of F at the point: λ plus the
            multiplier of the ball. λ itself where the ball is inactive, or where the oracle does not know.
        calls: how many ball problems of each kind were solved, ``[kinds]`` int32. What a kind is (a static
            size of the solver) is up to the oracle; the host turns counts into queries, rounds and work.
        gradient: a subgradient of F at the point, where the oracle knows one; λ_o(center - point) is taken
            otherwise.
    """

    point: Float[Array, "dim"]
    multiplier: Float[Array, ""]
    calls: Int[Array, "kinds"]
    gradient: Any = None


BallOracle = Callable[[Any, Any, Any], BallAnswer]
"""``oracle(key, center [dim], regularization []) -> BallAnswer``."""


class BallOracles(NamedTuple):
    """The three oracles of ball acceleration; all count the same kinds.

    Attributes:
        line_search: a point near x̂ with high probability, to measure ‖x̂ - y‖ by.
        ball: a point with a small expected objective; becomes the new iterate.
        prox: a point with a small bias and bounded variance; becomes the step of the dual sequence.
    """

    line_search: BallOracle
    ball: BallOracle
    prox: BallOracle


class Accuracies(NamedTuple):
    """Sufficient accuracies φ/(λr²), relative to the size of the subproblem: E objective ≤ minimum + φ.

    Attributes:
        search: of each of the runs that the line search aggregates.
        search_runs: how many.
        ball: of the ball oracle.
        levels: of the levels 0, 1, ... of the multilevel prox, each half of the one before.
        copies: how many multilevel estimates are averaged.
    """

    search: float
    search_runs: int
    ball: float
    levels: tuple[float, ...]
    copies: int


@checked
def oracle_accuracies(
    *,
    ratio: Annotated[float, real(1, closed=True)],
    least_factor: Positive,
    num_iterations: Count,
    search_failure: Inside,
    copies: Count = 1,
) -> Accuracies:
    """The accuracies under which the potential of ball acceleration stays below 3R². Host, float64.

    With K = (R/r)^(2/3), λ_min = f·εK²/R², and x̂ as in the module's docstring:

    - line search: within r/16 of x̂ except with probability ``search_failure``, from runs with φ = λr²/41472
      (Markov: within 3·√(2φ/λ) of x̂ with probability 2/3, and three times that after aggregation);
    - ball: φ ≤ λr²/48, and half of λr²/(21·f^1.5), the share of the at most 3.5·K·√f iterations at λ_min;
    - prox: E‖x - x̂‖² ≤ (0.21r)² and ≤ 2r²/(21·f^1.5), the other half; its bias at most ε/(12Rλ) at λ_min,
      and 0.15·r/√(251·N) at any λ (there Σ_t λ_t·A_t ≤ 251·R²/r², so that Σ 2R·√(λ_t·A_t)·bias ≤ 0.3R²).

    Args:
        ratio: R/r ≥ 1.
        least_factor: f > 0; log(κ)^2 in the thesis.
        num_iterations: N, bound on the number of iterations.
        search_failure: probability with which one line search may fail, in (0, 1). A union over all
            searches of the run: the run's failure over N·(searches of an iteration).
        copies: multilevel estimates that are averaged.

    Raises:
        ValueError: if an argument is out of range.
    """
    share = 1 / (21 * least_factor**1.5)
    square = min(0.21**2, 2 * share)
    # Relative to r: ε/(12·R·λ_min·r) = 1/(12·f·√K).
    at_least = 1 / (12 * least_factor * ratio ** (1 / 3))
    bias = min(at_least, 0.15 / math.sqrt(251 * num_iterations))
    max_level = 1
    while True:
        # Mean squared error 14·m·e²/copies + bias², with e² = 2φ_0/λ; bias e·2^(-m/2).
        error = square / (14 * max_level / copies + 2.0**-max_level)
        if error * 2.0**-max_level <= bias**2:
            break
        max_level += 1
    levels = tuple(error / 2 * 2.0**-j for j in range(max_level + 1))
    runs = robust_point.runs_for(search_failure)
    return Accuracies(1 / 41472, runs, min(1 / 48, share / 2), levels, copies)


@checked
def from_ball_oracle(
    line_search: Function,
    ball: Function,
    levels: Sequence[BallOracle],
    *,
    search_runs: Count = 1,
    copies: Count = 1,
) -> BallOracles:
    """The three oracles out of ball oracles of several accuracies.

    Args:
        line_search: at accuracy ``Accuracies.search``.
        ball: at accuracy ``Accuracies.ball``.
        levels: at accuracies ``Accuracies.levels``; a single one is used as it is, without multilevel
            correction.
        search_runs: independent runs of ``line_search`` to aggregate.
        copies: multilevel estimates to average.

    Raises:
        ValueError: if a number is below 1 or there is no level.
    """
    return BallOracles(aggregated(line_search, search_runs), ball, debiased(levels, copies))


@checked
def aggregated(oracle: Function, search_runs: Count) -> BallOracle:
    """The answer that most of several independent runs agree on; one run is the oracle itself."""
    if search_runs == 1:
        return oracle

    def robust(key: Key[Array, ""], center: Any, regularization: Any) -> BallAnswer:
        keys = jax.random.split(key, search_runs)
        answers = jax.lax.map(lambda k: oracle(k, center, regularization), keys)
        point = robust_point.aggregate_points(answers.point)
        return BallAnswer(
            point,
            jnp.asarray(regularization, point.dtype),
            answers.calls.sum(axis=0, dtype=jnp.int32),
        )

    return robust


@checked
def debiased(levels: Sequence[BallOracle], copies: Count, drawn: Any = None) -> BallOracle:
    """The mean of multilevel estimates; a single one without levels is the oracle itself.

    Args:
        levels: oracles, each twice as accurate as the one before.
        copies: estimates to average.
        drawn: their levels, ``[copies]`` int32, drawn beforehand; drawn from the key if left out.
    """
    _checks.require_instance("levels", levels, tuple | list)
    _checks.require(len(levels) > 0, "levels", levels, "at least one oracle")
    for level in levels:
        _checks.require_callable("levels", level)
    if len(levels) == 1 and copies == 1:
        return levels[0]

    def mean(key: Key[Array, ""], center: Any, regularization: Any) -> BallAnswer:
        def at(level: BallOracle) -> Callable[[Any], tuple[Any, Any]]:
            def solve(k: Any) -> tuple[Any, Any]:
                answer = level(k, center, regularization)
                return answer.point, answer.calls

            return solve

        solvers = [at(level) for level in levels]
        keys = jax.random.split(key, copies)
        # One after the other, not mapped: a mapped switch would run every level.
        points, calls = jax.lax.map(
            lambda one: multilevel.estimate(one[0], solvers, one[1]), (keys, drawn)
        )
        point = points.mean(axis=0)
        return BallAnswer(
            point, jnp.asarray(regularization, point.dtype), calls.sum(axis=0, dtype=jnp.int32)
        )

    return mean
