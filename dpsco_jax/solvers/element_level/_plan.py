"""The plan of first-order runs over units: sizes, noise, what it costs for an element and for a user whole.

Loss, certificates, sensitivity and divisor are functions of the fields that run, so that an edited plan says
what the edited run costs.
"""

import math
from typing import Any

import numpy as np

from dpsco_jax import privacy
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _costs, _planning
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.element_level import _releases
from dpsco_jax.solvers.element_level._releases import ElementReleases
from dpsco_jax.solvers.work import Work


@pytree
class UnitPlan(MadeFor):
    """Of a run over units. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        elements_per_user: K, slots of a user.
        dim: number of parameters.
        num_steps: T.
        batch_size: q·n, the divisor of a step: users, or users' worth of units, of which a step sees
            ``elements_per_user`` times as many, in expectation unless their number is fixed.
        sampling: ``"element"``, ``"user"``, ``"fixed"`` or ``"full"``.
        relation: ``"replace"`` or ``"zero_out"``.
        protects: ``"element"``, or ``"user"``.
        cap: bound on a user's summed update, in clip norms.
        chunk_size: units whose updates are held at once.
        noise_multiplier: σ over the ℓ2 sensitivity of the sum: 2·``clip_norm``, or ``clip_norm`` for
            ``"zero_out"``; ``cap`` times that for ``protects="user"``.
        clip_norm: ρ, bound on the update of a unit.
        step_size: η, or η of the first step.
        epsilon: ε of the budget that the noise was calibrated for.
        delta: δ of that budget.
    """

    num_users: int = static()
    elements_per_user: int = static()
    dim: int = static()
    num_steps: int = static()
    batch_size: int = static()
    sampling: str = static(choices=_releases.SAMPLING)
    relation: str = static(choices=tuple(_releases.RELATIONS))
    protects: str = static(choices=_releases.PROTECTS)
    cap: float = static()
    chunk_size: int = static()
    noise_multiplier: Number
    clip_norm: Number
    step_size: Number
    epsilon: Number
    delta: Number

    def __post_init__(self) -> None:
        _releases.require_proven(self.sampling, self.relation, self.protects, self.cap)

    @property
    def num_units(self) -> int:
        """Rows of the data: users times elements."""
        return self.num_users * self.elements_per_user

    @property
    def releases(self) -> ElementReleases:
        """The private releases of the run."""
        return ElementReleases(
            num_users=self.num_users,
            elements_per_user=self.elements_per_user,
            batch_size=self.batch_size,
            num_steps=self.num_steps,
            sampling=self.sampling,
            relation_name=self.relation,
            protects=self.protects,
            cap=self.cap,
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
        )

    @property
    def noise_stddev(self) -> Any:
        """σ of the noise on each coordinate of the mean update."""
        return self.noise_multiplier * self.releases.per_clip_norm * self.clip_norm

    @property
    def signal_to_noise(self) -> Any:
        """How long the mean update is at most, over how long the noise on it is: below 1 noise leads.

        All units agree at best: q·n·K clip norms, or those of capped users, against σ·√dim.
        """
        users = self.releases.longest if self.releases.sums_users else float(self.elements_per_user)
        return users * self.clip_norm / (self.noise_stddev * math.sqrt(self.dim))

    @property
    def unit_gradients(self) -> int:
        """Unit gradients of the whole run, empty units included; the expected number under sampling."""
        return self.num_steps * self.batch_size * self.elements_per_user

    def work_for(self, item: _costs.Item, passes: int = 1) -> Work:
        """What the whole run costs, if an update takes so many gradients."""
        # Items are those of a user, and units share them.
        items = max(1, round(item.slots / self.elements_per_user))
        units = self.batch_size * self.elements_per_user
        updates = _costs.clipped_losses(units, item._replace(slots=items), passes)
        step = updates + _costs.release(item.dim)
        step += _costs.poisson_sample(self.num_units, units) + _costs.method(item.dim)
        return step * self.num_steps

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs; may be traced. Infinite for no clip norm or no noise."""
        return _planning.bounded_loss(self.clip_norm, self.noise_stddev, self.releases)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run by the tightest accountant, for one element of one user."""
        _planning.require_accounted_length("clip_norm", self.clip_norm, self.noise_stddev)
        return self.releases.certificate()

    def user_certificate(self, elements: int | None = None) -> privacy.Certificate:
        """What follows for a user, of whom ``elements`` elements change at once; all K if left out.

        Raises:
            ValueError: if ``elements`` is not in [1, K], or there is no certificate.
        """
        _planning.require_accounted_length("clip_norm", self.clip_norm, self.noise_stddev)
        return _releases.user_certificate(self.releases, elements)

    def remarks(self) -> list[tuple[str, str]]:
        """The lines of the printed plan that its fields do not say."""
        try:
            whole = self.user_certificate()
            user = f"({whole.epsilon:.5g}, {whole.delta:.5g}) for all {self.elements_per_user} elements"
        except (ValueError, TypeError) as refusal:  # of edited numbers, or of a batch of plans
            user = f"none: {refusal}"
        rows = [("user level", user)]
        if np.ndim(self.signal_to_noise) == 0:
            ratio = float(self.signal_to_noise)
            low = "; BELOW 1: a step is mostly noise, whatever the data" if not ratio >= 1 else ""
            rows.append(("signal to noise", f"{ratio:.4g} of one step at best{low}"))
        return rows


def default_step_size(
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
