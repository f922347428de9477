"""What a run of privately ball-accelerated ERM consists of: its sizes and every private call it could make.

What it computes: the list of calls from the sizes of a plan, the certificate, and the error of an answer that
is to be expected.

Source: thesis, Theorem 2.4.19 and Algorithms 10, 11 and 12. All line searches are counted (the thesis's proof
composes one an iteration), and all estimates of Algorithm 11 at the levels that were drawn.

Formal guarantee: (ε, δ)-DP under REPLACE_ONE by ``privacy.resque``, whatever the run does within the plan.

Cost: none; a certificate takes about a second.
"""

import itertools
import math
from typing import Any

from dpsco_jax import _checks, privacy
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.resque import ResqueCall
from dpsco_jax.solvers import _costs, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.work import Work

SEARCHES = ("doubling", "bisection", "fixed")
SAMPLINGS = ("without_replacement", "with_replacement")

_OBSERVED = 5.0  # C_sc of Algorithm 10; 8192 is proved


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree.

    Attributes:
        num_users: n.
        dim: number of parameters.
        num_queries: T of a strongly convex call, a power of two.
        sampling: ``"without_replacement"`` or ``"with_replacement"``, of the users of a call.
        prox: ``"plain"``, ``"mlmc"`` or ``"mlmc_extended"``.
        search_runs: independent calls that a line search aggregates.
        max_level: the highest level of the prox oracle; level j makes 2^j T queries with β 2^(-j/2).
        prox_levels: of every prox estimate of the run, one tuple of ``copies`` levels for each iteration,
            static; drawn beforehand, of public coins. 0: no correction. Empty where ``max_level`` is 0.
        proven: the β, ρ/r and δ that the loss is for, static; ``None`` before calibration. A plan whose
            numbers are changed beyond them is charged an unbounded loss.
        outer: of ``ball_acceleration.plan``.
        smoothing_radius: ρ.
        beta: of a call at level 0.
        epsilon: ε of the budget.
        delta: δ of the budget.
    """

    num_users: int = static()
    dim: int = static()
    num_queries: int = static()
    sampling: str = static(choices=SAMPLINGS)
    prox: str = static(choices=("plain", "mlmc", "mlmc_extended"))
    search_runs: int = static()
    max_level: int = static(least=0)
    prox_levels: tuple[tuple[int, ...], ...] = static()
    proven: accounting.Proven | None = static()
    outer: Any
    smoothing_radius: Number
    beta: Number
    epsilon: Number
    delta: Number

    @property
    def lipschitz(self) -> Any:
        """Lipschitz constant L of every user's loss."""
        return self.outer.lipschitz

    @property
    def ball_radius(self) -> Any:
        """Radius r of the balls."""
        return self.outer.ball_radius

    @property
    def ratio(self) -> float:
        """ρ/r."""
        return float(self.smoothing_radius) / float(self.ball_radius)

    @property
    def numbers(self) -> accounting.Numbers:
        """What privacy asks of the leaves; λ stays between two of them."""
        outer = self.outer
        quadratics = {"outer.regularization": outer.regularization, "outer.largest": outer.largest}
        return accounting.Numbers(
            self.beta, self.ball_radius, self.smoothing_radius, self.lipschitz, quadratics
        )

    @property
    def copies(self) -> int:
        """Multilevel estimates that a prox oracle averages; 0 where answers are reused."""
        if self.outer.reuse:
            return 0
        return max(map(len, self.prox_levels), default=0) if self.max_level else 1

    @property
    def kinds(self) -> tuple[tuple[int, float, bool], ...]:
        """(queries, β over that of level 0, with replacement) of a strongly convex call at each level."""
        queries = _checks.require_integer("num_queries", self.num_queries, 4)
        return tuple(
            (
                queries << j,
                2.0 ** (-j / 2),
                self.sampling == "with_replacement" or queries << j > self.num_users,
            )
            for j in range(self.max_level + 1)
        )

    @property
    def level_counts(self) -> tuple[int, ...]:
        """Calls of each level for all prox estimates: one of level 0, and J and J - 1 where J > 0.

        Raises:
            ValueError: if there is not one row of levels up to ``max_level`` for each iteration.
        """
        iterations, counts = self.outer.num_iterations, [0] * (self.max_level + 1)
        if self.outer.reuse:
            return tuple(counts)
        if self.max_level == 0:
            return (iterations,)
        shape = {len(row) for row in self.prox_levels}
        if len(self.prox_levels) != iterations or len(shape) != 1 or 0 in shape:
            raise ValueError(
                "prox_levels must have a row, all of one length, for each of outer.num_iterations ="
                f" {iterations} iterations, got {len(self.prox_levels)} rows of lengths {sorted(shape)}"
            )
        for level in itertools.chain(*self.prox_levels):
            _checks.require_integer("prox_levels", level, 0, self.max_level)
            for made in {0: (0,)}.get(level, (0, level, level - 1)):
                counts[made] += 1
        return tuple(counts)

    @property
    def budgeted(self) -> tuple[int, ...]:
        """How many strongly convex calls of each kind could be made.

        Raises:
            ValueError: if a size is out of range, or the sizes do not belong together.
        """
        outer = self.outer
        search = _checks.require_choice("outer.search", outer.search, SEARCHES)
        iterations = _checks.require_integer("outer.num_iterations", outer.num_iterations, 1)
        runs = _checks.require_integer("search_runs", self.search_runs, 1)
        counts = list(self.level_counts)
        if search != "fixed":
            most = _checks.require_integer("outer.max_searches", outer.max_searches, 1)
            counts[0] += iterations * most * runs
        if search == "fixed" or not outer.reuse:
            counts[0] += iterations
        return tuple(counts)

    @property
    def calls(self) -> accounting.Calls:
        """The localized calls that could be made, for the accountant."""
        return self.calls_at(float(self.beta))

    def calls_at(self, beta: float, radius_ratio: float | None = None) -> accounting.Calls:
        """The same for another β, and another ρ/r if given."""
        ratio = self.ratio if radius_ratio is None else radius_ratio
        made: list[tuple[ResqueCall, int]] = []
        for (queries, factor, replacement), count in zip(self.kinds, self.budgeted, strict=True):
            if count:
                call = ResqueCall(
                    queries,
                    beta * factor,
                    ratio * accounting.ROUNDED_RATIO,
                    self.num_users,
                    replacement,
                )
                made += accounting.repeated(accounting.strongly_convex_calls(call), count)
        return made

    def loss(self) -> privacy.PrivacyLoss:
        """The Rényi loss that a run is charged, float32, rounded up; infinite beyond what was proven."""
        return accounting.carried(self.calls_at, self.proven, self.numbers)

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
        """The (ε, δ) of all calls that could be made, with the numbers that the plan holds now.

        Raises:
            ValueError: if one is out of the range in which there is a proof.
        """
        accounting.require_numbers(self.numbers)
        return accounting.certificate(self.calls, float(self.delta), self.assumes)

    def work_for(self, item: _costs.Item) -> Work:
        """What a run costs at most: fewer calls may be made."""
        once = _costs.prepared(self.num_users, item)
        return _costs.reweighted(self.user_gradients, item) + once

    def __str__(self) -> str:
        bias = math.sqrt(2 / math.pi) * float(self.lipschitz) * float(self.smoothing_radius)
        remarks = [
            ("smoothing_adds_at_most", f"{bias:.5g}"),
            ("private_calls_budgeted", sum(self.budgeted)),
            ("passes at most", f"{self.user_gradients / self.num_users:.4g}"),
        ]
        return plans.describe("private ERM by ball acceleration", self, remarks)


def predicted_error(plan: Any, beta: float) -> float:
    """(L/λ)·√(2 C_sc (dim/(βT)² + 1/T))/r with C_sc = 5, as observed, at the least λ of the run."""
    noise = plan.dim / (beta * plan.num_queries) ** 2 + 1.0 / plan.num_queries
    scale = float(plan.outer.lipschitz) / float(plan.outer.regularization)
    return scale * math.sqrt(2.0 * _OBSERVED * noise) / float(plan.outer.ball_radius)
