"""The plan of private AC-SA: what will be run, what it costs, what it proves.

What it computes: nothing by itself; ``private_ac_sa.plan`` fills it in.

Source: as for ``private_ac_sa``.

Formal guarantee: ``certificate`` follows from the sizes and the noise multiplier alone, ``excess_bound`` from
all numbers and what ``assumes`` says.

Cost: none; a certificate takes the accountants up to a second.
"""

from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.privacy.releases import GaussianReleases
from dpsco_jax.solvers import _planning, means, plans
from dpsco_jax.solvers._by_mean import ByMean


@pytree
class Plan(ByMean):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: N.
        dim: number of parameters.
        num_steps: T.
        batch_size: B; at B = N there is no sampling.
        constants: ``"tight"`` or ``"paper"``.
        smoothed: whether gradients are taken at shifted points.
        chunk_size: users whose gradients are held at once.
        noise_multiplier: σ over the ℓ2 sensitivity 2·``clip_norm`` of the clipped sum.
        clip_norm: G, the bound on a user's gradient.
        smoothness: L of what AC-SA minimizes, or its step-size parameter Γ under ``"direct"``.
        strong_convexity: μ of the same; 0 under ``"direct"``.
        smoothing_radius: r, zero if not ``smoothed``.
        regularization: u of the term (u/2)·‖w - center‖² that is added, else zero.
        epsilon: ε of the budget.
        delta: δ of the budget.
        distance: R.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
        bounds_regularized: whether the risk that it speaks of has the added term, as it has if the term was
            asked for, and not if it is a means to solve the problem without.
    """

    num_users: int = static()
    dim: int = static()
    num_steps: int = static()
    batch_size: int = static()
    constants: str = static(choices=("tight", "paper"))
    smoothed: bool = static()
    chunk_size: int = static()
    noise_multiplier: Number
    clip_norm: Number
    smoothness: Number
    strong_convexity: Number
    smoothing_radius: Number
    regularization: Number
    epsilon: Number
    delta: Number
    distance: Number
    excess_bound: Number
    bounds_regularized: bool = static(default=False)

    @property
    def releases(self) -> GaussianReleases:
        """The private releases of the run."""
        sizes = (self.num_users, self.batch_size, self.num_steps)
        return GaussianReleases(*sizes, "fixed", self.noise_multiplier, self.delta)

    @property
    def mean(self) -> means.Clipped:
        """Of the users' gradients of a step, at points shifted for each user."""
        radius = self.smoothing_radius if self.smoothed else None
        return means.Clipped(self.chunk_size, "user", self.releases, self.clip_norm, radius)

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        return self.num_steps * self.batch_size

    @property
    def policy(self) -> str:
        """The policy that the numbers are those of (a batch of plans may mix them)."""
        if float(self.strong_convexity) == 0:
            return "direct"
        reduced = float(self.regularization) > 0 and not self.bounds_regularized
        return "regularize" if reduced else "strongly_convex"

    @property
    def assumes_of_losses(self) -> tuple[str, ...]:
        """What the bound on the excess risk assumes of the losses."""
        reach, slope = float(self.smoothing_radius), float(self.clip_norm)
        return (f"losses are convex and {slope:.4g}-Lipschitz within {reach:.3g} of the domain",)

    @property
    def assumes(self) -> tuple[str, ...]:
        """All that the bound on the excess risk assumes; privacy assumes none of it."""
        return (*self.assumes_of_losses, _planning.near(self.distance))

    @property
    def event(self) -> events.DpEvent:
        """What is released, for an accountant."""
        return self.releases.event

    def __str__(self) -> str:
        trivial = float(self.clip_norm) * float(self.distance)
        remarks = [("policy", self.policy), ("excess_of_doing_nothing", f"at most {trivial:.5g}")]
        return plans.describe("private AC-SA", self, remarks)
