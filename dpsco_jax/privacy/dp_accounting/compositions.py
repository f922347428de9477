"""What an event consists of: flat compositions of known releases, or a refusal.

Every accountant works on the same flat lists, in which repetitions are multiplied out in one place, all
Gaussians on the same sample are one Gaussian, and each release has a proof under the relation.

Source: ``dp_accounting.dp_event``.

Formal guarantee: refused, before anything is computed, is every event that is not known and every event under
a relation for which there is no proof. Poisson sampling is served under every relation, with users' units
under REPLACE_ONE and REPLACE_SPECIAL, users' items one by one under ADD_OR_REMOVE_ONE and REPLACE_SPECIAL,
sampling of a fixed number under REPLACE_ONE and ADD_OR_REMOVE_ONE.

Cost: one pass over the event.
"""

from collections import Counter

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    NeighboringRelation,
    NoOpDpEvent,
    SelfComposedDpEvent,
)

from dpsco_jax._checks import require_integer, require_relation
from dpsco_jax.privacy._kinds import Composition, Release, composition
from dpsco_jax.privacy.dp_accounting._translation import checked, release_of
from dpsco_jax.privacy.dp_accounting.events import ParallelDpEvent

_MAX_ALTERNATIVES = 256


def compositions(event: DpEvent, relation: NeighboringRelation) -> list[Composition]:
    """The event as flat lists of (release, how often), one list for each place of the differing record.

    There is more than one list only where parts of the records are released in parallel; the cost of the
    event is the largest over the lists. Known releases are Gaussian, Laplace, ``ZCDpEvent``,
    ``ApproximateDpEvent``, ``NonPrivateDpEvent``, and Gaussians under Poisson (of records, or of users with
    all their units: ``UserSampledDpEvent``; of items one by one: a binomial mixture of Gaussians) or
    fixed-size sampling; all Gaussians on the same sample are one Gaussian.

    Raises:
        ValueError: names the part of the event that is unknown, malformed, or has no proof under the
            relation.
    """
    require_relation("relation", relation)
    alternatives = _alternatives(event, 1, relation)
    return list(dict.fromkeys(composition(alternative) for alternative in alternatives))


def _alternatives(
    event: DpEvent, count: int, relation: NeighboringRelation
) -> list[Counter[Release]]:
    match event:
        case NoOpDpEvent():
            return [Counter()]
        case SelfComposedDpEvent():
            return _repeated(event, count, relation)
        case ComposedDpEvent():
            return _composed(event, count, relation)
        case ParallelDpEvent():
            parts = [_alternatives(part, count, relation) for part in event.events]
            return [alternative for part in parts for alternative in part] or [Counter()]
        case DpEvent():
            return [Counter({release_of(event, relation): count})]
    raise ValueError(f"event must be a dp_accounting DpEvent, got {event!r}.")


def _repeated(
    event: SelfComposedDpEvent, count: int, relation: NeighboringRelation
) -> list[Counter[Release]]:
    repeated = checked(event, require_integer, "count", event.count, 0)
    inner = _alternatives(event.event, count * repeated, relation)
    if len(inner) > 1 and event.count > 1:
        # Each repetition might split the records in another way.
        raise ValueError(f"A parallel event cannot be repeated; repeat its parts: {event!r}.")
    return inner


def _composed(
    event: ComposedDpEvent, count: int, relation: NeighboringRelation
) -> list[Counter[Release]]:
    total: list[Counter[Release]] = [Counter()]
    for part in event.events:
        total = [a + b for a in total for b in _alternatives(part, count, relation)]
        if len(total) > _MAX_ALTERNATIVES:
            raise ValueError(
                f"Parallel events combine to more than {_MAX_ALTERNATIVES} cases: {event!r}."
            )
    return total
