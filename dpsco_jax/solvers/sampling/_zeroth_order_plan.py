"""The plan of one draw by values in an ℓp norm: what it costs, and the lengths of its chain for a budget.

What it computes: the cost of the ideal mechanism, how far the sampler is from it, and k, μ, η, T and N for
an (ε, δ).

Source: T, Proposition 5.5.6, Theorem 5.5.8 and Corollary 5.5.9 for vectors, with the sensitivity 2G of a
mean of G-Lipschitz losses, the factor 2 that the printed μ of SCO lacks, and constants for its Θ(·)
(docs/corrections.md); docs/theory/llt_sampler.md for the sampler.

Formal guarantee: replacing a user changes k·F by a (2kG/n)-Lipschitz function in ℓp, and the potential k·(F
+ μ·ηψ) is kμ-strongly convex in ℓp on every data set: an exact draw is s-Gaussian DP with s = 2G·√k/(n·√μ).
A draw of the sampler is within τ of that in total variation, and costs what ``privacy.inexact`` says. A
plan that does not draw releases the start, which costs nothing.

Cost: some thousand evaluations of closed forms, and the tables of ψ.
"""

import math
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.inexact import inexact_certificate, inexact_loss
from dpsco_jax.solvers import _costs, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.sampling import _llt_numbers as llt
from dpsco_jax.solvers.sampling import _zeroth_order_constants as constants
from dpsco_jax.solvers.sampling._llt_numbers import Numbers, Setting
from dpsco_jax.solvers.sampling._llt_transform import Transform, transform
from dpsco_jax.solvers.work import Work

REPLACE = NeighboringRelation.REPLACE_ONE
_UP = 1.0 + 2.0**-40


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        setting: sizes of the data, constants of the loss in the norm that is worked in, and bounds.
        norm: p, as asked for.
        draws: whether there is a draw at all; if not the start is released.
        constant_time: whether all attempts and trials are made.
        inverse_temperature: k.
        regularization: μ, of ηψ.
        step_size: η.
        num_steps: T.
        num_trials: N, of all steps.
        epsilon: the budget that was planned for; what is spent follows from the other numbers.
        delta: δ of that budget; the certificate is for this δ.
        excess_bound: proven bound on the expected excess risk of an exact draw, or of the start; of the
            population's risk if that was asked for.
    """

    setting: Setting = static()
    norm: float = static()
    draws: bool = static()
    constant_time: bool = static()
    inverse_temperature: Number
    regularization: Number
    step_size: Number
    num_steps: Number
    num_trials: Number
    epsilon: Number
    delta: Number
    excess_bound: Number

    def __post_init__(self) -> None:
        constants.exponent(self.norm)

    @property
    def num_users(self) -> int:
        """How many users the data must have."""
        return self.setting.num_users

    @property
    def dim(self) -> int:
        """The number of parameters."""
        return self.setting.dim

    @property
    def transform(self) -> Transform:
        """ψ, tabulated as far as the setting says."""
        return transform(self.setting.exponent, self.setting.dim, self.setting.reach)

    @property
    def numbers(self) -> Numbers:
        """What else follows for the run."""
        return llt.numbers(
            self.setting,
            self.transform.errors,
            *(self.inverse_temperature, self.regularization, self.step_size),
            *(self.num_steps, self.num_trials),
        )

    @property
    def gdp(self) -> Any:
        """The s of an exact draw, rounded up; 0 without one."""
        xp, (k, mu) = as_floats(self.inverse_temperature, self.regularization)
        if not self.draws:
            return xp.zeros_like(k)
        good = (k > 0) & (mu > 0)
        ratio = xp.where(good, k, 1.0) / xp.where(good, mu, 1.0)
        change = 2.0 * self.setting.lipschitz / self.setting.num_users
        return xp.where(good, change * xp.sqrt(ratio) * _UP, xp.inf)

    @property
    def variation(self) -> Any:
        """τ; 0 without a draw."""
        return self.numbers.variation.total if self.draws else 0.0 * self.delta

    @property
    def expected_values(self) -> Any:
        """Losses of single users that are read in the mean, at most: 2(e - 1) a trial."""
        return self.draws * 2.0 * (math.e - 1.0) * self.num_trials

    @property
    def user_gradients(self) -> Any:
        """Losses of single users that are read, at most: two for each of A terms of each trial."""
        return self.draws * 2.0 * self.setting.num_terms * self.num_trials

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

    @property
    def accounted(self) -> Any:
        """Whether the proof covers a run with these numbers; a bool, may be traced."""
        return self.numbers.valid if self.draws else np.bool_(True)

    def work_for(self, item: _costs.Item) -> Work:
        """What a run costs at most: values of losses, and a proposal for every trial."""
        trial = _costs.release(item.dim) + _costs.method(item.dim)
        return _costs.values(self.user_gradients, item) + trial * (self.draws * self.num_trials)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where the proof does not cover them; may be traced."""
        if not self.draws:
            return privacy.zero()
        xp, (s, tau, good) = as_floats(self.gdp, self.variation, self.accounted)
        good = (good > 0) & (s < xp.inf)
        found = inexact_loss(
            xp.where(good, s, 1.0),
            xp.where(good, xp.minimum(tau, 1.0), 0.0),
            self.epsilon,
            self.delta,
        )
        return privacy.unbounded_unless(good, found)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of a run of these numbers, infinite as ``loss`` is.

        Raises:
            ValueError: ``delta`` is not in (0, 1), or the plan is a batch of plans.
        """
        if not self.draws:
            return inexact_certificate(0.0, 0.0, self.delta, REPLACE, self.assumes)
        good = bool(np.asarray(self.accounted)) and bool(np.isfinite(self.gdp))
        s = float(self.gdp) if good else 1.0
        tau = min(float(self.variation), 1.0) if good else 1.0
        return inexact_certificate(s, tau, self.delta, REPLACE, self.assumes)

    def __str__(self) -> str:
        remarks: list[tuple[str, Any]] = [("s of an exact draw", f"{float(self.gdp):.5g}")]
        if self.draws:
            made = self.numbers
            parts = ", ".join(
                f"{float(part):.3g} {name}"
                for name, part in zip(made.variation._fields, made.variation, strict=True)
            )
            remarks += [
                ("radius of the set", f"{float(made.radius * made.unit):.5g}"),
                ("success of a trial, at least", f"{float(made.acceptance):.3g}"),
                ("values, expected at most", f"{float(self.expected_values):.4g}"),
                ("total variation", f"{float(made.variation.total):.3g} = {parts}"),
            ]
        else:
            remarks.append(("why there is no draw", "its bound is no better than the start's"))
        return plans.describe("zeroth-order draw in an lp norm", self, remarks)
