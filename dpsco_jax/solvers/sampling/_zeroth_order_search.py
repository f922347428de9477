"""From a budget to the plan of a draw by values: s, temperature, step size, steps and trials.

What it computes: the largest s with which the draw keeps to (ε, δ), its sampler included; k and μ for it,
with the range Θ of the transform; the step size that errors of estimates allow; T and N.

Source: T, Theorem 5.5.8, its proof step by step; Θ and the constants as docs/theory/llt_sampler.md proves
them.

Formal guarantee: none of its own: what a plan costs follows from its numbers alone (``_zeroth_order_plan``).

Cost: some thousand evaluations of closed forms, and tables of ψ for each reach that is tried.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from dpsco_jax import privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry.log_laplace import LpLogLaplace
from dpsco_jax.privacy.variation import gdp_within, variation_delta
from dpsco_jax.solvers.sampling import _llt_bounds as bounds
from dpsco_jax.solvers.sampling import _llt_numbers as llt
from dpsco_jax.solvers.sampling._llt_numbers import Setting
from dpsco_jax.solvers.sampling._llt_transform import Errors
from dpsco_jax.solvers.sampling._zeroth_order_plan import Plan
from dpsco_jax.solvers.sampling.chain_lengths import capped_trials

_UP = 1.0 + 2.0**-40
_EACH = 0.02  # of δ/(1 + e^ε): what each of mixing, estimates and the cap on trials takes
_FIRST = 3.1  # times that: τ, as a first guess
_FURTHEST = 4096.0
_TRIES = 30
_ROOM = 1.05  # of reach and radius over what the planned numbers need


def planned(
    setting: Setting,
    budget: privacy.Budget,
    *,
    norm: float,
    distance: float,
    parameters: Callable[[float, float], Any],
    largest_gdp: float,
    constant_time: bool,
    draw_anyway: bool,
) -> Plan:
    """The plan for a budget.

    Args:
        setting: ``inner``, ``farthest`` and ``reach`` are chosen here.
        budget: (ε, δ).
        norm: as asked for.
        distance: R, in the norm that is worked in.
        parameters: ``parameters(s, range)``, of ``rates.sampling``.
        largest_gdp: s at most.
        constant_time: of the run.
        draw_anyway: whether there is a draw whose bound is no better than the start's.

    Raises:
        Infeasible: the sampler takes too much of δ.
    """
    epsilon, delta = budget.epsilon, budget.delta
    least = _EACH * delta / (1.0 + math.exp(min(epsilon, 700.0)))
    trivial = setting.lipschitz * distance
    limit = distance**2 / (2.0 * (setting.exponent - 1.0))
    blank = {"setting": setting, "norm": norm, "constant_time": constant_time}
    blank |= {"epsilon": epsilon, "delta": delta}
    s = min(gdp_within(epsilon, delta, _FIRST * least), largest_gdp) / _UP
    if not draw_anyway and parameters(s, limit).risk >= trivial:
        return _start(blank, trivial)

    def under(s: float) -> Plan:
        return _of_gdp(blank, s, distance, parameters, parameters(s, limit), least)

    def fits(made: Plan) -> bool:
        if not bool(made.accounted):
            return False
        return variation_delta(float(made.gdp), float(made.variation), epsilon) <= delta

    best = under(s)
    if not fits(best):
        best = _largest(under, fits, s)
    if not draw_anyway and best.excess_bound >= trivial:
        return _start(blank, trivial)
    return best


def _largest(under: Callable[[float], Plan], fits: Callable[[Plan], bool], high: float) -> Plan:
    """The plan with the largest s that fits, within a fiftieth."""
    low, best, refusal = 0.0, None, ""
    for _ in range(_TRIES):
        middle = 0.5 * (low + high)
        try:
            made = under(middle)
        except (Infeasible, ValueError) as refused:
            made, refusal = None, str(refused)
        if made is not None and fits(made):
            low, best = middle, made
        else:
            high = middle
        if high - low < 0.02 * high or high < 1e-6:
            break
    if best is None:
        raise Infeasible(f"budget.delta must be far above what the sampler is off. {refusal}")
    return best


def _start(blank: dict[str, Any], bound: float) -> Plan:
    """Releases the start."""
    return Plan(
        **blank,
        draws=False,
        inverse_temperature=1.0,
        regularization=1.0,
        step_size=1.0,
        num_steps=1.0,
        num_trials=1.0,
        excess_bound=bound,
    )


def _of_gdp(
    blank: dict[str, Any],
    s: float,
    distance: float,
    parameters: Callable[[float, float], Any],
    ideal: Any,
    each: float,
) -> Plan:
    """The plan for an s, whose mixing, estimates and cap take ``each`` of total variation."""
    setting: Setting = blank["setting"]
    nothing = Errors(0.0, 0.0)
    steps, known = 1.0, 1.0
    while True:
        # A larger T asks for a smaller δ of a step, so for a smaller η and a larger T.
        inner = _widest(each / known)
        eta = (1.0 - 2.0**-10) * inner / (ideal.inverse_temperature * setting.lipschitz) ** 2
        unit = math.sqrt(0.5 * eta * (setting.exponent - 1.0))
        # Θ of ηψ, a little more than its limit; η stays, and c only falls.
        theta = eta * LpLogLaplace(setting.exponent, 1.0, setting.dim).range(distance / unit)
        draw = parameters(s, theta)
        k, mu = draw.inverse_temperature, draw.regularization
        drift = eta * k * mu
        warm = (k * setting.lipschitz) ** 2 / (k * mu)
        steps = 1.0 + math.floor((0.5 * warm + math.log(0.5 / each)) / math.log1p(drift) + 1e-6)
        if steps >= 2.0**31:
            raise Infeasible("budget must ask for fewer than 2^31 steps, got " + repr(steps))
        if steps <= known:
            break
        known = steps
    unbounded = setting._replace(inner=inner, farthest=math.inf, reach=math.inf)
    draft = llt.numbers(unbounded._replace(farthest=1.0), nothing, k, mu, eta, known, 2.0**31 - 1)
    # Of a few sizes, for which tables are made once.
    reach = 2.0 ** (math.ceil(4.0 * math.log2(_ROOM * float(draft.radius))) / 4.0)
    found = unbounded._replace(farthest=_ROOM * float(draft.radius) * unit, reach=reach)
    if setting.exponent < 2.0 and reach > _FURTHEST:
        raise Infeasible(
            f"budget must ask for a chain that goes at most {_FURTHEST:g} units far, got {reach:.4g}"
        )
    made = Plan(
        **(blank | {"setting": found}),
        draws=True,
        inverse_temperature=k,
        regularization=mu,
        step_size=eta,
        num_steps=known,
        num_trials=2.0**31 - 1,
        excess_bound=draw.risk,
    )
    if not bool(made.accounted):
        return made
    trials = capped_trials(int(known), float(made.numbers.acceptance), each)
    return dataclasses.replace(made, num_trials=float(trials))


def _widest(share: float) -> float:
    """The largest c̄ for which a step is within the share, with the best A; Infeasible if there is none."""
    low, high = math.log(1e-9), math.log(0.05)
    if bounds.least_error(math.exp(low))[0] > share:
        raise Infeasible(f"budget.delta must be larger: no step is within {share:.3g} of its law")
    for _ in range(40):
        middle = 0.5 * (low + high)
        fits = bounds.least_error(math.exp(middle))[0] <= share
        low, high = (middle, high) if fits else (low, middle)
    return math.exp(low)
