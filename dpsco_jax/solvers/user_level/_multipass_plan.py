"""The plan of multi-pass SGD on outlier-removed means: its numbers, its cost, its table.

Source: U, Algorithm 2. See ``multipass_sgd``, which makes it.

Formal guarantee: ``loss`` and ``certificate`` hold for what ``multipass_sgd.solve`` releases, under
REPLACE_ONE, whenever the run halts; assumed: the key stays secret.

Cost: none.
"""

import math
from typing import Any

from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.concentrated import threshold_phase
from dpsco_jax.privacy.releases import GaussianReleases
from dpsco_jax.solvers import _planning, means, plans
from dpsco_jax.solvers._by_mean import ByMean

SMOOTHING = ("none", "per_item", "per_round")


@pytree
class Plan(ByMean):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        items_per_user: m; enters the bound and the default radius, not privacy.
        dim: number of parameters.
        constants: ``"tight"`` or ``"paper"``.
        smoothing: ``"none"``, ``"per_item"`` or ``"per_round"``.
        on_halt: ``"start"`` or ``"average"``.
        chunk_size: users whose items are read at once.
        reach: of ``concentrated_mean``, in radii: no honest gradient is farther from the origin.
        releases: ``ConcentratedReleases`` of the outlier-removed means; ``GaussianReleases`` of clipped ones
            where the radius would test nothing. They hold n, T and the noise.
        clipped_multiplier: σ over the sensitivity 2G/n that clipped means would need, for the table.
        radius: τ, a bound on the distance of users' gradients from their mean; the score counts pairs that
            are within twice as much of each other.
        clip_norm: G.
        step_size: γ.
        smoothing_radius: r, zero without smoothing.
        epsilon: ε of the budget.
        delta: δ of the budget.
        failure: probability, for users whose gradients are within the radius, that the run halts.
        concentration_failure: bound on the probability that some user's are not, for i.i.d. items.
        excess_bound: proven bound on the expected excess population risk, ``inf`` where none applies.
        stability_bound: the part of it that is not excess empirical risk.
    """

    items_per_user: int = static()
    dim: int = static()
    constants: str = static(choices=("tight", "paper"))
    smoothing: str = static(choices=SMOOTHING)
    on_halt: str = static(choices=("start", "average"))
    chunk_size: int = static()
    reach: float = static()
    releases: Any
    clipped_multiplier: Number
    radius: Number
    clip_norm: Number
    step_size: Number
    smoothing_radius: Number
    epsilon: Number
    delta: Number
    failure: Number
    concentration_failure: Number
    excess_bound: Number
    stability_bound: Number

    def __post_init__(self) -> None:
        _planning.require_replacement(self.releases)

    @property
    def num_users(self) -> int:
        """N."""
        return self.releases.population_size

    @property
    def num_steps(self) -> int:
        """T."""
        return self.releases.num_steps

    @property
    def clipped(self) -> bool:
        """Whether the mean is that of clipped gradients, as the radius would test nothing."""
        return isinstance(self.releases, GaussianReleases)

    @property
    def mean(self) -> means.Clipped | means.OutlierRemoved:
        """Of the users' gradients of a step."""
        radius = None if self.smoothing == "none" else self.smoothing_radius
        by_round = self.smoothing == "per_round"
        if self.clipped:
            shift = "round" if by_round else "user"
            return means.Clipped(self.chunk_size, shift, self.releases, self.clip_norm, radius)
        return means.OutlierRemoved(
            chunk_size=self.chunk_size,
            reach=self.reach,
            shift="round" if by_round else "item",
            releases=self.releases,
            score_radius=2 * self.radius,
            clip_norm=self.clip_norm,
            smoothing_radius=radius,
        )

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        return self.num_steps * self.num_users

    @property
    def item_gradients(self) -> int:
        """Item gradients of the whole run."""
        return self.user_gradients * self.items_per_user

    @property
    def clipped_stddev(self) -> Any:
        """Noise on each coordinate of a mean of clipped gradients, which has no test to pay."""
        return self.clipped_multiplier * 2 * self.clip_norm / self.num_users

    @property
    def noise_stddev(self) -> Any:
        """Noise on each coordinate of the mean gradient."""
        return self.mean.noise_stddev(self.dim)

    @property
    def break_even_radius(self) -> Any:
        """The radius at which both means have the same noise, about; ``inf`` if clipped."""
        if self.clipped:
            return math.inf
        return self.clipped_stddev / self.noise_stddev * self.radius

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bound on the excess risk assumes; privacy assumes none of it."""
        reach = float(self.smoothing_radius)
        assumed = [
            f"losses are convex and {float(self.clip_norm):.4g}-Lipschitz within {reach:.3g} of the domain",
            f"users are independent, each with {self.items_per_user} i.i.d. items",
        ]
        if not self.clipped and float(self.concentration_failure) > float(self.failure):
            assumed.append(
                f"in every step all user gradients are within {float(self.radius):.4g} of their mean"
            )
        return tuple(assumed)

    def fewest_users(self) -> int:
        """The smallest number of users for which this test is possible; 2 if clipped."""
        if self.clipped:
            return 2
        return threshold_phase.fewest_users(
            lambda users: threshold_phase.calibrate_concentrated(
                users,
                self.num_steps,
                self.epsilon,
                self.releases.delta,
                test=self.releases.test,
                selection=self.releases.selection,
                false_halt_probability=float(self.failure),
                constants=self.constants,
            )
        )

    def __str__(self) -> str:
        noise, clipped = float(self.noise_stddev), float(self.clipped_stddev)
        if self.clipped:
            why = f"the radius {float(self.radius):.4g} is at least G: it tests nothing"
            remarks: list[tuple[str, Any]] = [("clipped because", why)]
        else:
            better = "less" if noise < clipped else "more"
            remarks = [
                ("noise", f"{noise:.4g} per coordinate, {better} than {clipped:.4g} of clipping"),
                ("break_even_radius", f"{float(self.break_even_radius):.5g}"),
                ("users needed", self.fewest_users()),
            ]
        return plans.describe("multi-pass SGD on outlier-removed means", self, remarks)
