"""What a run over units releases: sampling, relation and noise as one value, from which accounting follows.

A unit is one element of one user. Released is the sum of the clipped updates of units over num_users·q, with
q = batch_size/num_users. Units are drawn as ``sgd.plan`` says; users who are drawn, or protected, whole have
their sums projected to ``cap`` times the clip norm.

Neighbours differ in one unit, replaced by another or, for REPLACE_SPECIAL, by an empty one: the sum of units
clipped to C moves by 2C or C, whoever else takes part, and so does a user's projected sum, for a projection
onto a ball is 1-Lipschitz. Under ``"element"`` only the coin of the unit itself is hidden by sampling, which
is what ``privacy.Poisson`` accounts for; under ``"user"`` the user's other units tell whether the user was
drawn, which is what ``privacy.PoissonUsers`` accounts for. With ``protects="user"`` neighbours differ in a
whole user, whose sum moves by 2 or 1 times ``cap`` times C. (E Corollary 2.5 and (15), with corrections N3
and N14.)

Of a user, of whom k elements change at once, ``user_certificate`` says the least of the ε that are proven at
one δ:

- group privacy: k changes of one element, each (ε, δ')-DP: (kε, δ'·Σ_{i<k} e^{iε}), at the best δ' there is;
- no amplification: given who was drawn, the sum moves by at most min(k, cap) times the sensitivity to one
  element;
- under ``"element"``, how many of the k are drawn is binomial, and j of them move the sum by at most j times
  as much: the pairs of ``privacy.pld.binomial_pairs``;
- under ``"fixed"``, how many of the k are drawn is hypergeometric, and others are drawn in place of the rest:
  the pair of ``privacy.pld.hypergeometric_pairs``;
- under ``"user"``: a user is drawn with probability q, and two projected sums are at most 2·min(k, cap) clip
  norms apart, and each at most min(K, cap) long, for the elements that do not change show the coin too: users
  sampled with all their units, in units of min(k, cap).

E Corollary 2.2, with the exact factor, and section 10; docs/theory/mixtures.md, sections 5 and 7.
"""

import math
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy import accountants, certificates, pld
from dpsco_jax.privacy.pld import binomial_pairs, hypergeometric_pairs, pairs
from dpsco_jax.privacy.releases import GaussianSteps
from dpsco_jax.privacy.sampling import FullBatch, Poisson, PoissonUsers, WithoutReplacement

SAMPLING = ("element", "user", "fixed", "full")
_HALVINGS = 8
PROTECTS = ("element", "user")
RELATIONS = {
    "replace": NeighboringRelation.REPLACE_ONE,
    "zero_out": NeighboringRelation.REPLACE_SPECIAL,
}


@pytree
class ElementReleases:
    """Gaussian releases of sums over units; sizes are static, numbers leaves.

    Attributes:
        num_users: n.
        elements_per_user: K, the public number of slots of a user.
        batch_size: q·n, the divisor of a step, in users.
        num_steps: T.
        sampling: ``"element"``, ``"user"``, ``"fixed"`` or ``"full"``; see the file's docstring.
        relation_name: ``"replace"`` or ``"zero_out"``.
        protects: ``"element"``, or ``"user"``, a user whole.
        cap: bound on a user's summed update, in clip norms, where users are summed first.
        noise_multiplier: standard deviation over the ℓ2 sensitivity under the relation.
        delta: δ of the certificate.
    """

    num_users: int = static()
    elements_per_user: int = static()
    batch_size: int = static()
    num_steps: int = static()
    sampling: str = static(choices=SAMPLING)
    relation_name: str = static(choices=tuple(RELATIONS))
    protects: str = static(choices=PROTECTS)
    cap: float = static()
    noise_multiplier: Number
    delta: Number

    @property
    def num_units(self) -> int:
        """n·K."""
        return self.num_users * self.elements_per_user

    @property
    def population_size(self) -> int:
        """Rows of the data: one a unit."""
        return self.num_units

    @property
    def sums_users(self) -> bool:
        """Whether the units of a user are summed, and the sum projected, before users are."""
        return self.sampling == "user" or self.protects == "user"

    @property
    def longest(self) -> float:
        """Bound on a user's summed update, in clip norms: the cap, or as many as there are elements."""
        return min(self.cap, float(self.elements_per_user))

    @property
    def bound(self) -> float:
        """What is left of the update of a single record, element or user, in clip norms."""
        return self.longest if self.protects == "user" else 1.0

    @property
    def per_clip_norm(self) -> float:
        """The ℓ2 sensitivity of the divided sum, over the clip norm."""
        replaced = 2.0 if self.relation is NeighboringRelation.REPLACE_ONE else 1.0
        return replaced * self.bound / self.batch_size

    @property
    def steps(self) -> GaussianSteps:
        """Who takes part in the steps, under which relation, and how many there are.

        Raises:
            ValueError: if a size or a word is out of range, or nothing is proven of the combination.
        """
        users = _checks.require_count("num_users", self.num_users)
        slots = _checks.require_count("elements_per_user", self.elements_per_user)
        batch = _checks.require_integer("batch_size", self.batch_size, 1, users)
        num_steps = _checks.require_count("num_steps", self.num_steps)
        require_proven(self.sampling, self.relation_name, self.protects, self.cap)
        if self.sampling == "full":
            _checks.require(batch == users, "batch_size", batch, f"all of the {users} users")
            return GaussianSteps(FullBatch(), self.relation, num_steps)
        rate, scheme = batch / users, FullBatch()  # type: tuple[float, Scheme]
        if self.sampling == "fixed":
            if batch < users:
                scheme = WithoutReplacement(users * slots, batch * slots)
        elif self.sums_users and self.protects == "element":
            scheme = PoissonUsers(rate, self.longest)
        else:
            scheme = Poisson(rate)
        return GaussianSteps(scheme, self.relation, num_steps)

    @property
    def relation(self) -> NeighboringRelation:
        """REPLACE_ONE, or REPLACE_SPECIAL: of units, or of users if these are protected whole."""
        return RELATIONS[_checks.require_choice("relation", self.relation_name, tuple(RELATIONS))]

    def loss(self) -> privacy.PrivacyLoss:
        """What all releases cost, as the ledger of ``privatize`` will have it."""
        return self.steps.loss(self.noise_multiplier)

    def certificate(self) -> privacy.Certificate:
        """The guarantee of the run, for one element of one user or for a user whole.

        Raises:
            ValueError: if a number is out of its range, or is an array, of a batch of plans.
        """
        _checks.require_real("noise_multiplier", self.noise_multiplier, 0.0, closed=True)
        made = self.steps.certificate(self.noise_multiplier, self.delta)
        differ = {
            "element": "neighbours differ in one element of one user, and the partition is public",
            "user": "neighbours differ in one user, with all elements",
        }[self.protects]
        return made._replace(assumptions=(*made.assumptions, differ))


def require_proven(sampling: Any, relation: Any, protects: Any, cap: Any) -> None:
    """``ValueError``, by the name of the argument, unless there is a proof for the combination."""
    _checks.require_choice("sampling", sampling, SAMPLING)
    _checks.require_choice("relation", relation, tuple(RELATIONS))
    _checks.require_choice("protects", protects, PROTECTS)
    good = isinstance(cap, int | float) and not isinstance(cap, bool) and cap >= 1
    _checks.require(good, "cap", cap, "in [1, inf]")
    whole = protects == "user"
    proven = whole or sampling in ("element", "full") or relation == "replace"
    good_relation = f"'replace' with sampling={sampling!r} and protects={protects!r}"
    _checks.require(proven, "relation", relation, good_relation)
    drawn = not whole or sampling in ("user", "full")
    _checks.require(drawn, "sampling", sampling, "'user' or 'full' with protects='user'")
    summed = whole or sampling == "user" or cap == float("inf")
    _checks.require(summed, "cap", cap, "inf unless sampling='user' or protects='user'")


def user_certificate(releases: ElementReleases, elements: Any = None) -> privacy.Certificate:
    """The guarantee of a run for a user of whom at most ``elements`` elements change; K if left out.

    Raises:
        ValueError: if ``elements`` is not in [1, K], or there is no certificate.
    """
    slots, made = releases.elements_per_user, releases.certificate()
    k = _checks.require_integer("elements", slots if elements is None else elements, 1, slots)
    if releases.protects == "user" or (k == 1 and elements is not None):
        return made
    ways = [(made.epsilon, made.accountant)] if k == 1 else _ways(releases, k)
    epsilon, accountant = min(ways)
    kept = [line for line in made.assumptions if not line.startswith("neighbours")]
    differ = f"neighbours differ in one user, in at most {k} elements"
    return made._replace(epsilon=epsilon, accountant=accountant, assumptions=(*kept, differ))


def _ways(releases: ElementReleases, k: int) -> list[tuple[float, str]]:
    delta, steps, rate = float(releases.delta), releases.steps, _rate(releases)
    sigma = float(releases.noise_multiplier)
    moved = [GaussianSteps(FullBatch(), steps.relation, steps.num_steps)]
    length = min(float(k), releases.longest) if releases.sums_users else float(k)
    if releases.sampling == "user":
        scheme = PoissonUsers(rate, releases.longest / length)
        moved.append(GaussianSteps(scheme, steps.relation, steps.num_steps))
    found = [way.certificate(sigma / length, delta) for way in moved]
    ways = [(one.epsilon, one.accountant) for one in found]
    if releases.sampling in ("element", "fixed") and rate < 1 and 0 < sigma < math.inf:
        ways.append(_drawn(steps, rate, sigma, delta, k))
    # Of units, and of users whole, there are data that give away all that was counted, or nearly all where
    # their number is fixed: no group costs less, and none was found to.
    whole = releases.sampling == "user" and length == releases.longest
    exact = whole or releases.sampling in ("element", "fixed", "full")
    if not exact or min(ways)[0] == math.inf:
        ways.append(_group(steps, sigma, delta, k))
    return ways


def _drawn(
    steps: GaussianSteps, rate: float, sigma: float, delta: float, k: int
) -> tuple[float, str]:
    """The ε of k elements, the number of which that are drawn in a step is random."""
    name = certificates.accounted_by("privacy loss distribution")
    points = accountants.FEW_POINTS
    if isinstance(steps.scheme, WithoutReplacement):
        sizes = steps.scheme.population_size, steps.scheme.batch_size
        fixed = hypergeometric_pairs.hypergeometric_replaced_gaussian(sigma, *sizes, k)
        return pld.epsilon([(fixed, steps.num_steps)], delta, points), name
    if steps.relation is NeighboringRelation.REPLACE_ONE:
        replaced = binomial_pairs.binomial_replaced_gaussian(sigma, rate, k)
        return pld.epsilon([(replaced, steps.num_steps)], delta, points), name
    removed = binomial_pairs.binomial_removed_gaussian(sigma, rate, k)
    both = removed, pairs.reverse(removed)
    return max(pld.epsilon([(way, steps.num_steps)], delta, points) for way in both), name


def _rate(releases: ElementReleases) -> float:
    return releases.batch_size / releases.num_users


def _group(steps: GaussianSteps, sigma: float, delta: float, k: int) -> tuple[float, str]:
    """The ε of k changes, k times that of one at the largest δ found whose k-fold δ is small enough."""
    low, high = math.log(delta) - 40.0, math.log(delta / k)
    best = (math.inf, "group privacy")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        one = steps.certificate(sigma, math.exp(middle))
        factor = (
            np.logaddexp.reduce(one.epsilon * np.arange(k)) if one.epsilon < math.inf else math.inf
        )
        if middle + factor <= math.log(delta) - 1e-9:
            best = min(best, (k * one.epsilon, f"{one.accountant}, {k}-fold"))
            low = middle
        else:
            high = middle
    return best
