"""Kinds of releases as values: what one release costs, and how often each is made on the same records.

A ``Release`` answers what accountants ask, whatever kind it is: its Rényi curve, its dominating pair, whether
that pair is its own reverse, whether it adds up with other Gaussians. The functions in lower case make
releases in canonical form: noise without end releases nothing, no noise is not private, a sample of everybody
is no sample. A ``Composition`` is canonical too: all plain Gaussians are one.

Curve and pair bound the release under the relation that it was made for. ``require_proof`` knows for which
there is a proof: sampling of users with all their units under REPLACE_ONE and REPLACE_SPECIAL, of a fixed
number under REPLACE_ONE and ADD_OR_REMOVE_ONE (Lebeda, Regehr, Kamath and Steinke 2024), of users' items one
by one where the user is added, removed or replaced by nothing (docs/theory/mixtures.md, section 8); Poisson
and none under all.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax._checks import require_integer
from dpsco_jax.privacy import curves
from dpsco_jax.privacy.curves import binomial, mixtures, poisson, subsampling
from dpsco_jax.privacy.loss import PrivacyLoss, unbounded
from dpsco_jax.privacy.orders import ORDERS
from dpsco_jax.privacy.pld import binomial_pairs, mixture_pairs, pairs

_ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
_REPLACE = NeighboringRelation.REPLACE_ONE
_SPECIAL = NeighboringRelation.REPLACE_SPECIAL


@runtime_checkable
class Release(Protocol):
    """What an accountant asks of one release; the answers here are those of most kinds.

    Attributes:
        private: whether anything is guaranteed.
        dominated: whether a dominating pair is known.
        symmetric: whether that pair also dominates with its two distributions exchanged.
        bounds_under: the relations under which curve and pair are bounds; all of them for releases of
            everybody, whose noise is stated over the sensitivity under the relation.
    """

    private: ClassVar[bool] = True
    dominated: ClassVar[bool] = True
    symmetric: ClassVar[bool] = True
    bounds_under: ClassVar[tuple[NeighboringRelation, ...]] = tuple(NeighboringRelation)

    @property
    def gaussian_multiplier(self) -> float | None:
        """σ of a plain Gaussian: these add up to one, whose ε is known exactly. None for other kinds."""
        return None

    def loss(self) -> PrivacyLoss:
        """The Rényi curve."""

    def pair(self) -> pairs.Pair:
        """The dominating pair, where one is known."""
        raise ValueError(f"No dominating pair for {self!r}.")


@dataclass(frozen=True)
class Approximate(Release):
    """A release of which only its (ε, δ) is known."""

    epsilon: float
    delta: float = 0.0

    def loss(self) -> PrivacyLoss:
        """The curve of randomized response that fails with probability δ."""
        return curves.approximate_dp(self.epsilon, self.delta)

    def pair(self) -> pairs.Pair:
        """Randomized response that fails with probability δ."""
        return pairs.approximate_dp(self.epsilon, self.delta)


@dataclass(frozen=True)
class Gaussian(Release):
    """Gaussian noise of standard deviation σ over the ℓ2 sensitivity, σ in (0, inf)."""

    noise_multiplier: float

    @property
    def gaussian_multiplier(self) -> float:
        """The noise multiplier itself."""
        return self.noise_multiplier

    def loss(self) -> PrivacyLoss:
        """The curve of the Gaussian."""
        return curves.gaussian(self.noise_multiplier)

    def pair(self) -> pairs.Pair:
        """Two Gaussians."""
        return pairs.gaussian(self.noise_multiplier)


@dataclass(frozen=True)
class Laplace(Release):
    """Laplace noise of the given scale over the ℓ1 sensitivity, above 0."""

    scale: float

    def loss(self) -> PrivacyLoss:
        """The curve of Laplace noise."""
        return curves.laplace(self.scale)

    def pair(self) -> pairs.Pair:
        """Two Laplace distributions."""
        return pairs.laplace(self.scale)


@dataclass(frozen=True)
class NonPrivate(Release):
    """A release of which nothing is guaranteed."""

    private: ClassVar[bool] = False
    dominated: ClassVar[bool] = False

    def loss(self) -> PrivacyLoss:
        """An infinite curve."""
        return unbounded()


@dataclass(frozen=True)
class PoissonSampled(Release):
    """A Gaussian on records each of which is sampled with probability q in (0, 1), and may be nothing."""

    sampling_probability: float
    noise_multiplier: float

    symmetric: ClassVar[bool] = False
    bounds_under: ClassVar = (_ADD, _SPECIAL)

    def loss(self) -> PrivacyLoss:
        """The curve of the Poisson-subsampled Gaussian."""
        return poisson.poisson_subsampled_gaussian(self.noise_multiplier, self.sampling_probability)

    def pair(self) -> pairs.Pair:
        """A mixture of two Gaussians and one of them; its reverse is needed as well."""
        return pairs.poisson_gaussian(self.noise_multiplier, self.sampling_probability)


@dataclass(frozen=True)
class UsersSampled(Release):
    """A Gaussian on users sampled with all units, with q in (0, 1); the cap is over half the sensitivity."""

    noise_multiplier: float
    sampling_probability: float
    cap: float

    bounds_under: ClassVar = (_REPLACE, _SPECIAL)
    relations: ClassVar = (_REPLACE, _SPECIAL)
    sampling: ClassVar[str] = "Poisson sampling of users with all their units"
    instead: ClassVar[str] = "REPLACE_ONE or REPLACE_SPECIAL"

    def loss(self) -> PrivacyLoss:
        """The curve of users sampled with all their units."""
        return mixtures.user_sampled_gaussian(*astuple(self))

    def pair(self) -> pairs.Pair:
        """Two mixtures of Gaussians that share a part, made their own reverse."""
        return mixture_pairs.user_sampled_gaussian(*astuple(self))


@dataclass(frozen=True)
class ItemsSampled(Release):
    """A Gaussian on items sampled one by one with q in (0, 1), of users with at most k ≥ 2 of them.

    Attributes:
        noise_multiplier: σ over the norm of what one item adds.
        sampling_probability: q.
        items_per_user: k.
    """

    noise_multiplier: float
    sampling_probability: float
    items_per_user: int

    symmetric: ClassVar[bool] = False
    bounds_under: ClassVar = binomial.RELATIONS
    relations: ClassVar = binomial.RELATIONS
    sampling: ClassVar[str] = "Sampling of users' items one by one"
    instead: ClassVar[str] = "ADD_OR_REMOVE_ONE or REPLACE_SPECIAL"

    def loss(self) -> PrivacyLoss:
        """The curve of a binomial number of items."""
        return binomial.item_sampled_gaussian(*astuple(self))

    def pair(self) -> pairs.Pair:
        """A binomial mixture of Gaussians and one of them; its reverse is needed as well."""
        return binomial_pairs.binomial_removed_gaussian(*astuple(self))


@dataclass(frozen=True)
class SampledWithoutReplacement(Release):
    """A Gaussian on a uniformly random set of ``batch_size`` records, not all; REPLACE_ONE."""

    population_size: int
    batch_size: int
    noise_multiplier: float

    bounds_under: ClassVar = (_REPLACE,)  # the other is a Poisson sample with half the noise
    relations: ClassVar = (_REPLACE, _ADD)
    sampling: ClassVar[str] = "Sampling without replacement"
    instead: ClassVar[str] = "REPLACE_ONE or ADD_OR_REMOVE_ONE"

    def loss(self) -> PrivacyLoss:
        """The curve of the Gaussian on a subset of fixed size."""
        return subsampling.subsampled_gaussian_without_replacement(
            self.noise_multiplier, self.population_size, self.batch_size
        )

    def pair(self) -> pairs.Pair:
        """The pair of the Gaussian on a subset of fixed size, which is its own reverse."""
        fraction = self.batch_size / self.population_size
        return pairs.gaussian_without_replacement(self.noise_multiplier, fraction)


@dataclass(frozen=True)
class ZeroConcentrated(Release):
    """A release of which only its (ξ, ρ)-zCDP is known."""

    rho: float
    xi: float = 0.0

    dominated: ClassVar[bool] = False

    def loss(self) -> PrivacyLoss:
        """The line ξ + ρα."""
        return PrivacyLoss(self.xi + self.rho * ORDERS, np.zeros(()))


Sampled = UsersSampled | ItemsSampled | SampledWithoutReplacement

Composition = tuple[tuple[Release, int], ...]
"""Releases on the same records, each with how often it is made."""

NOTHING = Approximate(0.0)


def gaussian(noise_multiplier: float) -> Release:
    """A Gaussian on everybody's records, with any noise multiplier in [0, inf]."""
    if noise_multiplier == math.inf:
        return NOTHING
    return Gaussian(noise_multiplier) if noise_multiplier > 0 else NonPrivate()


def laplace(scale: float) -> Release:
    """Laplace noise on everybody's records, with any scale in [0, inf]."""
    return Laplace(scale) if scale > 0 else NonPrivate()


def poisson_sampled(sampling_probability: float, noise_multiplier: float) -> Release:
    """A Gaussian on records that are sampled independently, each with a probability in [0, 1]."""
    if sampling_probability == 0.0:
        return NOTHING
    if sampling_probability < 1.0 and 0.0 < noise_multiplier < math.inf:
        return PoissonSampled(sampling_probability, noise_multiplier)
    return gaussian(noise_multiplier)


def users_sampled(
    sampling_probability: float, noise_multiplier: float, cap: float = 1.0
) -> Release:
    """A Gaussian on users sampled with all units, whose sum is at most ``cap`` halves of the sensitivity."""
    if sampling_probability == 0.0:
        return NOTHING
    if sampling_probability < 1.0 and 0.0 < noise_multiplier < math.inf:
        return UsersSampled(noise_multiplier, sampling_probability, cap)
    return gaussian(noise_multiplier)


def items_sampled(
    noise_multiplier: float, sampling_probability: float, items_per_user: int
) -> Release:
    """A Gaussian on items sampled with a probability in [0, 1], at most ``items_per_user`` of a user."""
    if sampling_probability == 0.0:
        return NOTHING
    if items_per_user == 1:
        return poisson_sampled(sampling_probability, noise_multiplier)
    if sampling_probability < 1.0 and 0.0 < noise_multiplier < math.inf:
        return ItemsSampled(noise_multiplier, sampling_probability, items_per_user)
    return gaussian(noise_multiplier / items_per_user)


def sampled_without_replacement(
    population_size: int, batch_size: int, noise_multiplier: float, relation: NeighboringRelation
) -> Release:
    """A Gaussian on ``batch_size`` records of ``population_size``, drawn without replacement."""
    if relation is _ADD:
        # A batch without the record is one with it replaced: twice the norm, with probability q.
        return poisson_sampled(batch_size / population_size, 0.5 * noise_multiplier)
    if batch_size == 0:
        return NOTHING
    if batch_size < population_size and 0.0 < noise_multiplier < math.inf:
        return SampledWithoutReplacement(population_size, batch_size, noise_multiplier)
    return gaussian(noise_multiplier)


def require_proof(
    kind: type[Sampled], relation: NeighboringRelation, said: Callable[[], object]
) -> None:
    """Raise ``ValueError``, with what was ``said``, unless such samples have a proof under the relation."""
    if relation not in kind.relations:
        raise ValueError(
            f"{kind.sampling} has no proof under {relation.name}; use {kind.instead}: {said()!r}."
        )


def composition(counts: Mapping[Release, int]) -> Composition:
    """How often each release is made, with all plain Gaussians as one, in an order that does not matter."""
    made = [(release, count) for release, count in counts.items() if count and release != NOTHING]
    gaussians = [(r.gaussian_multiplier, n) for r, n in made if r.gaussian_multiplier is not None]
    merged = [(release, n) for release, n in made if release.gaussian_multiplier is None]
    if gaussians:
        merged.append((Gaussian(combined_multiplier(gaussians)), 1))
    return tuple(sorted(merged, key=repr))


def repeated(release: Release, count: int) -> Composition:
    """The release ``count`` times on the same records, adaptively, with fresh randomness."""
    return composition({release: require_integer("count", count, 0)})


def combined_multiplier(multipliers: Iterable[tuple[float, int]]) -> float:
    """The multiplier of the one Gaussian that is equivalent to several: Σ 1/σ² adds up."""
    made = list(multipliers)
    if any(sigma == 0.0 for sigma, _ in made):
        return 0.0
    return 1.0 / math.sqrt(math.fsum(count / sigma**2 for sigma, count in made))
