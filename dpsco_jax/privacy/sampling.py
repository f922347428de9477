"""Sampling schemes as values: how the users of a step are drawn, and what a Gaussian release then costs.

Source: the curves, releases and events that the methods call.

Formal guarantee: a scheme serves a relation only where its curve is proven, and raises otherwise.
"""

import math
from typing import Any, NamedTuple, SupportsFloat

import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax._checks import (
    require,
    require_instance,
    require_integer,
    require_integers,
    require_multiplier,
    require_probability,
    require_real,
    require_relation,
    require_whole,
    require_within,
)
from dpsco_jax._numerics import Scalar, array_namespace
from dpsco_jax.privacy import _kinds, curves
from dpsco_jax.privacy.curves import _mixture_sum, binomial, mixtures, poisson, subsampling
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.privacy.dp_accounting.events import DpEvent
from dpsco_jax.privacy.loss import PrivacyLoss, unbounded_unless

_MACHINE = float(np.finfo(np.float64).eps)
_ROUNDING = 1.0 + 64.0 * _MACHINE


def _require_sizes(**sizes: Any) -> None:
    """``ValueError`` unless concrete sizes are integers; the loss of a traced one is what the curve says."""
    for name, size in sizes.items():
        if not isinstance(size, jax.core.Tracer):
            require_integers(name, size)


class FullBatch(NamedTuple):
    """Every user takes part in every step."""

    def gaussian_loss(self, noise_multiplier: Scalar, relation: NeighboringRelation) -> PrivacyLoss:
        """The loss of one Gaussian release, under any relation.

        Args:
            noise_multiplier: standard deviation over the ℓ2 sensitivity under ``relation``.
            relation: the one under which the sensitivity was formed.
        """
        require_relation("relation", relation)  # the multiplier has it already
        return curves.gaussian(noise_multiplier)

    def gaussian_release(
        self, noise_multiplier: float, relation: NeighboringRelation
    ) -> _kinds.Release:
        """One Gaussian release as accountants on the host see it, under any relation."""
        require_multiplier("noise_multiplier", noise_multiplier)
        require_relation("relation", relation)
        return _kinds.gaussian(float(noise_multiplier))

    def gaussian_event(self, noise_multiplier: float) -> DpEvent:
        """The event of one Gaussian release."""
        return events.gaussian(noise_multiplier)


class Poisson(NamedTuple):
    """Each user takes part independently of the others.

    Attributes:
        probability: with which a user takes part, in [0, 1].
    """

    probability: Scalar

    def gaussian_loss(self, noise_multiplier: Scalar, relation: NeighboringRelation) -> PrivacyLoss:
        """The loss of one Gaussian release.

        Args:
            noise_multiplier: standard deviation over the ℓ2 sensitivity of the sum of everybody under
                ``relation``: the clip norm C under ADD_OR_REMOVE_ONE and REPLACE_SPECIAL, 2C under
                REPLACE_ONE, where what one user adds must be at most half of the sensitivity long:
                a smaller sensitivity of long vectors that are near each other is none for this curve.
            relation: the one under which the sensitivity was formed.

        Raises:
            ValueError: there is no proof under the relation.
        """
        require_probability("probability", self.probability)
        if relation is NeighboringRelation.REPLACE_ONE:
            return mixtures.poisson_replaced_gaussian(noise_multiplier, self.probability)
        return poisson.poisson_subsampled_gaussian(noise_multiplier, self.probability, relation)

    def gaussian_release(
        self, noise_multiplier: float, relation: NeighboringRelation
    ) -> _kinds.Release:
        """One Gaussian release as accountants on the host see it, under any relation."""
        require_probability("probability", self.probability)
        require_multiplier("noise_multiplier", noise_multiplier)
        require_relation("relation", relation)
        replaced = relation is NeighboringRelation.REPLACE_ONE
        made = _kinds.users_sampled if replaced else _kinds.poisson_sampled
        return made(float(np.asarray(self.probability)), float(noise_multiplier))

    def gaussian_event(self, noise_multiplier: float) -> DpEvent:
        """The event of one Gaussian release."""
        require_probability("probability", self.probability)
        return events.poisson_subsampled_gaussian(
            noise_multiplier, float(np.asarray(self.probability))
        )


class PoissonUsers(NamedTuple):
    """Each user takes part independently of the others, with all units; one unit of one user is a record.

    A unit is clipped to ρ and the sum over a user's units to cap·ρ, which is what has to be enforced:
    replacing a unit still moves that sum by 2ρ at most, and taking it away by ρ, for clipping brings no two
    points farther apart.

    Attributes:
        probability: with which a user takes part, in [0, 1].
        cap: norm of a user's sum over that of a unit, at least 1; infinite where the sum is not clipped.
    """

    probability: Scalar
    cap: Scalar

    def gaussian_loss(self, noise_multiplier: Scalar, relation: NeighboringRelation) -> PrivacyLoss:
        """The loss of one Gaussian release.

        Args:
            noise_multiplier: standard deviation over the ℓ2 sensitivity to one unit: 2ρ under REPLACE_ONE,
                ρ under REPLACE_SPECIAL.
            relation: REPLACE_ONE or REPLACE_SPECIAL, of one unit.

        Raises:
            ValueError: there is no proof under the relation.
        """
        self._check()
        require_relation("relation", relation, _kinds.UsersSampled.relations)
        halves = _mixture_sum.halves_of_sensitivity(self.cap, relation)
        loss = mixtures.user_sampled_gaussian(noise_multiplier, self.probability, halves)
        # The curve takes halves from 1 on: under REPLACE_SPECIAL those of a cap from 1/2 on.
        return unbounded_unless(array_namespace(self.cap, loss).asarray(self.cap) >= 1.0, loss)

    def gaussian_release(
        self, noise_multiplier: float, relation: NeighboringRelation
    ) -> _kinds.Release:
        """One Gaussian release as accountants on the host see it.

        Raises:
            ValueError: there is no proof under the relation.
        """
        self._check()
        require_multiplier("noise_multiplier", noise_multiplier)
        require_relation("relation", relation)
        _kinds.require_proof(
            _kinds.UsersSampled, relation, lambda: self.gaussian_event(noise_multiplier)
        )
        numbers = self.probability, noise_multiplier, self.cap
        probability, multiplier, cap = (float(np.asarray(number)) for number in numbers)
        halves = _mixture_sum.halves_of_sensitivity(cap, relation)
        return _kinds.users_sampled(probability, multiplier, halves)

    def gaussian_event(self, noise_multiplier: float) -> DpEvent:
        """The event of one Gaussian release, which the accountants of ``dp_accounting`` do not know."""
        self._check()
        return events.user_sampled_gaussian(
            noise_multiplier, float(np.asarray(self.probability)), float(np.asarray(self.cap))
        )

    def _check(self) -> None:
        require_probability("probability", self.probability)
        require_within("cap", self.cap, 1.0, np.inf)


class PoissonItems(NamedTuple):
    """Each item takes part independently of all others; a record is a user with all items.

    An item is clipped to C, and no user may have more than ``items_per_user`` of them, which is what has to
    be enforced: by the shape of ``UserData``, or a count before items are given to a sampler. Who was drawn
    is never revealed. Source: Charles et al. 2024, "Fine-tuning large language models with user-level
    differential privacy" ("example-level sampling").

    Attributes:
        probability: with which an item takes part, in [0, 1].
        items_per_user: k, at least 1: the most items that a user has. Static.

    Example:
        >>> from dpsco_jax import privacy
        >>> scheme = privacy.PoissonItems(0.01, items_per_user=10)
        >>> loss = scheme.gaussian_loss(4.0, NeighboringRelation.ADD_OR_REMOVE_ONE)
        >>> round(float(privacy.epsilon(privacy.scale(loss, 100), 1e-5)), 2)
        1.09
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

    def gaussian_release(
        self, noise_multiplier: float, relation: NeighboringRelation
    ) -> _kinds.Release:
        """One Gaussian release as accountants on the host see it.

        Raises:
            ValueError: there is no proof under the relation.
        """
        rate, k = self._checked()
        require_multiplier("noise_multiplier", noise_multiplier)
        require_relation("relation", relation)
        _kinds.require_proof(
            _kinds.ItemsSampled, relation, lambda: self.gaussian_event(noise_multiplier)
        )
        return _kinds.items_sampled(float(noise_multiplier), rate, k)

    def gaussian_event(self, noise_multiplier: float) -> DpEvent:
        """The event of one Gaussian release: a ``MixtureOfGaussiansDpEvent`` of ``dp_accounting``."""
        return events.item_sampled_gaussian(noise_multiplier, *self._checked())

    def _checked(self) -> tuple[float, int]:
        require_probability("probability", self.probability)
        k = require_integer("items_per_user", self.items_per_user, 1)
        return float(np.asarray(self.probability)), k


class WithoutReplacement(NamedTuple):
    """A uniformly random set of users takes part.

    Attributes:
        population_size: how many users there are (for ADD_OR_REMOVE_ONE: a public lower bound).
        batch_size: how many of them take part.
    """

    population_size: int
    batch_size: int

    def gaussian_loss(self, noise_multiplier: Scalar, relation: NeighboringRelation) -> PrivacyLoss:
        """The loss of one Gaussian release.

        Args:
            noise_multiplier: standard deviation over the ℓ2 sensitivity of a fixed batch's sum under
                ``relation``.
            relation: REPLACE_ONE or ADD_OR_REMOVE_ONE.

        Raises:
            ValueError: there is no proof under the relation, or a size is no integer (10.0 is none).
        """
        _require_sizes(population_size=self.population_size, batch_size=self.batch_size)
        return subsampling.subsampled_gaussian_without_replacement(
            noise_multiplier, self.population_size, self.batch_size, relation
        )

    def gaussian_release(
        self, noise_multiplier: float, relation: NeighboringRelation
    ) -> _kinds.Release:
        """One Gaussian release as accountants on the host see it.

        Raises:
            ValueError: there is no proof under the relation, or a size is no integer (10.0 is none).
        """
        _require_sizes(population_size=self.population_size, batch_size=self.batch_size)
        population = require_integer("population_size", self.population_size, 1)
        batch = require_integer("batch_size", self.batch_size, 0, population)
        require_multiplier("noise_multiplier", noise_multiplier)
        require_relation("relation", relation)
        _kinds.require_proof(
            _kinds.SampledWithoutReplacement,
            relation,
            lambda: self.gaussian_event(noise_multiplier),
        )
        return _kinds.sampled_without_replacement(
            population, batch, float(noise_multiplier), relation
        )

    def gaussian_event(self, noise_multiplier: float) -> DpEvent:
        """The event of one Gaussian release, under REPLACE_ONE.

        Raises:
            ValueError: a size is no integer (10.0 is none).
        """
        _require_sizes(population_size=self.population_size, batch_size=self.batch_size)
        return events.subsampled_gaussian_without_replacement(
            noise_multiplier, self.population_size, self.batch_size
        )


class WithReplacement(NamedTuple):
    """Draws are uniform over the users and independent: a user may be drawn several times.

    Attributes:
        population_size: how many users there are, at least 2.
        num_draws: how many draws a step makes.
    """

    population_size: int
    num_draws: int

    def gaussian_loss(self, noise_multiplier: Scalar, relation: NeighboringRelation) -> PrivacyLoss:
        """The loss of one Gaussian release; no dominating pair is known, so there is no event.

        Args:
            noise_multiplier: standard deviation over the ℓ2 sensitivity of the sum to ONE draw under
                ``relation``.
            relation: REPLACE_ONE or ADD_OR_REMOVE_ONE.

        Raises:
            ValueError: there is no proof under the relation, or a size is no integer (10.0 is none).
        """
        _require_sizes(population_size=self.population_size, num_draws=self.num_draws)
        require_whole("num_draws", self.num_draws, 0)
        return subsampling.subsampled_gaussian_with_replacement(
            noise_multiplier, self.population_size, self.num_draws, relation
        )


class Proven(NamedTuple):
    """A scheme of a run with the loss of one Gaussian release that was proven of it beforehand.

    The proof is for sizes that are static; those of the scheme are the same numbers, which may be traced: of
    one of several runs in a program.

    Attributes:
        scheme: how the users of a step are drawn.
        relation: under which the loss was proven.
        multiplier: the noise for which it was proven.
        cost: the loss of one release.
    """

    scheme: FullBatch | Poisson | WithoutReplacement
    relation: NeighboringRelation
    multiplier: Scalar
    cost: PrivacyLoss

    def gaussian_loss(self, noise_multiplier: Scalar, relation: NeighboringRelation) -> PrivacyLoss:
        """``cost``; infinite for another noise than that of the proof.

        Args:
            noise_multiplier: of the release.
            relation: under which the sensitivity was formed.

        Raises:
            ValueError: for another relation than that of the proof.
        """
        wanted = f"{self.relation.name}, for which this run was proven"
        require(relation is self.relation, "relation", relation, wanted)
        xp = array_namespace(noise_multiplier, self.multiplier)
        same = xp.asarray(noise_multiplier) == xp.asarray(self.multiplier)
        return unbounded_unless(same, self.cost)


def amplify(
    epsilon: SupportsFloat, delta: SupportsFloat, sampling: Any, relation: NeighboringRelation
) -> tuple[float, float]:
    """What an (ε, δ)-DP release guarantees when it runs on a secret random sample: amplification.

    With q the probability or share that is sampled, (log(1 + q(e^ε - 1)), qδ): T Lemma 10.6.8, and what is
    true of E Corollary 2.4 (Balle, Barthe and Gaboardi 2018, Theorems 8 and 9). No smaller numbers hold of
    all releases. What is sampled must be what is protected: of a user's records that are sampled together,
    the others tell whether this one was there, and replacing one of them is not amplified.

    Args:
        epsilon: of the release on a fixed sample under ``relation``, at least 0.
        delta: of the same, in [0, 1).
        sampling: ``Poisson`` under ADD_OR_REMOVE_ONE, or under REPLACE_SPECIAL where who is not sampled
            is the special record; ``WithoutReplacement`` under REPLACE_ONE; ``FullBatch`` under any.
        relation: of both guarantees. Others are refused, because it is false there: a Poisson sample's size
            tells whether a record that is replaced was sampled, and a sample of a fixed size that loses a
            record gets another one in its place.

    Returns:
        (ε, δ), rounded upwards.

    Raises:
        ValueError: an argument is out of range, or there is no proof for the scheme and the relation.

    Example:
        >>> from dp_accounting import NeighboringRelation
        >>> from dpsco_jax import privacy
        >>> half = privacy.WithoutReplacement(population_size=100, batch_size=50)
        >>> epsilon, delta = privacy.amplify(1.0, 1e-6, half, NeighboringRelation.REPLACE_ONE)
        >>> round(epsilon, 4), round(delta * 1e6, 4)
        (0.6201, 0.5)
    """
    eps = require_real("epsilon", epsilon, 0.0, closed=True)
    failure = require_real("delta", delta, 0.0, 1.0, closed=True)
    require_instance("sampling", sampling, (FullBatch, Poisson, WithoutReplacement))
    if isinstance(sampling, FullBatch):
        require_relation("relation", relation)
        return eps, failure
    if isinstance(sampling, Poisson):
        added = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)
        require_relation("relation", relation, added)
        require_probability("probability", sampling.probability)
        share = require_real("probability", sampling.probability, 0.0, closed=True)
    else:
        require_relation("relation", relation, (NeighboringRelation.REPLACE_ONE,))
        size = require_integer("population_size", sampling.population_size, 1)
        share = require_integer("batch_size", sampling.batch_size, 0, size) / size
    if share == 0.0:
        return 0.0, 0.0
    if eps < 700.0:  # beyond, its exponential is too large for a float
        amplified = math.log1p(share * math.expm1(eps))
    else:
        amplified = eps + math.log(share + (1.0 - share) * math.exp(-eps)) + 4.0 * _MACHINE * eps
    return min(amplified * _ROUNDING, eps), min(share * failure * _ROUNDING, failure)
