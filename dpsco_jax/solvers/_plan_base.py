"""What all plans inherit: what they were made for, their work, and their numbers by name.

``remembers`` decorates a ``plan``; what it returns holds the constants of its problem's objective, from which
bounds, step sizes and, where nothing is clipped, sensitivities follow: ``solve`` compares them with its own.
It also holds the sizes of an item, from which every plan states its work (``work``). Losses and certificates
rest on neither, but on numbers that the run itself uses; two objectives with the same constants are not told
apart.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import jax
import numpy as np

from dpsco_jax import _argument_kinds, _checks
from dpsco_jax._pytrees import Signed, pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _costs, _planning
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.work import Work

# What plans declare: of users whose gradients are held at once a CPU's cache has room for about so many.
_CPU_CHUNK = 64
# Of a linear model elsewhere: numbers of a chunk's rows, 268 MB in float32.
_CHUNK_NUMBERS = 2**26

_Arguments = ParamSpec("_Arguments")
_Plan = TypeVar("_Plan", bound="MadeFor")
_Self = TypeVar("_Self", bound="MadeFor")


class Constants(NamedTuple):
    """What plans take from an objective; see ``Objective``."""

    lipschitz: float
    smoothness: float | None
    ridge: float
    loss_strong_convexity: Signed
    hessian_lipschitz: float | None
    loss_range: float | None
    diameter: float


class Made(NamedTuple):
    """What a plan was made for: constants of the objective, an item of the problem, and the start's excess.

    ``idle`` is what is known of the start's excess risk before anything is done.
    """

    constants: Constants
    item: _costs.Item
    idle: float = math.inf


@pytree
class MadeFor:
    """What plans inherit that remember their problem.

    Attributes:
        made_for: constants and sizes; ``None`` where it is not known, as for a phase that is run by itself.
    """

    made_for: Made | None = static(default=None, kw_only=True)

    @property
    def floating_point_operations(self) -> Any:
        """Operations of the whole run; ``None`` where the plan does not know its problem. See ``work``."""
        return None if self.made_for is None else self.work().floating_point_operations

    @property
    def item_gradients(self: Any) -> Any:
        """Item gradients of the whole run, for users with all their items; ``None`` where m is not known."""
        return None if self.made_for is None else self.gradients(self.made_for.item.slots)

    @property
    def vacuous(self) -> Any:
        """Whether the plan's ``excess_bound`` proves no less than is known of the start, L·R or β·R²/2.

        Its risk may be far smaller: bounds are for the worst loss with the same constants. False where no
        bound is stated, or nothing is known of the start.
        """
        bound = getattr(self, "excess_bound", math.inf)
        idle = math.inf if self.made_for is None else self.made_for.idle
        return (bound >= idle) & (bound < math.inf)

    def gradients(self: Any, slots: int) -> Any:
        """Item gradients of the whole run on data with so many item slots a user."""
        return self.user_gradients * slots

    def work(self, items_per_user: int | None = None, item_operations: float | None = None) -> Work:
        """What the whole run costs, from public sizes; the expected cost where users are drawn at random.

        Args:
            items_per_user: m of the data; that of the problem if left out.
            item_operations: of the gradient of one item; if left out four for each parameter of a linear
                model, six for each parameter of another loss.

        Raises:
            ValueError: an argument is out of range, or is left out although the plan does not know its
                problem.
        """
        known = self.made_for is not None
        _checks.require(known, "plan.made_for", None, "known: such as that of a whole plan")
        item = self.made_for.item  # type: ignore[union-attr]
        if items_per_user is not None:
            slots = _checks.require_count("items_per_user", items_per_user)
            item = item._replace(slots=slots)
        if item_operations is not None:
            operations = _checks.require_real("item_operations", item_operations, 0)
            item = item._replace(operations=operations)
        return self.work_for(item)

    def replace(self: _Self, **changes: Any) -> _Self:
        """The plan with other numbers or sizes, each by its name, wherever in the plan it is.

        What was remarked of the plan as it was made is left out of the new one's table. Parts in order are
        not looked into.

        Raises:
            ValueError: no field has such a name, or several have: use ``dataclasses.replace`` on the one
                meant.
        """
        made: Any = self
        if isinstance(getattr(made, "remarks", None), Remarks):
            made = dataclasses.replace(made, remarks=Remarks())
        together: dict[Path, dict[str, Any]] = {}
        for name, value in changes.items():
            found = list(places(made, name))
            wanted = "the name of one field of the plan, or of what it is made of"
            _checks.require(len(found) == 1, "changes", name, wanted)
            together.setdefault(found[0][:-1], {})[name] = value
        # What is inside of something that is replaced as well is edited in the new one.
        for path in sorted(together, key=len):
            made = _replaced(made, path, together[path])
        return made  # type: ignore[no-any-return]

    def work_for(self: Any, item: _costs.Item) -> Work:
        """``work`` for a known item: gradients and steps, of plans that say nothing else."""
        return _costs.gradients(self.user_gradients, item)


@pytree
class ByName(MadeFor):
    """A plan whose numbers are read by their names, wherever in the plan they are."""

    def __getattr__(self, name: str) -> Any:
        # Only what is no attribute comes here; of an object that is not yet made nothing is looked up.
        made = all(field.name in vars(self) for field in dataclasses.fields(self))
        # A property that has failed is none either, and nothing else is taken for it.
        if made and not name.startswith("_") and not hasattr(type(self), name):
            found = list(places(self, name))
            if len(found) == 1:
                return at(self, found[0])
            number = None if found else getattr(vars(self).get("mean"), name, None)
            # What a mean does is not done by a plan.
            if number is not None and not callable(number):
                return number
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


def require_details(plan: Any) -> None:
    """``ValueError`` where a detail has a name of the plan itself, and would be edited in its place."""
    taken = {field.name for field in dataclasses.fields(plan)}
    for name in plan.details if isinstance(plan.details, Mapping) else ():
        free = name not in taken and not hasattr(type(plan), str(name))
        _checks.require(free, "details", name, "names that the plan does not have itself")


Path = tuple[str, ...]


def places(node: Any, name: str, path: Path = ()) -> Iterator[Path]:
    """Where fields of this name are, in what the plan is made of."""
    if isinstance(node, Mapping):
        if name in node:
            yield (*path, name)
    elif dataclasses.is_dataclass(node):
        for field in dataclasses.fields(node):
            if field.name == name:
                yield (*path, name)
            elif field.name != "made_for":
                yield from places(getattr(node, field.name), name, (*path, field.name))


def at(node: Any, path: Path) -> Any:
    """What is at a place of a plan."""
    for step in path:
        node = node[step] if isinstance(node, Mapping) else getattr(node, step)
    return node


def _replaced(node: Any, path: Path, changes: dict[str, Any]) -> Any:
    """The node with several fields of one place changed at once."""
    if path:
        changes = {path[0]: _replaced(at(node, path[:1]), path[1:], changes)}
    if isinstance(node, Mapping):
        return {**node, **changes}
    return dataclasses.replace(node, **changes)


class _Decorator(Protocol):
    def __call__(self, plan: Callable[_Arguments, _Plan]) -> Callable[_Arguments, _Plan]: ...


def remembers(
    *, least_users: int | None = None, pure: bool = False, convex: bool = True
) -> _Decorator:
    """Of a ``plan`` every result holds the constants of the objective that it was made for.

    Arguments are of the kinds that the annotations say (``_argument_kinds``), or are refused. With
    ``least_users``, the fewest for which the solver is made, ``_planning.require_request`` looks at problem
    and budget; ``pure`` says whether δ = 0 will do. ``convex`` says whether the bound on the excess risk is
    proven for convex losses only: of a loss that says that it is not convex, none is stated then.

    A ``chunk_size`` that is left out and has a default of 64 is the one that suits the backend of JAX.
    """

    def decorated(plan: Any) -> Any:
        bound = _argument_kinds.binder(plan)
        declared = inspect.signature(plan).parameters.get("chunk_size")
        by_backend = declared is not None and declared.default == _CPU_CHUNK

        @functools.wraps(plan)
        def planned(*given: Any, **named: Any) -> Any:
            call = bound(given, named)
            if least_users is not None:
                asked = call.arguments["problem"], call.arguments["budget"]
                _planning.require_request(*asked, least_users=least_users, pure=pure)
            problem = call.arguments["problem"]
            if by_backend:
                call.arguments.setdefault("chunk_size", _chunk_size(problem))
            made = plan(*call.args, **call.kwargs)
            _require_affordable(made)
            changes: dict[str, Any] = {
                "made_for": Made(_constants(problem.objective), _item(problem), _idle(problem))
            }
            bounded = any(field.name == "excess_bound" for field in dataclasses.fields(made))
            if convex and bounded and problem.objective.loss_strong_convexity < 0:
                changes["excess_bound"] = math.inf
            return dataclasses.replace(made, **changes)

        return planned

    return decorated


def _chunk_size(problem: Any) -> int:
    """Users of a chunk where nobody says how many: from public sizes, and the backend that JAX would take.

    An accelerator takes a linear model's users at once if their rows have at most 2^26 numbers. What another
    loss needs for the gradient of a user is not known.
    """
    linear = isinstance(problem, Problem) and problem.objective.linear_model is not None
    if jax.default_backend() == "cpu" or not linear:
        return _CPU_CHUNK
    fitting = _CHUNK_NUMBERS // (problem.dim * problem.items_per_user)
    return max(_CPU_CHUNK, min(problem.num_users, fitting))


def _require_affordable(plan: Any) -> None:
    """``ValueError`` where a run of the plan would cost infinity: its noise is less than float32 can draw."""
    if not hasattr(plan, "loss"):
        return
    divergences = plan.loss().rdp
    if not isinstance(divergences, jax.core.Tracer) and not np.any(np.isfinite(divergences)):
        raise ValueError(
            "problem and budget must leave noise that float32 can draw, got a plan with an infinite loss"
        )


def require_same(plan: Any, objective: Objective) -> None:
    """``ValueError`` unless the objective has the constants that the plan was made for, if it knows them."""
    planned = getattr(plan, "made_for", None)
    if planned is None:
        return
    found = _constants(objective)
    for name, expected, value in zip(Constants._fields, planned.constants, found, strict=True):
        if not isinstance(value, jax.core.Tracer) and value != expected:
            raise ValueError(
                f"objective must be the one that the plan was made for, with {name} = {expected}, "
                f"got {value}"
            )


def _constants(objective: Objective) -> Constants:
    own = [getattr(objective, name) for name in Constants._fields[:-1]]
    return Constants(*map(_number, (*own, objective.domain.diameter)))


def _item(problem: Problem) -> _costs.Item:
    # Two products with the row of a linear model; forward and, twice as much, backward elsewhere.
    each = 6.0 if problem.objective.linear_model is None else 4.0
    return _costs.Item(problem.items_per_user, problem.dim, each * problem.dim)


def _idle(problem: Problem) -> float:
    """The largest excess that a start within R of a minimizer can have."""
    if not isinstance(problem, Problem):
        return math.inf
    reach, objective = problem.farthest, problem.objective
    steep = objective.slope * reach
    # Where nothing confines a minimizer, the gradient is zero there.
    smooth = problem.diameter == math.inf and objective.smoothness is not None
    curved = (float(objective.smoothness) + objective.ridge) * reach**2 / 2 if smooth else math.inf  # type: ignore[arg-type]
    return float(min(steep, curved))


def _number(value: Any) -> Any:
    """On the host, so that it can be part of a structure; what is traced stays so."""
    if value is None or isinstance(value, jax.core.Tracer):
        return value
    return float(np.asarray(value))
