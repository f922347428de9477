"""What plans share: the sizes of Gaussian runs, the law by which users are drawn, what a run must keep to."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import one_of
from dpsco_jax._conditions import drawable, positive_and_finite
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import array_namespace
from dpsco_jax._numerics import float32_above as float32_above
from dpsco_jax._redact import Words
from dpsco_jax.oracles import sampling
from dpsco_jax.privacy import Budget
from dpsco_jax.privacy.releases import ACCOUNTANTS, Releases, Scheme
from dpsco_jax.privacy.releases import KEPT_SECRET as KEPT_SECRET
from dpsco_jax.privacy.releases import fixed_size as fixed_size
from dpsco_jax.privacy.sampling import FullBatch, Poisson, WithoutReplacement
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.problems.users import UserData, num_users

MOST_SLOTS = 2**31 - 1
Accountant = Annotated[str, one_of(*ACCOUNTANTS)]
_LONGEST = 2.0**126  # twice as much is still a float32
_Plan = TypeVar("_Plan", bound=Callable[..., Any])

REPLACE_ONE = NeighboringRelation.REPLACE_ONE


def sampler(scheme: Scheme, num_users: int) -> Callable[[jax.Array], sampling.UserSample] | None:
    """Draws the users of a step as the accounting assumes; ``None`` for everybody.

    ``ValueError`` if the scheme is for another number of users, or draws something else than users of one
    record.
    """
    match scheme:
        case Poisson(probability):
            return lambda key: sampling.poisson(key, num_users, float(np.asarray(probability)))
        case WithoutReplacement(population, batch):
            _checks.require(
                population == num_users, "num_users", num_users, f"the planned {population}"
            )
            return sampling.block(population, batch).sampler()
        case FullBatch():
            return None
    raise ValueError(f"scheme must be one that draws users of one record, got {scheme!r}")


def near(distance: Any) -> str:
    """The assumption that a bound on the distance of the start is true."""
    return f"a minimizer lies within {float(distance):.4g} of the start"


def require_accounted(planned: int, data: UserData | StoredUsers) -> None:
    """``ValueError`` unless the data have the number of users that releases are accounted for."""
    # Positions of absent users would be read as those of the last one.
    found = data.num_users if isinstance(data, StoredUsers) else num_users(data)
    shown = Words(f"{found} users")
    _checks.require(found == planned, "data", shown, f"of the {planned} users accounted for")


def require_replacement(releases: Any) -> None:
    """``ValueError`` where releases are for users who come or go: their users have fixed positions here.

    Blocks and phases are cut by position, and a plan promises REPLACE_ONE.
    """
    found = getattr(releases, "relation", REPLACE_ONE)
    good = found is REPLACE_ONE
    _checks.require(good, "plan.releases.relation", found, "REPLACE_ONE")


def require_everybody(releases: Any) -> None:
    """``ValueError`` unless all users take part in every step: nothing else is amplified by sampling."""
    users, batch = releases.population_size, releases.batch_size
    _checks.require(batch == users, "plan.releases.batch_size", batch, f"all of the {users} users")


def require_request(
    problem: Any, budget: Any, *, least_users: int = 2, pure: bool = False
) -> tuple[Problem, Budget]:
    """Both as they are; ``ValueError``, by the name of the argument, unless a ``plan`` can start with them.

    A problem has fewer than 2^31 item slots: in 32 bits one step counts the items of its users, and finds
    them; steps are counted together in 64. A budget has a δ below one over the number of users unless it
    insists; δ = 0 will do if ``pure``.
    """
    _checks.require_instance("problem", problem, Problem)
    _checks.require_instance("budget", budget, Budget)
    _checks.require_integer("problem.num_users", problem.num_users, least_users)
    slots = problem.num_users * problem.items_per_user
    if slots > MOST_SLOTS:
        what = f"num_users times items_per_user must be at most {MOST_SLOTS}, got {slots}"
        raise Infeasible(f"problem.{what}")
    if not pure:
        _checks.require_real("budget.delta", budget.delta, 0, 1)
    budget.require_for(problem.num_users)
    return problem, budget


def says_enough_users(plan: _Plan) -> _Plan:
    """A ``plan`` whose refusals name a number of users that would do for all arguments as they are.

    What refuses knows its own sizes: of a phase, of a block, at steps and failures that follow from the
    number of users. Here the whole is planned again with more users, until it is possible.
    """

    @functools.wraps(plan)
    def planned(problem: Problem, budget: Budget, **named: Any) -> Any:
        try:
            return plan(problem, budget, **named)
        except Infeasible as refusal:
            if "num_users" not in refusal.needed:
                raise
            first, users = refusal, refusal.needed["num_users"]
        tried = problem.num_users
        insisting = dataclasses.replace(budget, allow_large_delta=True)
        while True:
            # What a part asks for may be less than what all of them have.
            tried = int(users) if users > tried else 2 * tried
            if tried * problem.items_per_user > MOST_SLOTS:
                raise Infeasible(str(first))
            try:
                plan(dataclasses.replace(problem, num_users=tried), insisting, **named)
            except Infeasible as refusal:
                users = refusal.needed.get("num_users", 0)
            else:
                what = f"{first}; num_users = {tried} would do"
                raise Infeasible(what, first.needed | {"num_users": tried})

    return planned  # type: ignore[return-value]


def require_params(name: str, planned: int, params: Any) -> None:
    """``ValueError`` unless the parameters have the planned number of entries; sizes are static."""
    found = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))
    if found != planned:
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(params)]
        raise ValueError(
            f"{name} must have plan.dim = {planned} entries, got {found} in leaves of shape {shapes}"
        )


def bounded_loss(bound: Any, stddev: Any, releases: Releases) -> privacy.PrivacyLoss:
    """The loss of releases whose sensitivity is in proportion to a length; infinite unless ``accounted``."""
    return privacy.unbounded_unless(accounted(bound, stddev), releases.loss())


def accounted(bound: Any, stddev: Any) -> Any:
    """Whether lengths are positive and fit float32, and noise is as large as it can draw; may be traced."""
    for name, value in (("bound", bound), ("stddev", stddev)):
        _checks.require_number(name, value)
    xp = array_namespace(bound, stddev)  # on the host the loss stays in float64
    fits = xp.all(positive_and_finite(bound)) & xp.all(xp.asarray(bound) <= _LONGEST)
    return fits & xp.all(drawable(stddev))


def require_accounted_length(name: str, bound: Any, stddev: Any) -> None:
    """``ValueError`` unless a concrete length is one for which ``bounded_loss`` is finite."""
    _checks.require_positive(name, bound)
    good = accounted(bound, stddev)
    _checks.require(
        good, name, bound, "so large that float32 can draw the noise, and the noise positive"
    )


def after_steps(num_steps: int) -> float:
    """1 + 1/(2T): what R·√(V/T), proven of the points before T steps, is of those after them.

    The steps are those of projected subgradient descent, R/√(T·V) long: docs/theory/average.md.
    """
    return 1 + 1 / (2 * num_steps)
