"""Ball acceleration: a convex function minimized through few subproblems on small balls.

What it computes: the accelerated proximal-point method of Monteiro and Svaiter over ball oracles. With weight
A and points x, v, an iteration chooses λ (see ``_step.search``), sets

    a = (1 + √(1 + 4λA))/(2λ)  (so that λa² = A + a),   y = (Ax + av)/(A + a),

asks the oracles for the minimizer x̂ of F(x) + (λ/2)‖x - y‖² over the ball of radius r around y, twice and
independently: x' = ball(y, λ), x̃ = prox(y, λ), and steps v' = Π(v - s·aλ(y - x̃)), A' = A + a.

Source: thesis, Proposition 2.2.8 and Appendix 2.6, which states the framework without pseudo-code (after
Carmon, Jambulapati, Jiang, Jin, Lee, Sidford and Tian 2020; Asi, Carmon, Jambulapati, Jin and Sidford 2021);
constants derived here: K = (R/r)^(2/3), κ = LR/ε,
λ_min = c·εK²·log(κ)^p/R² (printed with p = 2), λ_max = 4L/r (printed CL/ε, which has the wrong dimension and
is too small where r < ε/L). ``search="adaptive"``: Carmon, Hausler, Jambulapati, Jin and Sidford 2022,
Algorithm 1.

Formal guarantee: with s = 1/2, where the ball is inactive at x̂ and E objective(x') ≤ minimum + φ,

    E[A'(F(x')-F*) + ‖v'-x*‖²] ≤ A(F(x)-F*) + ‖v-x*‖² - ¼λA'‖x̂-y‖² + A'φ + ¼λA'·Var(x̃) + 2R·aλ·‖E x̃ - x̂‖,

where Π is the projection onto the ball of radius R around the start (whatever else holds x*, if E x̃ = x̂).
With the accuracies of ``Plan.accuracies`` it stays below 3R², so A ≥ 3R²/ε certifies E F(x) - F(x*) ≤ ε, and
that is reached within 14·K·log(3κ) + 3.5·K·log(κ)^(p/2) iterations. Exact oracles (s = 1): A(F(x)-F*) +
½‖v-x*‖² falls, by ½λA'‖x̂-y‖² at least, and A ≥ R²/(2ε) certifies; so too for the adaptive rule. Nothing is
private by itself.

Cost: with bisection at most ``max_searches`` + 2 oracle calls an iteration, with the adaptive rule one.

Example:
    >>> import jax
    >>> from dpsco_jax.problems import gaussian_smoothing, synthetic
    >>> from dpsco_jax.solvers.convex import ball_acceleration
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = ball_acceleration.plan(lipschitz=1.0, distance=5.0, ball_radius=1.0, excess=1e-3, exact=True)
    >>> solution = ball_acceleration.solve(plan, made.objective, made.data, jax.numpy.zeros(3))
    >>> int(solution.status), bool(abs(solution.params - made.minimizer).max() < 0.1)
    (0, True)
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from dpsco_jax import _checks, _counts, _sharding, privacy
from dpsco_jax._argument_kinds import Count, Flag, Nonnegative, Positive, checked, one_of
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, mean_loss
from dpsco_jax.solvers import _arguments, plans
from dpsco_jax.solvers.ball import _step, exact_ball_oracles, newton_ball_oracles
from dpsco_jax.solvers.ball._step import State
from dpsco_jax.solvers.ball.ball_oracles import (
    Accuracies,
    BallOracles,
    OracleCalls,
    oracle_accuracies,
)
from dpsco_jax.solvers.solution import Solution, Status

__all__ = ["SEARCHES", "Plan", "Trajectory", "plan", "run", "solve"]


SEARCHES = ("bisection", "doubling", "multiplier", "adaptive", "fixed", "none")


@pytree
class Plan:
    """What ``run`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        search: one of ``SEARCHES``.
        reuse: whether the line search's accepted answer serves as ball and prox point too.
        num_iterations: outer iterations at most.
        max_searches: calls of the line search in one iteration at most; 0 where there is no search.
        lipschitz: L.
        distance: R, bound on the distance from the start to the comparison point.
        ball_radius: r.
        excess: ε.
        regularization: λ_min; the fixed λ where nothing is searched.
        largest: λ_max.
        window_lower: distance below which λ is too large.
        window_upper: distance above which λ is too small.
        step: factor of the dual step: 1/2 (proved for stochastic oracles) or 1 (exact ones).
        start_weight: A_0.
        target_weight: A at which accuracy ε is certified.
    """

    search: str = static(choices=SEARCHES)
    reuse: bool = static()
    num_iterations: int = static()
    max_searches: int = static(least=0)
    lipschitz: Number
    distance: Number
    ball_radius: Number
    excess: Number
    regularization: Number
    largest: Number
    window_lower: Number
    window_upper: Number
    step: Number
    start_weight: Number
    target_weight: Number

    @property
    def ratio(self) -> float:
        """R/r."""
        return float(self.distance) / float(self.ball_radius)

    @property
    def condition(self) -> float:
        """κ = LR/ε."""
        return float(self.lipschitz) * float(self.distance) / float(self.excess)

    def accuracies(self, failure: float) -> Accuracies:
        """Oracle accuracies that the guarantee asks for, for a single multilevel estimate in the prox.

        Args:
            failure: probability with which any line search of the run may fail: it is divided by their
                number.
        """
        searches = self.num_iterations * max(self.max_searches, 1)
        return oracle_accuracies(
            ratio=self.ratio,
            least_factor=float(self.regularization)
            * float(self.distance) ** 2
            / (float(self.excess) * self.ratio ** (4 / 3)),
            num_iterations=self.num_iterations,
            search_failure=failure / searches,
        )

    def __str__(self) -> str:
        remarks: list[tuple[str, Any]] = [
            ("ratio R/r", f"{self.ratio:.5g}"),
            ("condition LR/excess", f"{self.condition:.5g}"),
            ("balls K = (R/r)^(2/3)", f"{self.ratio ** (2 / 3):.5g}"),
        ]
        if float(self.regularization) * float(self.ball_radius) >= 4 / 3 * float(self.lipschitz):
            why = "the balls are larger than needed: the least regularization always fits"
            remarks.append(("note", why))
        return plans.describe("ball acceleration", self, remarks)


@checked
def plan(
    *,
    lipschitz: Positive,
    distance: Positive,
    ball_radius: Positive,
    excess: Positive,
    search: Annotated[str, one_of(*SEARCHES)] = "bisection",
    exact: Flag = False,
    reuse: Flag | None = None,
    log_power: Nonnegative = 1.0,
    scale: Positive = 1.0,
    num_iterations: Count | None = None,
    max_searches: int | None = None,
) -> Plan:
    """Checks all arguments and sets the numbers. Host only.

    Args:
        lipschitz: L, of F on the ball of radius R + r.
        distance: R, bound on the distance from the start to the comparison point.
        ball_radius: r in (0, R].
        excess: ε in (0, LR].
        search: ``"bisection"``: the proved one. ``"doubling"``: fewer calls, no bound on the iterations.
            ``"multiplier"``: for oracles that know their multiplier and have no ball (Monteiro and Svaiter
                2013).
            ``"adaptive"``: one call an iteration, for oracles that know their multiplier (Carmon, Hausler,
            Jambulapati, Jin and Sidford 2022). ``"fixed"``: λ = L/r throughout, no search. ``"none"``: moves
            to the minimizer in the ball, unaccelerated.
        exact: the oracles return x̂ itself, to machine precision. The dual step is then twice as long and
            A = R²/(2ε) certifies the accuracy, in place of 3R²/ε.
        reuse: whether the line search's accepted answer serves as ball and prox point too. Right for exact
            oracles (the default there); a heuristic for stochastic ones, whose independence the proof uses.
        log_power: p of λ_min; the thesis has 2. Fewer line searches but more iterations as it grows.
        scale: c of λ_min; at 1e-6, say, λ_min hardly ever binds.
        num_iterations: cap on the iterations, in place of the proved number.
        max_searches: cap on the calls of one search, in place of the proved number. To be left out where
            nothing is searched for: ``"adaptive"``, ``"fixed"`` and ``"none"``.

    Raises:
        ValueError: an argument is out of range.
    """
    require_target(lipschitz, distance, excess)
    radius = ball_radius
    if radius > distance:
        raise ValueError(f"ball_radius must be in (0, distance = {distance:g}], got {radius!r}")
    if reuse is None:
        reuse = exact

    ratio, condition = distance / radius, lipschitz * distance / excess
    balls = ratio ** (2 / 3)
    log = max(1.0, math.log(condition))
    least = scale * excess * balls**2 / distance**2 * log**log_power
    largest = max(4 * lipschitz / radius, 2 * least)
    # Potential A·(gap) + ‖v - x*‖² (or half of the square for exact oracles): at most 3R² at the end.
    target = distance**2 / (2 * excess) if exact else 3 * distance**2 / excess
    start = 0.0 if exact else distance / lipschitz
    if search == "adaptive":
        start, target = 0.0, distance**2 / (2 * excess)
    iterations = math.ceil(
        14 * balls * math.log(3 * condition) + 3.5 * balls * math.sqrt(scale * log**log_power)
    )
    searches = 0
    if search == "bisection":
        searches = _step.num_bisections(ratio, largest / least) + reuse
    elif search in ("doubling", "multiplier"):
        searches = 1 + math.ceil(math.log2(largest / least))
    elif search == "fixed":
        least = lipschitz / radius
        iterations = math.ceil(math.sqrt(4 * least * target))
    elif search == "none":
        # F(x_t) - F* ≤ (1 - r/R)^t·LR + λrR/2, for scale at most 1.
        least = scale * excess / (2 * radius * distance)
        iterations = math.ceil(ratio * math.log(4 / 3 * condition)) + 1
    if num_iterations is not None:
        iterations = num_iterations
    _checks.require_absent(searches > 0, f"with search={search!r}", max_searches=max_searches)
    if max_searches is not None:
        searches = _checks.require_integer("max_searches", max_searches, 1 + reuse)
    return Plan(
        search=search,
        reuse=reuse,
        num_iterations=iterations,
        max_searches=searches,
        lipschitz=lipschitz,
        distance=distance,
        ball_radius=radius,
        excess=excess,
        regularization=least,
        largest=largest,
        window_lower=0.5 * radius,
        window_upper=0.75 * radius,
        step=1.0 if exact or search == "adaptive" else 0.5,
        start_weight=start,
        target_weight=target,
    )


def require_target(lipschitz: float, distance: float, excess: float) -> None:
    """``ValueError`` unless ε is at most LR."""
    most = lipschitz * distance
    if excess > most:
        raise ValueError(f"excess must be in (0, lipschitz·distance = {most:g}], got {excess!r}")


class Trajectory(NamedTuple):
    """The end of a run.

    Attributes:
        params: x, ``[dim]``.
        weight: A.
        iterations: outer iterations made.
        oracle_calls: of each oracle, int32.
        calls: ball problems solved, by the oracles' kinds, ``[kinds]`` int32.
        unaccepted: searches that ended without an accepted answer.
        certified: whether A reached the plan's target with every step valid; then the accuracy is the plan's,
            if the oracles keep theirs. Always false for ``search="none"``, which has no weight.
    """

    params: Float[Array, "dim"]
    weight: Float[Array, ""]
    iterations: Int[Array, ""]
    oracle_calls: OracleCalls
    calls: Int[Array, "kinds"]
    unaccepted: Int[Array, ""]
    certified: Bool[Array, ""]
    trace: Any = None


def run(
    key: Any,
    plan: Plan,
    oracles: BallOracles,
    start: Float[Array, "dim"],
    project: Callable[[Any], Any] | None = None,
    *,
    stop: Callable[[Any], Any] | None = None,
    trace: Callable[[State], Any] | None = None,
) -> Trajectory:
    """Runs the plan. Pure JAX: jit, and map over key, the plan's numbers and start.

    Args:
        key: a typed key; deterministic oracles take it and leave it.
        plan: of ``plan``.
        oracles: see ``ball_oracles``; all three count the same kinds.
        start: x_0, flat.
        project: projection of v onto a convex set that holds start and comparison point, such as the ball of
            radius R around the start; the oracles must keep to the same set.
        stop: ``stop(x)`` ends the run early, for study; not certified then.
        trace: ``trace(state)`` after each iteration, for study; after the end its last value is repeated.
    """
    state = _step.init(key, plan, oracles, start)

    def active(state: State) -> Any:
        on = state.iterations < plan.num_iterations
        if plan.search != "none":
            on &= state.weight < plan.target_weight
        return on if stop is None else on & ~stop(state.point)

    def advance(state: State) -> State:
        return _step.step(key, plan, oracles, state, project)

    def traced(state: State, _: None) -> tuple[State, Any]:
        assert trace is not None
        state = jax.lax.cond(active(state), advance, lambda same: same, state)
        return state, trace(state)

    seen = None
    if trace is None:
        state = jax.lax.while_loop(active, advance, state)
    else:
        state, seen = jax.lax.scan(traced, state, None, length=plan.num_iterations)
    reached = state.weight >= plan.target_weight
    return Trajectory(
        params=state.point,
        weight=state.weight,
        iterations=state.iterations,
        oracle_calls=state.oracle_calls,
        calls=state.calls,
        unaccepted=state.unaccepted,
        certified=reached & state.valid & (plan.search != "none"),
        trace=seen,
    )


@_sharding.solver
def solve(
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: Any,
    inner: str = "gradient",
) -> Solution:
    """Runs the plan with exact oracles on the mean loss of all users. Pure JAX, deterministic, not private.

    Args:
        plan: of ``plan``, with ``exact=True``.
        objective: smooth, on the whole space, such as a loss of ``gaussian_smoothing.smoothed``; static:
            close over it when compiling.
        data: of all users.
        params: the starting point, a pytree.
        inner: ``"gradient"`` (any dimension) or ``"newton"`` (dim² memory) for the subproblems.

    Returns:
        A solution whose ``privacy`` is unbounded and whose ``status`` is ``HALTED`` where the run ended
        without a certificate; ``unprivate["trajectory"]`` holds the ``Trajectory``, ``gradients`` the item
        gradients (a Hessian counts as dim of them).

    Raises:
        ValueError: if the objective is not smooth or has a domain, or ``inner`` is unknown.
    """
    _arguments.require_problem(Plan, plan, objective, data, params)
    _checks.require_choice("inner", inner, ("gradient", "newton"))
    if objective.smoothness is None:
        raise ValueError(f"objective must be smooth, got smoothness {objective.smoothness!r}")
    if math.isfinite(float(np.asarray(objective.domain.diameter))):
        diameter = objective.domain.diameter
        raise ValueError(f"objective.domain must be the whole space, got diameter {diameter!r}")
    start, unravel = ravel_pytree(params)
    loss = mean_loss(objective)

    def value(point: Any) -> Any:
        return loss(unravel(point), data)

    gradient = jax.grad(value)
    if inner == "newton":
        oracles = newton_ball_oracles.newton(gradient, jax.hessian(value), plan.ball_radius)
    else:
        smoothness = objective.smoothness + objective.ridge
        oracles = exact_ball_oracles.accelerated_gradient(gradient, smoothness, plan.ball_radius)
    end = run(jax.random.key(0), plan, oracles, start)
    passes = _counts.times(end.calls[1], start.size + 1 if inner == "newton" else 1)
    items = math.prod(jax.tree.leaves(data.items)[0].shape[:2])
    finite = jnp.all(jnp.isfinite(end.params))
    status = jnp.where(end.certified, int(Status.OK), int(Status.HALTED))
    return Solution(
        params=unravel(end.params),
        privacy=privacy.unbounded(),
        status=jnp.where(finite, status, int(Status.DIVERGED)).astype(jnp.int32),
        gradients=_counts.times(passes, items),
        unprivate={"trajectory": end},
    )
