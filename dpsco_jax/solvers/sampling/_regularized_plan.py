"""The plan of one draw from the regularized exponential mechanism, by the proximal sampler.

What it computes: what the ideal mechanism costs, how far the sampler is from it, and the regularization, the
temperature, and the numbers of steps and trials for a budget.

Source: T, Theorems 3.2.1 and 3.6.2, with the sensitivity of a mean of losses each of which is L-Lipschitz
(docs/corrections.md), and docs/theory/proximal_sampler.md for the sampler.

Formal guarantee: replacing a user changes k·F by a (2kL/n)-Lipschitz function, and the potential k·(F +
(μ/2)‖x - centre‖²) is kμ-strongly convex on every data set; an exact draw is s-Gaussian DP with s =
2L·√k/(n·√μ), whatever else is chosen. A draw of the sampler is within τ of that in total variation, and
costs what ``privacy.inexact`` says.

Cost: some thousand evaluations of closed forms.
"""

import math
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.inexact import inexact_certificate, inexact_loss
from dpsco_jax.privacy.variation import gdp_within
from dpsco_jax.solvers import _costs, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers._schedules.nominal_model import Nominal
from dpsco_jax.solvers.sampling import _proximal_numbers as proximal
from dpsco_jax.solvers.sampling._proximal_numbers import Numbers, Setting
from dpsco_jax.solvers.sampling.chain_lengths import capped_trials, mixing_steps
from dpsco_jax.solvers.work import Work

REPLACE = NeighboringRelation.REPLACE_ONE
_UP = 1.0 + 2.0**-40
_SAMPLER = 0.2  # of δ: what τ may take of it, times 1 + e^ε
_EACH = 0.02  # of δ/(1 + e^ε): what mixing and the cap on trials take where rounding takes less
_FIRST = 2.05  # times that: τ, as a first guess
_TRIES = 60
_LARGEST = 700.0  # exponent that can be computed with
_SMALLEST = 1e-100
_LONGEST = 200.0  # of ηm, for anchors to be found on their grid
_RAREST = 1e-4  # success of a trial


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        setting: sizes of the data and proven constants of the loss.
        ridge: of the objective, centred at the origin.
        smoothing: γ of the Moreau envelope that stands in for a loss with a kink; 0 for a smooth loss.
        constant_time: whether all trials are made, each with all gradients.
        regularization: μ, centred at the start, without the ridge.
        inverse_temperature: k.
        relative_step: c = ηkH.
        num_steps: T.
        num_trials: N, of all steps.
        epsilon: the budget that was planned for; what is spent follows from the other numbers.
        delta: δ of that budget; the certificate is for this δ.
        excess_bound: proven bound on the expected excess risk of an exact draw, for the loss itself; of the
            population's risk if that was asked for.
        predicted_excess: what a draw is expected to reach on the nominal problem, and half of what an
            envelope may hide; no bound.
    """

    setting: Setting = static()
    ridge: float = static()
    smoothing: float = static()
    constant_time: bool = static()
    regularization: Number
    inverse_temperature: Number
    relative_step: Number
    num_steps: Number
    num_trials: Number
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
    def numbers(self) -> Numbers:
        """What else follows for the run."""
        return proximal.numbers(
            self.setting,
            self.inverse_temperature,
            self.regularization + self.ridge,
            self.relative_step,
            self.num_steps,
            self.num_trials,
        )

    @property
    def gdp(self) -> Any:
        """The s of an exact draw, rounded up."""
        xp, (k, mu) = as_floats(self.inverse_temperature, self.regularization + self.ridge)
        good = (k > 0) & (mu > 0)
        ratio = xp.where(good, k, 1.0) / xp.where(good, mu, 1.0)
        change = 2.0 * self.setting.lipschitz / self.setting.num_users
        return xp.where(good, change * xp.sqrt(ratio) * _UP, xp.inf)

    @property
    def user_gradients(self) -> Any:
        """Passes over the users, at most: J for each step and one for each trial; times the users."""
        most = self.num_steps * self.numbers.most_gradients + self.num_trials
        return most * self.num_users

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
        return self.numbers.valid & (self.regularization >= 0)

    def work_for(self, item: _costs.Item) -> Work:
        """What a run costs at most: passes over the users, and a proposal for every trial."""
        trial = _costs.release(item.dim) + _costs.method(item.dim)
        return _costs.gradients(self.user_gradients, item) + trial * self.num_trials

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where the proof does not cover them; may be traced."""
        xp, (s, tau, good) = as_floats(self.gdp, self.numbers.variation.total, self.accounted)
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
        good = bool(np.asarray(self.accounted)) and bool(np.isfinite(self.gdp))
        s = float(self.gdp) if good else 1.0
        tau = min(float(self.numbers.variation.total), 1.0) if good else 1.0
        return inexact_certificate(s, tau, self.delta, REPLACE, self.assumes)

    def __str__(self) -> str:
        made = self.numbers
        parts = ", ".join(
            f"{float(part):.3g} {name}"
            for name, part in zip(made.variation._fields, made.variation, strict=True)
        )
        remarks = [
            ("s of an exact draw", f"{float(self.gdp):.5g}"),
            ("step size", f"{float(made.step_size):.5g}"),
            ("acceptance, at least", f"{float(made.acceptance):.3g}"),
            ("gradients of a step, at most", f"{float(made.most_gradients):.0f}"),
            ("total variation", f"{float(made.variation.total):.3g} = {parts}"),
        ]
        return plans.describe("regularized exponential mechanism", self, remarks)


def planned(
    setting: Setting,
    budget: privacy.Budget,
    *,
    ridge: float,
    smoothing: float,
    gap: float,
    population: bool,
    regularization: float,
    relative_step: float,
    distance: float,
    nominal: Nominal,
    constant_time: bool,
) -> Plan:
    """The plan for one regularization.

    Raises:
        Infeasible: no numbers of steps and trials make the draw private enough for the budget.
    """
    epsilon, delta = budget.epsilon, budget.delta
    convexity = regularization + ridge
    change = 2.0 * setting.lipschitz / setting.num_users
    least = _EACH * delta / (1.0 + math.exp(min(epsilon, _LARGEST)))
    guess, bias = _FIRST * least, regularization * distance**2 / 2
    # Neighbours' laws are 2L/(nμ) apart in the Wasserstein distance, and losses L-Lipschitz.
    stability = 2.0 * setting.lipschitz**2 / (setting.num_users * convexity)
    generalization = stability if population else 0.0
    for _ in range(_TRIES):
        # From the largest τ that may come out: the ε at which it takes a part of δ, which may be less than
        # what there is to spend, the temperature that it leaves, and what τ is then.
        left = _SAMPLER * delta / guess - 1.0
        if left <= _UP:
            raise Infeasible(
                "budget.delta must be far above the rounding of the sampler, a total variation of "
                f"{guess:.3g}, got {delta:.6g}",
                {"delta": delta},
            )
        s = gdp_within(min(epsilon, math.log(left)), delta, guess)
        k = (s / (_UP * _UP)) ** 2 * convexity / change**2
        steps, trials = _counts(setting, k, convexity, relative_step, max(least, 0.1 * guess))
        made = Plan(
            setting=setting,
            ridge=ridge,
            smoothing=smoothing,
            constant_time=constant_time,
            regularization=regularization,
            inverse_temperature=k,
            relative_step=relative_step,
            num_steps=float(steps),
            num_trials=float(trials),
            epsilon=epsilon,
            delta=delta,
            excess_bound=bias + setting.dim / k + gap + generalization,
            predicted_excess=expected_excess(nominal, k, regularization) + gap / 2 + generalization,
        )
        if not made.accounted:
            raise Infeasible(
                "regularization must be larger for the grids of the sampler to hold its points, got "
                f"{regularization:.6g}"
            )
        spent = float(made.numbers.variation.total)
        if spent <= guess:
            return made
        guess = 1.02 * spent
    raise Infeasible(f"budget must leave room for the sampler, got ({epsilon}, {delta})")


def _counts(
    setting: Setting, k: float, convexity: float, relative_step: float, variation: float
) -> tuple[int, int]:
    """Steps and trials that leave the given total variation each."""
    larger = f"regularization must be larger, got {convexity:.6g} with the ridge"
    if not _SMALLEST < k * setting.smoothness < 1.0 / _SMALLEST:
        raise Infeasible(larger + ": the temperature is beyond what can be computed with")
    eta = relative_step / (k * setting.smoothness)
    hardest = -1.6 * math.log(_RAREST)
    if relative_step > hardest:
        raise Infeasible(
            f"relative_step must be {hardest:.3g} at most, for trials to succeed, got {relative_step:.6g}"
        )
    if eta * k * convexity > _LONGEST:
        limit = _LONGEST * setting.smoothness / relative_step
        raise Infeasible(
            f"regularization must be smaller, {limit:.6g} at most with the ridge for this relative_step, got "
            f"{convexity:.6g}"
        )
    acceptance = float(proximal.numbers(setting, k, convexity, relative_step, 1, 1).acceptance)
    start = setting.lipschitz / convexity + (setting.dim / (k * convexity)) ** 0.5
    try:
        steps = mixing_steps(min(variation, 0.5), eta, k * convexity, start)
        return steps, capped_trials(steps, acceptance, variation)
    except Infeasible as refusal:
        raise Infeasible(
            f"{larger}, or relative_step closer to 3, got {relative_step:.6g}: {refusal}"
        ) from None


def expected_excess(nominal: Nominal, k: float, regularization: float) -> float:
    """The excess risk of a draw from a quadratic: in each direction a pull to the start, and a Gaussian."""
    curvatures = nominal.hessian()
    bent = curvatures + regularization
    squares = (regularization / bent) ** 2 * nominal.starts + 1.0 / (k * bent)
    return nominal.excess(squares)
