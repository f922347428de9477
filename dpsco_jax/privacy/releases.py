"""What a run releases, as a value: one form for every mechanism, and the guarantee of several together.

What it computes: ``Releases`` is what plans hold and ``solve`` runs; its loss and its certificate are
functions of the numbers that run. ``GaussianReleases`` are Gaussians on sampled users;
``parallel_certificate`` and ``sequential_certificate`` join the guarantees of parts.

Source: McSherry 2009 (parallel composition); Dwork and Roth 2014, Theorem 3.16 (basic composition).

Formal guarantee: a noise multiplier found by ``GaussianSteps`` is representable in float32 and meets (ε, δ)
for exactly the sizes it was found for, rounded up past the rounding of the program that will use it. Joint
certificates hold if the certificates of the parts do.

Cost: a calibration by privacy loss distributions takes about a second, by Rényi curves milliseconds.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from dp_accounting import NeighboringRelation

from dpsco_jax._checks import (
    require,
    require_choice,
    require_integer,
    require_positive,
    require_real,
    require_relation,
)
from dpsco_jax._numerics import float32_above
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy import _renyi_noise
from dpsco_jax.privacy._kinds import Composition, repeated
from dpsco_jax.privacy._renyi_noise import least_multiplier, rule_of_thumb
from dpsco_jax.privacy.certificates import Certificate, accounted_by, certificate_of
from dpsco_jax.privacy.certified_noise import certified_noise_multiplier
from dpsco_jax.privacy.curves import subsampling
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.privacy.dp_accounting.events import DpEvent
from dpsco_jax.privacy.loss import PrivacyLoss, epsilon, scale
from dpsco_jax.privacy.sampling import (
    FullBatch,
    Poisson,
    PoissonItems,
    PoissonUsers,
    Proven,
    WithoutReplacement,
    WithReplacement,
)

Scheme = FullBatch | Poisson | PoissonItems | PoissonUsers | WithoutReplacement | WithReplacement

ACCOUNTANTS = ("pld", "rdp")
KEPT_SECRET = ("the key and the users sampled in each step stay secret",)
_LEDGER_ROUNDING = 2e-5


@runtime_checkable
class Releases(Protocol):
    """All that is released by a run, or by a part of one, with the numbers that it uses.

    A number that follows from others (a sensitivity, a probability of failure) is computed from them where it
    is needed: whoever edits a number changes what runs, the loss and the certificate together.
    """

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours."""

    def loss(self) -> PrivacyLoss:
        """What everything costs, for ledgers; numbers may be traced. Infinite where nothing is proven."""

    def certificate(self) -> Certificate:
        """The (ε, δ) of everything by the tightest accountant, on the host."""


class GaussianSteps(NamedTuple):
    """A number of Gaussian releases, without their noise: the sizes, which are static.

    Attributes:
        scheme: how the users of a step are drawn.
        relation: which data sets are neighbours.
        num_steps: how many releases.
    """

    scheme: Scheme
    relation: NeighboringRelation
    num_steps: int

    def noise_multiplier(self, epsilon: float, delta: float, accountant: str) -> float:
        """The smallest multiplier that meets (ε, δ) by ``"pld"`` or by the ledger's ``"rdp"``.

        Of draws with replacement the ledger's curve is all that is known, and serves for both.

        Raises:
            ValueError: there is no such multiplier.
        """
        require_choice("accountant", accountant, ACCOUNTANTS)
        # Schemes are tuples of numbers: those of two classes may be equal.
        return self._noise_multiplier(type(self.scheme).__name__, epsilon, delta, accountant)

    # Searches over plans ask for the same numbers again; a tuple of numbers keeps nothing alive.
    @functools.lru_cache(maxsize=1024)  # noqa: B019
    def _noise_multiplier(
        self, scheme: str, epsilon: float, delta: float, accountant: str
    ) -> float:
        if accountant == "pld" and not isinstance(self.scheme, WithReplacement):
            value = certified_noise_multiplier(
                self.scheme,
                self.num_steps,
                epsilon,
                delta,
                self.relation,
                self._rule_of_thumb(epsilon, delta) if self._rate < 1.0 else None,
            )
        else:
            value = self._by_renyi_curves(epsilon, delta)
        return float32_above(value)

    def _spent(self, target: float, delta: float) -> Callable[[float], float]:
        """ε of a multiplier, for searches that end at the target."""
        if not self._by_profile:
            return lambda multiplier: self.ledger_epsilon(multiplier, delta)

        def some(multiplier: float, orders: slice) -> PrivacyLoss:
            return scale(subsampling.at_orders(multiplier, self._rate, orders), self.num_steps)

        return _renyi_noise.spent_near(self.loss, some, target, delta)

    @property
    def _by_profile(self) -> bool:
        sampled = isinstance(self.scheme, WithoutReplacement)
        return sampled and self.relation == NeighboringRelation.REPLACE_ONE

    @property
    def _rate(self) -> float:
        if isinstance(self.scheme, WithoutReplacement):
            return self.scheme.batch_size / self.scheme.population_size
        if isinstance(self.scheme, WithReplacement):
            return self.scheme.num_draws / self.scheme.population_size
        if isinstance(self.scheme, Poisson | PoissonItems | PoissonUsers):
            return float(self.scheme.probability)  # type: ignore[arg-type]
        return 1.0

    def _rule_of_thumb(self, epsilon: float, delta: float) -> float:
        return rule_of_thumb(epsilon, delta, self.num_steps, self._rate)

    def _by_renyi_curves(self, epsilon: float, delta: float) -> float:
        # The ledger adds in float32 and rounds up: leave it the room.
        target = (1 - _LEDGER_ROUNDING) * epsilon
        # The sensitivity may be that of one of a user's items.
        most = getattr(self.scheme, "items_per_user", 1)
        return least_multiplier(
            self._spent(target, delta),
            target,
            delta,
            self._rule_of_thumb(target, delta),
            2 * most * math.sqrt(self.num_steps) / delta,
        )

    def loss(self, noise_multiplier: Any) -> PrivacyLoss:
        """The Rényi curve of the run with this noise, which may be traced."""
        return scale(self.scheme.gaussian_loss(noise_multiplier, self.relation), self.num_steps)

    def ledger_epsilon(self, noise_multiplier: float, delta: float) -> float:
        """ε of the run by its Rényi curve: what the ledger will say, in float64."""
        return float(epsilon(self.loss(float(noise_multiplier)), float(delta)))

    @property
    def _paired(self) -> Any:
        """The scheme; ``ValueError`` where no pair of laws is known that dominates a release."""
        known = not isinstance(self.scheme, WithReplacement)
        require(known, "scheme", self.scheme, "one of which a dominating pair is known")
        return self.scheme

    def composition(self, noise_multiplier: float) -> Composition:
        """What the run releases, for our own accountants on the host.

        Raises:
            ValueError: the scheme has no proof under the relation.
        """
        release = self._paired.gaussian_release(float(noise_multiplier), self.relation)
        return repeated(release, self.num_steps)

    def event(self, noise_multiplier: float) -> DpEvent:
        """What the run releases, for any accountant on the host, and for joining with other events."""
        return events.repeated(self._paired.gaussian_event(float(noise_multiplier)), self.num_steps)

    def certificate(self, noise_multiplier: float, delta: float) -> Certificate:
        """The guarantee of the run with this noise by the tightest accountant."""
        if isinstance(self.scheme, WithReplacement):
            found = self.ledger_epsilon(noise_multiplier, delta)
            accountant = accounted_by("Rényi curves")
            return Certificate(found, float(delta), self.relation, accountant, KEPT_SECRET)
        releases = self.composition(noise_multiplier)
        return certificate_of([releases], float(delta), self.relation, KEPT_SECRET)


@pytree
class GaussianReleases:
    """A run of Gaussian releases: all that accounting needs to know of a first-order solver.

    A pytree: sizes are static, the numbers below them are leaves and may be traced.

    Attributes:
        population_size: N, users of the run.
        batch_size: K, users of a step; N for everybody; the expected number under Poisson sampling.
        num_steps: T.
        sampling: ``"fixed"``, K users without replacement; ``"poisson"``, each with probability K/N;
            ``"replacement"``, K draws, each of any user.
        noise_multiplier: standard deviation over the ℓ2 sensitivity under ``relation``; to a single draw
            with replacement.
        delta: δ of the certificate.
        poisson_relation: under which Poisson samples are accounted for; batches of a fixed size are under
            REPLACE_ONE. The noise multiplier is over C, a bound on a contribution, under
            ADD_OR_REMOVE_ONE and REPLACE_SPECIAL, and over 2C under REPLACE_ONE.
    """

    population_size: int = static()
    batch_size: int = static()
    num_steps: int = static()
    sampling: str = static(choices=("fixed", "poisson", "replacement"))
    noise_multiplier: Number
    delta: Number
    poisson_relation: NeighboringRelation = static(
        default=NeighboringRelation.ADD_OR_REMOVE_ONE, kw_only=True
    )

    @property
    def steps(self) -> GaussianSteps:
        """Who takes part in the steps, under which relation, and how many there are."""
        sizes = self.population_size, self.batch_size, self.num_steps
        if self.sampling == "poisson":
            return poisson(*sizes, self.poisson_relation)
        if self.sampling == "replacement":
            return with_replacement(*sizes)
        return fixed_size(*sizes)

    @property
    def scheme(self) -> Scheme:
        """How the users of a step are drawn."""
        return self.steps.scheme

    @property
    def relation(self) -> NeighboringRelation:
        """REPLACE_ONE; ``poisson_relation`` under Poisson sampling."""
        return self.steps.relation

    @property
    def event(self) -> DpEvent:
        """What the run releases, for an accountant on the host."""
        return self.steps.event(self.noise_multiplier)

    def loss(self) -> PrivacyLoss:
        """What all releases cost, as the ledger of ``privatize`` will have it."""
        return self.steps.loss(self.noise_multiplier)

    def lowered(self) -> "GaussianRun":
        """What a run uses of them: all sizes as numbers, and the loss of one step.

        Raises:
            ValueError: if a concrete noise multiplier is not positive, or draws are with replacement, of
                which no mean of users is.
        """
        by_user = self.sampling != "replacement"
        require(
            by_user, "sampling", self.sampling, "that of users: items are drawn with replacement"
        )
        require_positive("noise_multiplier", self.noise_multiplier)
        scheme, relation, num_steps = self.steps
        return GaussianRun(
            relation=relation,
            scheme=scheme,
            batch_size=self.batch_size,
            num_steps=num_steps,
            noise_multiplier=self.noise_multiplier,
            proven_multiplier=self.noise_multiplier,
            cost=scheme.gaussian_loss(self.noise_multiplier, relation),
        )

    def certificate(self) -> Certificate:
        """The guarantee of the run by the tightest accountant.

        Raises:
            ValueError: a number is an array, of a batch of plans.
        """
        require_real("noise_multiplier", self.noise_multiplier, 0.0, closed=True)
        return self.steps.certificate(self.noise_multiplier, self.delta)


@pytree
class GaussianRun:
    """A run of Gaussian releases whose sizes are numbers, as ``GaussianReleases.lowered`` makes it.

    It proves nothing: ``cost`` is what the scheme of the releases has proven for their own static sizes and
    noise. Several runs of one structure can be stacked, and be those of one program.

    Attributes:
        relation: which data sets are neighbours.
        scheme: how the users of a step are drawn.
        batch_size: K, users of a step.
        num_steps: T.
        noise_multiplier: σ over the sensitivity.
        proven_multiplier: the one for which ``cost`` was proven.
        cost: the loss of one step.
    """

    relation: NeighboringRelation = static()
    scheme: Any
    batch_size: Number
    num_steps: Number
    noise_multiplier: Number
    proven_multiplier: Number
    cost: PrivacyLoss

    def lowered(self) -> "GaussianRun":
        """Itself."""
        return self

    @property
    def proven(self) -> Proven:
        """For ``transforms.privatize``: the scheme, with what it costs."""
        return Proven(self.scheme, self.relation, self.proven_multiplier, self.cost)


def fixed_size(num_users: int, batch_size: int, num_steps: int) -> GaussianSteps:
    """Batches of a fixed size, everybody if that is their size; one user may be replaced."""
    users = require_integer("num_users", num_users, 1)
    batch = require_integer("batch_size", batch_size, 1, users)
    steps = require_integer("num_steps", num_steps, 1)
    scheme = FullBatch() if batch == users else WithoutReplacement(users, batch)
    return GaussianSteps(scheme, NeighboringRelation.REPLACE_ONE, steps)


def with_replacement(num_users: int, batch_size: int, num_steps: int) -> GaussianSteps:
    """Draws that are independent of each other; one user may be replaced."""
    users = require_integer("num_users", num_users, 2)
    draws = require_integer("batch_size", batch_size, 1)
    steps = require_integer("num_steps", num_steps, 1)
    return GaussianSteps(WithReplacement(users, draws), NeighboringRelation.REPLACE_ONE, steps)


def poisson(
    num_users: int,
    batch_size: int,
    num_steps: int,
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
) -> GaussianSteps:
    """Poisson samples of the given expected size; one user may be added or removed, or replaced."""
    users = require_integer("num_users", num_users, 1)
    batch = require_integer("batch_size", batch_size, 1, users)
    steps = require_integer("num_steps", num_steps, 1)
    require_relation("relation", relation)
    return GaussianSteps(Poisson(batch / users), relation, steps)


def parallel_certificate(certificates: Sequence[Certificate]) -> Certificate:
    """The guarantee of parts each of which sees a fixed, disjoint part of the users.

    Neighbours differ in the users of one part, which one is not known. That part is (ε_i, δ_i)-DP, hence
    (max ε, max δ)-DP, and all together are (max ε, max δ)-DP. The largest ε with its own δ is no guarantee:
    another part may have a smaller ε at a larger δ.

    Args:
        certificates: of the parts, one or more, under REPLACE_ONE or under REPLACE_SPECIAL: under these a
            user keeps its position, so that the split by position is the same for both neighbours.

    Raises:
        ValueError: if there is no certificate, or their relation is another one or not the same for all.
    """
    _require_common_relation(certificates, NeighboringRelation.ADD_OR_REMOVE_ONE)
    return _joint(
        certificates, max(c.epsilon for c in certificates), max(c.delta for c in certificates)
    )


def sequential_certificate(certificates: Sequence[Certificate]) -> Certificate:
    """The guarantee of parts that see the same users, one after the other, by basic composition.

    (Σ ε, Σ δ). A certificate of the joint event is smaller; this one serves where there is no event.

    Args:
        certificates: of the parts, one or more, under one relation.

    Raises:
        ValueError: if there is no certificate or their relation is not the same for all.
    """
    _require_common_relation(certificates)
    return _joint(
        certificates,
        math.fsum(c.epsilon for c in certificates),
        min(1.0, math.fsum(c.delta for c in certificates)),
    )


def _require_common_relation(
    certificates: Sequence[Certificate], *excluded: NeighboringRelation
) -> None:
    require(len(certificates) >= 1, "certificates", certificates, "at least one")
    relations = {c.relation for c in certificates}
    names = sorted(relation.name for relation in relations)
    others = ", ".join(r.name for r in NeighboringRelation if r not in excluded)
    good = len(relations) == 1 and not relations & set(excluded)
    require(good, "relations of certificates", names, f"the same for all, one of {others}")


def _joint(certificates: Sequence[Certificate], epsilon: float, delta: float) -> Certificate:
    # No order is defined with what is not a number: nothing is proven then.
    unknown = any(math.isnan(c.epsilon) or math.isnan(c.delta) for c in certificates)
    return Certificate(
        math.inf if unknown else epsilon,
        delta,
        certificates[0].relation,
        ", ".join(dict.fromkeys(c.accountant for c in certificates)),
        tuple(dict.fromkeys(line for c in certificates for line in c.assumptions)),
    )
