"""Private empirical risk minimization over a small ball, by reweighted localized SGD.

What it computes: a point near the minimizer of f_ρ(x) + (λ/2)·‖x - x_0‖² over ‖x - x_0‖ ≤ r, where x_0 is the
start and f_ρ the mean loss of the users smoothed by N(0, ρ²I). All gradients are queried around the start in
one parallel round and reweighted along the run. It is the subsolver of ``ball_accelerated_erm``; by itself it
is for problems whose solution is known to be near: the smoothing bias is not small against L·r.

Source: thesis, Algorithm 8 (λ = 0) and 9, ``method="localized"``, and 10, ``method="strongly convex"``, Lemma
2.4.6 and Corollaries 2.4.11 and 2.4.14; corrected as ``_resque_calls`` says.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, by the coupling argument of
``privacy.resque``: two runs on neighbouring data, with the same shifts, drift apart slowly. It needs losses
that are convex and L-Lipschitz on the whole space; other losses are refused. Excess of the smoothed,
regularized risk, in expectation, proved for ``constants="paper"``:

    localized:        16·(L + λr')·r'·(√d/(βT) + 1/√T),   r' = min(2r, L/λ), or r where λ = 0
    strongly convex:  8192·(L²/λ)·(d/(βT)² + 1/T)

and 1/10 to 1/1000 of it is observed. Risk and smoothed risk differ by at most ρL·√(2/π).

Cost: at most T user gradients, T steps; memory of the features of T users. Planning takes seconds.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from dpsco_jax import privacy
from dpsco_jax.oracles import linear
from dpsco_jax.privacy.resque import ResqueCall
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _planning
from dpsco_jax.solvers.item_level import _resque_accounting as accounting
from dpsco_jax.solvers.item_level import _resque_calls as subsolvers
from dpsco_jax.solvers.item_level._resque_levels import Level, levels
from dpsco_jax.solvers.solution import Solution, finished

METHODS = ("localized", "strongly convex")
SAMPLINGS = ("without replacement", "with replacement")

_SHARE = {"without replacement": 0.2, "with replacement": 0.05}  # of the users, in one call
_SMOOTHING_BIAS = math.sqrt(
    2 / math.pi
)  # E|N(0, 1)|: a linear model is smoothed along its row only


@_planning.pytree
@dataclasses.dataclass(frozen=True)
class Plan:
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        dim: number of parameters.
        num_queries: T, a power of two; fewer users are drawn.
        method: ``"localized"`` or ``"strongly convex"``.
        sampling: ``"without replacement"`` or ``"with replacement"``, of the users of a call.
        constant: C of the reach of the levels; utility only.
        ball_radius: r.
        smoothing_radius: ρ.
        lipschitz: L.
        regularization: λ.
        beta: the noise of a phase with steps η_i has standard deviation L·η_i/β.
        epsilon: the budget.
        delta: likewise.
        loss: the privacy loss of the run, float32, rounded up.
        excess_bound: proven bound on the expected excess of the smoothed, regularized risk; ``inf`` where
            none applies.
    """

    num_users: int
    dim: int
    num_queries: int
    method: str
    sampling: str
    constant: float
    ball_radius: Any
    smoothing_radius: Any
    lipschitz: Any
    regularization: Any
    beta: Any
    epsilon: Any
    delta: Any
    loss: Any
    excess_bound: Any

    @property
    def calls(self) -> list[tuple[ResqueCall, int]]:
        """The localized calls of the run, for the accountant."""
        ratio = float(self.smoothing_radius) / float(self.ball_radius)
        return _calls(self, ratio, float(self.beta))

    @property
    def assumes(self) -> tuple[str, ...]:
        """What privacy assumes; the bound on the excess risk adds that a minimizer is in the ball."""
        return (
            f"every user's loss is convex and {float(self.lipschitz):.4g}-Lipschitz on the whole space",
            accounting.SECRET,
        )

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run."""
        return accounting.certificate(self.calls, float(self.delta), self.assumes)

    def __str__(self) -> str:
        smoothing = _SMOOTHING_BIAS * float(self.lipschitz) * float(self.smoothing_radius)
        certificate = str(self.certificate()).split("\n")
        rows: list[tuple[str, Any]] = [
            ("method", self.method),
            ("users", self.num_users),
            ("parameters", self.dim),
            ("queries", f"fewer than {self.num_queries}, {self.sampling}"),
            ("ball radius", self.ball_radius),
            ("smoothing radius", self.smoothing_radius),
            ("regularization", self.regularization),
            ("beta", self.beta),
            ("excess bound, smoothed", self.excess_bound),
            ("smoothing adds at most", smoothing),
            ("which assumes", "; ".join(self.assumes)),
            ("budget", f"({float(self.epsilon):g}, {float(self.delta):g})"),
            ("certificate", ",".join(certificate)),
        ]
        return _planning.table("private ERM over a ball", rows)


def plan(
    objective: Objective,
    *,
    num_users: int,
    dim: int,
    epsilon: float,
    delta: float,
    ball_radius: float,
    radius_ratio: float = 12.0,
    regularization: float = 0.0,
    method: str | None = None,
    num_queries: int | None = None,
    sampling: str | None = None,
    constants: str = "tight",
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        objective: a linear model with a loss that is convex and Lipschitz on the whole space.
        num_users: n ≥ 2.
        dim: number of parameters.
        epsilon: budget, in (0, inf).
        delta: budget, in (0, 1).
        ball_radius: r > 0, around the start.
        radius_ratio: ρ/r ≥ 2. Less of it means less smoothing, and more noise.
        regularization: λ ≥ 0, of the term (λ/2)·‖x - x_0‖².
        method: ``"strongly convex"`` needs λ > 0 and is chosen then, else ``"localized"``.
        num_queries: T, rounded down to a power of two; a fifth of the users if left out (1/20 with
            replacement).
        sampling: ``"without replacement"``: different users in a call; ``"with replacement"``: as in the
            thesis. By default what ``constants`` says.
        constants: ``"tight"``: without replacement, steps as observed to be best. ``"paper"``: with
            replacement, steps as in the theorems.

    Raises:
        ValueError: an argument is out of range, or the loss is one for which privacy has no proof here.
    """
    accounting.require_linear(objective)
    num_users = _planning.require_integer("num_users", num_users, 2)
    dim = _planning.require_integer("dim", dim, 1)
    epsilon = _planning.require_real("epsilon", epsilon, 0)
    delta = _planning.require_real("delta", delta, 0, 1)
    radius = _planning.require_real("ball_radius", ball_radius, 0)
    ratio = _planning.require_real("radius_ratio", radius_ratio, 2, closed=True)
    convexity = _planning.require_real("regularization", regularization, 0, closed=True)
    paper = _planning.require_choice("constants", constants, ("tight", "paper")) == "paper"
    sampling = sampling or SAMPLINGS[paper]
    _planning.require_choice("sampling", sampling, SAMPLINGS)
    method = method or METHODS[convexity > 0]
    _planning.require_choice("method", method, METHODS)
    strong = method == "strongly convex"
    if strong:
        _planning.require_real("regularization", convexity + objective.ridge, 0)
    queries = power_of_two(num_users, num_queries, sampling, least=4 if strong else 2)
    lipschitz = float(objective.lipschitz)
    made = Plan(
        num_users=num_users,
        dim=dim,
        num_queries=queries,
        method=method,
        sampling=sampling,
        constant=subsolvers.PROVED_CONSTANT if paper else subsolvers.BEST_CONSTANT,
        ball_radius=radius,
        smoothing_radius=ratio * radius,
        lipschitz=lipschitz,
        regularization=convexity,
        beta=1.0,
        epsilon=epsilon,
        delta=delta,
        loss=None,
        excess_bound=math.inf,
    )
    beta = accounting.calibrated_beta(lambda b: _calls(made, ratio, b), epsilon, delta)
    spent = accounting.loss(_calls(made, ratio, beta), delta)
    made = dataclasses.replace(made, beta=beta, loss=accounting.float32_loss(spent))
    if paper and objective.ridge == 0:
        made = dataclasses.replace(made, excess_bound=_excess(made))
    return made


def solve(
    key: jax.Array,
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: Float[jax.Array | np.ndarray, "dim"],
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users, one or several items each.
        params: x_0, ``[dim]``: the start, the center of the ball and of the regularization.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one.
    """
    _planning.require_users("data", plan.num_users, data)
    center = jnp.asarray(params)
    if center.shape != (plan.dim,):
        raise ValueError(f"params must have shape ({plan.dim},), got {center.shape}")
    setting = make_setting(objective, data, plan)
    # Two quadratics are one, around a point between their centers.
    weight = plan.regularization + objective.ridge
    anchor = None
    if objective.ridge > 0:
        anchor = (plan.regularization / weight) * center
    if plan.method == "localized":
        reach = jnp.where(
            weight > 0,
            jnp.minimum(2 * plan.ball_radius, plan.lipschitz / jnp.where(weight > 0, weight, 1.0)),
            plan.ball_radius,
        )
        point = subsolvers.localized(
            key,
            setting,
            plan.num_queries,
            center,
            center if anchor is None else anchor,
            plan.beta,
            reach,
            weight,
            anchor,
        )
    else:
        point = subsolvers.strongly_convex(
            key, setting, _sizes(plan), center, plan.beta, weight, plan.constant, anchor
        )
    drawn = sum(call.num_queries - 1 for call in _sizes(plan)) * setting.data.labels.shape[1]
    ledger = privacy.charge(privacy.open_ledger(), plan.loss)
    return finished(point, ledger, drawn, jnp.asarray(drawn, jnp.int32), None)


def make_setting(objective: Objective, data: UserData, plan: Any) -> subsolvers.Setting:
    """What the calls of a run share, from a plan with the fields that are named as in ``Plan``."""
    unbounded = math.isinf(float(np.asarray(objective.domain.diameter)))
    assert objective.linear_model is not None
    return subsolvers.Setting(
        model=objective.linear_model,
        data=linear.prepare(objective.linear_model, data, plan.dim),
        radius=plan.ball_radius,
        smoothing_radius=plan.smoothing_radius,
        lipschitz=plan.lipschitz,
        replacement=plan.sampling == "with replacement",
        project=None if unbounded else objective.domain.project,
    )


def power_of_two(num_users: int, num_queries: int | None, sampling: str, least: int) -> int:
    """T as given, or by the default share of the users, rounded down to a power of two.

    Raises:
        ValueError: if it is below ``least``, or needs more users than there are without replacement.
    """
    if num_queries is None:
        num_queries = max(least, int(_SHARE[sampling] * num_users))
    most = num_users + 1 if sampling == "without replacement" else None
    given = _planning.require_integer("num_queries", num_queries, least, most)
    return 1 << (given.bit_length() - 1)


def _sizes(plan: Plan) -> tuple[Level, ...]:
    if plan.method == "localized":
        return (Level(plan.num_queries, 1.0),)
    return levels(plan.num_queries)


def _calls(plan: Plan, ratio: float, beta: float) -> list[tuple[ResqueCall, int]]:
    replacement = plan.sampling == "with replacement"
    call = ResqueCall(plan.num_queries, beta, ratio, plan.num_users, replacement)
    if plan.method == "localized":
        return [(call, 1)]
    return accounting.strongly_convex_calls(call)


def _excess(plan: Plan) -> float:
    """The bounds of the file's docstring, and the trivial one."""
    lipschitz, radius, t = plan.lipschitz, plan.ball_radius, plan.num_queries
    convexity, noise = plan.regularization, plan.dim**0.5 / (plan.beta * plan.num_queries)
    trivial = 2 * lipschitz * radius + convexity * radius**2 / 2
    if plan.method == "strongly convex":
        return min(trivial, 8192 * lipschitz**2 / convexity * (noise**2 + 1 / t))
    reach = min(2 * radius, lipschitz / convexity) if convexity > 0 else radius
    return min(trivial, 16 * (lipschitz + convexity * reach) * reach * (noise + t**-0.5))
