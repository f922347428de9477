"""The kind of release in which the items of users are sampled one by one, as accountants see it.

Curve and pair bound the release for a user with at most ``items_per_user`` items who is added, removed, or
replaced by nothing (docs/theory/mixtures.md, section 8). Nothing is proven here for a user who is replaced by
another.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import ClassVar

from dp_accounting import NeighboringRelation

from dpsco_jax.privacy import _kinds
from dpsco_jax.privacy.curves import binomial
from dpsco_jax.privacy.loss import PrivacyLoss
from dpsco_jax.privacy.pld import binomial_pairs, pairs


@dataclass(frozen=True)
class ItemsSampled(_kinds.Release):
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

    def loss(self) -> PrivacyLoss:
        """The curve of a binomial number of items."""
        return binomial.item_sampled_gaussian(*astuple(self))

    def pair(self) -> pairs.Pair:
        """A binomial mixture of Gaussians and one of them; its reverse is needed as well."""
        return binomial_pairs.binomial_removed_gaussian(*astuple(self))


def items_sampled(
    noise_multiplier: float, sampling_probability: float, items_per_user: int
) -> _kinds.Release:
    """A Gaussian on items sampled with a probability in [0, 1], at most ``items_per_user`` of a user."""
    if sampling_probability == 0.0:
        return _kinds.NOTHING
    if items_per_user == 1:
        return _kinds.poisson_sampled(sampling_probability, noise_multiplier)
    if sampling_probability < 1.0 and 0.0 < noise_multiplier < float("inf"):
        return ItemsSampled(noise_multiplier, sampling_probability, items_per_user)
    return _kinds.gaussian(noise_multiplier / items_per_user)


def require_proof(relation: NeighboringRelation, said: Callable[[], object]) -> None:
    """Raise ``ValueError``, with what was ``said``, unless items of users have a proof under the relation."""
    if relation not in binomial.RELATIONS:
        raise ValueError(
            f"Sampling of users' items one by one has no proof under {relation.name}; use "
            f"ADD_OR_REMOVE_ONE or REPLACE_SPECIAL: {said()!r}."
        )
