"""Which has less noise at the same cost: to sample items, or users with some of their items.

What it computes: for both samplings, and for every number k of items that are kept of a user, the variance of
the private gradient of one step, at B item gradients a step in expectation and one clip norm C:

- items (``item_sampled_sgd``): each of N·k items with q = B/(N·k), clipped one by one, over B;
- users (``sgd``, Poisson): each of N users with q = B/(N·k), the mean of k items clipped, over q·N = B/k.

With σ the noise multiplier that T such steps need for (ε, δ), which is over C in both, noise is dim·(σC/B)²
and dim·(σC·k/B)². Who takes part adds (1 - q)·C²/B, and (1 - q)·C²·ℓ²·k/B where ℓ² = ρ + (1 - ρ)/k is the
square of the length of a user's mean of k items over that of one: ρ in [0, 1] is the correlation of two
items of a user, 1 if they are all alike. Items that are left out, k of m ≥ k being in the data, move the
gradient that is estimated: (1 - ρ)(1/k - 1/m)·C²/N in both (drawing k others of a user anew in each
step, as the authors do, is not what ``sgd`` does). The signal is the same: the mean gradient of all items,
of length C or less.

Source: Charles et al. 2024, section 4 (the comparison, of noise alone) and 5 (means with users who differ).

Formal guarantee: none for data; the multipliers are those of the private solvers, for a user whole under
ADD_OR_REMOVE_ONE. The variances are exact for gradients of length C with that correlation, and bounds for
shorter ones.

Cost: a calibration for every number of items and sampling: several seconds each by ``"pld"``, a fraction of
one by ``"rdp"``.

Example:
    >>> from dpsco_jax import Budget, Problem
    >>> from dpsco_jax.problems import losses
    >>> from dpsco_jax.solvers.user_level import sampling_choice
    >>> problem = Problem(losses.logistic(1.0), num_users=1000, dim=100, items_per_user=8)
    >>> sizes = {"num_steps": 100, "batch_size": 64, "accountant": "rdp", "kept": (1, 8)}
    >>> plan = sampling_choice.plan(problem, Budget(1.0, 1e-5), **sizes)
    >>> [round(choice.noise, 2) for choice in plan.choices]  # items and users, of 1 item and of 8
    [0.2, 0.2, 0.24, 1.68]
"""

import math
from typing import Annotated, NamedTuple

from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Count, Kind, checked, one_of
from dpsco_jax.privacy.releases import GaussianSteps
from dpsco_jax.privacy.sampling import Poisson, PoissonItems
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _planning, plans

__all__ = ["Choice", "Plan", "plan"]

SAMPLINGS = ("items", "users")
CLIPS = ("equal", "fitted")
_ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


class Choice(NamedTuple):
    """One way to spend B item gradients a step; variances are of the whole vector, over C².

    Attributes:
        sampling: ``"items"`` or ``"users"``: what is sampled, and clipped.
        items_per_user: k, of each user.
        rate: q, with which an item, or a user, takes part.
        noise_multiplier: σ over the clip norm.
        clip_norm: of the user's mean over that of an item; 1 but for ``"fitted"``.
        noise: variance of what is added for privacy.
        sample: variance of who takes part.
        left_out: squared error by items that are not in the data.
    """

    sampling: str
    items_per_user: int
    rate: float
    noise_multiplier: float
    clip_norm: float
    noise: float
    sample: float
    left_out: float

    @property
    def variance(self) -> float:
        """Mean squared error of one step's gradient, over C²."""
        return self.noise + self.sample + self.left_out

    @property
    def noise_stddev_per_signal(self) -> float:
        """Standard deviation of the noise, over all coordinates together, over a gradient of length C."""
        return math.sqrt(self.noise)


class Plan(NamedTuple):
    """All choices, the best one of each sampling, and which has less noise.

    Attributes:
        num_users: N.
        items_per_user: m, that users have.
        dim: number of parameters.
        num_steps: T.
        batch_size: B, item gradients of a step in expectation.
        correlation: ρ.
        clip: ``"equal"`` or ``"fitted"``.
        epsilon: of the budget.
        delta: of the budget.
        choices: every sampling with every number of items.
    """

    num_users: int
    items_per_user: int
    dim: int
    num_steps: int
    batch_size: int
    correlation: float
    clip: str
    epsilon: float
    delta: float
    choices: tuple[Choice, ...]

    @property
    def items(self) -> Choice:
        """The best way of sampling items."""
        return self._least("items")

    @property
    def users(self) -> Choice:
        """The best way of sampling users."""
        return self._least("users")

    @property
    def best(self) -> Choice:
        """The one of smaller variance."""
        return min(self.items, self.users, key=lambda choice: choice.variance)

    def _least(self, sampling: str) -> Choice:
        found = [choice for choice in self.choices if choice.sampling == sampling]
        return min(found, key=lambda choice: choice.variance)

    def __str__(self) -> str:
        variances = "noise", "sample", "left out", "sum"
        rows: list[tuple[str, ...]] = [("sampled", "k", "rate", "σ/C", "noise/signal", *variances)]
        for choice in self.choices:
            name = choice.sampling + (" *" if choice is self.best else "")
            numbers = (
                choice.rate, choice.noise_multiplier, choice.noise_stddev_per_signal,
                choice.noise, choice.sample, choice.left_out, choice.variance,
            )  # fmt: skip
            rows.append((name, str(choice.items_per_user), *(f"{x:.4g}" for x in numbers)))
        title = (
            f"{self.num_users} users of {self.items_per_user} items, {self.dim} parameters: "
            f"{self.num_steps} steps of {self.batch_size} item gradients for "
            f"({self.epsilon:g}, {self.delta:g}); correlation {self.correlation:g}, {self.clip} clip norms"
        )
        return "\n".join([title, *("  " + line for line in plans.aligned(rows))])


@checked
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: Count,
    batch_size: int,
    correlation: Annotated[float, Kind(_checks.require_share)] = 1.0,
    clip: Annotated[str, one_of(*CLIPS)] = "equal",
    kept: tuple[int, ...] | None = None,
    accountant: _planning.Accountant = "pld",
) -> Plan:
    """Both samplings at the same expected number of item gradients a step, with every number of items kept.

    Args:
        problem: for N, the number of parameters, and m, the items that every user has.
        budget: (ε, δ) of the run, δ > 0, for a user with all items.
        num_steps: T ≥ 1.
        batch_size: B, item gradients of a step in expectation, in [1, N·m].
        correlation: ρ in [0, 1] of two items of a user, a public guess.
        clip: ``"equal"``, C for items and for users' means; or ``"fitted"``, C·ℓ for means of k items,
            which are no longer than that if ρ is true, so that the noise on them is smaller.
        kept: numbers k of items of a user, each in [1, m]; the powers of two and m if left out. A k at
            which N·k < B is left out.
        accountant: ``"pld"`` or ``"rdp"``.

    Raises:
        ValueError: an argument is out of range, or no k in ``kept`` leaves B items.
    """
    problem, budget = _planning.require_request(problem, budget, least_users=1)
    users, items = problem.num_users, problem.items_per_user
    batch_size = _checks.require_integer("batch_size", batch_size, 1, users * items)
    counts = _kept(kept, items)
    able = [k for k in counts if users * k >= batch_size]
    _checks.require(bool(able), "kept", counts, f"with some k of at least {batch_size / users:.4g}")
    choices = []
    for k in able:
        rate = batch_size / (users * k)
        length = math.sqrt(correlation + (1.0 - correlation) / k)
        left_out = (1.0 - correlation) * (1.0 / k - 1.0 / items) / users
        for sampling in SAMPLINGS:
            whole = sampling == "users"
            scheme = Poisson(rate) if whole else PoissonItems(rate, k)
            steps = GaussianSteps(scheme, _ADD, num_steps)
            multiplier = steps.noise_multiplier(budget.epsilon, budget.delta, accountant)
            norm = length if whole and clip == "fitted" else 1.0
            divisor = batch_size / k if whole else batch_size
            choices.append(
                Choice(
                    sampling=sampling,
                    items_per_user=k,
                    rate=rate,
                    noise_multiplier=multiplier,
                    clip_norm=norm,
                    noise=problem.dim * (multiplier * norm / divisor) ** 2,
                    sample=(1.0 - rate) * (length**2 if whole else 1.0) / divisor,
                    left_out=left_out,
                )
            )
    return Plan(
        num_users=users,
        items_per_user=items,
        dim=problem.dim,
        num_steps=num_steps,
        batch_size=batch_size,
        correlation=correlation,
        clip=clip,
        epsilon=budget.epsilon,
        delta=budget.delta,
        choices=tuple(choices),
    )


def _kept(kept: tuple[int, ...] | None, items: int) -> tuple[int, ...]:
    if kept is None:
        return tuple(sorted({items, *(2**i for i in range(items.bit_length()))}))
    good = isinstance(kept, tuple | list) and len(kept) > 0
    _checks.require(good, "kept", kept, "numbers of items, one or more")
    return tuple(sorted({_checks.require_integer("kept", k, 1, items) for k in kept}))
