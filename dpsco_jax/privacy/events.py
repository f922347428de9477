"""Releases as ``dp_accounting`` events, read in one way whatever the neighbouring relation.

An event says what was released, so that any accountant can say what it costs. Here a noise multiplier is
always σ over the sensitivity *under the relation at hand* (ℓ2 for Gaussian, ℓ1 for Laplace noise). The
accountants of ``dp_accounting`` do not agree on this: under REPLACE_ONE its PLD accountant doubles the
sensitivity of a ``GaussianDpEvent`` and its RDP accountant does not. ``second_opinion`` converts.

Source: ``dp_accounting.dp_event``; Wang, Balle and Kasiviswanathan 2019 for sampling without replacement.

Formal guarantee: ``compositions`` refuses, before anything is computed, every event that it does not know
and every event under a relation for which it has no proof. Poisson sampling is served under
ADD_OR_REMOVE_ONE and REPLACE_SPECIAL, sampling of a fixed number under REPLACE_ONE.

Cost: one pass over the event.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import SupportsFloat

import dp_accounting
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

_MAX_ALTERNATIVES = 256
_POISSON_RELATIONS = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)


@dataclasses.dataclass(frozen=True)
class ApproximateDpEvent(DpEvent):
    """A release known only to be (ε, δ)-DP under the relation at hand; δ = 0 is pure DP.

    Attributes:
        epsilon: at least 0.
        delta: in [0, 1).
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon must be in [0, inf), got {self.epsilon}.")
        if not 0.0 <= self.delta < 1.0:
            raise ValueError(f"delta must be in [0, 1), got {self.delta}.")


@dataclasses.dataclass(frozen=True)
class ParallelDpEvent(DpEvent):
    """Releases each of which sees its own part of the records, in a split fixed without the data.

    Neighbours differ in one part, so the cost is that of the most expensive part.

    Attributes:
        events: what is released from each part.
    """

    events: tuple[DpEvent, ...]


def gaussian(noise_multiplier: SupportsFloat) -> DpEvent:
    """Gaussian noise of standard deviation ``noise_multiplier`` times the ℓ2 sensitivity."""
    return GaussianDpEvent(_nonnegative("noise_multiplier", noise_multiplier))


def laplace(scale: SupportsFloat) -> DpEvent:
    """Laplace noise of scale ``scale`` times the ℓ1 sensitivity."""
    return LaplaceDpEvent(_nonnegative("scale", scale))


def poisson_subsampled_gaussian(
    noise_multiplier: SupportsFloat, sampling_probability: SupportsFloat
) -> DpEvent:
    """Gaussian noise on a sum over records that are each sampled independently."""
    return PoissonSampledDpEvent(float(sampling_probability), gaussian(noise_multiplier))


def subsampled_gaussian_without_replacement(
    noise_multiplier: SupportsFloat, population_size: int, batch_size: int
) -> DpEvent:
    """Gaussian noise on a sum over a uniformly random set of ``batch_size`` distinct records."""
    return SampledWithoutReplacementDpEvent(
        int(population_size), int(batch_size), gaussian(noise_multiplier)
    )


def composed(*events: DpEvent) -> DpEvent:
    """All the events on the same records, each allowed to depend on the results before it."""
    return ComposedDpEvent(list(events))


def repeated(event: DpEvent, count: int) -> DpEvent:
    """The event ``count`` times on the same records, adaptively, with fresh randomness."""
    if count < 0:
        raise ValueError(f"count must be at least 0, got {count}.")
    return SelfComposedDpEvent(event, int(count))


def compositions(
    event: DpEvent, relation: NeighboringRelation
) -> list[tuple[tuple[DpEvent, int], ...]]:
    """The event as flat lists of (release, how often), one list for each place of the differing record.

    There is more than one list only where parts of the records are released in parallel; the cost of the
    event is the largest over the lists. Releases are Gaussian, Laplace, ``ZCDpEvent``,
    ``ApproximateDpEvent``, ``NonPrivateDpEvent``, and Gaussians under Poisson or fixed-size sampling; all
    Gaussians on the same sample are one Gaussian.

    Raises:
        ValueError: names the part of the event that is unknown, malformed, or has no proof under the
            relation.
    """
    alternatives = _alternatives(event, 1, relation)
    return list(dict.fromkeys(_merged(alternative) for alternative in alternatives))


def _alternatives(event: DpEvent, count: int, relation: NeighboringRelation) -> list[Counter]:
    if not isinstance(event, DpEvent):
        raise ValueError(f"event must be a dp_accounting DpEvent, got {event!r}.")
    if isinstance(event, NoOpDpEvent):
        return [Counter()]
    if isinstance(event, SelfComposedDpEvent):
        if event.count < 0 or event.count != int(event.count):
            raise ValueError(f"count must be an integer of at least 0, got {event!r}.")
        inner = _alternatives(event.event, count * int(event.count), relation)
        if len(inner) > 1 and event.count > 1:
            # Each repetition might split the records in another way.
            raise ValueError(f"A parallel event cannot be repeated; repeat its parts: {event!r}.")
        return inner
    if isinstance(event, ComposedDpEvent):
        total = [Counter()]
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
        q = float(event.sampling_probability)
        if not 0.0 <= q <= 1.0:
            raise ValueError(f"sampling_probability must be in [0, 1], got {event!r}.")
        if relation not in _POISSON_RELATIONS:
            raise ValueError(
                f"Poisson sampling has no proof under {relation.name}; use ADD_OR_REMOVE_ONE, or sample "
                f"a fixed number without replacement: {event!r}."
            )
        inner = _gaussian_release(_noise_multiplier_of_all(event.event), event)
        if q == 0.0:
            return ApproximateDpEvent(0.0)
        if q == 1.0 or isinstance(inner, NonPrivateDpEvent):
            return inner
        return PoissonSampledDpEvent(q, inner)
    if isinstance(event, SampledWithoutReplacementDpEvent):
        population, batch = int(event.source_dataset_size), int(event.sample_size)
        if not 0 <= batch <= population or population < 1:
            raise ValueError(f"sample_size must be in [0, source_dataset_size], got {event!r}.")
        if relation is not NeighboringRelation.REPLACE_ONE:
            raise ValueError(
                f"Sampling without replacement has no proof under {relation.name}; use REPLACE_ONE: "
                f"{event!r}."
            )
        inner = _gaussian_release(_noise_multiplier_of_all(event.event), event)
        if batch == 0:
            return ApproximateDpEvent(0.0)
        if batch == population or isinstance(inner, NonPrivateDpEvent):
            return inner
        return SampledWithoutReplacementDpEvent(population, batch, inner)
    raise ValueError(f"Unknown event, nothing was composed: {event!r}.")


def _gaussian_release(noise_multiplier: SupportsFloat, event: DpEvent) -> DpEvent:
    try:
        sigma = _nonnegative("noise_multiplier", noise_multiplier)
    except ValueError as error:
        raise ValueError(f"{error} In: {event!r}.") from None
    if sigma == math.inf:
        return ApproximateDpEvent(0.0)
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


def _merged(releases: Counter) -> tuple[tuple[DpEvent, int], ...]:
    """The releases with all plain Gaussians composed into one, in an order that does not matter."""
    gaussians = [
        (e.noise_multiplier, n) for e, n in releases.items() if isinstance(e, GaussianDpEvent)
    ]
    merged: list[tuple[DpEvent, int]] = [
        (e, n)
        for e, n in releases.items()
        if not isinstance(e, GaussianDpEvent) and e != ApproximateDpEvent(0.0)
    ]
    if gaussians:
        merged.append((GaussianDpEvent(_combine(gaussians)), 1))
    return tuple(sorted(merged, key=repr))


def _nonnegative(name: str, value: SupportsFloat) -> float:
    number = float(value)
    if not number >= 0.0:
        raise ValueError(f"{name} must be at least 0, got {number}.")
    return number


def second_opinion(
    event: DpEvent, delta: SupportsFloat, relation: NeighboringRelation
) -> dict[str, float]:
    """ε of the event by the accountants of ``dp_accounting``, with the event converted for each.

    Its PLD accountant is asked under ADD_OR_REMOVE_ONE, where it divides σ by what we divide by; for
    unsampled Gaussian and Laplace releases the curve depends on that ratio alone, whatever the relation.

    Returns:
        "RDP" and "PLD", each absent where that accountant does not know a release.
    """
    opinions: dict[str, float] = {}
    for name, accountant_of in (
        ("RDP", lambda: dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)),
        ("PLD", lambda: dp_accounting.pld.PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)),
    ):
        worst = 0.0
        for releases in compositions(event, relation):
            accountant = accountant_of()
            if not all(accountant.supports(release) for release, _ in releases):
                break
            for release, count in releases:
                accountant.compose(release, count)
            worst = max(worst, float(accountant.get_epsilon(float(delta))))
        else:
            opinions[name] = worst
    return opinions
