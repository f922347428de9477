"""How a ball-accelerated run makes its private calls: an argument that its three solvers share.

What it computes: nothing by itself; ``plan`` of ``ball_accelerated_erm``, ``ball_accelerated_sco`` and
``ball_accelerated_regularized_erm`` take a ``Calls``, which has checked itself.

Source: thesis, Section 2.4, Algorithms 10, 11 and 12, whose choices these are.

Formal guarantee: none; all of it is public. What calls of these sizes cost, the plan accounts for.

Cost: none.
"""

import dataclasses

from dpsco_jax import _checks
from dpsco_jax.solvers.resque._ball_accelerated_budget import SAMPLINGS, SEARCHES

__all__ = ["DEFAULT", "Calls"]

_PROXES = ("plain", "mlmc", "mlmc_extended")


@dataclasses.dataclass(frozen=True)
class Calls:
    """How a run makes its private calls. What is left out depends on ``constants`` and the problem.

    Attributes:
        radius_ratio: ρ/r ≥ 2.001, the radius of smoothing over that of the balls; 10 to 16 is best.
        sampling: of the users of a call, ``"without_replacement"`` or ``"with_replacement"``; the first for
            ``constants="tight"`` if left out, the second for ``"paper"``.
        num_queries: T ≥ 4 of a call, rounded down to a power of two; a fifth of the users (1/20 with
            replacement) if left out.
        search: ``"doubling"`` (tight if left out), ``"bisection"`` (paper) or ``"fixed"`` (none: λ = L/r).
        prox: ``"plain"``: one call (tight if left out). ``"mlmc"``: Algorithm 11, with levels up to n
            queries. ``"mlmc_extended"``: with levels up to n²/T queries, without which its bias is not what
            Theorem 2.4.19 asks for (paper).
        reuse: whether the accepted answer of the search serves as ball and prox point (tight if left out);
            a heuristic, not a matter of privacy.
        search_runs: calls that a line search aggregates, best an odd number; 1 (tight) or the theorem's
            (paper) if left out.
        num_iterations: outer iterations at most; 2.5 K, K = (R/r)^(2/3), if left out (3.5 K certify the
            target if all answers are exact).
        max_searches: line searches in an iteration; 2 if left out.
        levels_seed: of the public coins of ``prox="mlmc"``.
        constants: ``"tight"`` or ``"paper"``. The printed constants themselves ask for 10^9 users or more.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> from dpsco_jax.solvers.item_level import ball_accelerated_erm
        >>> ball_accelerated_erm.Calls(num_queries=64, search="fixed").radius_ratio
        12.0
    """

    radius_ratio: float = 12.0
    sampling: str | None = None
    num_queries: int | None = None
    search: str | None = None
    prox: str | None = None
    reuse: bool | None = None
    search_runs: int | None = None
    num_iterations: int | None = None
    max_searches: int | None = None
    levels_seed: int = 0
    constants: str = "tight"

    def __post_init__(self) -> None:
        _checks.require_real("radius_ratio", self.radius_ratio, 2.001, closed=True)
        for name, choices in (("sampling", SAMPLINGS), ("search", SEARCHES), ("prox", _PROXES)):
            if getattr(self, name) is not None:
                _checks.require_choice(name, getattr(self, name), choices)
        if self.num_queries is not None:
            _checks.require_integer("num_queries", self.num_queries, 4)
        _checks.require_given(_checks.require_flag, reuse=self.reuse)
        _checks.require_given(
            _checks.require_count,
            search_runs=self.search_runs,
            num_iterations=self.num_iterations,
            max_searches=self.max_searches,
        )
        _checks.require_integer("levels_seed", self.levels_seed, 0)
        _checks.require_choice("constants", self.constants, ("tight", "paper"))


DEFAULT = Calls()
