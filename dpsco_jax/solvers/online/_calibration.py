"""The batch size, the chances of a fresh draw and the rate with the least bound on the regret, for a budget.

A bound falls with the rate and then rises; for every batch size B and chance p the rate is the largest that
the account allows, up to the one that is best without privacy. Any numbers that are found are private: what
is searched is utility.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax import privacy
from dpsco_jax.solvers.online._lazy import rounded_down

_LEAST_RATE = 1e-15
_CHANCES = 24
_LOOKS = 3  # at chances: each between the neighbours of the best one before
_COARSE, _FINE = 16, 60  # halvings of the logarithm of the rate


class Found(NamedTuple):
    """What was found: B, p, E over B·κ, the rate, and the bound on the regret."""

    batch_size: int
    redraw_probability: float
    envelope_factor: float
    rate: float
    bound: float


def calibrate(
    budget: privacy.Budget,
    releases: Callable[[int, Any, Any, float], privacy.LazyReleases],
    bound: Callable[[int, Any], Any],
    most_rate: Callable[[int], float],
    batch_sizes: tuple[int, ...],
    redraw_probability: float | None,
    factors: tuple[float, ...],
) -> Found:
    """The best of all.

    Args:
        budget: (ε, δ).
        releases: of B, rates, chances and a factor, the latter arrays of one shape.
        bound: on the regret, of B and rates.
        most_rate: of B, beyond which a rate only costs.
        batch_sizes: those that are tried, increasing.
        redraw_probability: p, if it is given.
        factors: of the envelope.
    """
    best, since = None, 0
    for size in batch_sizes:
        of_size = min(
            (
                _of_size(budget, releases, bound, most_rate(size), size, redraw_probability, factor)
                for factor in factors
            ),
            key=lambda found: found.bound,
        )
        if best is None or of_size.bound < best.bound:
            best, since = of_size, 0
        else:
            since += 1
        if since == 2:  # the bound falls in B, and then rises
            break
    assert best is not None
    size, p, factor = best.batch_size, best.redraw_probability, best.envelope_factor
    p = rounded_down(p)
    rate = _largest(budget, releases, most_rate(size), size, np.array([p]), factor, _FINE)[0]
    rate = rounded_down(float(rate))
    return Found(size, p, factor, rate, float(bound(size, rate)))


def _of_size(
    budget: privacy.Budget,
    releases: Callable[[int, Any, Any, float], privacy.LazyReleases],
    bound: Callable[[int, Any], Any],
    most: float,
    size: int,
    redraw_probability: float | None,
    factor: float,
) -> Found:
    if redraw_probability is not None:
        chances = np.array([redraw_probability])
        looks = 1
    else:
        chances, looks = np.geomspace(1e-6, 1.0, _CHANCES), _LOOKS
    for look in range(looks):
        rates = _largest(budget, releases, most, size, chances, factor, _COARSE)
        bounds = bound(size, rates)
        place = int(np.argmin(bounds))
        found = Found(
            size, float(chances[place]), factor, float(rates[place]), float(bounds[place])
        )
        if look + 1 < looks:
            ends = chances[max(place - 1, 0)], chances[min(place + 1, len(chances) - 1)]
            chances = np.minimum(np.geomspace(*ends, _CHANCES // 3), 1.0)
    return found


def _largest(
    budget: privacy.Budget,
    releases: Callable[[int, Any, Any, float], privacy.LazyReleases],
    most: float,
    size: int,
    chances: Any,
    factor: float,
    halvings: int,
) -> Any:
    """For each chance the largest rate, up to ``most``, whose account is within the budget."""

    def within(logs: Any) -> Any:
        run = releases(size, np.exp(logs), chances, factor)
        spent = run.epsilon_at(budget.delta, coarse=halvings == _COARSE)
        return spent <= budget.epsilon * (1.0 - 1e-9)

    high = np.full(len(chances), math.log(most))
    low = np.full(len(chances), math.log(_LEAST_RATE))
    low = np.where(within(high), high, low)
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        good = within(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return np.exp(low)


def powers_of_two(num_rounds: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to T."""
    return tuple(2**k for k in range(num_rounds.bit_length()))
