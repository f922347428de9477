"""Solvers made of solvers: what localization, restarts and regularization have in common.

What it computes: runs the parts of a plan one after another, each from where the one before has ended, on
blocks of users of their own or all on the same users. A part may add (λ/2)·‖w - center‖² to the objective,
and it may be a composite itself.

Source: T, Figure 1.1, read as functions from solvers to solvers: a combinator takes the ``plan`` of an inner
solver and makes a ``Plan`` out of inner plans; ``solve`` takes the inner ``solve``. What an inner solver must
offer:

- ``plan(problem, budget, *, regularization=0.0)``, whose result is a pytree with ``num_users``,
  ``user_gradients``, ``assumes``, ``loss()``, ``event`` (what is released, under REPLACE_ONE) and
  ``excess_bound``: a proven bound on E[H(w) - min H], with H the objective plus the centred term, for any
  data and any start whose root-mean-square distance to the minimizer of H is at most ``problem.distance``;
- ``solve(key, plan, objective, data, params, center=center)``, with ``Solution``.

Formal guarantee: that of the joint event under REPLACE_ONE. Parts on blocks of users compose in parallel
(``_sequence``), or, if asked for, in sequence, which is never less; parts on the same users always in
sequence. Which centres, sizes and numbers are used depends on public numbers and released points only.

Cost: the sum of the parts'; parts of ``private_ac_sa`` that differ in numbers alone share a program.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.convex import composite, restarts
    >>> from dpsco_jax.solvers.item_level import private_ac_sa as inner
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=200, items_per_user=2, dim=3)
    >>> plan = restarts.plan(inner.plan, made.problem(distance=5.0), Budget(1.0, 1e-5), num_stages=2)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: composite.solve(inner.solve, key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> len(plan.parts), int(solution.status), plan.certificate().epsilon <= 1.0
    (1, 0, True)
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _sharding, _stacking, privacy
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy import pld
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _costs, _planning, _sequence, first_order, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.work import Work


@pytree
class Plan(MadeFor):
    """What ``solve`` will do: the plans of the parts, in order. Sizes are static, numbers are leaves.

    Attributes:
        title: which combinator made it.
        num_users: N.
        on_blocks: whether every part has users of its own.
        composition: ``"parallel"`` or ``"sequential"``: how the losses of the parts are added.
        remarks: further lines for the table, about sizes.
        premises: what the bound assumes besides what the parts assume of the losses.
        parts: inner plans, one or more.
        distance: R, bound on the distance from the start to a minimizer.
        distances: R of each part: bounds on the distance to what it minimizes.
        strengths: of the centred term that each part is given, zero for none.
        center_shares: for each part the weight θ of the given centre in the centre that the part gets; its
            start has weight 1 - θ.
        epsilon: ε of the budget of all parts together.
        delta: δ of that budget.
        excess_bound: proven bound on the expected excess risk; see the combinator for which risk.
    """

    title: str = static()
    num_users: int = static()
    on_blocks: bool = static()
    composition: str = static(choices=("parallel", "sequential"))
    remarks: tuple[tuple[str, str], ...] = static()
    premises: tuple[str, ...] = static()
    parts: Any
    distance: Number
    distances: Number
    strengths: Number
    center_shares: Number
    epsilon: Number
    delta: Number
    excess_bound: Number

    @classmethod
    def of(cls, part: Any) -> "Plan":
        """The plan of a single part, as it is."""
        return cls(
            title="one part",
            num_users=part.num_users,
            on_blocks=False,
            composition="sequential",
            remarks=(),
            premises=(),
            distance=part.distance,
            parts=(part,),
            distances=(part.distance,),
            strengths=(part.pull,),
            center_shares=(1.0,),
            epsilon=part.epsilon,
            delta=part.delta,
            excess_bound=part.excess_bound,
        )

    def __post_init__(self) -> None:
        if not self.on_blocks:
            # Parts on the same users compose in sequence, whatever else is claimed.
            _checks.require_choice("composition", self.composition, ("sequential",))
        # JAX may build a plan of placeholders, in whose place it has no parts.
        for part in self.parts if isinstance(self.parts, tuple | list) else ():
            _planning.require_replacement(getattr(part, "releases", None))

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return self.parts[0].dim

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        return sum(part.user_gradients for part in self.parts)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bound on the excess risk assumes; privacy assumes none of it."""
        return (_planning.near(self.distance), *self.assumes_of_losses)

    @property
    def assumes_of_losses(self) -> tuple[str, ...]:
        """The same without the distance: how near the parts start follows from the bounds before them."""
        of_parts = [getattr(part, "assumes_of_losses", part.assumes) for part in self.parts]
        return tuple(
            dict.fromkeys([*self.premises, *(line for lines in of_parts for line in lines)])
        )

    @property
    def event(self) -> events.DpEvent:
        """What is released, for an accountant."""
        released = [part.event for part in self.parts]
        if self.composition == "parallel":
            return events.ParallelDpEvent(tuple(released))
        return events.composed(*released)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs: the sum of the parts."""
        return functools.reduce(operator.add, (part.work_for(item) for part in self.parts))

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs; may be traced."""
        joint = privacy.parallel if self.composition == "parallel" else privacy.compose
        return joint(*(part.loss() for part in self.parts))

    def certificate(self, max_points: int = pld.MAX_POINTS) -> privacy.Certificate:
        """The (ε, δ) of the run by the tightest accountant; infinite where the loss of a part is.

        Fewer points of the grid of losses than the default are faster, and prove a larger ε.
        """
        relation, delta = NeighboringRelation.REPLACE_ONE, float(self.delta)
        if not np.any(np.isfinite(self.loss().rdp)):
            return privacy.Certificate(math.inf, delta, relation, "definition")
        return privacy.certificate(self.event, delta, relation, _planning.KEPT_SECRET, max_points)

    def __str__(self) -> str:
        return plans.describe(self.title, self, self.remarks)


class _Part(NamedTuple):
    """A part with what ``solve`` has to know of it; ``inside``, the parts of a part that is a composite."""

    num_users: int
    plan: Any
    center_share: Any
    inside: tuple[Any, ...] = ()


@_sharding.solver
def solve(
    inner: Callable[..., Solution],
    key: jax.Array,
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: Any,
    center: Any = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        inner: ``solve`` of the innermost solver; parts that are composites are run by this function.
        key: a typed key.
        plan: of ``localization``, ``restarts`` or ``regularization``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users, in an order that does not depend on what they hold.
        params: the starting point, public; projected onto the domain.
        center: of the term that the plan adds, public; the starting point if left out.

    Raises:
        ValueError: if an argument is not what it must be: the number of users or of parameters not the
            planned one, or the center not of the shape of the parameters.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    _checks.require_callable("inner", inner)
    params = objective.domain.project(params)
    center = params if center is None else center
    _arguments.require_like("center", center, params)

    def run(key: Any, part: _Part, objective: Objective, data: Any, start: Any) -> Solution:
        middle = _between(center, part.center_share, start)
        if isinstance(part.plan, Plan):
            return solve(inner, key, part.plan, objective, data, start, center=middle)
        return inner(key, part.plan, objective, data, start, center=middle)

    turns = _turns_around(center) if inner is first_order.solve else None
    return _sequence.run(
        key, _parts(plan), run, objective, data, params, plan.composition, plan.on_blocks, turns
    )


def _between(center: Any, share: Any, start: Any) -> Any:
    """The centre of a part's term: so large a share of the way from its start to the given centre."""
    return jax.tree.map(lambda c, w: (share * c + (1 - share) * w).astype(w.dtype), center, start)


def _parts(plan: Plan) -> tuple[_Part, ...]:
    return tuple(
        _Part(part.num_users, part, share, _parts(part) if isinstance(part, Plan) else ())
        for part, share in zip(plan.parts, plan.center_shares, strict=True)
    )


@pytree
class _Lowered:
    """The numbers of a part.

    Attributes:
        composition: of the parts inside of it; empty where there are none.
        center_share: θ.
        inside: numbers of the plan, or the places of the parts inside of it.
    """

    composition: str = static(choices=("parallel", "sequential", ""))
    center_share: Number
    inside: Any


def _turns_around(center: Any) -> _sequence.Turns:
    """How parts share a program: plans of first-order runs, or composites of equally many of these.

    Keys, centres and users are those of parts in programs of their own: of a part inside of a part, users
    count from the first user of the outer one.
    """
    inner = first_order.TURNS

    def solver(
        key: Any, part: _Lowered, objective: Objective, rows: Any, first: Any, start: Any
    ) -> Solution:
        middle = _between(center, part.center_share, start)
        if not part.composition:
            return inner.solver(key, part.inside, objective, rows, first, start, middle)
        places = dataclasses.replace(part.inside, firsts=first + part.inside.firsts)
        point, running = objective.domain.project(start), jnp.zeros([], bool)
        nested = _turns_around(middle).solver
        found = _sequence.loop(key, nested, places, objective, rows, point, running)[2]
        return _sequence.joined(_sequence.apart(found, places.count), part.composition)

    def prepared(part: _Part, objective: Objective, data: UserData, params: Any) -> Any:
        return inner.prepared(_innermost(part)[0], objective, data, params)

    def gradients(part: _Part, data: UserData) -> int:
        return sum(inner.gradients(plan, data) for plan in _innermost(part))

    return _sequence.Turns(_lowered, prepared, solver, gradients, _check)


def _innermost(part: _Part) -> list[Any]:
    """The plans of first-order runs that a part is made of, in their order."""
    return [one for each in part.inside for one in _innermost(each)] if part.inside else [part.plan]


def _lowered(part: _Part) -> _Lowered | None:
    if not part.inside:
        numbers = first_order.TURNS.lowered(part.plan)
        return None if numbers is None else _Lowered("", part.center_share, numbers)
    each = [_lowered(one) for one in part.inside]
    if None in each or not _stacking.fit(each):
        return None
    sizes = [one.num_users if part.plan.on_blocks else 0 for one in part.inside]
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    places = _sequence.places_of(each, 0, firsts)
    return _Lowered(part.plan.composition, part.center_share, places)


def _check(part: _Part, objective: Objective, data: UserData, params: Any) -> None:
    """``ValueError`` unless what is inside of a part has the users that the part has."""
    if not part.inside:
        first_order.TURNS.check(part.plan, objective, data, params)
        return
    _arguments.require_problem(Plan, part.plan, objective, data, params)
    start = 0
    for each in part.inside:
        block = data
        if part.plan.on_blocks:
            of_each = functools.partial(_sequence.slice_users, start=start, size=each.num_users)
            block = jax.eval_shape(of_each, data)
            start += each.num_users
        _check(each, objective, block, params)


def slope(objective: Objective, regularization: float = 0.0) -> float:
    """Lipschitz constant on the domain of the loss, the ridge and a further term of the given strength.

    The centre of the further term must lie in the domain.
    """
    reach = float(np.asarray(objective.domain.diameter)) if regularization else 0.0
    return objective.slope + regularization * reach


def start_distance(problem: Problem, regularization: float = 0.0) -> float:
    """R: the distance of a problem, or what its domain and strong convexity say where it has none.

    Raises:
        ValueError: if none is given, and neither domain nor strong convexity bounds it.
    """
    if problem.distance is not None:
        return problem.distance
    bound = farthest(problem.objective, regularization)
    return problem.require_distance() if math.isinf(bound) else bound


def farthest(objective: Objective, regularization: float = 0.0) -> float:
    """How far a point of the domain can be from the minimizer, the term of this strength centred at it.

    The diameter; and G/μ, with G the slope at the point and μ the strong convexity: with subgradients g at
    the point w and g* at the minimizer w* for which ⟨g*, w - w*⟩ ≥ 0, μ·‖w - w*‖² ≤ ⟨g - g*, w - w*⟩ ≤
    G·‖w - w*‖.
    """
    diameter = float(np.asarray(objective.domain.diameter))
    convexity = objective.strong_convexity + regularization
    return min(diameter, slope(objective) / convexity) if convexity > 0 else diameter
