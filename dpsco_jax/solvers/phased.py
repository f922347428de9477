"""Plans of phases as values: disjoint blocks of users in order, each run from where the one before has ended.

What it computes: ``Phased`` holds the plans of the phases, of first-order runs, of copies of these, or of
phases again; ``solve`` runs them, first-order runs of equal structure as turns of one compiled loop
(``_sequence``). Once a phase has not ended well nothing moves any more.

Source: Feldman, Koren and Talwar 2020, section 5.1; thesis, Algorithms 30, 31 and 33.

Formal guarantee: REPLACE_ONE; a user is in one block, by position alone, so the loss of the run is the
largest of those of the phases (``_sequence`` has the proof).

Cost: the sum of the phases, all of which are computed, also after a halt.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import losses, synthetic
    >>> from dpsco_jax.solvers import phased
    >>> from dpsco_jax.solvers.user_level import phased_erm
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=200, items_per_user=2, dim=3)
    >>> plan = phased_erm.plan(made.problem(distance=5.0), Budget(2.0, 1e-5), form="clipped", most_steps=2)
    >>> found = phased.solve(jax.random.key(1), plan, made.objective, made.data, jax.numpy.zeros(3))
    >>> found.params.shape, plan.certificate().epsilon <= 2.0
    ((3,), True)
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax

from dpsco_jax import _checks, _sharding
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import (
    _arguments,
    _plan_base,
    _planning,
    _sequence,
    copies,
    first_order,
    plans,
)
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.solution import Solution

__all__ = ["Phased", "solve"]


@pytree
class Phased(_sequence.OnBlocks, _plan_base.ByName):
    """What ``solve`` will do: the plans of the phases, in order. Sizes are static, numbers are leaves.

    Attributes:
        title: of the solver that planned it.
        num_users: n, of all phases; users beyond those of the phases are not touched.
        parts: a ``first_order.FirstOrder`` each, a ``copies.Copies`` each, or a ``Phased`` each.
        epsilon: ε of the budget, of each phase and so of all.
        delta: δ of the budget, of each phase and so of all.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
        details: further numbers, by name, that a solver states of its plan.
        most_unlike: phases are turns of one loop with phases of up to so many times their users.
        remarks: further lines of the table, for people.
        premises: what the bounds assume; privacy assumes none of it.
    """

    title: str = static()
    num_users: int = static()
    parts: Any
    epsilon: Number
    delta: Number
    excess_bound: Number
    details: Mapping[str, Number] = dataclasses.field(default_factory=dict)
    most_unlike: float = static(default=math.inf)
    remarks: Remarks = static(default=Remarks())
    premises: Remarks = static(default=Remarks())

    def __post_init__(self) -> None:
        _plan_base.require_details(self)
        # JAX may build a plan of placeholders, in whose place it has no parts.
        for part in self.parts if isinstance(self.parts, tuple | list) else ():
            _planning.require_replacement(getattr(part, "releases", None))

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bounds assume; privacy assumes none of it."""
        near = (_planning.near(self.details["distance"]),) if "distance" in self.details else ()
        of_parts = (line for part in self.parts for line in part.assumes)
        return tuple(dict.fromkeys((*self.premises, *of_parts, *near)))

    def __str__(self) -> str:
        return plans.describe(self.title, self, self.remarks)


@_sharding.solver
def solve(
    key: jax.Array,
    plan: Phased,
    objective: Objective,
    data: UserData,
    params: Any,
    trace: Callable[[Any, Any, Any], Any] | None = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of a solver that cuts the users into blocks.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users, in an order that does not depend on what they hold.
        params: the starting point; projected onto the domain. Must not depend on the data.
        trace: see ``loop.run``; ``unprivate["trace"]`` is a tuple, one entry for each phase.

    Returns:
        The point where the last phase has ended, or what the phase reports that has halted, with status
        HALTED.

    Raises:
        ValueError: if users or parameters are not as many as planned, the gradients are too many to count, or
            parts are no plans of one kind.
    """
    _arguments.require_plan(Phased, plan)
    kinds = {type(part) for part in plan.parts}
    wanted = "one or more plans of first-order runs, of copies of these, or of phases"
    ways: dict[type, Callable[..., Solution]] = {
        first_order.FirstOrder: first_order.solve,
        copies.Copies: copies.solve,
        Phased: solve,
    }
    good = len(kinds) == 1 and kinds <= ways.keys()
    _checks.require(good, "plan.parts", sorted(kind.__name__ for kind in kinds), wanted)
    _arguments.require_run(Phased, key, plan, objective, data, params, trace)
    (kind,) = kinds
    solver = functools.partial(ways[kind], trace=trace)
    # A turn has no trace.
    turns = first_order.TURNS if kind is first_order.FirstOrder and trace is None else None
    unlike = plan.most_unlike
    return _sequence.run(
        key, plan.parts, solver, objective, data, params, turns=turns, most_unlike=unlike
    )
