"""What an event consists of: flat compositions of known releases, or a refusal.

Every accountant works on the same flat lists, in which repetitions are multiplied out in one place, all
Gaussians on the same sample are one Gaussian, and each release has a proof under the relation.

Source: Lebeda, Regehr, Kamath and Steinke 2024, "Avoiding pitfalls for privacy accounting of subsampled
mechanisms under composition" (fixed-size batches under ADD_OR_REMOVE_ONE).

Formal guarantee: refused, before anything is computed, is every event that is not known and every event
under a relation for which there is no proof. Poisson sampling is served under ADD_OR_REMOVE_ONE and
REPLACE_SPECIAL, sampling of a fixed number under REPLACE_ONE and ADD_OR_REMOVE_ONE.

Cost: one pass over the event.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)

from dpsco_jax._checks import (
    require_integer,
    require_multiplier,
    require_probability,
    require_relation,
)
from dpsco_jax.privacy.dp_accounting.events import ApproximateDpEvent, ParallelDpEvent

Releases = tuple[tuple[DpEvent, int], ...]
"""Releases on the same records, each with how often it is made."""

_MAX_ALTERNATIVES = 256
_NOTHING = ApproximateDpEvent(0.0)
_POISSON_RELATIONS = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)


def compositions(event: DpEvent, relation: NeighboringRelation) -> list[Releases]:
    """The event as flat lists of (release, how often), one list for each place of the differing record.

    There is more than one list only where parts of the records are released in parallel; the cost of the
    event is the largest over the lists. Releases are Gaussian, Laplace, ``ZCDpEvent``,
    ``ApproximateDpEvent``, ``NonPrivateDpEvent``, and Gaussians under Poisson or fixed-size sampling; all
    Gaussians on the same sample are one Gaussian.

    Raises:
        ValueError: names the part of the event that is unknown, malformed, or has no proof under the
            relation.
    """
    require_relation("relation", relation)
    alternatives = _alternatives(event, 1, relation)
    return list(dict.fromkeys(_merged(alternative) for alternative in alternatives))


def _alternatives(event: DpEvent, count: int, relation: NeighboringRelation) -> list[Counter]:
    if not isinstance(event, DpEvent):
        raise ValueError(f"event must be a dp_accounting DpEvent, got {event!r}.")
    if isinstance(event, NoOpDpEvent):
        return [Counter()]
    if isinstance(event, SelfComposedDpEvent):
        repeated = _of(event, require_integer, "count", event.count, 0)
        inner = _alternatives(event.event, count * repeated, relation)
        if len(inner) > 1 and event.count > 1:
            # Each repetition might split the records in another way.
            raise ValueError(f"A parallel event cannot be repeated; repeat its parts: {event!r}.")
        return inner
    if isinstance(event, ComposedDpEvent):
        total: list[Counter] = [Counter()]
        for part in event.events:
            total = [a + b for a in total for b in _alternatives(part, count, relation)]
            if len(total) > _MAX_ALTERNATIVES:
                raise ValueError(
                    f"Parallel events combine to more than {_MAX_ALTERNATIVES} cases: {event!r}."
                )
        return total
    if isinstance(event, ParallelDpEvent):
        return [a for part in event.events for a in _alternatives(part, count, relation)] or [
            Counter()
        ]
    return [Counter({leaf: count}) if count else Counter() for leaf in [_release(event, relation)]]


def _release(event: DpEvent, relation: NeighboringRelation) -> DpEvent:
    """The event in canonical form, or a refusal."""
    if isinstance(event, GaussianDpEvent):
        return _gaussian_release(event.noise_multiplier, event)
    if isinstance(event, LaplaceDpEvent):
        scale = _nonnegative("noise_multiplier", event.noise_multiplier)
        return LaplaceDpEvent(scale) if scale > 0 else NonPrivateDpEvent()
    if isinstance(event, ZCDpEvent):
        return ZCDpEvent(_nonnegative("rho", event.rho), _nonnegative("xi", event.xi))
    if isinstance(event, ApproximateDpEvent | NonPrivateDpEvent):
        return event
    if isinstance(event, PoissonSampledDpEvent):
        return _poisson_release(event, relation)
    if isinstance(event, SampledWithoutReplacementDpEvent):
        return _fixed_size_release(event, relation)
    raise ValueError(f"Unknown event, nothing was composed: {event!r}.")


def _poisson_release(event: PoissonSampledDpEvent, relation: NeighboringRelation) -> DpEvent:
    _of(event, require_probability, "sampling_probability", event.sampling_probability)
    q = float(event.sampling_probability)
    if relation not in _POISSON_RELATIONS:
        raise ValueError(
            f"Poisson sampling has no proof under {relation.name}; use ADD_OR_REMOVE_ONE, or sample "
            f"a fixed number without replacement: {event!r}."
        )
    inner = _gaussian_release(_noise_multiplier_of_all(event.event), event)
    if q == 0.0:
        return _NOTHING
    return (
        PoissonSampledDpEvent(q, inner) if q < 1.0 and isinstance(inner, GaussianDpEvent) else inner
    )


def _fixed_size_release(
    event: SampledWithoutReplacementDpEvent, relation: NeighboringRelation
) -> DpEvent:
    population = _of(event, require_integer, "source_dataset_size", event.source_dataset_size, 1)
    batch = _of(event, require_integer, "sample_size", event.sample_size, 0, population)
    sigma = _noise_multiplier_of_all(event.event)
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        # A batch without the record is one with it replaced: twice the norm, with probability q.
        sampled = PoissonSampledDpEvent(batch / population, GaussianDpEvent(0.5 * sigma))
        return _poisson_release(sampled, relation)
    if relation is not NeighboringRelation.REPLACE_ONE:
        raise ValueError(
            f"Sampling without replacement has no proof under {relation.name}; use REPLACE_ONE or "
            f"ADD_OR_REMOVE_ONE: {event!r}."
        )
    inner = _gaussian_release(sigma, event)
    if batch == 0:
        return _NOTHING
    if batch < population and isinstance(inner, GaussianDpEvent):
        return SampledWithoutReplacementDpEvent(population, batch, inner)
    return inner


def _gaussian_release(noise_multiplier: SupportsFloat, event: DpEvent) -> DpEvent:
    sigma = _of(event, _nonnegative, "noise_multiplier", noise_multiplier)
    if sigma == math.inf:
        return _NOTHING
    return GaussianDpEvent(sigma) if sigma > 0 else NonPrivateDpEvent()


def _noise_multiplier_of_all(event: DpEvent) -> float:
    """Of the one Gaussian that is equivalent to all the Gaussians of a composition: Σ 1/σ² adds."""
    if isinstance(event, GaussianDpEvent):
        return float(event.noise_multiplier)
    if isinstance(event, SelfComposedDpEvent) and event.count > 0:
        return _noise_multiplier_of_all(event.event) / math.sqrt(event.count)
    if isinstance(event, ComposedDpEvent) and event.events:
        return _combine([(_noise_multiplier_of_all(part), 1) for part in event.events])
    raise ValueError(f"Only Gaussian releases can be subsampled, got {event!r}.")


def _combine(multipliers: Sequence[tuple[float, int]]) -> float:
    if any(sigma == 0.0 for sigma, _ in multipliers):
        return 0.0
    return 1.0 / math.sqrt(math.fsum(count / sigma**2 for sigma, count in multipliers))


def _merged(releases: Counter) -> Releases:
    """The releases with all plain Gaussians composed into one, in an order that does not matter."""
    gaussians = [
        (e.noise_multiplier, n) for e, n in releases.items() if isinstance(e, GaussianDpEvent)
    ]
    merged: list[tuple[DpEvent, int]] = [
        (e, n) for e, n in releases.items() if not isinstance(e, GaussianDpEvent) and e != _NOTHING
    ]
    if gaussians:
        merged.append((GaussianDpEvent(_combine(gaussians)), 1))
    return tuple(sorted(merged, key=repr))


def _nonnegative(name: str, value: SupportsFloat) -> float:
    require_multiplier(name, value)
    return float(value)


def _of(event: DpEvent, check: Callable[..., Any], *arguments: Any) -> Any:
    """What the check returns; a refusal says of which event the number is."""
    try:
        return check(*arguments)
    except ValueError as error:
        raise ValueError(f"{error} In: {event!r}.") from None
