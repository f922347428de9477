"""One release as an event of ``dp_accounting`` and as a value of ours: the one place that knows both.

Refused is every event of a single release that is not known, is malformed, or has no proof under the
relation; of several Gaussians on one sample, the one Gaussian that is equivalent to them is taken.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from scipy import special, stats

from dpsco_jax._checks import (
    require,
    require_integer,
    require_multiplier,
    require_probability,
)
from dpsco_jax.privacy import _kinds
from dpsco_jax.privacy.curves import _mixture_sum
from dpsco_jax.privacy.dp_accounting.events import (
    ApproximateDpEvent,
    UserSampledDpEvent,
    item_sampled_gaussian,
)

_ULPS = 256  # how far from its true value the mean of a binomial may be computed
_SQUARED = "0, inf or in [1e-100, 1e100]"


def release_of(event: DpEvent, relation: NeighboringRelation) -> _kinds.Release:
    """The release that an event states, in canonical form.

    Raises:
        ValueError: if the event is no single release that is known, has a number out of its range, or has no
            proof under the relation.
    """
    for kind in type(event).__mro__:
        if kind in _RELEASES:
            return _RELEASES[kind](event, relation)
    raise ValueError(f"Unknown event, nothing was composed: {event!r}.")


def event_of(release: _kinds.Release) -> DpEvent:
    """The event that states a release; of users with all their units, under REPLACE_ONE."""
    return _EVENTS[type(release)](release)


def checked(event: DpEvent, check: Callable[..., Any], *arguments: Any) -> Any:
    """What the check returns; a refusal says of which event the number is."""
    try:
        return check(*arguments)
    except ValueError as error:
        raise ValueError(f"{error} In: {event!r}.") from None


def _gaussian(event: GaussianDpEvent, relation: NeighboringRelation) -> _kinds.Release:
    return _kinds.gaussian(_multiplier(event, event.noise_multiplier))


def _laplace(event: LaplaceDpEvent, relation: NeighboringRelation) -> _kinds.Release:
    return _kinds.laplace(_nonnegative("noise_multiplier", event.noise_multiplier))


def _approximate(event: ApproximateDpEvent, relation: NeighboringRelation) -> _kinds.Release:
    return _kinds.Approximate(event.epsilon, event.delta)


def _zero_concentrated(event: ZCDpEvent, relation: NeighboringRelation) -> _kinds.Release:
    return _kinds.ZeroConcentrated(_nonnegative("rho", event.rho), _nonnegative("xi", event.xi))


def _non_private(event: NonPrivateDpEvent, relation: NeighboringRelation) -> _kinds.Release:
    return _kinds.NonPrivate()


def _poisson(event: PoissonSampledDpEvent, relation: NeighboringRelation) -> _kinds.Release:
    checked(event, require_probability, "sampling_probability", event.sampling_probability)
    probability = float(event.sampling_probability)
    sigma = checked(event, _noise_multiplier_of_all, event.event)
    replaced = relation is NeighboringRelation.REPLACE_ONE
    return (_kinds.users_sampled if replaced else _kinds.poisson_sampled)(probability, sigma)


def _users(event: UserSampledDpEvent, relation: NeighboringRelation) -> _kinds.Release:
    _kinds.require_proof(_kinds.UsersSampled, relation, lambda: event)
    # Several Gaussians on one sample are one, of all their sums side by side, which has the same cap.
    sigma = checked(event, _noise_multiplier_of_all, event.event)
    halves = _mixture_sum.halves_of_sensitivity(event.cap, relation)
    return _kinds.users_sampled(event.sampling_probability, sigma, halves)


def _mixture(event: MixtureOfGaussiansDpEvent, relation: NeighboringRelation) -> _kinds.Release:
    _kinds.require_proof(_kinds.ItemsSampled, relation, lambda: event)
    numbers = event.sensitivities, event.sampling_probs
    places, chances = (np.asarray(each, np.float64) for each in numbers)
    good = 2 <= len(places) == len(chances) and np.array_equal(places, np.arange(len(places)))
    require(good, "sensitivities", event.sensitivities, f"0, 1, ..., k, in {event!r}")
    sigma = _multiplier(event, event.standard_deviation)
    return _kinds.items_sampled(sigma, _rate(event, chances), len(places) - 1)


def _rate(event: MixtureOfGaussiansDpEvent, chances: np.ndarray) -> float:
    """The q of a binomial number of items; of chances that were computed in another way, one that is enough.

    Mass may be moved to greater counts (docs/theory/mixtures.md, section 5): it is enough if no count is
    passed with a smaller probability.
    """
    k = len(chances) - 1
    counts = np.arange(1, k + 1)
    above = np.clip(np.cumsum(chances[::-1])[::-1][1:], 0.0, 1.0)
    mean = float(above.sum()) / k
    short = [float(f"{mean:.{digits}g}") for digits in range(1, 17)]
    rates = np.array([*short, *(mean + np.spacing(mean) * np.arange(-_ULPS, _ULPS + 1))])
    rates = rates[(rates >= 0) & (rates <= 1)]
    written = stats.binom(k, rates[:, None]).pmf(np.arange(k + 1))
    same = np.flatnonzero(np.all(written == chances, axis=1))
    if len(same):
        return float(rates[same[0]])
    enough = min(1.0, float(special.betaincinv(counts, k - counts + 1, above).max()) * (1 + 1e-12))
    passed = special.betainc(counts, k - counts + 1, enough)
    whole = bool(np.all(chances >= 0)) and abs(float(chances.sum()) - 1) <= 1e-9
    near = whole and np.allclose(above, passed, rtol=1e-6, atol=1e-12)
    require(near, "sampling_probs", event.sampling_probs, f"binomial, in {event!r}")
    return enough


def _fixed_size(
    event: SampledWithoutReplacementDpEvent, relation: NeighboringRelation
) -> _kinds.Release:
    population = checked(
        event, require_integer, "source_dataset_size", event.source_dataset_size, 1
    )
    batch = checked(event, require_integer, "sample_size", event.sample_size, 0, population)
    _kinds.require_proof(_kinds.SampledWithoutReplacement, relation, lambda: event)
    sigma = checked(event, _noise_multiplier_of_all, event.event)
    return _kinds.sampled_without_replacement(population, batch, sigma, relation)


_RELEASES: dict[type, Callable[[Any, NeighboringRelation], _kinds.Release]] = {
    ApproximateDpEvent: _approximate,
    GaussianDpEvent: _gaussian,
    LaplaceDpEvent: _laplace,
    MixtureOfGaussiansDpEvent: _mixture,
    NonPrivateDpEvent: _non_private,
    PoissonSampledDpEvent: _poisson,
    SampledWithoutReplacementDpEvent: _fixed_size,
    UserSampledDpEvent: _users,
    ZCDpEvent: _zero_concentrated,
}

_EVENTS: dict[type, Callable[[Any], DpEvent]] = {
    _kinds.Approximate: lambda r: ApproximateDpEvent(r.epsilon, r.delta),
    _kinds.Gaussian: lambda r: GaussianDpEvent(r.noise_multiplier),
    _kinds.Laplace: lambda r: LaplaceDpEvent(r.scale),
    _kinds.NonPrivate: lambda _: NonPrivateDpEvent(),
    _kinds.PoissonSampled: lambda r: PoissonSampledDpEvent(
        r.sampling_probability, GaussianDpEvent(r.noise_multiplier)
    ),
    _kinds.SampledWithoutReplacement: lambda r: SampledWithoutReplacementDpEvent(
        r.population_size, r.batch_size, GaussianDpEvent(r.noise_multiplier)
    ),
    _kinds.UsersSampled: lambda r: (
        PoissonSampledDpEvent(r.sampling_probability, GaussianDpEvent(r.noise_multiplier))
        if r.cap == 1.0
        else UserSampledDpEvent(r.sampling_probability, r.cap, GaussianDpEvent(r.noise_multiplier))
    ),
    _kinds.ItemsSampled: lambda r: item_sampled_gaussian(
        r.noise_multiplier, r.sampling_probability, r.items_per_user
    ),
    _kinds.ZeroConcentrated: lambda r: ZCDpEvent(r.rho, r.xi),
}


def _noise_multiplier_of_all(event: DpEvent) -> float:
    """Of the one Gaussian that is equivalent to all the Gaussians of a composition."""
    match event:
        case GaussianDpEvent():
            return _nonnegative("noise_multiplier", event.noise_multiplier)
        case SelfComposedDpEvent():
            count = require_integer("count", event.count, 1)
            return _noise_multiplier_of_all(event.event) / math.sqrt(count)
        case ComposedDpEvent() if event.events:
            parts = [(_noise_multiplier_of_all(part), 1) for part in event.events]
            return _kinds.combined_multiplier(parts)
    raise ValueError(f"Only Gaussian releases can be subsampled, got {event!r}.")


def _multiplier(event: DpEvent, value: Any) -> float:
    return checked(event, _nonnegative, "noise_multiplier", value)


def _nonnegative(name: str, value: Any) -> float:
    require_multiplier(name, value)
    number = float(value)
    # Squares of others are no double.
    require(number in (0.0, math.inf) or 1e-100 <= number <= 1e100, name, value, _SQUARED)
    return number
