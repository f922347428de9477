"""What two means of one pass share: streams of correlated noise, each for users of its own.

A user takes part in one step, with a share of a mean that is at most c long after a clip. The steps of a
stream are one release of ``privatize`` with correlated noise, of ``noise_multiplier`` times its sensitivity:
2c, or c where a user is replaced by one who adds nothing. No user is in two streams, so that a run costs what
one of them does.
"""

from typing import Any

import jax
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy, transforms
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms.buffered_noise import BufferedCorrelation, buffered
from dpsco_jax.mechanisms.tree import TreeCorrelation
from dpsco_jax.privacy.releases import fixed_size
from dpsco_jax.privacy.sampling import FullBatch
from dpsco_jax.solvers import _planning

__all__ = ["StreamMean", "Streams", "correlation_of"]

_CORRELATIONS = ("buffers", "tree")


def correlation_of(kind: str, num_steps: int) -> BufferedCorrelation | TreeCorrelation:
    """Of streams of so many steps, of disjoint users who take part once."""
    if kind == "tree":
        return TreeCorrelation(num_steps, disjoint=True)
    return buffered(num_steps, 1, disjoint=True)


@pytree
class Streams:
    """All releases of a pass over the users.

    Attributes:
        population_size: n, users of the run.
        num_steps: T, at most; a run for which users run out is shorter.
        correlation: of the noise of a stream: ``"buffers"``, or ``"tree"``.
        noise_multiplier: of one release that pays for everything; a step's noise is larger.
        delta: δ of the certificate.
        neighbours: REPLACE_ONE, or REPLACE_SPECIAL, where a user is replaced by one who adds nothing.
    """

    population_size: int = static()
    num_steps: int = static()
    correlation: str = static(choices=_CORRELATIONS)
    noise_multiplier: Number
    delta: Number
    neighbours: NeighboringRelation = static(default=NeighboringRelation.REPLACE_ONE)

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours."""
        return self.neighbours

    def loss(self) -> privacy.PrivacyLoss:
        """What all releases cost; infinite unless there is noise. May be traced."""
        one = FullBatch().gaussian_loss(self.noise_multiplier, self.relation)
        return privacy.unbounded_unless(positive_and_finite(self.noise_multiplier), one)

    @property
    def event(self) -> Any:
        """The one Gaussian release that costs as much, for an accountant on the host."""
        return FullBatch().gaussian_event(float(self.noise_multiplier))

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of all releases; ``ValueError`` for no noise, or for several plans at once."""
        _checks.require_real("noise_multiplier", self.noise_multiplier, 0.0)
        one = fixed_size(self.population_size, self.population_size, 1)
        one = one._replace(relation=self.relation)
        return one.certificate(float(self.noise_multiplier), self.delta)


class StreamMean:
    """What a mean says whose users have shares of at most ``share_norm``, and ``releases`` a ``Streams``."""

    releases: Any
    share_norm: Any

    def noise_stddev(self, dim: int) -> Any:
        """Of one release that pays for all: of the noise on a coordinate of a step it is less than that."""
        del dim
        per_norm = 2.0 if self.releases.relation is NeighboringRelation.REPLACE_ONE else 1.0
        return per_norm * self.share_norm * self.releases.noise_multiplier

    def loss(self) -> privacy.PrivacyLoss:
        """What a run costs; infinite for no length or no noise. May be traced."""
        return _planning.bounded_loss(self.share_norm, self.noise_stddev(1), self.releases)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of all releases; ``ValueError`` for no positive length."""
        _planning.require_accounted_length("share_norm", self.share_norm, self.noise_stddev(1))
        return self.releases.certificate()

    def _release(self, key: jax.Array, longest: int) -> optax.GradientTransformationExtraArgs:
        """Of sums in units of a user's share, in streams of at most so many steps."""
        of = self.releases
        return transforms.privatize(
            transforms.summed_contributions(1.0, 1.0, of.relation),
            key,
            of.noise_multiplier,
            noise_correlation=correlation_of(of.correlation, longest),
        )
