"""Independent runs of one plan on disjoint blocks of users, and the point that most of them agree on.

What it computes: of one plan for m users there are J runs, copy j = 0, ..., J - 1 of the users at positions
jm, ..., (j + 1)m - 1. All start at the same point, each with a key of its own, at once where keys allow it.
Of their answers ``mechanisms.robust_point`` picks one: within Δ of any y that 51 % of them are within Δ/3
of, whatever the others are. With J = 1 it is the one answer.

Source: thesis, Algorithm 38 (Aggregate-ERM), without the radius that the print needs to know; Lemma 2.4.17.

Formal guarantee: REPLACE_ONE; a user is in one copy, by position alone, so the loss is that of a single copy
(``_sequence`` has the proof), and the choice looks at released points only. Users beyond those of the copies
are not touched.

Cost: J times that of a copy, which have fewer users each: together as many gradients as one run on all users.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers import copies
    >>> from dpsco_jax.solvers.user_level import sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=90, items_per_user=2, dim=3)
    >>> one = synthetic.logistic_regression(jax.random.key(0), num_users=30, items_per_user=2, dim=3)
    >>> base = sgd.plan(one.problem(distance=5.0), Budget(2.0, 1e-5), num_steps=4, sampling="full")
    >>> plan = copies.Copies("three runs of SGD", num_users=90, copies=3, base=base)
    >>> found = copies.solve(jax.random.key(1), plan, made.objective, made.data, jax.numpy.zeros(3))
    >>> found.params.shape, plan.certificate().epsilon <= 2.0
    ((3,), True)
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpsco_jax import _checks, _counts, _keys, _sharding, privacy
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms import robust_point
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import (
    _arguments,
    _costs,
    _plan_base,
    _planning,
    _sequence,
    first_order,
    plans,
)
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.solution import Solution, Status
from dpsco_jax.solvers.work import Work

__all__ = ["Copies", "solve"]


@pytree
class Copies(_plan_base.ByName):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree.

    Attributes:
        title: of the solver that planned it.
        num_users: n, of all copies; users beyond ``copies`` times those of the base are not touched.
        copies: J ≥ 1.
        base: the plan of one copy, a ``first_order.FirstOrder`` of the users of a copy.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
        details: further numbers, by name, that a solver states of its plan.
        remarks: further lines of the table, for people.
    """

    title: str = static()
    num_users: int = static()
    copies: int = static()
    base: Any
    excess_bound: Number = math.inf
    details: Mapping[str, Number] = dataclasses.field(default_factory=dict)
    remarks: Remarks = static(default=Remarks())

    def __post_init__(self) -> None:
        _plan_base.require_details(self)
        _planning.require_replacement(getattr(self.base, "releases", None))

    @property
    def dim(self) -> int:
        """Number of parameters."""
        dim: int = self.base.dim
        return dim

    @property
    def epsilon(self) -> Any:
        """ε of the budget, of each copy and so of all."""
        return self.base.epsilon

    @property
    def delta(self) -> Any:
        """δ of the budget, of each copy and so of all."""
        return self.base.delta

    @property
    def releases(self) -> Any:
        """Of one copy: a user is in one."""
        return self.base.releases

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        return self.copies * int(self.base.user_gradients)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bounds assume; privacy assumes none of it."""
        lines: tuple[str, ...] = self.base.assumes
        return lines

    def loss(self) -> privacy.PrivacyLoss:
        """The loss of the run: that of one copy."""
        loss: privacy.PrivacyLoss = self.base.loss()
        return loss

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run: that of one copy."""
        return privacy.parallel_certificate([self.base.certificate()])

    def work_for(self, item: _costs.Item) -> Work:
        """What a run costs: the copies."""
        work: Work = self.base.work_for(item) * self.copies
        return work

    def __str__(self) -> str:
        return plans.describe(self.title, self, self.remarks)


@_sharding.solver
def solve(
    key: jax.Array,
    plan: Copies,
    objective: Objective,
    data: UserData,
    params: Any,
    trace: Callable[[Any, Any, Any], Any] | None = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of a solver that runs copies.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users, in an order that does not depend on what they hold.
        params: the starting point; projected onto the domain. Must not depend on the data.
        trace: see ``loop.run``; its outputs, with a leading axis of copies, go to ``unprivate["trace"]``.

    Returns:
        The chosen point. A copy that has diverged is far from all others; the status is DIVERGED only if the
        chosen point is not finite.

    Raises:
        ValueError: if users or parameters are not as many as planned, there are fewer users than the copies
            have together, or the base is no plan of a first-order run.
    """
    _arguments.require_plan(Copies, plan)
    _checks.require_instance("plan.base", plan.base, first_order.FirstOrder)
    _arguments.require_run(Copies, key, plan, objective, data, params, trace)
    copies, users = _checks.require_integer("plan.copies", plan.copies, 1), plan.base.num_users
    most = plan.num_users // users
    _checks.require(copies <= most, "plan.copies", copies, f"at most {most} of {users} users each")
    start = objective.domain.project(params)
    mine = _sequence.slice_users(data, 0, copies * users)
    blocks = jax.tree.map(lambda leaf: leaf.reshape(copies, users, *leaf.shape[1:]), mine)

    def copy(own: jax.Array, block: UserData) -> Solution:
        return first_order.solve(own, plan.base, objective, block, start, trace)

    found = _keys.over(copy)(jax.random.split(key, copies), blocks)
    _, restored = ravel_pytree(start)
    flat = jax.vmap(lambda point: ravel_pytree(point)[0])(found.params)
    point = restored(robust_point.aggregate_points(flat))
    finite = jnp.all(jnp.isfinite(ravel_pytree(point)[0]))
    slots = jax.tree.leaves(data.items)[0].shape[1]
    realized, _ = jax.lax.scan(
        lambda total, one: (_counts.add(total, one), None),
        _counts.count(0),
        found.unprivate["gradients"],
    )
    return Solution(
        params=point,
        # Copies are of disjoint users: order by order the largest of their losses, which are alike.
        privacy=jax.tree.map(lambda leaf: jnp.max(leaf, axis=0), found.privacy),
        status=jnp.where(finite, int(Status.OK), int(Status.DIVERGED)).astype(jnp.int32),
        gradients=_counts.count(copies * plan.base.gradients(slots)),
        unprivate={"gradients": realized, "trace": found.unprivate["trace"]},
    )
