"""Releases as ``dp_accounting`` events, read in one way whatever the neighbouring relation.

An event says what was released, so that any accountant can say what it costs. Here a noise multiplier is
always σ over the sensitivity *under the relation at hand* (ℓ2 for Gaussian, ℓ1 for Laplace noise); what
an event costs, and under which relations anything is proven, is decided in ``compositions.py``. Our own
are classes of ``attrs``, as those of ``dp_accounting`` are: its ``to_named_tuple`` sees such fields only.

Source: ``dp_accounting.dp_event``.

Formal guarantee: none; an event is a statement of what was done.
"""

import math
from typing import SupportsFloat

import attrs
import numpy as np
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting import DpEvent as DpEvent
from dp_accounting import NonPrivateDpEvent as NonPrivateDpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from scipy import stats

from dpsco_jax._checks import (
    require_instance,
    require_integer,
    require_multiplier,
    require_probability,
    require_real,
    require_within,
)


@attrs.frozen(slots=False)
class ApproximateDpEvent(DpEvent):
    """A release known only to be (ε, δ)-DP under the relation at hand; δ = 0 is pure DP.

    Attributes:
        epsilon: at least 0.
        delta: in [0, 1).
    """

    epsilon: float
    delta: float = 0.0

    def __attrs_post_init__(self) -> None:
        # Numbers of other kinds, such as arrays without axes, cannot be hashed as events must be.
        object.__setattr__(self, "epsilon", require_real("epsilon", self.epsilon, 0.0, closed=True))
        object.__setattr__(self, "delta", require_real("delta", self.delta, 0.0, 1.0, closed=True))


@attrs.frozen(slots=False)
class ParallelDpEvent(DpEvent):
    """Releases each of which sees its own part of the records, in a split fixed without the data.

    Neighbours differ in one part, so the cost is that of the most expensive part.

    Attributes:
        events: what is released from each part.
    """

    events: tuple[DpEvent, ...]

    def __attrs_post_init__(self) -> None:
        require_instance("events", self.events, tuple | list)
        for event in self.events:
            require_instance("events", event, DpEvent)
        # Of a list the caller could exchange parts, and events must have a hash.
        object.__setattr__(self, "events", tuple(self.events))


@attrs.frozen(slots=False)
class UserSampledDpEvent(DpEvent):
    """A Gaussian on a sum over users each of whom is sampled with all units; one unit is a record.

    The accountants of ``dp_accounting`` refuse it: that the user's other units tell whether the user was
    sampled is nothing that a ``PoissonSampledDpEvent`` says.

    Attributes:
        sampling_probability: of each user, in [0, 1].
        cap: norm of the sum over a user's units over that of one unit; in [1, inf].
        event: what is released of the sample; Gaussian, with noise over the sensitivity to one unit.
    """

    sampling_probability: float
    cap: float
    event: DpEvent

    def __attrs_post_init__(self) -> None:
        require_probability("sampling_probability", self.sampling_probability)
        require_within("cap", self.cap, 1.0, math.inf)
        require_instance("event", self.event, DpEvent)
        object.__setattr__(self, "sampling_probability", float(self.sampling_probability))
        object.__setattr__(self, "cap", float(self.cap))


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
    require_probability("sampling_probability", sampling_probability)
    return PoissonSampledDpEvent(float(sampling_probability), gaussian(noise_multiplier))


def user_sampled_gaussian(
    noise_multiplier: SupportsFloat, sampling_probability: SupportsFloat, cap: SupportsFloat
) -> DpEvent:
    """Gaussian noise on a sum over users that are each sampled independently, with all their units.

    Args:
        noise_multiplier: σ over the sensitivity to one unit: twice the norm of a unit under REPLACE_ONE,
            the norm of a unit under REPLACE_SPECIAL.
        sampling_probability: of each user, in [0, 1].
        cap: norm of the sum over a user's units over that of one unit; in [1, inf].
    """
    return UserSampledDpEvent(sampling_probability, cap, gaussian(noise_multiplier))  # type: ignore[arg-type]


def item_sampled_gaussian(
    noise_multiplier: SupportsFloat, sampling_probability: SupportsFloat, items_per_user: int
) -> DpEvent:
    """Gaussian noise on a sum over items that are each sampled independently, several of them a user's.

    A mixture of Gaussians over how many of a user's items are drawn, which is binomial.

    Args:
        noise_multiplier: σ over the norm to which what one item adds is clipped.
        sampling_probability: of each item, in [0, 1].
        items_per_user: the most items that a user has.
    """
    require_probability("sampling_probability", sampling_probability)
    k = require_integer("items_per_user", items_per_user, 1)
    chances = stats.binom(k, float(sampling_probability)).pmf(np.arange(k + 1))
    places, chances = (tuple(map(float, numbers)) for numbers in (range(k + 1), chances))
    return MixtureOfGaussiansDpEvent(
        _nonnegative("noise_multiplier", noise_multiplier), places, chances
    )


def subsampled_gaussian_without_replacement(
    noise_multiplier: SupportsFloat, population_size: int, batch_size: int
) -> DpEvent:
    """Gaussian noise on a sum over a uniformly random set of ``batch_size`` distinct records.

    Under ADD_OR_REMOVE_ONE the multiplier is over the norm of one contribution, and ``population_size``
    is a public lower bound on the number of records in the larger of two neighbours.
    """
    population = require_integer("population_size", population_size, 1)
    batch = require_integer("batch_size", batch_size, 0, population)
    return SampledWithoutReplacementDpEvent(population, batch, gaussian(noise_multiplier))


def composed(*events: DpEvent) -> DpEvent:
    """All the events on the same records, each allowed to depend on the results before it."""
    for event in events:
        require_instance("events", event, DpEvent)
    return ComposedDpEvent(list(events))


def repeated(event: DpEvent, count: int) -> DpEvent:
    """The event ``count`` times on the same records, adaptively, with fresh randomness."""
    require_instance("event", event, DpEvent)
    return SelfComposedDpEvent(event, require_integer("count", count, 0))


def _nonnegative(name: str, value: SupportsFloat) -> float:
    require_multiplier(name, value)
    return float(value)
