"""Rank, pull and step size of noisy SGD around its start: those of the theorem, or of the least proven bound.

What it computes: for each rank k of ``rates.dimension_free.ranks`` the step size η and the pull α, and of all
ranks the one whose bound is least. ``"paper"``: α = A_k/D, η = D/(ν√(Tk)), for the population D/√(T(G²T/n +
kν²)), and k as ``optimal_rank`` says. ``"tight"``: what makes ``excess_bound`` least, for the population
together with the stability of the steps, by a grid on logarithms that is refined; what is given stays as it
is.

Source: T Lemma 11.3.10, Theorems 11.3.3 and 11.3.5; Bassily, Feldman, Guzmán and Talwar 2020 (stability).

Formal guarantee: none of privacy. η·α ≤ 1/2, without which nothing is proven; refused where it is not so.

Cost: milliseconds; NumPy on the host.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax import _checks
from dpsco_jax.rates import dimension_free, stability

RISKS = ("empirical", "population")
_GRID = 33
_ROUNDS = 6


class Setting(NamedTuple):
    """What the choice depends on.

    Attributes:
        coefficients: G_0, ..., G_d.
        lipschitz: G.
        distance: D.
        stddev: ν of the noise on each coordinate of a gradient.
        num_steps: T.
        num_users: n.
        risk: ``"empirical"`` or ``"population"``.
        epsilon: of the budget.
        delta: of the budget.
    """

    coefficients: np.ndarray
    lipschitz: float
    distance: float
    stddev: float
    num_steps: int
    num_users: int
    risk: str
    epsilon: float
    delta: float


class Numbers(NamedTuple):
    """What is chosen: k, η, α, and what is proven for them."""

    rank: int
    step_size: float
    regularization: float
    excess_bound: float


def paper(
    setting: Setting, rank: int | None, step_size: float | None, regularization: float | None
) -> Numbers:
    """The theorem's numbers, with the noise that there is.

    Raises:
        ValueError: the step size is so long, or the pull so strong, that η·α > 1/2.
    """
    s, steps = setting, setting.num_steps
    if rank is None:
        rank = dimension_free.optimal_rank(s.coefficients, s.num_users, s.epsilon, s.delta)
    if step_size is None:
        variance = rank * s.stddev**2
        if s.risk == "population":
            variance += s.lipschitz**2 * steps / s.num_users
        step_size = s.distance / math.sqrt(steps * variance)
    if regularization is None:
        regularization = dimension_free.regularization(s.coefficients, rank, s.distance)
    _require_short(step_size, regularization)
    numbers = Numbers(rank, step_size, regularization, 0.0)
    return numbers._replace(
        excess_bound=float(_bound(s, numbers, dimension_free.printed_excess_bound))
    )


def tight(
    setting: Setting, rank: int | None, step_size: float | None, regularization: float | None
) -> Numbers:
    """The numbers of the least proven bound; what is given is kept.

    Raises:
        ValueError: both are given and η·α > 1/2.
    """
    if step_size is not None and regularization is not None:
        _require_short(step_size, regularization)
    known = dimension_free.ranks(len(setting.coefficients) - 1) if rank is None else [rank]
    found = [_least(setting, k, step_size, regularization) for k in known]
    return min(found, key=lambda numbers: numbers.excess_bound)


def _least(s: Setting, rank: int, step_size: float | None, regularization: float | None) -> Numbers:
    strength = dimension_free.regularization(s.coefficients, rank, s.distance)
    if strength == 0 and regularization is None:
        regularization = 0.0  # nothing to pull against
    shortest = s.distance / (math.sqrt(s.num_steps) * math.hypot(s.lipschitz, s.stddev))
    middle = np.array([math.log(step_size or shortest), math.log(regularization or strength or 1)])
    free = np.array([step_size is None, regularization is None])
    width = np.where(free, 12.0, 0.0)
    if not free.any():
        numbers = Numbers(rank, step_size, regularization, 0.0)  # type: ignore[arg-type]
        return numbers._replace(excess_bound=float(_bound(s, numbers, dimension_free.excess_bound)))
    best = Numbers(rank, math.nan, math.nan, math.inf)
    for _ in range(_ROUNDS):
        log_eta, log_alpha = (
            np.linspace(m - w, m + w, _GRID if w else 1) for m, w in zip(middle, width, strict=True)
        )
        eta = np.full(1, step_size) if step_size is not None else np.exp(log_eta)
        alpha = np.full(1, regularization) if regularization is not None else np.exp(log_alpha)
        # Where the pull binds, the longest step that is proven is a candidate too.
        etas = np.broadcast_to(eta[:, None], (len(eta), len(alpha)))
        if step_size is None:
            with np.errstate(divide="ignore"):
                etas = np.minimum(etas, (0.5 - 1e-12) / alpha)
        bounds = _bound(s, Numbers(rank, etas, alpha, 0.0), dimension_free.excess_bound)  # type: ignore[arg-type]
        at = np.unravel_index(np.argmin(bounds), bounds.shape)
        if bounds[at] < best.excess_bound:
            chosen = float(etas[at]), float(alpha[at[1]])
            best = Numbers(rank, *chosen, float(bounds[at]))
            middle = np.array([math.log(chosen[0]), math.log(chosen[1] or 1)])
        width = width / 6
    return best


def _bound(setting: Setting, numbers: Numbers, of: Any) -> Any:
    """The bound of these numbers, and for the population how far its loss may be from the mean's."""
    s = setting
    found = of(
        s.coefficients,
        numbers.rank,
        lipschitz=s.lipschitz,
        distance=s.distance,
        stddev=s.stddev,
        num_steps=s.num_steps,
        step_size=numbers.step_size,
        regularization=numbers.regularization,
    )
    if s.risk == "population":
        # Linear in η; a pull to a point that both runs share only brings them closer.
        each = stability.generalization_gap(s.lipschitz, 1.0, s.num_steps, s.num_users, False)
        found = found + each * numbers.step_size
    return found


def _require_short(step_size: float, regularization: float) -> None:
    longest = 0.5 / regularization if regularization else math.inf
    _checks.require(
        step_size * regularization <= 0.5,
        "step_size",
        step_size,
        f"at most 1/(2 * regularization) = {longest:.6g}; more steps (num_steps) make planned ones shorter",
    )
