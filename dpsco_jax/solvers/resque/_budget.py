"""The plan of private ERM over a ball: what runs, its calls, loss and certificate.

What it computes: see ``resque_erm``. Loss and certificate are functions of what runs: of the static sizes and
of the numbers that the loss is proven for (``_resque_accounting``) or that the plan holds.

Source: thesis, Algorithms 8 to 12.

Formal guarantee: by ``privacy.resque`` for the calls listed.

Cost: about a second for each size of call, once in a process.
"""

import math

from dpsco_jax import privacy
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.resque import ResqueCall
from dpsco_jax.solvers import _costs, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque._levels import levels
from dpsco_jax.solvers.work import Work

METHODS = ("localized", "strongly_convex")
SAMPLINGS = ("without_replacement", "with_replacement")

_SMOOTHING_BIAS = math.sqrt(
    2 / math.pi
)  # E|N(0, 1)|: a linear model is smoothed along its row only


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        dim: number of parameters.
        num_queries: T, a power of two; fewer users are drawn.
        method: ``"localized"`` or ``"strongly_convex"``.
        sampling: ``"without_replacement"`` or ``"with_replacement"``, of the users of a call.
        constant: C of the reach of the levels; utility only.
        proven: the β, ρ/r and δ that the loss is for, static; ``None`` before calibration. A plan whose
            numbers are changed beyond them is charged an unbounded loss.
        ball_radius: r.
        smoothing_radius: ρ.
        lipschitz: L.
        regularization: λ.
        beta: the noise of a phase with steps η_i has standard deviation L·η_i/β.
        epsilon: ε of the budget.
        delta: δ of the budget.
        excess_bound: proven bound on the expected excess of the smoothed, regularized risk; ``inf`` where
            none applies.
    """

    num_users: int = static()
    dim: int = static()
    num_queries: int = static()
    method: str = static(choices=METHODS)
    sampling: str = static(choices=SAMPLINGS)
    constant: float = static()
    proven: accounting.Proven | None = static()
    ball_radius: Number
    smoothing_radius: Number
    lipschitz: Number
    regularization: Number
    beta: Number
    epsilon: Number
    delta: Number
    excess_bound: Number

    @property
    def calls(self) -> accounting.Calls:
        """The localized calls of the run, for the accountant."""
        return self.calls_at(float(self.beta), self.radius_ratio)

    def calls_at(self, beta: float, radius_ratio: float) -> accounting.Calls:
        """The same for another β and ρ/r."""
        call = self.call_at(beta, radius_ratio)
        return [(call, 1)] if self.method == "localized" else accounting.strongly_convex_calls(call)

    @property
    def call(self) -> ResqueCall:
        """The run as one call."""
        return self.call_at(float(self.beta), self.radius_ratio)

    def call_at(self, beta: float, radius_ratio: float) -> ResqueCall:
        """The same for another β and ρ/r."""
        return ResqueCall(
            self.num_queries,
            beta,
            radius_ratio * accounting.ROUNDED_RATIO,
            self.num_users,
            self.sampling == "with_replacement",
        )

    @property
    def radius_ratio(self) -> float:
        """ρ/r."""
        return float(self.smoothing_radius) / float(self.ball_radius)

    @property
    def numbers(self) -> accounting.Numbers:
        """What privacy asks of the leaves."""
        return accounting.Numbers(
            self.beta,
            self.ball_radius,
            self.smoothing_radius,
            self.lipschitz,
            {"regularization": self.regularization},
        )

    def loss(self) -> privacy.PrivacyLoss:
        """The privacy loss that a run is charged, float32, rounded up; infinite beyond what was proven."""
        return accounting.carried(self.calls_at, self.proven, self.numbers)

    @property
    def user_gradients(self) -> int:
        """Users drawn in the whole run."""
        if self.method == "localized":
            return self.num_queries - 1
        return strongly_convex_gradients(self.num_queries)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What privacy assumes; the bound on the excess risk adds that a minimizer is in the ball."""
        return (
            f"every user's loss is convex and {float(self.lipschitz):.4g}-Lipschitz on the whole space",
            accounting.SECRET,
        )

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run, of the numbers that the plan holds now.

        Raises:
            ValueError: if one is out of the range in which there is a proof.
        """
        accounting.require_numbers(self.numbers)
        return accounting.certificate(self.calls, float(self.delta), self.assumes)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs."""
        once = _costs.prepared(self.num_users, item)
        return _costs.reweighted(self.user_gradients, item) + once

    def __str__(self) -> str:
        smoothing = _SMOOTHING_BIAS * float(self.lipschitz) * float(self.smoothing_radius)
        return plans.describe(
            "private ERM over a ball", self, [("smoothing_adds_at_most", f"{smoothing:.5g}")]
        )


def strongly_convex_gradients(num_queries: int) -> int:
    """Users drawn by one strongly convex call."""
    return sum(level.num_queries - 1 for level in levels(num_queries))
