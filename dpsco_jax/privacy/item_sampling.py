"""Sampling of items one by one, where the record is a user with several of them.

Source: Charles et al. 2024, "Fine-tuning large language models with user-level differential privacy"
("example-level sampling").

Formal guarantee: that of the curve, ``curves.binomial``, for users none of whom has more items than is said;
who was drawn is never revealed.

Example:
    >>> from dp_accounting import NeighboringRelation
    >>> from dpsco_jax import privacy
    >>> scheme = privacy.PoissonItems(0.01, items_per_user=10)
    >>> loss = scheme.gaussian_loss(4.0, NeighboringRelation.ADD_OR_REMOVE_ONE)
    >>> round(float(privacy.epsilon(privacy.scale(loss, 100), 1e-5)), 2)
    1.09
"""

from typing import NamedTuple

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax._checks import (
    require_integer,
    require_multiplier,
    require_probability,
    require_relation,
)
from dpsco_jax._numerics import Scalar
from dpsco_jax.privacy import _item_kinds
from dpsco_jax.privacy._kinds import Release
from dpsco_jax.privacy.curves import binomial
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.privacy.dp_accounting.events import DpEvent
from dpsco_jax.privacy.loss import PrivacyLoss


class PoissonItems(NamedTuple):
    """Each item takes part independently of all others; a record is a user with all items.

    An item is clipped to C, and no user may have more than ``items_per_user`` of them, which is what has to
    be enforced: by the shape of ``UserData``, or a count before items are given to a sampler.

    Attributes:
        probability: with which an item takes part, in [0, 1].
        items_per_user: k, at least 1: the most items that a user has. Static.
    """

    probability: Scalar
    items_per_user: int

    def gaussian_loss(self, noise_multiplier: Scalar, relation: NeighboringRelation) -> PrivacyLoss:
        """The loss of one Gaussian release, for a user with all items.

        Args:
            noise_multiplier: standard deviation over C, the norm to which what ONE item adds is clipped.
            relation: ADD_OR_REMOVE_ONE or REPLACE_SPECIAL, of one user.

        Raises:
            ValueError: there is no proof under the relation.
        """
        require_probability("probability", self.probability)
        return binomial.item_sampled_gaussian(
            noise_multiplier, self.probability, self.items_per_user, relation
        )

    def gaussian_release(self, noise_multiplier: float, relation: NeighboringRelation) -> Release:
        """One Gaussian release as accountants on the host see it.

        Raises:
            ValueError: there is no proof under the relation.
        """
        rate, k = self._checked()
        require_multiplier("noise_multiplier", noise_multiplier)
        require_relation("relation", relation)
        _item_kinds.require_proof(relation, lambda: self.gaussian_event(noise_multiplier))
        return _item_kinds.items_sampled(float(noise_multiplier), rate, k)

    def gaussian_event(self, noise_multiplier: float) -> DpEvent:
        """The event of one Gaussian release: a ``MixtureOfGaussiansDpEvent`` of ``dp_accounting``."""
        return events.item_sampled_gaussian(noise_multiplier, *self._checked())

    def _checked(self) -> tuple[float, int]:
        require_probability("probability", self.probability)
        k = require_integer("items_per_user", self.items_per_user, 1)
        return float(np.asarray(self.probability)), k
