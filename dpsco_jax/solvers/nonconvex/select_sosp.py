"""Private selection of a second-order stationary point among candidates.

What it computes: of T points, public or private, the first with ‖∇F‖ ≤ α and λ_min(∇²F) ≥ -√(ρα) that noisy
tests find, F the mean over users, α the ``stationarity`` and ρ the ``hessian_lipschitz`` of the loss. Without
an α it is the point that a noisy comparison finds nearest to stationary.

- ``constants="tight"``: one ``above_threshold`` on min((α - ‖∇F‖)/Δ₁, (λ_min + √(ρα))/Δ₂), which no user
  moves by more than 1; with Δ₁ = 2G/n for gradients clipped to G, and Δ₂ = (a + b)/n for Hessians clipped to
  [-a, b].
- ``constants="paper"``: the two tests of Algorithm 18, with noise of its own on each and its offsets, for
  Δ₁ = 2G/n and Δ₂ = 2M/n: the printed scales, for half of that, are 2ε-private.
- ``stationarity=None``: permute-and-flip on max(‖∇F‖/Δ₁, -λ_min/Δ₂), the least of which wins.

Source: T Algorithm 18, Lemma 6.3.8, with docs/corrections.md, C6-8; Dwork and Roth 2014, Algorithm 1; McKenna
and Sheldon 2020.

Formal guarantee: pure ε-DP for a user's whole data under REPLACE_ONE, whatever the losses are: gradients and
Hessians are clipped (``oracles.second_order``), eigenvalues are those of the whole matrix in float64. Where
the candidates were made of the same users the two losses add up; where these users were held back from what
made the candidates, the larger one counts. Proof for two tests: shift one threshold down by Δ₁ and the other
up by Δ₂; who has failed a test fails it still, and the one who passed needs both noises moved by twice that:
Δ₁/(4Δ₁/ε) + 2Δ₁/(8Δ₁/ε) and the same again, in all ε.
Utility, with probability 1 - ω: if some candidate is stationary, a point is found; a point that is found has
‖∇F‖ ≤ α + s·Δ₁ and λ_min ≥ -√(ρα) - s·Δ₂, s the ``slack``. For one test s = (8·log(2/ω) + 4·log(2T/ω))/ε, by
four events of probability ω/4 each: the noise of the threshold on either side, that of the first stationary
candidate below, and that of any candidate above. For the paper's s = 32·log(2T/ω)/ε. A candidate that is not
finite passes no test.

Cost: a gradient and a Hessian of every user for each candidate up to the one that is found; float64.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import fixtures
    >>> from dpsco_jax.solvers.nonconvex import select_sosp
    >>> made = fixtures.two_wells(jax.random.key(0), num_users=20_000, items_per_user=1, dim=2)
    >>> saddle = jax.numpy.zeros(2)
    >>> candidates = jax.numpy.stack([saddle, jax.numpy.asarray(made.minimizer, float)])
    >>> with jax.enable_x64(True):
    ...     plan = select_sosp.plan(made.problem(), Budget(1.0), num_candidates=2, stationarity=0.05)
    ...     run = jax.jit(lambda key: select_sosp.solve(key, plan, made.objective, made.data, candidates))
    ...     solution = run(jax.random.key(1))
    >>> bool(solution.released["found"]), int(solution.released["index"]), plan.certificate().epsilon
    (True, 1, 1.0)
"""

import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, _counts, _float64, _sharding, privacy
from dpsco_jax._argument_kinds import Count, Inside, Positive, one_of
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry.norms import all_finite
from dpsco_jax.mechanisms import selection, sparse_vector
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _costs, _plan_base, plans
from dpsco_jax.solvers.nonconvex import _second_order_bounds
from dpsco_jax.solvers.solution import Solution, Status
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "plan", "solve"]

_TESTS = ("one", "two", "least")


@pytree
class Plan(_second_order_bounds.Bounded):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_candidates: T.
        tests: ``"one"``, ``"two"`` or, without an α, ``"least"``.
        stationarity: α; ``None`` without one.
        hessian_lipschitz: ρ; ``None`` without an α.
        offset: how far below a threshold a noisy score may be and pass, in units of Δ₁ and Δ₂.
        slack: s, how far below it a point that is found may be in truth; without an α, how far above the
            least score that of the point is, with probability 1 - ω.
        failure: ω.
        epsilon: ε, what the selection costs.
    """

    num_candidates: int = static()
    tests: str = static(choices=_TESTS)
    stationarity: Number | None
    hessian_lipschitz: Number | None
    offset: Number
    slack: Number
    failure: Number
    epsilon: Number

    @property
    def curvature_floor(self) -> Any:
        """√(ρα): how negative the least eigenvalue of a stationary point may be; ``None`` without an α."""
        if self.stationarity is None or self.hessian_lipschitz is None:
            return None
        xp, (alpha, rho) = as_floats(self.stationarity, self.hessian_lipschitz)
        return xp.sqrt(alpha * rho)

    @property
    def guaranteed_norm(self) -> Any:
        """α + s·Δ₁: with probability 1 - ω no point that is found has a longer gradient."""
        if self.stationarity is None:
            return None
        return self.stationarity + self.slack * self.gradient_sensitivity

    @property
    def guaranteed_curvature(self) -> Any:
        """-√(ρα) - s·Δ₂: with probability 1 - ω no point that is found has a lower eigenvalue."""
        floor = self.curvature_floor
        return None if floor is None else -floor - self.slack * self.curvature_sensitivity

    @property
    def accounted(self) -> Any:
        """Whether the guarantee covers a run with these numbers; a bool, may be traced."""
        _, (epsilon,) = as_floats(self.epsilon)
        # Below, scores would be rounded beside their noise.
        return self.bounded & positive_and_finite(self.epsilon) & (epsilon >= 1e-6)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs, if the last candidate is the one."""
        return self.work_for_points(item, self.num_candidates)

    @property
    def user_gradients(self) -> int:
        """Of all candidates."""
        return self.num_candidates * self.num_users

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where one is out of its range; may be traced."""
        xp, (epsilon,) = as_floats(self.epsilon)
        good = self.accounted
        return privacy.unbounded_unless(good, privacy.pure_dp(xp.where(good, epsilon, 1.0)))

    def certificate(self) -> privacy.Certificate:
        """(ε, 0), pure differential privacy; infinite as ``loss`` is."""
        epsilon = float(self.epsilon) if bool(self.accounted) else math.inf
        by = "permute and flip" if self.tests == "least" else "sparse vector"
        return privacy.Certificate(epsilon, 0.0, self.relation, by, ("the key stays secret",))

    def __str__(self) -> str:
        remarks = [
            ("sensitivity of the gradient's norm", f"{float(self.gradient_sensitivity):.4g}"),
            ("sensitivity of the least eigenvalue", f"{float(self.curvature_sensitivity):.4g}"),
        ]
        if self.tests != "least":
            remarks += [
                ("gradient norm that is guaranteed", f"{float(self.guaranteed_norm):.4g}"),
                ("least eigenvalue that is guaranteed", f"{float(self.guaranteed_curvature):.4g}"),
            ]
        return plans.describe("private selection of a stationary point", self, remarks)


@_plan_base.remembers(least_users=2, pure=True, convex=False)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_candidates: Count,
    stationarity: Positive | None = None,
    clip_norm: Positive | None = None,
    failure: Inside = 0.05,
    constants: Annotated[str, one_of("tight", "paper")] = "tight",
) -> Plan:
    """Checks all arguments and sets the noise. All of them are public.

    Args:
        problem: for n, d ≤ 512, and a loss with a smoothness and, with an α, a Hessian-Lipschitz constant.
        budget: ε of the selection; δ may be zero, and nothing is spent of it.
        num_candidates: T ≥ 1.
        stationarity: α > 0; without one the candidate that is nearest to stationary is chosen.
        clip_norm: G, of a user's gradient; the Lipschitz constant of the loss if left out.
        failure: ω in (0, 1).
        constants: ``"paper"`` for two tests, Hessians clipped to [-M, M] and the offsets of Algorithm 18.

    Raises:
        ValueError: an argument is out of range, or ``jax_enable_x64`` is off.
    """
    _float64.require_x64("select_sosp")
    paper = constants == "paper"
    _checks.require(
        not paper or stationarity is not None,
        "stationarity",
        stationarity,
        "positive for the tests",
    )
    rho = None
    if stationarity is not None:
        rho = problem.objective.hessian_lipschitz
        rho = _checks.require_real("problem.objective.hessian_lipschitz", rho, 0, closed=True)
    epsilon, omega, count = budget.epsilon, failure, num_candidates
    if stationarity is None:
        offset, slack = 0.0, 2.0 * math.log(count / omega) / epsilon
    elif paper:
        offset = 16.0 * math.log(2.0 * count / omega) / epsilon
        slack = 2.0 * offset
    else:
        offset = 6.0 * math.log(2.0 / omega) / epsilon
        slack = (
            offset + (2.0 * math.log(2.0 / omega) + 4.0 * math.log(2.0 * count / omega)) / epsilon
        )
    return Plan(
        **_second_order_bounds.bounds(problem, clip_norm, paper),
        num_candidates=count,
        tests="least" if stationarity is None else "two" if paper else "one",
        stationarity=stationarity,
        hessian_lipschitz=rho,
        offset=offset,
        slack=slack,
        failure=omega,
        epsilon=epsilon,
    )


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers and data.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: the candidates, with a leading axis ``[num_candidates, ...]`` on every leaf: public, or
            released with a loss of their own. Each is projected onto the domain.

    Returns:
        The point that was found, or the last candidate, with the status HALTED. ``released`` says whether it
        was ``found``, and its ``index``.

    Raises:
        ValueError: the number of users, of candidates or of parameters is not the planned one, or
            ``jax_enable_x64`` is off.
    """
    _arguments.require_plan(Plan, plan)
    found = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(params)}
    planned = f"plan.num_candidates = {plan.num_candidates} points, an axis of every leaf"
    _checks.require(found == {(plan.num_candidates,)}, "params", found, planned)
    _arguments.require_run(
        Plan, key, plan, objective, data, jax.tree.map(lambda leaf: leaf[0], params)
    )
    points = _second_order_bounds.in_float64("select_sosp", params)

    def point(index: Any) -> Any:
        return objective.domain.project(jax.tree.map(lambda leaf: leaf[index], points))

    at = _second_order_bounds.statistics("select_sosp", plan, objective, data, point(0))
    steep, bent = plan.gradient_sensitivity, plan.curvature_sensitivity
    if plan.tests == "least":

        def score(index: Any) -> Any:
            norm, least = at(point(index))
            return -jnp.maximum(norm / steep, -least / bent)

        scores = jax.lax.map(score, jnp.arange(plan.num_candidates))
        index = selection.permute_and_flip(key, scores, plan.epsilon, 1.0)
        seen = jnp.asarray(plan.num_candidates)
        success = all_finite(point(index))
    else:
        given = plan.stationarity is not None and plan.hessian_lipschitz is not None
        wanted = f"a number, as is plan.hessian_lipschitz, for plan.tests = {plan.tests!r}"
        _checks.require(given, "plan.stationarity", plan.stationarity, wanted)

        def margins(index: Any) -> tuple[Any, Any]:
            norm, least = at(point(index))
            alpha: Any = plan.stationarity
            return (alpha - norm) / steep, (least + plan.curvature_floor) / bent

        success, index = _first(key, plan, margins)
        seen = index + 1
    each = jax.tree.leaves(data.items)[0].shape[1] * plan.num_users
    return Solution(
        params=jax.tree.map(lambda x, p: x.astype(p.dtype), point(index), params),
        privacy=plan.loss(),
        status=jnp.where(success, int(Status.OK), int(Status.HALTED)).astype(jnp.int32),
        gradients=_counts.count(each * plan.num_candidates),
        unprivate={"gradients": _counts.count(jnp.asarray(each, jnp.int64) * seen), "trace": None},
        released={"found": success, "index": index},
    )


def _first(key: jax.Array, plan: Plan, margins: Any) -> tuple[jax.Array, jax.Array]:
    """Whether a candidate passes, and the first that does, or the last one."""
    start_key, steps_key = jax.random.split(key)
    number = 1 if plan.tests == "one" else 2
    tests = [sparse_vector.above_threshold(-plan.offset, plan.epsilon / number, 1.0)] * number
    begun = [
        test.init(one)
        for test, one in zip(tests, jax.random.split(start_key, len(tests)), strict=True)
    ]

    def step(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        index = carry[0] + 1
        found = margins(index)
        # NaN passes no test, also where it is the smaller of two.
        queries = (jnp.minimum(*found),) if plan.tests == "one" else found
        keys = jax.random.split(jax.random.fold_in(steps_key, index), len(tests))
        passed = [
            # Two tests go on with the thresholds that they have until both are passed at once.
            test.step(one, state, query)[0]
            for test, state, query, one in zip(tests, begun, queries, keys, strict=True)
        ]
        return index, jnp.all(jnp.stack(passed))

    def open_still(carry: tuple[Any, Any]) -> Any:
        return ~carry[1] & (carry[0] < plan.num_candidates - 1)

    nothing = jnp.asarray(-1, jnp.int32), jnp.zeros([], bool)
    index, success = jax.lax.while_loop(open_still, step, nothing)
    return success, index
