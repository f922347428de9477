"""From a request to a plan by value queries: temperature, regularization and τ for a budget.

What it computes: with λ = σμ + ridge, k = (sn/G_Δ)²·λ for the s that the budget leaves once the chain has its
τ, and the μ of the least bound μΘ + C/λ, C = d·(G_Δ/(sn))² and G_Δ·min(G, G_Δ)/n more for the population:

    λ = √(Cσ/Θ),    μ = (λ - ridge)/σ, or 0 where the ridge is more than that.

τ takes a tenth of δ/(1 + e^ε). Other shares gain nothing that counts: a fiftieth makes s 0.8 % larger and the
chain a tenth longer, and steps for s, at equal s, are as many within a few percent.

Source: T, Theorems 3.6.2 to 3.6.9, 4.4.2, 4.4.6, 4.5.2, 4.5.3, Proposition 5.5.6 (thrifty). ``printed`` has k
and μ of the theorems, with G where privacy needs G_Δ, and a τ that is charged as it is.

Formal guarantee: none of its own; what a plan costs is reckoned from its numbers, and a plan whose
certificate is above the budget is refused.

Cost: that of a few certificates; of some ten with ``max_steps``.
"""

import math
from typing import NamedTuple

import numpy as np

from dpsco_jax import privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.privacy.variation import gdp_within, variation_epsilon
from dpsco_jax.problems.problem import Problem
from dpsco_jax.rates import sampling_printed
from dpsco_jax.rates.norms import norm_ratio, regularizer_range
from dpsco_jax.solvers._schedules import nominal_model
from dpsco_jax.solvers.sampling import _user_losses
from dpsco_jax.solvers.sampling._regularized_plan import expected_excess
from dpsco_jax.solvers.sampling._value_queries_plan import Plan, numbers_for
from dpsco_jax.solvers.sampling._value_queries_setting import Setting

_SAMPLER = 0.1  # of δ/(1 + e^ε)
_LESS = 1.0 - 2.0**-10
_DOWN = 1.0 - 2.0**-30
_FARTHEST = 1000.0  # distances that a start may be from the origin
_LARGEST = 700.0
_TRIES = 6
_LEAST = 1e-6  # s


class Request(NamedTuple):
    """What is asked for, checked.

    Attributes:
        problem: of the request.
        setting: of its objective.
        regularization: μ, or ``None``.
        population: whether that risk is bounded.
        thrifty: whether s may be lowered to √(2d/n).
        max_steps: the most steps, or ``None``.
        columns_per_row: of one-hot rows, for the prediction.
        constant_time: whether all trials are made.
    """

    problem: Problem
    setting: Setting
    regularization: float | None
    population: bool
    thrifty: bool
    max_steps: int | None
    columns_per_row: int | None
    constant_time: bool

    @property
    def reach(self) -> float:
        """Θ: how far r ranges within the distance; infinite if there is none."""
        problem, setting = self.problem, self.setting
        ranges = [math.inf]
        if problem.distance is not None:
            ranges.append(regularizer_range(setting.norm, setting.dim, problem.distance))
        if not setting.tangent:
            farthest = {"ball": setting.radius, "box": setting.diameter}.get(setting.set_name)
            ranges.append(0.5 * setting.weight * (farthest or math.inf) ** 2)
        return min(ranges)

    @property
    def generalization(self) -> float:
        """What the population's risk has more than the empirical one, times λ; 0 if it is not asked for."""
        setting = self.setting
        apart = setting.change * min(setting.lipschitz, setting.change) / setting.num_users
        return apart if self.population else 0.0


def tight(asked: Request, budget: privacy.Budget) -> Plan:
    """The plan whose certificate is at most the budget.

    Raises:
        Infeasible: there is none.
    """
    epsilon, delta = budget.epsilon, budget.delta
    tau = _SAMPLER * delta / (1.0 + math.exp(min(epsilon, _LARGEST)))
    s = gdp_within(epsilon, delta, tau) * _DOWN
    if asked.thrifty:
        s = min(s, math.sqrt(2.0 * asked.setting.dim / asked.setting.num_users))
    while True:
        try:
            found = _with_gdp(asked, budget, s, tau)
            break
        except Infeasible:
            if asked.max_steps is None or s < _LEAST:
                raise
            s *= 0.5
    if asked.max_steps is None or found.num_steps <= asked.max_steps:
        return _private(found, budget)
    # Steps are as s², but for logarithms: what fits best of a few.
    best: Plan | None = None
    for _ in range(_TRIES):
        s *= math.sqrt(asked.max_steps / float(found.num_steps))
        found = _with_gdp(asked, budget, s, tau)
        if found.num_steps > asked.max_steps:
            s *= 1.0 - 1e-3
        elif best is None or found.gdp > best.gdp:
            best = found
    if best is None:
        raise Infeasible(
            f"max_steps must be at least {found.num_steps:.0f} for s = {s:.3g}, got {asked.max_steps}",
            {"max_steps": float(found.num_steps)},
        )
    return _private(best, budget)


def printed(asked: Request, budget: privacy.Budget) -> Plan:
    """The plan with k, μ and τ of the theorem for the request.

    Raises:
        ValueError: its true ε is above the budget.
    """
    setting, epsilon, delta = asked.setting, budget.epsilon, budget.delta
    slope = setting.lipschitz / math.sqrt(setting.modulus)
    if setting.ridge > 0 or asked.regularization is not None:
        # Theorems 4.5.2 and 4.5.3.
        mu = asked.regularization or 0.0
        k = (setting.num_users * epsilon / setting.lipschitz) ** 2 * setting.convexity(mu)
        k, tau = k / (2.0 * _log_half(delta)), delta / 2.0
    else:
        theorem = ("3.6.9" if asked.population else "3.6.4") if setting.norm == 2.0 else ""
        theorem = theorem or ("4.4.6" if asked.population else "4.4.2")
        sizes = (setting.num_users, setting.dim, epsilon, delta, slope, asked.reach, slope)
        drawn = sampling_printed.printed(theorem, *sizes)
        k, mu = drawn.inverse_temperature, drawn.regularization
        tau = delta / 3.0 if theorem.startswith("3") else delta / 2.0
    return _private(_made(asked, budget, k, mu, tau), budget, "as printed")


def _log_half(delta: float) -> float:
    if not delta < 0.5:
        raise ValueError(f"budget.delta must be in (0, 0.5) for printed constants, got {delta}")
    return -math.log(2.0 * delta)


def _private(made: Plan, budget: privacy.Budget, which: str = "") -> Plan:
    spent = variation_epsilon(float(made.gdp), float(made.chain.variation), budget.delta)
    if spent > budget.epsilon and not which:
        raise Infeasible(
            "problem must be in units in which temperature, regularization and steps are within 1e30, got "
            f"k = {float(made.inverse_temperature):.3g}, mu = {float(made.regularization):.3g}, "
            f"eta = {float(made.step_size):.3g}"
        )
    if spent > budget.epsilon:
        raise ValueError(
            f"constants must be 'tight': {which} a draw for epsilon = {budget.epsilon:g}, delta = "
            f"{budget.delta:g} has the true epsilon = {spent:.6g}"
        )
    return made


def _with_gdp(asked: Request, budget: privacy.Budget, s: float, tau: float) -> Plan:
    setting = asked.setting
    cold = (s * setting.num_users / setting.change) ** 2
    mu = asked.regularization
    if mu is None:
        lost = setting.dim / cold + asked.generalization
        least = math.sqrt(
            lost * setting.modulus / asked.reach
        )  # 0 where nothing bounds the distance
        mu = max(0.0, least - setting.ridge) / setting.modulus
    return _made(asked, budget, cold * setting.convexity(mu), mu, tau)


def _made(asked: Request, budget: privacy.Budget, k: float, mu: float, tau: float) -> Plan:
    setting, problem = asked.setting, asked.problem
    convexity = setting.convexity(mu)
    lost = mu * asked.reach if mu > 0 else 0.0
    generalization = asked.generalization / convexity
    sizes = _sizes(asked, k, convexity)
    try:
        fields = numbers_for(setting, sizes, k, mu, _LESS * tau)
    except Infeasible as refusal:
        raise Infeasible(
            "problem.num_users or budget.epsilon must be smaller, or max_steps given, for steps as many as "
            f"their squares, got {setting.num_users} and {budget.epsilon:g}: {refusal}"
        ) from None
    predicted = math.nan
    if setting.norm == 2.0 and math.isfinite(problem.farthest):
        nominal = nominal_model.nominal(problem, asked.columns_per_row)
        predicted = expected_excess(nominal, k, mu) + generalization
    return Plan(
        setting=setting,
        sizes=sizes,
        constant_time=asked.constant_time,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=lost + setting.dim / k + generalization,
        predicted_excess=predicted,
        **fields,
    )


def _sizes(asked: Request, k: float, convexity: float) -> _user_losses.Sizes:
    """Far beyond where a run goes, and so near that values of that size are computed well enough."""
    problem, setting = asked.problem, asked.setting
    usual = setting.euclidean / convexity + math.sqrt(setting.dim / (k * convexity))
    far = problem.farthest * norm_ratio(2.0, setting.norm, setting.dim)
    distance = usual if math.isinf(far) else far
    start_norm = _FARTHEST * max(distance, 1.0)
    if setting.set_name != "whole_space":
        start_norm = max(start_norm, float(np.asarray(problem.objective.domain.norm)))
    bound = _user_losses.label_bound(setting.feature_bound, start_norm, 8.0 * max(usual, distance))
    return _user_losses.Sizes(
        start_norm, max(bound, _user_losses.label_bound(1.0, setting.slope, 0.0))
    )
