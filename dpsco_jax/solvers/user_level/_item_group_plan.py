"""The plan of item-level DP-SGD for users: what its numbers cost a user, and how they are calibrated.

What it computes: the loss and the certificate of T steps from the numbers that run; the noise for a budget.

Source: as for ``item_group_privacy``.

Formal guarantee: ``Plan.loss`` and ``Plan.certificate`` bound a run of exactly the plan's numbers, under
REPLACE_ONE; they are infinite where a number is out of its range.

Cost: milliseconds; with all items in every step a calibration takes about a second.
"""

import math
from typing import Any

from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy._renyi_noise import least_multiplier, rule_of_thumb
from dpsco_jax.privacy.certificates import accounted_by
from dpsco_jax.solvers import _costs, _planning, means, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.work import Work

_REPLACE = NeighboringRelation.REPLACE_ONE
_ASSUMES = ("the key and the items drawn in each step stay secret",)


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: N.
        items_per_user: m, the number of item slots of a user.
        dim: number of parameters.
        num_steps: T.
        batch_size: B, items drawn in a step; ``None`` for all N·m slots.
        constants: ``"tight"`` or ``"paper"``: where the noise comes from.
        chunk_size: items whose gradients are held at once.
        noise_multiplier: σ over the ℓ2 sensitivity of the sum: 2·m·``clip_norm`` to a user if all items
            take part, 2·``clip_norm`` to one draw else.
        clip_norm: bound on an item's gradient.
        step_size: η.
        epsilon: the budget that was planned for; what is spent follows from the numbers that run.
        delta: δ of that budget; the certificate is for this δ.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
    """

    num_users: int = static()
    items_per_user: int = static()
    dim: int = static()
    num_steps: int = static()
    batch_size: int | None = static()
    constants: str = static(choices=("tight", "paper"))
    chunk_size: int = static()
    noise_multiplier: Number
    clip_norm: Number
    step_size: Number
    epsilon: Number
    delta: Number
    excess_bound: Number

    @property
    def scheme(self) -> privacy.FullBatch | privacy.WithReplacement:
        """How users take part in a step."""
        return scheme(self.num_users, self.batch_size)

    @property
    def item_gradients(self) -> int:
        """Item gradients of the whole run, empty slots included."""
        return self.num_steps * (self.batch_size or self.num_users * self.items_per_user)

    @property
    def noise_stddev(self) -> float:
        """σ of the noise on the mean gradient of a step."""
        return noise_stddev(self.noise_multiplier, self.clip_norm, self.num_users, self.batch_size)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bound on the excess risk assumes; privacy assumes none of it."""
        return (
            f"losses are convex and {float(self.clip_norm):.4g}-Lipschitz",
            f"every user has {self.items_per_user} items",
        )

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return _REPLACE

    @property
    def accounted(self) -> Any:
        """Whether the guarantee covers a run with these numbers; a bool, may be traced."""
        return positive_and_finite(self.noise_multiplier, self.clip_norm)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs."""
        mean = means.ClippedItems(
            self.chunk_size, self.scheme, self.clip_norm, self.noise_multiplier
        )
        step = mean.work_for(self.num_users, item) + _costs.method(item.dim)
        return step * self.num_steps + _costs.prepared(self.num_users, item)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where one is out of its range; may be traced."""
        return privacy.unbounded_unless(self.accounted, self._steps(self.noise_multiplier))

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of a run of these numbers, by the tightest accountant; infinite as ``loss`` is.

        Raises:
            ValueError: ``delta`` is not in (0, 1), or a number is none of its kind.
        """
        delta, multiplier = float(self.delta), float(self.noise_multiplier)
        if not bool(self.accounted):
            return privacy.Certificate(math.inf, delta, _REPLACE, "definition", _ASSUMES)
        if self.batch_size is None:
            releases = _planning.fixed_size(self.num_users, self.num_users, self.num_steps)
            return releases.certificate(multiplier, delta)
        epsilon = float(privacy.epsilon(self._steps(multiplier), delta))
        accountant = accounted_by("Rényi curves")
        return privacy.Certificate(epsilon, delta, _REPLACE, accountant, _ASSUMES)

    def _steps(self, multiplier: Any) -> privacy.PrivacyLoss:
        return run_loss(self.num_users, self.batch_size, self.num_steps, multiplier)

    def __str__(self) -> str:
        tight = self.constants == "tight"
        group = "all items change at once" if tight else "black box"
        return plans.describe(
            "item-level DP-SGD, for users", self, [("from items to users", group)]
        )


def item_budget(epsilon: float, delta: float, items_per_user: int) -> tuple[float, float]:
    """(ε₀, δ₀) for one item that group privacy makes (ε, δ) for all m items of a user.

    An (ε₀, δ₀) guarantee for one item is (m·ε₀, δ₀·(e^(mε₀) - 1)/(e^ε₀ - 1)) for m of them.

    Args:
        epsilon: for a user, positive.
        delta: for a user.
        items_per_user: m ≥ 1.

    Raises:
        ValueError: an argument is out of range.
    """
    _checks.require_positive("epsilon", epsilon)
    _checks.require_inside("delta", delta)
    items_per_user = _checks.require_count("items_per_user", items_per_user)
    each = epsilon / items_per_user
    return each, delta * math.expm1(each) / math.expm1(epsilon) if items_per_user > 1 else delta


def scheme(population: int, batch_size: int | None) -> privacy.FullBatch | privacy.WithReplacement:
    """How the users of a step are drawn: everybody, or with replacement."""
    if batch_size is None:
        return privacy.FullBatch()
    return privacy.WithReplacement(population, batch_size)


def run_loss(
    population: int, batch_size: int | None, num_steps: int, multiplier: Any
) -> privacy.PrivacyLoss:
    """What all steps cost: of plans, of their certificates, and what they are calibrated to."""
    step = scheme(population, batch_size).gaussian_loss(multiplier, _REPLACE)
    return privacy.scale(step, num_steps)


def noise_multiplier(
    population: int, batch_size: int | None, num_steps: int, epsilon: float, delta: float
) -> float:
    """The smallest multiplier that meets (ε, δ) for one of a population of users, or of items."""
    if batch_size is None:
        releases = _planning.fixed_size(population, population, num_steps)
        return releases.noise_multiplier(epsilon, delta, "pld")
    most = 2 * math.sqrt(num_steps) / delta
    # The ledger adds in float32 and rounds up: leave it the room.
    room = epsilon * (1 - 2e-5)
    start = rule_of_thumb(room, delta, num_steps, batch_size / population)

    def spent(multiplier: float) -> float:
        return float(
            privacy.epsilon(run_loss(population, batch_size, num_steps, multiplier), delta)
        )

    return _planning.float32_above(least_multiplier(spent, room, delta, start, most))


def noise_stddev(multiplier: Any, clip_norm: Any, num_users: int, batch_size: int | None) -> float:
    """Standard deviation of the noise on the mean gradient of a step."""
    return 2 * float(multiplier) * float(clip_norm) / (batch_size or num_users)
