"""Element-level DP-SGD: a record is one element of one user, and far less noise covers it than a user.

What it computes: every element of a user (a public cluster of items) has an update, the gradient mapping
(w - Π(w - η_t·g))/η_t of its mean gradient g, which is g where the domain is all of space. Updates are
clipped, summed over the units of a step, divided by q·num_users and covered with Gaussian noise; w moves
against the result by η_t = η or η/√(t + 1), is projected, and is averaged. It minimizes the mean over users
of the SUM over their elements of the mean loss of an element's items.

Source: E Algorithm 1 and (15), with the sign of descent (correction N13); Corollaries 3.1 and 3.2 (N14).

Formal guarantee: (ε, δ)-DP for one element of one user, at every point of the run, under REPLACE_ONE or,
with ``relation="zero_out"``, REPLACE_SPECIAL (an element replaced by nothing); which elements a user has is
protected too. Nothing is assumed of the loss: updates are clipped. How units are drawn and what that is worth
is in ``_releases``; drawing users in place of units amplifies little, and is charged for what it is worth
(N3). What follows for a user whole is printed: ``user_certificate``. ``protects="user"`` is the paper's
user-level baseline, the same update with noise for a user's capped sum; the fair one is a single element a
user. Assumed: the partition is public; the key and the samples stay secret.
Utility, E Proposition 3, for a clip norm that never clips, T/n → γ and m = batch_size (not proven here):
√n·(average - w*) → N(0, Q⁻¹(Σ_el + (1/γ)(Σ_m/m + s²·I/m²))Q⁻¹), with Q the Hessian and Σ_el the covariance
of a user's summed gradient, Σ_m = Σ_el under ``"user"`` and E Σ_k g_k·g_kᵀ under ``"element"``, and s the
standard deviation of the noise on the sum. Default steps, η = min(1/β, R/√(T·V)), are those of descent on a
smooth loss: for steps η ≤ 1/β, convex losses over all of space, a clip norm that never clips and users with
``typical_elements`` elements in the mean at most, E F(average) - F* ≤ a_T·(R²/(2η) + T·η·V·(1 + βη)/2), a_T =
1/T, or 4T/(T + 1)² for ``"polynomial"`` (docs/theory/smooth_average.md; under ``"element"`` and ``"full"``).

Cost: num_steps·batch_size·elements_per_user unit gradients; memory of one chunk of units, and
for linear models whose units are drawn of a second copy of the data, prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget, Problem
    >>> from dpsco_jax.problems import losses
    >>> from dpsco_jax.problems.objective import Example
    >>> from dpsco_jax.problems.elements import ElementData
    >>> from dpsco_jax.solvers.element_level import sgd
    >>> x, y = jax.random.normal(jax.random.key(0), (50, 4, 2, 3)), jax.numpy.ones((50, 4, 2))
    >>> objective, data = losses.logistic(1.0), ElementData(Example(x, y))
    >>> problem = Problem(objective, num_users=50, dim=3, items_per_user=8, distance=5.0)
    >>> plan = sgd.plan(problem, Budget(2.0, 1e-3), num_steps=20, elements_per_user=4, batch_size=10)
    >>> solution = sgd.solve(jax.random.key(1), plan, objective, data, jax.numpy.zeros(3))
    >>> solution.params.shape, plan.certificate().epsilon <= 2.0 < plan.user_certificate().epsilon
    ((3,), True)
"""

import math
from typing import Annotated, Any

import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Count, Positive, one_of
from dpsco_jax._pytrees import pytree
from dpsco_jax.problems import elements
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _costs, _plan_base, _planning, methods, plans
from dpsco_jax.solvers.element_level import _releases
from dpsco_jax.solvers.element_level._releases import ElementReleases
from dpsco_jax.solvers.element_level._unit_updates import UnitUpdates
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "plan", "solve"]

STEP_DECAYS = ("none", "sqrt")


@pytree
class Plan(FirstOrder):
    """A first-order run over units: data are ``ElementData``, or its units, ``elements.as_units``.

    Its sizes, ``batch_size`` and ``user_gradients`` among them, are in users, of K units each.
    """

    @property
    def num_users(self) -> int:
        """The number n of users."""
        return int(self.mean.releases.num_users)

    @property
    def num_units(self) -> int:
        """Rows of the data: users times elements."""
        return int(self.mean.releases.num_units)

    @property
    def unit_gradients(self) -> int:
        """Updates of units of the whole run, empty units included; the expected number under sampling."""
        return self.user_gradients * int(self.mean.releases.elements_per_user)

    @property
    def item_gradients(self) -> int | None:
        """Item gradients of the whole run; ``None`` where m is not known."""
        known = self.made_for
        return None if known is None else self.user_gradients * self.mean.passes * known.item.slots

    @property
    def signal_to_noise(self) -> Any:
        """How long the mean update is at most, over how long the noise on it is: below 1 noise leads.

        All units agree at best: q·n·K clip norms, or those of capped users, against σ·√dim.
        """
        releases = self.mean.releases
        users = releases.longest if releases.sums_users else float(releases.elements_per_user)
        return users * self.mean.clip_norm / (self.noise_stddev * math.sqrt(self.dim))

    def records(self, data: Any) -> Any:
        """The units of the data, user by user; ``ValueError`` unless users and slots are as planned."""
        if not isinstance(data, ElementData):
            return data
        # n·K alone does not tell them apart.
        found = elements.num_users(data), elements.num_slots(data)
        planned = self.num_users, self.mean.releases.elements_per_user
        _checks.require(
            found == planned, "data", found, f"of {planned} users and slots, as planned"
        )
        return elements.as_units(data)

    def gradients(self, slots: int) -> int:
        """Item gradients of the whole run on data with so many item slots a unit."""
        return self.unit_gradients * int(self.mean.passes) * slots

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs."""
        return (self.mean.work_for(item) + _costs.method(item.dim)) * self.num_steps

    def user_certificate(self, elements: int | None = None) -> privacy.Certificate:
        """What follows for a user, of whom ``elements`` elements change at once; all K if left out.

        Raises:
            ValueError: if ``elements`` is not in [1, K], or there is no certificate.
        """
        _planning.require_accounted_length("clip_norm", self.mean.clip_norm, self.noise_stddev)
        return _releases.user_certificate(self.mean.releases, elements)

    def __str__(self) -> str:
        try:
            whole, slots = self.user_certificate(), self.mean.releases.elements_per_user
            user = f"({whole.epsilon:.5g}, {whole.delta:.5g}) for all {slots} elements"
        except (ValueError, TypeError) as refusal:  # of edited numbers, or of a batch of plans
            user = f"none: {refusal}"
        rows = [("user level", user)]
        if np.ndim(self.signal_to_noise) == 0:
            ratio = float(self.signal_to_noise)
            low = "; BELOW 1: a step is mostly noise, whatever the data" if not ratio >= 1 else ""
            rows.append(("signal to noise", f"{ratio:.4g} of one step at best{low}"))
        return plans.describe(self.title, self, rows)


@_plan_base.remembers(least_users=1)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: Count,
    elements_per_user: Count,
    batch_size: int | None = None,
    sampling: str = "element",
    relation: str = "replace",
    protects: str = "element",
    cap: float = math.inf,
    clip_norm: Positive | None = None,
    step_size: Positive | None = None,
    typical_elements: Positive | None = None,
    step_decay: Annotated[str, one_of(*STEP_DECAYS)] = "none",
    averaging: methods.Averaging = "polynomial",
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the Lipschitz constant, domain and ridge, n, the number of parameters, and the distance
            R, which is needed for the step size only.
        budget: (ε, δ) of the run for one element, δ > 0.
        num_steps: T ≥ 1.
        elements_per_user: K ≥ 1, slots of a user in the data.
        batch_size: q·n in [1, n]: every unit, or user, is drawn with probability batch_size/n, or
            batch_size·K units are; to be left out for ``"full"`` only.
        sampling: ``"element"``, ``"user"``, ``"fixed"`` (units, without replacement) or ``"full"``.
        relation: ``"replace"``, or ``"zero_out"``, which halves the sensitivity and for which nothing is
            proven under ``"fixed"``, nor under ``"user"`` unless users are protected whole.
        protects: ``"element"``, or ``"user"``, with ``"user"`` or ``"full"`` sampling.
        cap: bound on a user's summed update in clip norms, in [1, ∞]; at most K counts. For sampled or
            protected users only.
        clip_norm: the objective's Lipschitz constant if left out.
        step_size: η. If left out min(1/β, R/√(T·V)), with T = 1 for the first of decaying steps: β is the
            smoothness of a user's sum, and V bounds the variance of a mean update, noise included; for losses
            that are not smooth R/√(T·V) alone, with the square of a mean update in V.
        typical_elements: how many elements a user has, a public guess in (0, K] on which the default of
            ``step_size`` rests, and nothing else; K if left out.
        step_decay: ``"none"``, or ``"sqrt"``: η/√(t + 1) for t = 0, 1, ...
        averaging: ``"uniform"``, ``"polynomial"`` or ``"last"``.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: units whose updates are held at once.

    Raises:
        ValueError: an argument is out of range, nothing is proven of the sampling under the relation, or the
            step size is left out and R is not finite.
    """
    slots = elements_per_user
    _releases.require_proven(sampling, relation, protects, cap)
    everybody, users = sampling == "full", problem.num_users
    size = users if everybody and batch_size is None else batch_size
    size = _checks.require_integer("batch_size", size, users if everybody else 1, users)
    held = float(slots if typical_elements is None else typical_elements)
    _checks.require(held <= slots, "typical_elements", held, f"in (0, {slots}]")
    clip_norm = problem.lipschitz if clip_norm is None else clip_norm
    clip_norm = _checks.require_real("clip_norm", clip_norm, 0)
    sizes = (users, slots, size, num_steps, sampling, relation, protects, float(cap))
    steps = ElementReleases(*sizes, noise_multiplier=1.0, delta=budget.delta).steps
    multiplier = steps.noise_multiplier(budget.epsilon, budget.delta, accountant)
    releases = ElementReleases(*sizes, noise_multiplier=multiplier, delta=budget.delta)
    if step_size is None:
        steps_alike = num_steps if step_decay == "none" else 1
        step_size = _default_step_size(problem, releases, clip_norm, steps_alike, held)
    step_size = _checks.require_real("step_size", step_size, 0)
    return Plan(
        title="element-level DP-SGD",
        dim=problem.dim,
        mean=UnitUpdates(chunk_size, releases, clip_norm),
        method=methods.ProjectedSgd(step_size, averaging, step_decay),
        pull=None,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=math.inf,
    )


def _default_step_size(
    problem: Problem, releases: ElementReleases, clip_norm: float, num_steps: int, held: float
) -> float:
    """η = min(1/β, R/√(T·V)) for a smooth loss; R/√(T·(V + slope²)) for one that is not.

    β is the smoothness of the sum over ``held`` elements, with the ridge; V bounds the variance of a mean
    update: its noise, and who takes part; slope bounds the mean update itself, which descent on a smooth loss
    does not pay for.

    Args:
        problem: for R, the number of parameters, smoothness and ridge.
        releases: of the run.
        clip_norm: C.
        num_steps: T; 1 for the first of decaying steps.
        held: elements that a user has, typically: a public number.

    Raises:
        ValueError: if R is not finite.
    """
    objective, distance = problem.objective, problem.require_distance()
    noise = float(releases.noise_multiplier) * releases.per_clip_norm * clip_norm
    longest = min(releases.longest, held) if releases.sums_users else held
    # The number of those who take part is random, or which they are, and the divisor is not.
    kept = 1 - releases.batch_size / releases.num_users
    together = longest**2 if releases.sampling == "user" else held
    variance = problem.dim * noise**2 + kept * together * clip_norm**2 / releases.batch_size
    if objective.smoothness is None:
        slope = longest * clip_norm
        slope += float(objective.ridge) * problem.farthest if objective.ridge else 0.0
        return distance / math.sqrt(num_steps * (variance + slope**2))
    smoothness = held * float(objective.smoothness) + float(objective.ridge)
    stable = 1 / smoothness if smoothness else math.inf
    return min(stable, distance / math.sqrt(num_steps * variance))
