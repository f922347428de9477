"""The plan of accelerated user-level SGD: sizes, numbers, cost, certificate, table.

What it computes: nothing but properties of its fields; ``accelerated_sgd.plan`` fills them in.

Source: F, Algorithm 2; T, Algorithm 32: its parameters.

Formal guarantee: ``certificate`` is computed from the sizes and the noise that the run uses.

Cost: none; a certificate takes up to some seconds where batches are drawn.
"""

from typing import Any

from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.releases import GaussianReleases
from dpsco_jax.solvers import _planning, means, plans
from dpsco_jax.solvers._by_mean import ByMean


@pytree
class Plan(ByMean):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        items_per_user: m.
        dim: number of parameters.
        stage_length: N, steps between restarts.
        smoothed: whether gradients are taken at shifted points.
        chunk_size: users whose data are read at once.
        reach: bound on the norm of a user's gradient, in score radii 2τ.
        releases: sizes, tests and noise of all steps: ``ConcentratedReleases`` of outlier-removed means, or
            ``GaussianReleases`` of clipped ones. They hold n, K and T.
        radius: τ, the distance from a common centre that users' gradients may have; the score counts
            pairs within 2τ.
        other_stddev: ``noise_stddev`` of the other mean, which is not used, by a quick bound: some 10 % more
            than is needed; ``inf`` where it is impossible.
        clip_norm: L, the bound on a user's gradient.
        regularization: λ.
        smoothness: L of what is minimized.
        strong_convexity: μ of what is minimized.
        smoothing_radius: r, zero if not ``smoothed``.
        epsilon: ε of the budget.
        delta: δ of the budget.
        failure: bound on the probability that the run of honest users deviates from what bounds assume.
        gap_bound: on the expected gap of the regularized empirical risk, if nothing fails.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
    """

    items_per_user: int = static()
    dim: int = static()
    stage_length: int = static()
    smoothed: bool = static()
    chunk_size: int = static()
    reach: float = static()
    releases: Any
    radius: Number
    other_stddev: Number
    clip_norm: Number
    regularization: Number
    smoothness: Number
    strong_convexity: Number
    smoothing_radius: Number
    epsilon: Number
    delta: Number
    failure: Number
    gap_bound: Number
    excess_bound: Number

    def __post_init__(self) -> None:
        _planning.require_replacement(self.releases)

    @property
    def num_users(self) -> int:
        """N."""
        return self.releases.population_size

    @property
    def batch_size(self) -> int:
        """K; n for everybody."""
        return self.releases.batch_size

    @property
    def num_steps(self) -> int:
        """T."""
        return self.releases.num_steps

    @property
    def num_stages(self) -> int:
        """S, of whole stages."""
        return self.num_steps // self.stage_length

    @property
    def noise_stddev(self) -> Any:
        """σ of each coordinate of the released mean."""
        return self.mean.noise_stddev(self.dim)

    @property
    def mean(self) -> means.Clipped | means.OutlierRemoved:
        """Of the users' gradients of a step, at points shifted for each item."""
        radius = self.smoothing_radius if self.smoothed else None
        if isinstance(self.releases, GaussianReleases):
            return means.Clipped(self.chunk_size, "item", self.releases, self.clip_norm, radius)
        return means.OutlierRemoved(
            chunk_size=self.chunk_size,
            reach=self.reach,
            shift="item",
            releases=self.releases,
            score_radius=2 * self.radius,
            clip_norm=self.clip_norm,
            smoothing_radius=radius,
        )

    @property
    def user_gradients(self) -> int:
        """T·K."""
        return self.num_steps * self.batch_size

    @property
    def item_gradients(self) -> int:
        """T·K·m."""
        return self.user_gradients * self.items_per_user

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bound on the excess risk assumes; privacy assumes none of it."""
        return (
            f"users are independent, with {self.items_per_user} i.i.d. items each",
            f"losses are convex and {float(self.clip_norm):.4g}-Lipschitz",
        )

    def __str__(self) -> str:
        return plans.describe("accelerated user-level SGD", self)
