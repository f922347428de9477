"""What a run over units releases: sampling, relation and noise as one value, from which accounting follows.

What it computes: a unit is one element of one user; there are num_users·elements_per_user of them, empty
ones included. Released is the sum of clipped unit updates over num_users·q, with q = batch_size/num_users.

- ``"element"``: every unit takes part with probability q, independently;
- ``"user"``: every user takes part with probability q, with all units; the user's sum is projected to
  ``cap`` times the clip norm;
- ``"fixed"``: batch_size·elements_per_user units, without replacement, of all of them;
- ``"full"``: all units.

Source: E Corollary 2.5 and (15), with corrections N3 and N14.

Formal guarantee: neighbours differ in one unit, replaced by another or, for REPLACE_SPECIAL, by an empty one:
the sum of units clipped to C moves by 2C or C, whoever else takes part, and so does a user's projected sum,
for a projection onto a ball is 1-Lipschitz. Under ``"element"`` only the coin of the unit itself is hidden by
sampling, which is what ``privacy.Poisson`` accounts for; under ``"user"`` the user's other units tell whether
the user was drawn, which is what ``privacy.PoissonUsers`` accounts for. With ``protects="user"`` neighbours
differ in a whole user, whose sum moves by 2 or 1 times ``cap`` times C.

Cost: that of the curves.
"""

from typing import Any

from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.releases import GaussianSteps
from dpsco_jax.privacy.sampling import FullBatch, Poisson, PoissonUsers, WithoutReplacement

SAMPLING = ("element", "user", "fixed", "full")
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
