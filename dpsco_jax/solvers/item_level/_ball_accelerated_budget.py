"""What a run of privately ball-accelerated ERM consists of: its sizes and every private call it could make.

What it computes: the list of calls from the sizes of a plan, the certificate, and the error of an answer that
is to be expected.

Source: thesis, Theorem 2.4.19 and Algorithms 10, 11 and 12. All line searches are counted (the thesis's proof
composes one an iteration), and all estimates of Algorithm 11 at the levels that were drawn.

Formal guarantee: (ε, δ)-DP under REPLACE_ONE by ``privacy.resque``, whatever the run does within the plan.

Cost: none; a certificate takes about a second.
"""

import dataclasses
import math
from typing import Any

from dpsco_jax import privacy
from dpsco_jax.privacy.resque import ResqueCall
from dpsco_jax.solvers import _planning
from dpsco_jax.solvers.item_level import _resque_accounting as accounting

_OBSERVED = 5.0  # C_sc of Algorithm 10; 8192 is proved


@_planning.pytree
@dataclasses.dataclass(frozen=True)
class Plan:
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree.

    Attributes:
        num_users: n.
        dim: number of parameters.
        num_queries: T of a strongly convex call, a power of two.
        sampling: ``"without replacement"`` or ``"with replacement"``, of the users of a call.
        prox: ``"plain"``, ``"mlmc"`` or ``"mlmc_extended"``.
        search_runs: independent calls that a line search aggregates.
        copies: multilevel estimates that a prox oracle averages; 0 where answers are reused.
        max_level: the highest level of the prox oracle; level j makes 2^j T queries with β 2^(-j/2).
        outer: of ``ball_acceleration.plan``.
        prox_levels: of every prox estimate of the run, ``[iterations, copies]`` int32; drawn beforehand, of
            public coins. 0: no correction.
        level_counts: how many calls of each level 0..max_level they need in all, static.
        ratio: ρ/r.
        smoothing_radius: ρ.
        beta: of a call at level 0.
        epsilon: the budget.
        delta: likewise.
        loss: the Rényi loss of all calls, float32, rounded up: larger than the certificate.
        accounted_for: the β and the ρ/r that ``loss`` is for; a plan whose numbers are changed beyond them
            is charged an unbounded loss.
    """

    num_users: int
    dim: int
    num_queries: int
    sampling: str
    prox: str
    search_runs: int
    copies: int
    max_level: int
    level_counts: tuple[int, ...]
    ratio: float
    outer: Any
    prox_levels: Any
    smoothing_radius: Any
    beta: Any
    epsilon: Any
    delta: Any
    loss: Any
    accounted_for: Any

    @property
    def lipschitz(self) -> Any:
        """Lipschitz constant L of every user's loss."""
        return self.outer.lipschitz

    @property
    def ball_radius(self) -> Any:
        """Radius r of the balls."""
        return self.outer.ball_radius

    @property
    def kinds(self) -> tuple[tuple[int, float, bool], ...]:
        """(queries, β over that of level 0, with replacement) of a strongly convex call at each level."""
        return tuple(
            (
                self.num_queries << j,
                2.0 ** (-j / 2),
                self.sampling == "with replacement" or self.num_queries << j > self.num_users,
            )
            for j in range(self.max_level + 1)
        )

    @property
    def budgeted(self) -> tuple[int, ...]:
        """How many strongly convex calls of each kind could be made."""
        once = self.outer.num_iterations
        searches = once * self.outer.max_searches * self.search_runs
        balls = 0 if self.outer.reuse and searches else once
        counts = list(self.level_counts)
        counts[0] += searches + balls
        return tuple(counts)

    @property
    def calls(self) -> list[tuple[ResqueCall, int]]:
        """The localized calls that could be made, for the accountant."""
        return self.calls_at(float(self.beta))

    def calls_at(self, beta: float) -> list[tuple[ResqueCall, int]]:
        """The same for another β."""
        made = []
        for (queries, factor, replacement), count in zip(self.kinds, self.budgeted, strict=True):
            if count:
                call = ResqueCall(
                    queries,
                    beta * factor,
                    self.ratio * accounting.ROUNDED_RATIO,
                    self.num_users,
                    replacement,
                )
                made += accounting.repeated(accounting.strongly_convex_calls(call), count)
        return made

    @property
    def user_gradients(self) -> int:
        """Bound on the user gradients of a run."""
        sizes = (queries for queries, _, _ in self.kinds)
        return sum(count * size for count, size in zip(self.budgeted, sizes, strict=True))

    @property
    def predicted_error(self) -> float:
        """Root mean square distance of a call's answer from its target over r, as observed, at λ_min."""
        return predicted_error(self, float(self.beta))

    @property
    def assumes(self) -> tuple[str, ...]:
        """What privacy and accuracy assume."""
        return (
            f"every user's loss is convex and {float(self.lipschitz):.4g}-Lipschitz on the whole space",
            accounting.SECRET,
            f"a minimizer lies within {float(self.outer.distance):.4g} of the start",
        )

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of all calls that could be made."""
        return accounting.certificate(self.calls, float(self.delta), self.assumes)

    def __str__(self) -> str:
        bias = math.sqrt(2 / math.pi) * float(self.lipschitz) * float(self.smoothing_radius)
        certificate = str(self.certificate()).split("\n")
        rows: list[tuple[str, Any]] = [
            ("users", self.num_users),
            ("parameters", self.dim),
            ("target LR/κ", self.outer.excess),
            ("smoothing radius", self.smoothing_radius),
            ("smoothing adds at most", bias),
            ("ball radius", self.ball_radius),
            ("outer iterations at most", self.outer.num_iterations),
            ("line searches each at most", self.outer.max_searches),
            ("private calls budgeted", sum(self.budgeted)),
            ("queries of a call", f"{self.num_queries}, {self.sampling}"),
            ("user gradients at most", f"{self.user_gradients / self.num_users:.4g} passes"),
            ("beta", self.beta),
            ("predicted error over radius", self.predicted_error),
            ("which assumes", "; ".join(self.assumes)),
            ("budget", f"({float(self.epsilon):g}, {float(self.delta):g})"),
            ("certificate", ",".join(certificate)),
        ]
        return _planning.table("private ERM by ball acceleration", rows)


def predicted_error(plan: Any, beta: float) -> float:
    """(L/λ)·√(2 C_sc (dim/(βT)² + 1/T))/r with C_sc = 5, as observed, at the least λ of the run."""
    noise = plan.dim / (beta * plan.num_queries) ** 2 + 1.0 / plan.num_queries
    scale = float(plan.outer.lipschitz) / float(plan.outer.regularization)
    return scale * math.sqrt(2.0 * _OBSERVED * noise) / float(plan.outer.ball_radius)
