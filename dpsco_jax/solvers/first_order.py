"""First-order runs as values: one plan and one ``solve`` for every private mean and every method.

What it computes: the mean's release, plus the exact gradients of all regularizers, drives a method. Once a
test has failed nothing moves any more. The method says which point is reported. A solver is a function that
makes such a plan from a problem and a budget; ``plan`` makes one of a mean and a method of your own.

Source: thesis, Algorithm 1 (META).

Formal guarantee: that of the mean, at every point of the run: regularizers, steps, projections and reports
are post-processing of what it has released. Loss and certificate are functions of the numbers that run, so
that an edited plan says what the edited run costs.

Cost: that of the mean, for the number of steps.

Example:
    >>> import jax, optax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers import first_order, means, methods
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(1.0, 1e-5)
    >>> mean = means.clipped(problem, budget, num_steps=20, batch_size=20)
    >>> plan = first_order.plan(problem, budget, mean, methods.Optax(optax.adam(0.1)))
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: first_order.solve(key, plan, made.objective, made.data, start))
    >>> run(jax.random.key(1)).params.shape, plan.certificate().epsilon <= 1.0
    ((3,), True)
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _sharding, privacy, transforms
from dpsco_jax._argument_kinds import Nonnegative, NonnegativeOrInfinite
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import sampling
from dpsco_jax.privacy.releases import Releases
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _costs, _plan_base, _planning, _sequence, loop, plans
from dpsco_jax.solvers._planning import REPLACE_ONE
from dpsco_jax.solvers.means import Clipped, Mean, Part
from dpsco_jax.solvers.methods import Method
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.solution import Solution, Status, finished
from dpsco_jax.solvers.work import Work

__all__ = ["FirstOrder", "Pull", "plan", "run", "solve"]

_ON_HALT = ("report", "start")


class Pull(NamedTuple):
    """A term (strength/2)·‖w - centre‖² of the objective.

    Attributes:
        strength: λ ≥ 0.
        centre: a public point; ``None`` for the start.
    """

    strength: Any
    centre: Any = None


@pytree
class FirstOrder(_plan_base.ByName):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    A number of the mean, of its releases, of the method or of ``details`` is read as ``plan.NAME`` and edited
    by ``plan.replace(NAME=...)``, as long as one of them alone has that name.

    Attributes:
        title: of the solver that planned it.
        dim: number of parameters.
        mean: of the users' gradients of a step: sizes, clip norms, noise. All releases are its own.
        method: what is done with it, and which point is reported.
        pull: strength of a term (strength/2)·‖w - centre‖² of the objective; ``None`` for none.
        epsilon: ε of the budget that the noise was calibrated for.
        delta: δ of that budget.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
        details: further numbers, by name, that a solver states of its plan.
        on_halt: what is reported of a run that a test has ended: what the method reports, ``"report"``, or
            the ``"start"``.
        remarks: further lines of the table, for people.
        premises: what the bounds assume; privacy assumes none of it.
        promised_relation: the relation of neighbours that the solver promises: releases of another one are
            refused; that of the releases, whatever it is, if ``None``.
    """

    title: str = static()
    dim: int = static()
    mean: Any
    method: Any
    pull: Number | None
    epsilon: Number
    delta: Number
    excess_bound: Number
    details: Mapping[str, Number] = dataclasses.field(default_factory=dict)
    on_halt: str = static(default="report", choices=_ON_HALT)
    remarks: Remarks = static(default=Remarks())
    premises: Remarks = static(default=Remarks())
    promised_relation: NeighboringRelation | None = static(default=None)

    def __post_init__(self) -> None:
        _plan_base.require_details(self)
        releases, kind = getattr(self.mean, "releases", None), getattr(self.mean, "kind", None)
        # Of another kind they would cost what the mean does not release; axes to map over have no cost.
        if kind is not None and hasattr(type(releases), "certificate"):
            _checks.require_instance("plan.mean.releases", releases, kind)
        if self.promised_relation is REPLACE_ONE:
            _planning.require_replacement(releases)

    @property
    def releases(self) -> Any:
        """What the mean releases, whatever else of the plan has such a name: relations are read off it."""
        return self.mean.releases

    @property
    def num_users(self) -> int:
        """N, how many users the data must have."""
        return int(self.mean.releases.population_size)

    @property
    def num_steps(self) -> int:
        """T."""
        return int(self.mean.releases.num_steps)

    @property
    def batch_size(self) -> int:
        """Users of a step; their expected number under Poisson sampling."""
        return int(self.mean.releases.batch_size)

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run; the expected number under Poisson sampling."""
        return self.num_steps * self.batch_size * getattr(self.mean, "gradients_per_user", 1)

    def records(self, data: Any) -> Any:
        """The data in the rows of which the mean is."""
        return data

    def gradients(self, slots: int) -> int:
        """Item gradients of the whole run on data with so many item slots a user."""
        return self.user_gradients * getattr(self.mean, "items_per_record", slots)

    @property
    def event(self) -> Any:
        """What is released, for an accountant."""
        return self.mean.releases.event

    @property
    def noise_stddev(self) -> Any:
        """σ of the noise on each coordinate of the mean gradient."""
        return self.mean.noise_stddev(self.dim)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bounds assume; privacy assumes none of it."""
        near = (_planning.near(self.details["distance"]),) if "distance" in self.details else ()
        return (*self.premises, *near)

    @property
    def assumes_of_losses(self) -> tuple[str, ...]:
        """The same but for the distance of the start."""
        return tuple(self.premises)

    def with_method(
        self, title: str, method: Method, excess_bound: float = math.inf
    ) -> "FirstOrder":
        """A plan of the same releases for another method, of which nothing is proven unless it is said here.

        Args:
            title: of the solver that makes it.
            method: what is done with the mean.
            excess_bound: what is proven of its expected excess risk.
        """
        return dataclasses.replace(
            self, title=title, method=method, excess_bound=excess_bound, remarks=Remarks()
        )

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs; may be traced."""
        return self.mean.loss()  # type: ignore[no-any-return]

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run by the tightest accountant."""
        return self.mean.certificate()  # type: ignore[no-any-return]

    def work_for(self, item: _costs.Item) -> Work:
        """What a run costs: the mean and a step, as often as there are steps."""
        step: Work = self.mean.work_for(item) + _costs.method(item.dim)
        return step * self.num_steps + _costs.prepared(self.num_users, item)

    def __str__(self) -> str:
        return plans.describe(self.title, self, self.remarks)


@_plan_base.remembers(least_users=1, convex=False)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    mean: Mean,
    method: Method,
    *,
    pull: Nonnegative | None = None,
    title: str = "first-order method on a private mean",
    excess_bound: NonnegativeOrInfinite = math.inf,
    remarks: Sequence[tuple[str, str]] = (),
) -> FirstOrder:
    """A plan of a mean and a method of your choice. All arguments are public.

    Args:
        problem: for the number of parameters, and N, which must be that of the mean.
        budget: (ε, δ) of the run, which the releases of the mean must keep.
        mean: such as ``means.clipped(problem, budget, num_steps=100, batch_size=50)``.
        method: of ``methods``, or any object with ``on(domain, num_steps)``.
        pull: strength λ ≥ 0 of a further term (λ/2)·‖w - centre‖²; ``None`` for none.
        title: the first line of the plan's table.
        excess_bound: what you have proven of the expected excess risk.
        remarks: further lines of the table, as (name, text).

    Raises:
        ValueError: an argument is out of its range, or the mean is for another number of users, or costs more
            than the budget.
    """
    _checks.require_instance("mean", mean, Mean)
    _checks.require_instance("method", method, Method)
    _checks.require_instance("title", title, str)
    _checks.require_instances("remarks", remarks, tuple)
    pairs = all(len(line) == 2 and isinstance(line[0], str) for line in remarks)
    _checks.require(pairs, "remarks", remarks, "pairs of a name and a text")
    _checks.require_instance("mean.releases", getattr(mean, "releases", None), Releases)
    made = FirstOrder(
        title=title,
        dim=problem.dim,
        mean=mean,
        method=method,
        pull=pull,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=excess_bound,
        remarks=Remarks(remarks),
    )
    users = made.num_users
    _checks.require(users == problem.num_users, "mean", f"{users} users", f"of {problem.num_users}")
    spent = made.certificate()
    kept = spent.epsilon <= budget.epsilon * (1 + 1e-9) and spent.delta <= budget.delta * (1 + 1e-9)
    _checks.require(kept, "mean", f"({spent.epsilon}, {spent.delta})", f"within {budget}")
    return made


@_sharding.solver
def solve(
    key: jax.Array,
    plan: FirstOrder,
    objective: Objective,
    data: UserData | StoredUsers | ElementData,
    params: Any,
    trace: Callable[[Any, Any, Any], Any] | None = None,
    center: Any = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``, or of any solver that is a mean and a method.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users; not under ``jit`` if they are on disk, which clipped means take.
            ``ElementData``, or its units, for plans of ``element_level``.
        params: the starting point; projected onto the domain. Must not depend on the data.
        trace: see ``loop.run``; its output goes to ``unprivate["trace"]``.
        center: of the plan's pull, a public point; the starting point if left out.

    Returns:
        The reported point. After a halt the status is HALTED, and the point that of the last step before, or
        the start, as ``plan.on_halt`` says.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one, the gradients are too many
            to count, the mean does not say what its releases cost, or ``center`` is no real floating tree of
            the shape of the parameters, or of no use as the plan has no pull.
    """
    stored = isinstance(getattr(plan, "mean", None), Clipped)
    _require_releases(plan)
    data = plan.records(data) if isinstance(plan, FirstOrder) else data
    _arguments.require_run(_kind(plan), key, plan, objective, data, params, trace, stored)
    if plan.pull is not None:
        _checks.require_nonnegative("plan.pull", plan.pull)
    if center is not None:
        _checks.require(plan.pull is not None, "center", "a point", "None: the plan has no pull")
        _arguments.require_like("center", center, params)
    slots = jax.tree.leaves(data.items)[0].shape[1]
    return run(
        key,
        plan.mean,
        plan.method,
        objective,
        data,
        params,
        plan.num_steps,
        plan.gradients(slots),
        None if plan.pull is None else Pull(plan.pull, center),
        trace,
        plan.on_halt,
    )


def run(
    key: jax.Array,
    mean: Mean,
    method: Method,
    objective: Objective,
    data: Any,
    params: Any,
    num_steps: int | jax.Array,
    gradients: int,
    pull: Pull | None = None,
    trace: Callable[[Any, Any, Any], Any] | None = None,
    on_halt: str = "report",
) -> Solution:
    """Runs a method on a mean, without a plan.

    Args:
        key: a typed key; samples and shifts have one half of it, noise the other.
        mean: of the users' gradients.
        method: what is done with it.
        objective: static; the domain, and the regularizer whose exact gradient is added.
        data: ``UserData``; or ``StoredUsers``, for ``means.Clipped`` with no shift of a round or item.
        params: the starting point; projected onto the domain.
        num_steps: T, static; or traced where there is no trace.
        gradients: the public number of item gradients of the run.
        pull: a further quadratic term.
        trace: see ``loop.run``; its output goes to ``unprivate["trace"]``.
        on_halt: what is reported after a test has failed: what the method reports, ``"report"``, or the
            ``"start"``.

    Returns:
        The reported point. After a halt the status is HALTED, and the point that of the last step before.
    """
    _checks.require_instance("mean", mean, Mean)
    _checks.require_instance("method", method, Method)
    _checks.require_choice("on_halt", on_halt, _ON_HALT)
    if getattr(method, "draws", False):
        key, draw_key = jax.random.split(key)
        method = method.drawn(draw_key, num_steps)  # type: ignore[attr-defined]
    oracle_key, noise_key = jax.random.split(key)
    project = objective.domain.project
    if isinstance(data, StoredUsers):
        _checks.require_instance("mean", mean, Clipped)
        project = jax.jit(project)  # rounded as in a compiled run
    start = project(params)
    # Updates that are gradient mappings depend on how long the method's steps are.
    told = {"method": method} if getattr(mean, "takes_method", False) else {}
    oracle, rows, release, may_halt = mean.open(noise_key, objective, data, start, **told)
    chain = method.on(objective.domain, num_steps)
    rest = _post_processing(optax.chain(_regularizers(objective, pull, start), chain.steps))
    whole = transforms.until_halted(release, rest) if may_halt else optax.chain(release, rest)
    end = loop.run(oracle_key, oracle, whole, start, rows, num_steps, trace)
    reported = chain.report(end.opt_state, end.params)
    stopped = transforms.halted(end.opt_state) if may_halt else jnp.zeros([], bool)
    if may_halt and on_halt == "start":
        reported = jax.tree.map(lambda a, s: jnp.where(stopped, s, a), reported, start)
    solution = finished(reported, end.opt_state, gradients, end.num_gradients, end.trace)
    halted = stopped & (solution.status == int(Status.OK))
    status = jnp.where(halted, int(Status.HALTED), solution.status).astype(jnp.int32)
    return solution._replace(status=status)


def _post_processing(rest: optax.GradientTransformation) -> optax.GradientTransformation:
    """What follows a release: not told what the oracle says of the raw sum and of who was drawn."""
    return optax.GradientTransformation(
        rest.init, lambda updates, state, params=None: rest.update(updates, state, params)
    )


def _regularizers(
    objective: Objective, pull: Pull | None, start: Any
) -> optax.GradientTransformation:
    """Adds the exact gradients of the regularizer and of the further term."""
    if pull is None:
        return optax.stateless(
            lambda g, p: jax.tree.map(jnp.add, g, objective.regularizer_gradient(p))
        )
    centre = start if pull.centre is None else pull.centre

    def regularized(gradient: Any, point: Any) -> Any:
        def add(g: Any, ridge: Any, w: Any, origin: Any) -> Any:
            return g + ridge + (pull.strength * (w - origin)).astype(g.dtype)

        return jax.tree.map(add, gradient, objective.regularizer_gradient(point), point, centre)

    return optax.stateless(regularized)


@pytree
class _Lowered:
    """All that a run uses, its sizes as numbers."""

    on_halt: str = static(choices=_ON_HALT)
    mean: Any
    block: sampling.Block
    method: Any
    pull: Number | None
    num_steps: Number


def _lowered(plan: FirstOrder) -> _Lowered | None:
    block = plan.mean.block() if hasattr(plan.mean, "block") else None
    if block is None or getattr(plan.method, "draws", False):
        return None
    mean, method = plan.mean.lowered(), plan.method
    method = method.lowered() if hasattr(method, "lowered") else method
    return _Lowered(plan.on_halt, mean, block, method, plan.pull, plan.num_steps)


def _prepared(plan: FirstOrder, objective: Objective, data: UserData, params: Any) -> Any:
    return plan.mean.prepared(objective, data, params), jax.eval_shape(lambda: data)


def _solve_turn(
    key: jax.Array,
    part: _Lowered,
    objective: Objective,
    prepared: tuple[Any, UserData],
    first: jax.Array,
    params: Any,
    center: Any = None,
) -> Solution:
    own = Part(*prepared, dataclasses.replace(part.block, first=first))
    pull = None if part.pull is None else Pull(part.pull, center)
    numbers = part.num_steps, 0, pull, None, part.on_halt
    return run(key, part.mean, part.method, objective, own, params, *numbers)


def _kind(plan: Any) -> type:
    """``FirstOrder``, or the class of a plan that says more of its numbers."""
    return type(plan) if isinstance(plan, FirstOrder) else FirstOrder


def _require_releases(plan: Any) -> None:
    """``ValueError`` where the mean has what one of several runs uses, which proves nothing by itself."""
    if isinstance(plan, FirstOrder) and plan.mean is not None:
        releases = getattr(plan.mean, "releases", None)
        _checks.require_instance("plan.mean.releases", releases, Releases)


def _gradients(plan: FirstOrder, data: UserData) -> int:
    return plan.gradients(jax.tree.leaves(data.items)[0].shape[1])


def _check(plan: FirstOrder, objective: Objective, data: UserData, params: Any) -> None:
    """Refuses what a run in a program of its own refuses."""
    _require_releases(plan)
    _arguments.require_problem(_kind(plan), plan, objective, data, params)
    plan.method.on(objective.domain, plan.num_steps)


TURNS = _sequence.Turns(_lowered, _prepared, _solve_turn, _gradients, _check)
"""How plans that are parts of a sequence share a program."""
