"""The plan of one draw by value queries: what is fixed of it, what it costs, and how far its chain is off.

The regularizer (w/2)·‖x - x₀‖_q² is σ-strongly convex in ℓ_q, σ = w·(q - 1), and so in ℓ2 (T Propositions
4.4.7 to 4.4.9). The gradient of the loss of a row a is at most slope·a, and with q* and p* dual to q and p,
‖a‖_q* is at most row_bound·d^(1/q* - 1/p*) and feature_bound·d^(1/q* - 1/2). All of it is looked up of the
loss itself, never taken from the caller; docs/theory/rejection_oracle.md bounds how far the chain is off.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import domains
from dpsco_jax.problems import _proofs, losses
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.rates import sampling as rates
from dpsco_jax.rates.norms import best_exponent, dual_exponent, norm_ratio, regularizer_weight
from dpsco_jax.solvers.sampling import _draw, _user_losses
from dpsco_jax.solvers.sampling import _rejection_certificate as certificate

_SETS = ("whole_space", "ball", "box")
_PARTS = ("mixing", "inner", "rounding", "cap")
_UP = 1.0 + 2.0**-40
_PAIR = 2.0 * (math.e - 1.0)
_MOST = 2.0**31 - 1.0


class Setting(NamedTuple):
    """What is fixed of a draw: sizes, the set, the regularizer, proven constants of the loss."""

    num_users: int
    items_per_user: int
    dim: int
    norm: float  # p
    row_bound: float | None  # of the ℓ_p* norm of rows; ``None`` if it is not bounded by itself
    exponent: float  # q of the regularizer
    weight: float  # w of the regularizer
    lipschitz: float  # G of the loss of a user, in ℓ_q
    change: float  # G_Δ of the difference of two, in ℓ_q
    euclidean: float  # G in ℓ2
    slope: float  # of the link; of a loss that has none its Lipschitz constant
    feature_bound: float  # of rows; 1 where there are none
    additions: int  # sums of a value, beside products with rows
    ridge: float  # of the objective
    set_name: str  # "whole_space", "ball" or "box"
    radius: float  # of a ball
    diameter: float  # of the set

    @property
    def modulus(self) -> float:
        """σ: r is σ-strongly convex in ℓ_q."""
        return self.weight * (self.exponent - 1.0)

    @property
    def tangent(self) -> bool:
        """Whether the regularizer is no quadratic."""
        return self.exponent < 2.0

    def convexity(self, regularization: Any) -> Any:
        """Strong convexity of the regularizer and the ridge together, in ℓ_q and in ℓ2."""
        return self.modulus * regularization + self.ridge


@pytree
class Plan(_draw.GaussianDraw):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        setting: sizes, the set, the regularizer, proven constants of the loss.
        sizes: how large the start and labels may be.
        num_terms: A, after which the estimated exponential ends.
        ball_bounds: for draws on a ball: the largest deviation of a proposal, and how far outside means are.
        step_size: η.
        escape: how likely the chain may go farther than bounds on roundings and attempts hold.
        predicted_excess: what a draw is expected to reach on the nominal problem; NaN where there is none.
    """

    setting: Setting = static()
    sizes: _user_losses.Sizes = static()
    num_terms: int = static()
    ball_bounds: tuple[float, float] | None = static()
    step_size: Number
    escape: Number
    predicted_excess: Number

    @property
    def gdp(self) -> Any:
        """The s of an exact draw, rounded up; infinite where k or the convexity is not positive."""
        setting, (xp, (k, mu)) = self.setting, _wide(self.inverse_temperature, self.regularization)
        convexity = xp.where(mu >= 0, setting.convexity(mu), 0.0)
        return _draw.gdp(setting.change, setting.num_users, k, convexity)

    @property
    def variation(self) -> Any:
        """τ: how far the law of the draw is at most from that of an exact one."""
        return self.chain.variation

    @property
    def chain(self) -> certificate.Chain:
        """The chain with the parts of τ, all of them 1 where a number is none that can run."""
        xp, numbers = _wide(
            *(self.inverse_temperature, self.regularization, self.step_size),
            *(self.num_steps, self.num_trials, self.escape),
        )
        k, mu, eta, steps, trials, escape = numbers
        good = self._runs(xp, numbers)
        bounded = all(math.isfinite(size) for size in self.sizes)
        sizes = self.sizes if bounded else _user_losses.Sizes(0.0, 0.0)
        found = certificate.certified(
            target(
                *(self.setting, sizes, xp.where(good, k, 1.0), xp.where(good, mu, 1.0)),
                self.ball_bounds or (1.0, 1.0),
            ),
            xp.where(good, eta, 1.0),
            self.num_terms,
            xp.where(good, steps, 1.0),
            xp.where(good, trials, 1.0),
            escape=xp.where(good, escape, 0.5),
        )
        parts = {name: xp.where(good, getattr(found, name), 1.0) for name in _PARTS}
        return found._replace(**parts)

    def _runs(self, xp: Any, numbers: Any) -> Any:
        k, mu, eta, steps, trials, escape = numbers
        convexity = self.setting.convexity(mu)
        good = (steps >= 1) & (steps == xp.floor(steps)) & (escape > 0) & (escape < 1) & (mu >= 0)
        good = good & (self.setting.set_name != "ball" or self.ball_bounds is not None)
        good = good & all(0.0 <= size < math.inf for size in self.sizes)
        good = good & (trials >= steps) & (trials == xp.floor(trials)) & (trials <= _MOST)
        for value in (k, eta, convexity, k * convexity, eta * k * convexity):
            good = good & (value > 1e-30) & (value < 1e30)
        # In float32 the parts are no bounds.
        return good & (xp is np or k.dtype == jnp.float64)

    @property
    def value_queries(self) -> Any:
        """Losses of users that N trials read: on average, or all that they can in constant time."""
        each = 2.0 * self.num_terms if self.constant_time else _PAIR
        return each * self.num_trials

    @property
    def expected_value_queries(self) -> Any:
        """Losses of a user that T steps read on average, at most."""
        chain = self.chain
        xp, (acceptance,) = as_floats(chain.acceptance)
        possible = xp.where(acceptance > 0, acceptance, 1.0)
        return xp.where(acceptance > 0, _PAIR * self.num_steps / possible, xp.inf)

    @property
    def user_gradients(self) -> Any:
        """``value_queries``: values stand where other solvers take gradients."""
        return self.value_queries

    def excess_within(self, failure: float) -> float:
        """A bound on the excess risk of an exact draw, but with probability ``failure`` (T Lemma 4.4.14).

        Args:
            failure: β, in (0, 1).

        Raises:
            ValueError: ``failure`` is out of range, the plan is a batch of plans, or the objective has a
                ridge, which is not Lipschitz.
        """
        ridge, convexity = self.setting.ridge, float(self.setting.convexity(self.regularization))
        _checks.require(ridge == 0.0, "setting.ridge", ridge, "0")
        k, slope = float(self.inverse_temperature), self.setting.lipschitz
        return float(self.excess_bound) + rates.deviation(slope, k, convexity, failure)

    def __str__(self) -> str:
        chain = self.chain
        return self.table(
            "regularized exponential mechanism by value queries",
            {name: getattr(chain, name) for name in _PARTS},
            ("acceptance, at least", f"{float(chain.acceptance):.3g}"),
            ("value queries, expected", f"{float(self.expected_value_queries):.3g}"),
        )


def _wide(*values: Any) -> tuple[Any, list[Any]]:
    """The values in float64 where there is one: traced numbers of Python may be read as narrower ones."""
    xp, floats = as_floats(*values)
    if xp is jnp:
        floats = [jnp.asarray(v, jax.dtypes.canonicalize_dtype(np.float64)) for v in values]
    return xp, floats


def target(
    setting: Setting,
    sizes: _user_losses.Sizes,
    k: Any,
    mu: Any,
    ball_bounds: tuple[float, float] | None,
) -> certificate.Sizes:
    """What the certificate of a chain asks of the target."""
    xp, (k, mu) = as_floats(k, mu)
    convexity = setting.convexity(mu)
    bounded = {"ball": setting.radius, "box": setting.diameter}.get(setting.set_name)
    start = bounded
    if bounded is None:
        # The mode is that near the centre, and the mean square distance from the mode d/κ at most.
        start = setting.euclidean / convexity + xp.sqrt(setting.dim / (k * convexity))
    rounding = _user_losses.rounding(
        k, setting.dim, setting.euclidean, setting.slope, sizes, setting.additions
    )
    return certificate.Sizes(
        num_records=setting.num_users,
        dim=setting.dim,
        lipschitz=k * setting.euclidean,
        convexity=k * convexity,
        start_distance=start,
        rounding=rounding,
        reach=bounded,
        ball_radius=setting.radius if setting.set_name == "ball" else None,
        ball_bounds=ball_bounds,
        tangent=certificate.Power(setting.exponent, k * mu * setting.weight)
        if setting.tangent
        else None,
    )


def model_of(objective: Objective) -> LinearModel | None:
    """The linear model that is proven of an objective."""
    return _proofs.require_proven(objective).linear_model


def setting_of(
    objective: Objective,
    num_users: int,
    items_per_user: int,
    dim: int,
    norm: float,
    row_bound: float | None,
) -> Setting:
    """The setting of sizes and of a proven loss, for a norm and a set that go together with it."""
    _checks.require_instance("objective", objective, Objective)
    proof = _proofs.require_proven(objective)
    model = proof.linear_model
    name, given = domains.proven_maker(objective.domain)
    _checks.require(name in _SETS, "objective.domain", name, f"one of {_SETS}")
    fixed = not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(given))
    _checks.require(fixed, "objective.domain", name, "made of concrete numbers")
    known = model is not None or objective.loss.__module__ == losses.__name__
    _checks.require(known, "objective.loss", objective.loss, "one of problems.losses")
    center, ends = center_of(objective, (dim,)), ends_of(objective)
    for found in (center, *ends):
        entries = f"of {dim} entries, as many as there are parameters"
        _checks.require(found.size in (dim, 0), "objective.domain", found.size, entries)
    if name == "ball" and objective.ridge > 0:
        # Means of proposals lie between y and the common centre, which has to be in the ball.
        away = float(np.linalg.norm(center))
        room = float(np.asarray(given["radius"]))
        _checks.require(away <= room, "objective.domain", away, f"a ball with the origin: {room}")
    if name == "box":
        for side in ends[1] - ends[0]:
            good = 0.0 < side < math.inf
            _checks.require(good, "objective.domain", side, "a box with sides above 0, and finite")
    radius = float(np.asarray(given["radius"])) if name == "ball" else math.inf
    diameter, farthest = _extent(name, center, ends, radius)
    lipschitz, ridge = float(objective.lipschitz), float(objective.ridge)
    bound = 1.0 if model is None else float(model.feature_bound)
    slope = lipschitz / bound
    exponent, weight = best_exponent(norm, dim), regularizer_weight(norm, dim)
    _require_norm(objective, model, norm, exponent, row_bound, name)

    dual, dual_of_rows = dual_exponent(exponent), dual_exponent(norm)
    steep = slope * bound * norm_ratio(dual, 2.0, dim)
    euclidean = lipschitz
    if row_bound is not None:
        steep = min(steep, slope * row_bound * norm_ratio(dual, dual_of_rows, dim))
        euclidean = min(lipschitz, slope * row_bound * norm_ratio(2.0, dual_of_rows, dim))
    change = 2.0 * steep
    if exponent == 2.0 and math.isfinite(farthest):
        # A user without items has the gradient zero, from which others are as far as they are long.
        change = min(change, max(proof.gradient_gap(farthest), lipschitz))
    outputs = 0 if model is None or model.outputs is None else model.outputs
    return Setting(
        num_users=num_users,
        items_per_user=items_per_user,
        dim=dim,
        norm=norm,
        row_bound=row_bound,
        exponent=exponent,
        weight=weight,
        lipschitz=steep,
        change=change,
        euclidean=euclidean,
        slope=slope,
        feature_bound=bound,
        additions=items_per_user + 4 + 4 * outputs + (dim if model is None else 0),
        ridge=ridge,
        set_name=name,
        radius=radius,
        diameter=diameter,
    )


def center_of(objective: Objective, shape: tuple[int, ...]) -> Any:
    """The centre of a ball, as a vector in float64."""
    center = domains.proven_maker(objective.domain)[1].get("center")
    return np.zeros(math.prod(shape)) if center is None else _vector(center)


def ends_of(objective: Objective) -> tuple[Any, Any]:
    """The lower and the upper ends of a box, as vectors in float64; without entries of other sets."""
    given = domains.proven_maker(objective.domain)[1]
    return _vector(given.get("lower")), _vector(given.get("upper"))


def _vector(tree: Any) -> Any:
    leaves = [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([np.zeros(0), *leaves])


def _extent(name: str, center: Any, ends: tuple[Any, Any], radius: float) -> tuple[float, float]:
    """The diameter and the largest norm of the set itself, rounded up; a ``Domain`` may have been narrow."""
    if name == "ball":
        return 2.0 * radius, (math.hypot(*center) + radius) * _UP
    if name == "box":
        lower, upper = ends
        outermost = np.maximum(np.abs(lower), np.abs(upper))
        return math.hypot(*(upper - lower)) * _UP, math.hypot(*outermost) * _UP
    return math.inf, math.inf


def _require_norm(
    objective: Objective,
    model: LinearModel | None,
    norm: float,
    exponent: float,
    row_bound: float | None,
    set_name: str,
) -> None:
    vectors = model is not None and model.outputs is None
    plain = norm == 2.0 and row_bound is None
    _checks.require(vectors or plain, "norm", norm, "2, without row_bound: a loss of vector rows")
    if exponent < 2.0:
        whole = set_name == "whole_space"
        _checks.require(whole, "objective.domain", set_name, f"the whole space for norm = {norm:g}")
        flat = objective.ridge == 0.0
        _checks.require(flat, "objective.ridge", objective.ridge, f"0 for norm = {norm:g}")
