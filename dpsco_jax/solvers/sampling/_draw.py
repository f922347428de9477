"""What every private draw of one point shares: the base of its plan, the beginning and the end of its solve.

An exact draw from exp(-k·V), V λ-strongly convex on every data set, where replacing a user changes the data's
part by a (G_Δ/n)-Lipschitz function, is s-Gaussian DP with s = G_Δ·√k/(n·√λ) (T Theorems 3.2.1 and 4.1.3). A
sampler whose law is within total variation τ of it, on every data set, costs what ``privacy.inexact`` says;
τ is never charged without its factor 1 + e^ε.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _counts, _float64, privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import norms
from dpsco_jax.privacy.inexact import inexact_certificate, inexact_loss
from dpsco_jax.solvers import _arguments, _costs, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers._schedules.nominal_model import Nominal
from dpsco_jax.solvers.sampling import alternating_sampler
from dpsco_jax.solvers.sampling._precision import require_x64
from dpsco_jax.solvers.solution import Solution, Status
from dpsco_jax.solvers.work import Work

_Plan = TypeVar("_Plan")
_UP = 1.0 + 2.0**-40
_LARGEST = 700.0  # exponent that can be computed with


@pytree
class Draw(MadeFor):
    """What plans of one draw have in common. Sizes are static, numbers are leaves, which may be batched.

    Attributes:
        constant_time: whether all trials are made, each with all that it may read: time then tells nothing.
        epsilon: the budget that was planned for; what is spent follows from the other numbers.
        delta: δ of that budget; the certificate is for this δ.
        excess_bound: proven bound on the expected excess risk of an exact draw, for convex losses; of the
            population's risk if that was asked for, and infinite where nothing bounds it.
    """

    constant_time: bool = static()
    epsilon: Number
    delta: Number
    excess_bound: Number

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the guarantee assumes."""
        return (
            "float64 rounds to nearest, and its elementary functions are exact to four units",
            "random numbers are ideal",
        )

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return NeighboringRelation.REPLACE_ONE


@pytree
class GaussianDraw(Draw):
    """A draw by T steps of a chain whose law is within total variation τ of a Gaussian DP one.

    Its plans have ``gdp``, ``variation``, ``user_gradients`` and a ``setting`` with sizes and constants.

    Attributes:
        regularization: μ, centred at the start, without the ridge.
        inverse_temperature: k.
        num_steps: T.
        num_trials: N, of all steps.
    """

    regularization: Number
    inverse_temperature: Number
    num_steps: Number
    num_trials: Number

    @property
    def num_users(self: Any) -> int:
        """How many users the data must have."""
        return int(self.setting.num_users)

    @property
    def dim(self: Any) -> int:
        """The number of parameters."""
        return int(self.setting.dim)

    @property
    def accounted(self) -> Any:
        """Whether the proof covers a run with these numbers, if τ is below 1; a bool, may be traced."""
        return np.bool_(True)

    def work_for(self: Any, item: _costs.Item) -> Work:
        """What a run costs at most: values of losses, and a proposal for every trial."""
        return _costs.values(self.user_gradients, item) + self.proposals(item)

    def proposals(self: Any, item: _costs.Item) -> Work:
        """The part of the work that is a proposal for every trial."""
        return (_costs.release(item.dim) + _costs.method(item.dim)) * self.num_trials

    def loss(self: Any) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where the proof does not cover them; may be traced."""
        xp, (s, tau, good) = as_floats(self.gdp, self.variation, self.accounted)
        good = (good > 0) & (s < xp.inf) & (tau < 1.0)
        s, tau = xp.where(good, s, 1.0), xp.where(good, tau, 0.0)
        return privacy.unbounded_unless(good, inexact_loss(s, tau, self.epsilon, self.delta))

    def certificate(self: Any) -> privacy.Certificate:
        """The (ε, δ) of a run of these numbers, infinite where ``loss`` is.

        Raises:
            ValueError: ``delta`` is not in (0, 1), or the plan is a batch of plans.
        """
        s, tau = self.gdp, self.variation
        good = bool(np.asarray(self.accounted & (s < np.inf) & (tau < 1.0)))
        good = good and bool(np.any(np.isfinite(self.loss().rdp)))
        s, tau = (float(s), float(tau)) if good else (1.0, 1.0)
        return inexact_certificate(s, tau, self.delta, self.relation, self.assumes)

    def table(self: Any, title: str, parts: dict[str, Any], *remarks: tuple[str, str]) -> str:
        """The plan as text: s, the remarks, and τ with its parts."""
        listed = ", ".join(f"{float(part):.3g} {name}" for name, part in parts.items())
        spent = ("total variation", f"{float(self.variation):.3g} = {listed}")
        rows = [("s of an exact draw", f"{float(self.gdp):.5g}"), *remarks, spent]
        return plans.describe(title, self, rows)


def gdp(change: float, num_users: int, inverse_temperature: Any, convexity: Any) -> Any:
    """The s = G_Δ·√k/(n·√λ) of an exact draw, rounded up; infinite where k or λ is not positive."""
    xp, (k, bend) = as_floats(inverse_temperature, convexity)
    good = (k > 0) & (bend > 0) & (k < xp.inf)
    ratio = xp.where(good, k, 1.0) / xp.where(good, bend, 1.0)
    return xp.where(good, change / num_users * xp.sqrt(ratio) * _UP, xp.inf)


def share(part: float, budget: privacy.Budget) -> float:
    """The total variation that costs this part of δ: that part of δ/(1 + e^ε)."""
    return part * budget.delta / (1.0 + math.exp(min(budget.epsilon, _LARGEST)))


def expected_excess(nominal: Nominal, k: float, regularization: float) -> float:
    """The excess risk of a draw from a quadratic: in each direction a pull to the start, and a Gaussian."""
    curvatures = nominal.hessian()
    bent = curvatures + regularization
    squares = (regularization / bent) ** 2 * nominal.starts + 1.0 / (k * bent)
    return nominal.excess(squares)


def naming_delta(
    make: Callable[[float], _Plan], delta: float, least: float, only_if_named: bool
) -> _Plan:
    """What is made for δ; where that is too small, the refusal names a δ ≥ ``least`` that would do, if any.

    With ``only_if_named`` a refusal that does not have δ in ``needed`` is raised as it is.
    """
    try:
        return make(delta)
    except Infeasible as refusal:
        if only_if_named and "delta" not in refusal.needed:
            raise
        said = str(refusal)
    delta = max(4.0 * delta, least)
    while delta < 1.0:
        try:
            make(delta)
        except Infeasible:
            delta *= 4.0
        else:
            raise Infeasible(f"{said}; delta = {delta!r} would do", {"delta": delta})
    raise Infeasible(said)


def begun(
    solver: str, made: type, key: Any, plan: Any, objective: Any, data: Any, params: Any
) -> Any:
    """The plan in float64, not on a TPU, after what every ``solve`` of this room asks of its arguments.

    Numbers that were narrowed are those that run, and are reckoned with in float64.
    """
    _arguments.require_run(made, key, plan, objective, data, params)
    require_x64(solver)
    if hasattr(plan, "setting"):
        slots, most = slots_of(data), plan.setting.items_per_user
        what = f"of at most {most} as planned"
        _checks.require(slots <= most, "data", f"{slots} item slots", what)
    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), plan)
    return _float64.exact(solver, wide)


def slots_of(data: Any) -> int:
    """How many items a user may have."""
    return int(jax.tree.leaves(data.items)[0].shape[1])


def chain(key: jax.Array, plan: Any, oracle: Any) -> Any:
    """The end of the chain of a plan, whose oracle's points are moves."""
    return alternating_sampler.run(
        *(key, oracle, jnp.zeros(plan.dim), plan.num_steps, plan.num_trials),
        constant_time=plan.constant_time,
    )


def left_of(plan: Any, draw: Any, near: Any, end: Any, most: Any, realized: Any) -> Solution:
    """What a chain leaves, at infinite cost unless its start was ``near``; of counts ``most`` is public."""
    return solution(
        draw,
        privacy.unbounded_unless(near, plan.loss()),
        _counts.count(most),
        gradients=_counts.count(realized),
        trials=end.num_trials,
        steps=end.num_accepted,
    )


def solution(draw: Any, loss: privacy.PrivacyLoss, count: Any, /, **unprivate: Any) -> Solution:
    """What a draw leaves: the point, its cost and public counts; what tells of the data is set apart."""
    good = norms.all_finite(draw)
    return Solution(
        params=draw,
        privacy=loss,
        status=jnp.where(good, int(Status.OK), int(Status.DIVERGED)).astype(jnp.int32),
        gradients=count,
        unprivate={**unprivate, "trace": None},
    )
