"""The private mean of items that are sampled one by one, with a guarantee for users whole.

What it computes: every item of everybody takes part in a step with probability q = B/(N·k), independently;
its gradient is clipped; the sum over B, a public number, is covered with Gaussian noise.

Source: Charles et al. 2024 (DP-SGD with example-level sampling).

Formal guarantee: ADD_OR_REMOVE_ONE and REPLACE_SPECIAL, for users with at most k items: of j items drawn of
one user the sum moves by at most j·C, in whatever directions, and j is binomial (docs/theory/mixtures.md,
section 8). Data are taken only with exactly k slots a user, and with N users. A slot without an item adds
nothing, and so does an item whose gradient is not finite.

Cost: B item gradients a step, in expectation; memory of one chunk of items.
"""

from typing import Any

import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy, transforms
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import sampling, user_gradients
from dpsco_jax.privacy.item_sampling import PoissonItems
from dpsco_jax.privacy.releases import GaussianSteps
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _costs, _planning
from dpsco_jax.solvers.means import Opened
from dpsco_jax.solvers.work import Work

_SECRET = "the key and the items sampled in each step stay secret"
RELATIONS = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)


@pytree
class ItemReleases:
    """Gaussian releases of sums over sampled items; sizes are static, numbers leaves.

    Attributes:
        num_users: N.
        items_per_user: k, the most items that a user has.
        batch_size: B, the expected number of items of a step if nobody has fewer than k.
        num_steps: T.
        relation: ADD_OR_REMOVE_ONE or REPLACE_SPECIAL, of a user with all items.
        noise_multiplier: σ over the clip norm of an item.
        delta: δ of the certificate.
    """

    num_users: int = static()
    items_per_user: int = static()
    batch_size: int = static()
    num_steps: int = static()
    relation: NeighboringRelation = static()
    noise_multiplier: Number
    delta: Number

    @property
    def steps(self) -> GaussianSteps:
        """Who takes part in the steps, and how many there are.

        Raises:
            ValueError: if a size is out of range, or nothing is proven under the relation.
        """
        users = _checks.require_count("num_users", self.num_users)
        items = _checks.require_count("items_per_user", self.items_per_user)
        slots = users * items
        batch = _checks.require_integer("batch_size", self.batch_size, 1, slots)
        num_steps = _checks.require_count("num_steps", self.num_steps)
        _checks.require_relation("relation", self.relation, RELATIONS)
        return GaussianSteps(PoissonItems(batch / slots, items), self.relation, num_steps)

    def loss(self) -> privacy.PrivacyLoss:
        """What all releases cost, as the ledger of ``privatize`` will have it."""
        return self.steps.loss(self.noise_multiplier)

    def certificate(self) -> privacy.Certificate:
        """The guarantee of the run, for a user whole.

        Raises:
            ValueError: if a number is out of its range, or is an array, of a batch of plans.
        """
        _checks.require_real("noise_multiplier", self.noise_multiplier, 0.0, closed=True)
        made = self.steps.certificate(self.noise_multiplier, self.delta)
        differ = f"neighbours differ in one user, with at most {self.items_per_user} items"
        return made._replace(assumptions=(_SECRET, differ))


@pytree
class SampledItems:
    """Gradients of sampled items clipped one by one, summed, divided by a public number.

    Attributes:
        chunk_size: items whose gradients are held at once.
        releases: sampling, relation and noise of all steps.
        clip_norm: C, of an item.
    """

    chunk_size: int = static()
    releases: ItemReleases
    clip_norm: Number

    def loss(self) -> privacy.PrivacyLoss:
        """What all releases cost; infinite for no clip norm or no noise. Numbers may be traced."""
        return _planning.bounded_loss(self.clip_norm, self.noise_stddev(1), self.releases)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of all releases by the tightest accountant; ``ValueError`` for no positive clip norm."""
        _planning.require_accounted_length("clip_norm", self.clip_norm, self.noise_stddev(1))
        return self.releases.certificate()

    def noise_stddev(self, dim: int) -> Any:
        """σ of the noise on each coordinate of the mean, whatever their number ``dim``.

        Raises:
            ValueError: if a size of the releases is out of range.
        """
        del dim
        self.releases.steps  # noqa: B018 (a plan may have been edited to a size of 0)
        return self.releases.noise_multiplier * self.clip_norm / self.releases.batch_size

    def work_for(self, item: _costs.Item) -> Work:
        """What one release costs: every item is drawn, and clipped, by itself."""
        drawn = self.releases.batch_size
        slots = self.releases.num_users * self.releases.items_per_user
        summed = _costs.clipped_sum(drawn, item._replace(slots=1))
        return _costs.poisson_sample(slots, drawn) + summed + _costs.release(item.dim)

    def open(self, key: jax.Array, objective: Objective, data: UserData, start: Any) -> Opened:
        """Oracle, data and release of a run from ``start``; the key is that of the noise.

        Raises:
            ValueError: if the data have not the number of users, or of slots, that the releases are for.
        """
        _planning.require_accounted(self.releases.num_users, data)
        scheme, relation, _ = self.releases.steps
        require_slots(self.releases.items_per_user, data)
        total = self.releases.num_users * self.releases.items_per_user
        # Every slot is a user with one item: drawn, and clipped, by itself.
        items = jax.tree.map(lambda leaf: leaf.reshape(total, 1, *leaf.shape[2:]), data)
        rate = float(np.asarray(scheme.probability))  # type: ignore[union-attr]
        oracle, rows = user_gradients.clipped_sum_oracle(
            objective,
            items,
            start,
            self.clip_norm,
            lambda draw_key: sampling.poisson(draw_key, total, rate),
            self.chunk_size,
        )
        aggregate = transforms.summed_contributions(
            self.clip_norm, self.releases.batch_size, relation
        )
        release = transforms.privatize(aggregate, key, self.releases.noise_multiplier, scheme)
        return Opened(oracle, rows, release)


def require_slots(items_per_user: int, data: UserData) -> None:
    """``ValueError`` unless every user has as many slots as items were accounted for: never more."""
    found = sorted({leaf.shape[1] for leaf in jax.tree.leaves(data)})
    good = found == [items_per_user]
    _checks.require(good, "data", found, f"of {items_per_user} item slots a user, as accounted for")
