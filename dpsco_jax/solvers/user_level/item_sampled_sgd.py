"""DP-SGD that samples items, not users, with a guarantee for users: example-level sampling.

What it computes: in each step every item of every user takes part with probability q = B/(N·k),
independently; the gradients of these items are clipped one by one, summed, divided by B and covered with
Gaussian noise; the parameters move against the result, are projected onto the domain and averaged.

Source: Charles et al. 2024, "Fine-tuning large language models with user-level differential privacy"
(DP-SGD-ELS). ``sgd`` with Poisson sampling is its DP-SGD-ULS; ``sampling_choice`` says which has less noise.

Formal guarantee: (ε, δ)-DP for a user's whole data, at every point of the run, under ADD_OR_REMOVE_ONE or
REPLACE_SPECIAL. A user has at most k items, the public number of slots, which is enforced by the shape of
the data; how many are drawn is binomial, and j of them move the sum by at most j·C in whatever directions
(docs/theory/mixtures.md, section 8). The noise multiplier is over C, for ONE item. Nothing is assumed of
the loss: gradients are clipped. Nothing is proven here for a user who is replaced by another. Assumed: the
key and the samples stay secret; which of a user's items are kept, where there are more than k, was decided
by a rule that looks at that user alone (``tables.from_rows``).
Utility, for uniform averaging, no ridge, a convex loss, clip_norm ≥ its Lipschitz constant and k items for
every user: E F(average) - F* ≤ (1 + 1/(2T))·R·√(V/T), V = clip_norm²·(1 + (1 - q)/B) + dim·(σ·clip_norm/B)².
Users with fewer items weigh less: F is the sum over all items over N·k.

Data are taken only with exactly k slots a user, and with N users. A slot without an item adds nothing, and so
does an item whose gradient is not finite.

Cost: num_steps·batch_size item gradients, in expectation; memory of one chunk of item gradients. A
calibration by ``"pld"`` takes several seconds.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import item_sampled_sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> sizes = {"num_steps": 20, "batch_size": 20, "accountant": "rdp"}
    >>> plan = item_sampled_sgd.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), **sizes)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: item_sampled_sgd.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

from typing import Annotated, Any

import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy, transforms
from dpsco_jax._argument_kinds import Count, Kind, Positive
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import sampling, user_gradients
from dpsco_jax.privacy.releases import GaussianSteps
from dpsco_jax.privacy.sampling import PoissonItems
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _averaged_steps, _costs, _plan_base, _planning, methods
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.means import OfLength, Opened
from dpsco_jax.solvers.work import Work

__all__ = ["ItemReleases", "SampledItems", "plan", "solve"]

_SECRET = "the key and the items sampled in each step stay secret"
RELATIONS = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)
_Relation = Annotated[NeighboringRelation, Kind(_checks.require_relation, (RELATIONS,))]


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
    def population_size(self) -> int:
        """N."""
        return self.num_users

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
class SampledItems(OfLength):
    """Gradients of sampled items clipped one by one, summed, divided by a public number.

    Attributes:
        chunk_size: items whose gradients are held at once.
        releases: sampling, relation and noise of all steps.
        clip_norm: C, of an item.
    """

    chunk_size: int = static()
    releases: ItemReleases
    clip_norm: Number

    kind = ItemReleases
    items_per_record = 1
    """What is drawn is an item, and no user."""

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
        """See ``Mean.open``; ``ValueError`` also unless users have as many slots as the releases are for."""
        _planning.require_accounted(self.releases.num_users, data)
        scheme, relation, _ = self.releases.steps
        _require_slots(self.releases.items_per_user, data)
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


@_plan_base.remembers(least_users=1)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: Count,
    batch_size: int,
    clip_norm: Positive | None = None,
    step_size: Positive | None = None,
    averaging: methods.Averaging = "uniform",
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
    relation: _Relation = NeighboringRelation.ADD_OR_REMOVE_ONE,
) -> FirstOrder:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the Lipschitz constant, domain and ridge, N, the number of parameters, k = m, which must
            be the number of item slots of a user, and the distance R, needed for the step size only.
        budget: (ε, δ) of the run, δ > 0, for a user with all items.
        num_steps: T ≥ 1.
        batch_size: B, items of a step in expectation, in [1, N·k].
        clip_norm: of an item's gradient; the objective's Lipschitz constant if left out.
        step_size: R/√(T·V) if left out.
        averaging: ``"uniform"``, ``"polynomial"`` or ``"last"``.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: items whose gradients are held at once.
        relation: ADD_OR_REMOVE_ONE or REPLACE_SPECIAL.

    Raises:
        ValueError: an argument is out of range, or the step size is left out and R is not finite.
    """
    slots = problem.num_users * problem.items_per_user
    batch_size = _checks.require_integer("batch_size", batch_size, 1, slots)
    clip_norm = problem.lipschitz if clip_norm is None else clip_norm
    clip_norm = _checks.require_real("clip_norm", clip_norm, 0)
    sizes = (problem.num_users, problem.items_per_user, batch_size, num_steps, relation)
    steps = ItemReleases(*sizes, noise_multiplier=1.0, delta=budget.delta).steps
    multiplier = steps.noise_multiplier(budget.epsilon, budget.delta, accountant)
    mean = SampledItems(chunk_size, ItemReleases(*sizes, multiplier, budget.delta), clip_norm)
    step_size, excess_bound = _averaged_steps.step_and_bound(
        problem,
        num_steps=num_steps,
        batch_size=batch_size,
        rate=batch_size / slots,
        clip_norm=clip_norm,
        noise_stddev=mean.noise_stddev(problem.dim),
        step_size=step_size,
        averaging=averaging,
    )
    return FirstOrder(
        title="item-sampled DP-SGD, for users",
        dim=problem.dim,
        mean=mean,
        method=methods.ProjectedSgd(step_size, averaging),
        pull=None,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=excess_bound,
    )


def _require_slots(items_per_user: int, data: UserData) -> None:
    """``ValueError`` unless every user has as many slots as items were accounted for: never more."""
    found = sorted({leaf.shape[1] for leaf in jax.tree.leaves(data)})
    good = found == [items_per_user]
    _checks.require(good, "data", found, f"of {items_per_user} item slots a user, as accounted for")
