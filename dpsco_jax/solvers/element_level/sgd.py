"""Element-level DP-SGD: a record is one element of one user, and far less noise covers it than a user.

What it computes: every element of a user (a public cluster of items) has an update, the gradient mapping
(w - Π(w - η_t·g))/η_t of its mean gradient g, which is g where the domain is all of space. Updates are
clipped, summed over the units of a step, divided by q·num_users and covered with Gaussian noise; w moves
against the result by η_t = η or η/√(t + 1), is projected, and is averaged. It minimizes the mean over users
of the SUM over their elements of the mean loss of an element's items.

Source: E Algorithm 1 and (15), with the sign of descent (correction N13); Corollaries 3.1 and 3.2 (N14).

Formal guarantee: (ε, δ)-DP for one element of one user, at every point of the run, under REPLACE_ONE or,
with ``relation="zero_out"``, REPLACE_SPECIAL (an element replaced by nothing); which elements a user has is
protected too. Nothing is assumed of the loss: updates are clipped. How units are drawn and what that is worth
is in ``_releases``; drawing users in place of units amplifies little, and is charged for what it is worth
(N3). What follows for a user whole is printed: ``user_certificate``. ``protects="user"`` is the paper's
user-level baseline, the same update with noise for a user's capped sum; the fair one is a single element a
user. Assumed: the partition is public; the key and the samples stay secret.
Utility, E Proposition 3, for a clip norm that never clips, T/n → γ and m = batch_size (not proven here):
√n·(average - w*) → N(0, Q⁻¹(Σ_el + (1/γ)(Σ_m/m + s²·I/m²))Q⁻¹), with Q the Hessian and Σ_el the covariance
of a user's summed gradient, Σ_m = Σ_el under ``"user"`` and E Σ_k g_k·g_kᵀ under ``"element"``, and s the
standard deviation of the noise on the sum. Default steps, η = min(1/β, R/√(T·V)), are those of descent on a
smooth loss: for steps η ≤ 1/β, convex losses over all of space, a clip norm that never clips and users with
``typical_elements`` elements in the mean at most, E F(average) - F* ≤ a_T·(R²/(2η) + T·η·V·(1 + βη)/2), a_T =
1/T, or 4T/(T + 1)² for ``"polynomial"`` (docs/theory/smooth_average.md; under ``"element"`` and ``"full"``).

Cost: num_steps·batch_size·elements_per_user unit gradients; memory of one chunk of units, and
for linear models whose units are drawn of a second copy of the data, prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget, Problem
    >>> from dpsco_jax.problems import losses
    >>> from dpsco_jax.problems.objective import Example
    >>> from dpsco_jax.problems.elements import ElementData
    >>> from dpsco_jax.solvers.element_level import sgd
    >>> x, y = jax.random.normal(jax.random.key(0), (50, 4, 2, 3)), jax.numpy.ones((50, 4, 2))
    >>> objective, data = losses.logistic(1.0), ElementData(Example(x, y))
    >>> problem = Problem(objective, num_users=50, dim=3, items_per_user=8, distance=5.0)
    >>> plan = sgd.plan(problem, Budget(2.0, 1e-3), num_steps=20, elements_per_user=4, batch_size=10)
    >>> solution = sgd.solve(jax.random.key(1), plan, objective, data, jax.numpy.zeros(3))
    >>> solution.params.shape, plan.certificate().epsilon <= 2.0 < plan.user_certificate().epsilon
    ((3,), True)
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

import jax

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Count, Positive, one_of
from dpsco_jax._pytrees import pytree, static
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _plan_base, _planning, first_order, methods, plans
from dpsco_jax.solvers.element_level import _releases, _unit_updates
from dpsco_jax.solvers.element_level._plan import UnitPlan, default_step_size
from dpsco_jax.solvers.element_level._releases import ElementReleases
from dpsco_jax.solvers.solution import Solution

__all__ = ["Plan", "plan", "solve"]

STEP_DECAYS = ("none", "sqrt")


@pytree
class Plan(UnitPlan):
    """What ``solve`` will do: a run over units, and how steps shrink and iterates are averaged.

    Attributes:
        step_decay: ``"none"`` or ``"sqrt"``.
        averaging: ``"uniform"``, ``"polynomial"`` (towards the last iterates) or ``"last"``.
    """

    step_decay: str = static(choices=STEP_DECAYS)
    averaging: str = static(choices=methods.AVERAGING)

    def __str__(self) -> str:
        return plans.describe("element-level DP-SGD", self, self.remarks())


@_plan_base.remembers(least_users=1)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: Count,
    elements_per_user: Count,
    batch_size: int | None = None,
    sampling: str = "element",
    relation: str = "replace",
    protects: str = "element",
    cap: float = math.inf,
    clip_norm: Positive | None = None,
    step_size: Positive | None = None,
    typical_elements: Positive | None = None,
    step_decay: Annotated[str, one_of(*STEP_DECAYS)] = "none",
    averaging: methods.Averaging = "polynomial",
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the Lipschitz constant, domain and ridge, n, the number of parameters, and the distance
            R, which is needed for the step size only.
        budget: (ε, δ) of the run for one element, δ > 0.
        num_steps: T ≥ 1.
        elements_per_user: K ≥ 1, slots of a user in the data.
        batch_size: q·n in [1, n]: every unit, or user, is drawn with probability batch_size/n, or
            batch_size·K units are; to be left out for ``"full"`` only.
        sampling: ``"element"``, ``"user"``, ``"fixed"`` (units, without replacement) or ``"full"``.
        relation: ``"replace"``, or ``"zero_out"``, which halves the sensitivity and for which nothing is
            proven under ``"fixed"``, nor under ``"user"`` unless users are protected whole.
        protects: ``"element"``, or ``"user"``, with ``"user"`` or ``"full"`` sampling.
        cap: bound on a user's summed update in clip norms, in [1, ∞]; at most K counts. For sampled or
            protected users only.
        clip_norm: the objective's Lipschitz constant if left out.
        step_size: η. If left out min(1/β, R/√(T·V)), with T = 1 for the first of decaying steps: β is the
            smoothness of a user's sum, and V bounds the variance of a mean update, noise included; for losses
            that are not smooth R/√(T·V) alone, with the square of a mean update in V.
        typical_elements: how many elements a user has, a public guess in (0, K] on which the default of
            ``step_size`` rests, and nothing else; K if left out.
        step_decay: ``"none"``, or ``"sqrt"``: η/√(t + 1) for t = 0, 1, ...
        averaging: ``"uniform"``, ``"polynomial"`` or ``"last"``.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: units whose updates are held at once.

    Raises:
        ValueError: an argument is out of range, nothing is proven of the sampling under the relation, or the
            step size is left out and R is not finite.
    """
    slots = elements_per_user
    _releases.require_proven(sampling, relation, protects, cap)
    everybody, users = sampling == "full", problem.num_users
    size = users if everybody and batch_size is None else batch_size
    size = _checks.require_integer("batch_size", size, users if everybody else 1, users)
    held = float(slots if typical_elements is None else typical_elements)
    _checks.require(held <= slots, "typical_elements", held, f"in (0, {slots}]")
    clip_norm = problem.lipschitz if clip_norm is None else clip_norm
    clip_norm = _checks.require_real("clip_norm", clip_norm, 0)
    sizes = (users, slots, size, num_steps, sampling, relation, protects, float(cap))
    steps = ElementReleases(*sizes, noise_multiplier=1.0, delta=budget.delta).steps
    multiplier = steps.noise_multiplier(budget.epsilon, budget.delta, accountant)
    releases = ElementReleases(*sizes, noise_multiplier=multiplier, delta=budget.delta)
    if step_size is None:
        steps_alike = num_steps if step_decay == "none" else 1
        step_size = default_step_size(problem, releases, clip_norm, steps_alike, held)
    return Plan(
        num_users=users,
        elements_per_user=slots,
        dim=problem.dim,
        num_steps=num_steps,
        batch_size=size,
        sampling=sampling,
        relation=relation,
        protects=protects,
        cap=float(cap),
        step_decay=step_decay,
        averaging=averaging,
        chunk_size=chunk_size,
        noise_multiplier=multiplier,
        clip_norm=clip_norm,
        step_size=_checks.require_real("step_size", step_size, 0),
        epsilon=budget.epsilon,
        delta=budget.delta,
    )


@_sharding.solver
def solve(
    key: jax.Array,
    plan: Plan,
    objective: Objective,
    data: ElementData | UserData,
    params: Any,
    trace: Callable[[Any, Any, Any], Any] | None = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling. Its loss is that of an item.
        data: ``ElementData`` with ``plan.num_users`` users and ``plan.elements_per_user`` slots, or its
            units, ``elements.as_units``.
        params: the starting point; projected onto the domain.
        trace: see ``loop.run``; its output goes to ``unprivate["trace"]``.

    Raises:
        ValueError: if the number of users, slots or parameters is not the planned one.
    """
    units = _unit_updates.as_rows(plan, data)
    _arguments.require_run(Plan, key, plan, objective, units, params, trace)
    method = methods.ProjectedSgd(plan.step_size, plan.averaging, plan.step_decay)
    update = None
    if not _unit_updates.is_whole_space(objective.domain, params):
        update = _unit_updates.gradient_mapping(objective, method.length)
    mean = _unit_updates.UnitUpdates(plan.releases, plan.clip_norm, plan.chunk_size, update)
    gradients = plan.unit_gradients * jax.tree.leaves(units.items)[0].shape[1]
    return first_order.run(
        key,
        mean,
        method,
        objective,
        units,
        params,
        plan.num_steps,
        gradients,
        trace=trace,
    )
