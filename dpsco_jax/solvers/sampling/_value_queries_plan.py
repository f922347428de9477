"""The plan of one draw by value queries: what the ideal mechanism costs, and how far the chain is from it.

What it computes: from (k, μ, η, T, N) and constants alone: s of an exact draw, the parts of the total
variation τ, and the privacy of what runs; or, the other way round, a chain for k, μ and τ.

Source: T, Theorems 3.2.1 and 4.1.3; docs/theory/rejection_oracle.md for the chain.

Formal guarantee: replacing a user changes k·F by a (k·G_Δ/n)-Lipschitz function in ℓ_q, and the potential
k·(F + ridge + μr) is k·(σμ + ridge)-strongly convex in ℓ_q on every data set, so an exact draw is s-Gaussian
DP with s = G_Δ·√k/(n·√(σμ + ridge)), whatever else is chosen. A draw of the chain is within τ of that in
total variation and costs what ``privacy.inexact`` says; τ is never charged without its factor 1 + e^ε.

Cost: that of the certificate, some ten milliseconds.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.inexact import inexact_certificate, inexact_loss
from dpsco_jax.rates import sampling as rates
from dpsco_jax.solvers import _costs, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.sampling import _rejection_certificate as certificate
from dpsco_jax.solvers.sampling import _user_losses, attempt_bounds
from dpsco_jax.solvers.sampling._rejection_certificate import Chain
from dpsco_jax.solvers.sampling._tangent_numbers import Power
from dpsco_jax.solvers.sampling._value_queries_setting import Setting
from dpsco_jax.solvers.work import Work

REPLACE = NeighboringRelation.REPLACE_ONE
_UP = 1.0 + 2.0**-40
_WIDER = 1.0 + 2.0**-16
_PAIR = 2.0 * (math.e - 1.0)
_MOST = 2.0**31 - 1.0


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        setting: sizes, the set, the regularizer, proven constants of the loss.
        sizes: how large the start and labels may be.
        num_terms: A, after which the estimated exponential ends.
        ball_bounds: for draws on a ball: the largest deviation of a proposal, and how far outside means are.
        constant_time: whether all trials are made, each with all its values.
        regularization: μ, centred at the start, without the ridge.
        inverse_temperature: k.
        step_size: η.
        num_steps: T.
        num_trials: N, of all steps.
        escape: how likely the chain may go farther than bounds on roundings and attempts hold.
        epsilon: the budget that was planned for; what is spent follows from the other numbers.
        delta: δ of that budget; the certificate is for this δ.
        excess_bound: proven bound on the expected excess risk of an exact draw; ``inf`` where no distance
            bounds it; of the population's risk if that was asked for.
        predicted_excess: what a draw is expected to reach on the nominal problem; NaN where there is none.
    """

    setting: Setting = static()
    sizes: _user_losses.Sizes = static()
    num_terms: int = static()
    ball_bounds: tuple[float, float] | None = static()
    constant_time: bool = static()
    regularization: Number
    inverse_temperature: Number
    step_size: Number
    num_steps: Number
    num_trials: Number
    escape: Number
    epsilon: Number
    delta: Number
    excess_bound: Number
    predicted_excess: Number

    @property
    def num_users(self) -> int:
        """How many users the data must have."""
        return self.setting.num_users

    @property
    def dim(self) -> int:
        """The number of parameters."""
        return self.setting.dim

    @property
    def gdp(self) -> Any:
        """The s of an exact draw, rounded up; infinite where k or the convexity is not positive."""
        return gdp(self.setting, self.inverse_temperature, self.regularization)

    @property
    def chain(self) -> Chain:
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
        return REPLACE

    def work_for(self, item: _costs.Item) -> Work:
        """What a run costs: values of losses, and a proposal for every trial."""
        trial = _costs.release(item.dim) + _costs.method(item.dim)
        return _costs.values(self.value_queries, item) + trial * self.num_trials

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where the proof does not cover them; may be traced."""
        xp, (s, tau) = as_floats(self.gdp, self.chain.variation)
        good = (s < xp.inf) & (tau < 1.0)
        found = inexact_loss(
            xp.where(good, s, 1.0), xp.where(good, tau, 0.0), self.epsilon, self.delta
        )
        return privacy.unbounded_unless(good, found)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of a run of these numbers, infinite where ``loss`` is.

        Raises:
            ValueError: ``delta`` is not in (0, 1), or the plan is a batch of plans.
        """
        s, tau = float(self.gdp), float(self.chain.variation)
        good = math.isfinite(s) and tau < 1.0 and bool(np.any(np.isfinite(self.loss().rdp)))
        return inexact_certificate(
            s if good else 1.0, tau if good else 1.0, self.delta, REPLACE, self.assumes
        )

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
        parts = ", ".join(f"{float(getattr(chain, name)):.3g} {name}" for name in _PARTS)
        remarks = [
            ("s of an exact draw", f"{float(self.gdp):.5g}"),
            ("acceptance, at least", f"{float(chain.acceptance):.3g}"),
            ("value queries, expected", f"{float(self.expected_value_queries):.3g}"),
            ("total variation", f"{float(chain.variation):.3g} = {parts}"),
        ]
        return plans.describe("regularized exponential mechanism by value queries", self, remarks)


def _wide(*values: Any) -> tuple[Any, list[Any]]:
    """The values in float64 where there is one: traced numbers of Python may be read as narrower ones."""
    xp, floats = as_floats(*values)
    if xp is jnp:
        floats = [jnp.asarray(v, jax.dtypes.canonicalize_dtype(np.float64)) for v in values]
    return xp, floats


_PARTS = ("mixing", "inner", "rounding", "cap")


def gdp(setting: Setting, k: Any, mu: Any) -> Any:
    """The s of an exact draw, rounded up."""
    xp, (k, mu) = _wide(k, mu)
    convexity = setting.convexity(mu)
    good = (k > 0) & (convexity > 0) & (k < xp.inf) & (mu >= 0)
    ratio = xp.where(good, k, 1.0) / xp.where(good, convexity, 1.0)
    change = setting.change / setting.num_users
    return xp.where(good, change * xp.sqrt(ratio) * _UP, xp.inf)


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
        tangent=Power(setting.exponent, k * mu * setting.weight) if setting.tangent else None,
    )


def numbers_for(
    setting: Setting, sizes: _user_losses.Sizes, k: float, mu: float, variation: float
) -> dict[str, Any]:
    """The fields of a plan whose chain is within τ of the target.

    Raises:
        Infeasible: there is none, in float64 and 2³¹ trials.
    """
    chain = certificate.planned(variation, target(setting, sizes, k, mu, None))
    # As ``planned`` has it.
    escape = certificate.ESCAPE * variation / 2.0
    bounds = None
    if setting.set_name == "ball":
        deviation = math.sqrt(chain.step_size / (1.0 + chain.step_size * k * setting.convexity(mu)))
        farthest = attempt_bounds.farthest_start(setting.dim, chain.num_steps, escape)
        bounds = (deviation * _WIDER, farthest)
    return {
        "num_terms": chain.num_terms,
        "ball_bounds": bounds,
        "inverse_temperature": k,
        "regularization": mu,
        "step_size": float(chain.step_size),
        "num_steps": float(chain.num_steps),
        "num_trials": float(chain.num_trials),
        "escape": escape,
    }
