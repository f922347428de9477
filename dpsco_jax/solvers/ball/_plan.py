"""The numbers of a run of ball acceleration: λ range, iterations, stopping weight.

What it computes: everything ``ball_acceleration.run`` needs beside its oracles, from the Lipschitz constant
L, the distance R, the radius r of the balls and the target accuracy ε.

Source: thesis, Proposition 2.2.8, with explicit constants derived here: K = (R/r)^(2/3), κ = LR/ε,
λ_min = c·εK²·log(κ)^p/R² (printed with p = 2), λ_max = 4L/r (printed CL/ε, which has the wrong dimension and
is too small where r < ε/L).

Formal guarantee: see ``ball_acceleration``.

Cost: none.
"""

import math
from typing import Any

from dpsco_jax import _checks
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.solvers import plans
from dpsco_jax.solvers.ball import _search
from dpsco_jax.solvers.ball.ball_oracles import Accuracies, oracle_accuracies

SEARCHES = ("bisection", "doubling", "multiplier", "adaptive", "fixed", "none")


@pytree
class Plan:
    """What ``run`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        search: one of ``SEARCHES``.
        reuse: whether the line search's accepted answer serves as ball and prox point too.
        num_iterations: outer iterations at most.
        max_searches: calls of the line search in one iteration at most; 0 where there is no search.
        lipschitz: L.
        distance: R, bound on the distance from the start to the comparison point.
        ball_radius: r.
        excess: ε.
        regularization: λ_min; the fixed λ where nothing is searched.
        largest: λ_max.
        window_lower: distance below which λ is too large.
        window_upper: distance above which λ is too small.
        step: factor of the dual step: 1/2 (proved for stochastic oracles) or 1 (exact ones).
        start_weight: A_0.
        target_weight: A at which accuracy ε is certified.
    """

    search: str = static(choices=SEARCHES)
    reuse: bool = static()
    num_iterations: int = static()
    max_searches: int = static(least=0)
    lipschitz: Number
    distance: Number
    ball_radius: Number
    excess: Number
    regularization: Number
    largest: Number
    window_lower: Number
    window_upper: Number
    step: Number
    start_weight: Number
    target_weight: Number

    @property
    def ratio(self) -> float:
        """R/r."""
        return float(self.distance) / float(self.ball_radius)

    @property
    def condition(self) -> float:
        """κ = LR/ε."""
        return float(self.lipschitz) * float(self.distance) / float(self.excess)

    def accuracies(self, failure: float, copies: int = 1) -> Accuracies:
        """Oracle accuracies that the guarantee asks for.

        Args:
            failure: probability with which any line search of the run may fail: it is divided by their
                number.
            copies: multilevel estimates to average in the prox.
        """
        searches = self.num_iterations * max(self.max_searches, 1)
        return oracle_accuracies(
            ratio=self.ratio,
            least_factor=float(self.regularization)
            * float(self.distance) ** 2
            / (float(self.excess) * self.ratio ** (4 / 3)),
            num_iterations=self.num_iterations,
            search_failure=failure / searches,
            copies=copies,
        )

    def __str__(self) -> str:
        remarks: list[tuple[str, Any]] = [
            ("ratio R/r", f"{self.ratio:.5g}"),
            ("condition LR/excess", f"{self.condition:.5g}"),
            ("balls K = (R/r)^(2/3)", f"{self.ratio ** (2 / 3):.5g}"),
        ]
        if float(self.regularization) * float(self.ball_radius) >= 4 / 3 * float(self.lipschitz):
            why = "the balls are larger than needed: the least regularization always fits"
            remarks.append(("note", why))
        return plans.describe("ball acceleration", self, remarks)


def plan(
    *,
    lipschitz: float,
    distance: float,
    ball_radius: float,
    excess: float,
    search: str = "bisection",
    exact: bool = False,
    reuse: bool | None = None,
    log_power: float = 1.0,
    scale: float = 1.0,
    window: tuple[float, float] = (0.5, 0.75),
    num_iterations: int | None = None,
    max_searches: int | None = None,
) -> Plan:
    """Checks all arguments and sets the numbers. Host only.

    Args:
        lipschitz: L, of F on the ball of radius R + r.
        distance: R, bound on the distance from the start to the comparison point.
        ball_radius: r in (0, R].
        excess: ε in (0, LR].
        search: ``"bisection"``: the proved one. ``"doubling"``: fewer calls, no bound on the iterations.
            ``"multiplier"``: for oracles that know their multiplier and have no ball (Monteiro and Svaiter
                2013).
            ``"adaptive"``: one call an iteration, for oracles that know their multiplier (Carmon, Hausler,
            Jambulapati, Jin and Sidford 2022). ``"fixed"``: λ = L/r throughout, no search. ``"none"``: moves
            to the minimizer in the ball, unaccelerated.
        exact: the oracles return x̂ itself, to machine precision. The dual step is then twice as long and
            A = R²/(2ε) certifies the accuracy, in place of 3R²/ε.
        reuse: whether the line search's accepted answer serves as ball and prox point too. Right for exact
            oracles (the default there); a heuristic for stochastic ones, whose independence the proof uses.
        log_power: p of λ_min; the thesis has 2. Fewer line searches but more iterations as it grows.
        scale: c of λ_min; at 1e-6, say, λ_min hardly ever binds.
        window: of accepted distances, relative to r.
        num_iterations: cap on the iterations, in place of the proved number.
        max_searches: cap on the calls of one search, in place of the proved number. To be left out where
            nothing is searched for: ``"adaptive"``, ``"fixed"`` and ``"none"``.

    Raises:
        ValueError: an argument is out of range.
    """
    lipschitz = _checks.require_real("lipschitz", lipschitz, 0)
    distance = _checks.require_real("distance", distance, 0)
    radius = _checks.require_real("ball_radius", ball_radius, 0)
    excess = _checks.require_real("excess", excess, 0)
    _checks.require_choice("search", search, SEARCHES)
    if radius > distance:
        raise ValueError(f"ball_radius must be in (0, distance = {distance:g}], got {radius!r}")
    if excess > lipschitz * distance:
        most = lipschitz * distance
        raise ValueError(f"excess must be in (0, lipschitz·distance = {most:g}], got {excess!r}")
    log_power = _checks.require_real("log_power", log_power, 0, closed=True)
    scale = _checks.require_real("scale", scale, 0)
    _checks.require_instance("window", window, tuple | list)
    _checks.require(len(window) == 2, "window", window, "two numbers")
    for edge in window:
        _checks.require_inside("window", edge)
    _checks.require(window[0] < window[1], "window", window, "such that lower < upper")
    exact = _checks.require_flag("exact", exact)
    _checks.require_given(_checks.require_flag, reuse=reuse)
    if reuse is None:
        reuse = exact

    ratio, condition = distance / radius, lipschitz * distance / excess
    balls = ratio ** (2 / 3)
    log = max(1.0, math.log(condition))
    least = scale * excess * balls**2 / distance**2 * log**log_power
    largest = max(4 * lipschitz / radius, 2 * least)
    # Potential A·(gap) + ‖v - x*‖² (or half of the square for exact oracles): at most 3R² at the end.
    target = distance**2 / (2 * excess) if exact else 3 * distance**2 / excess
    start = 0.0 if exact else distance / lipschitz
    if search == "adaptive":
        start, target = 0.0, distance**2 / (2 * excess)
    iterations = math.ceil(
        14 * balls * math.log(3 * condition) + 3.5 * balls * math.sqrt(scale * log**log_power)
    )
    searches = 0
    if search == "bisection":
        width = (window[1] - window[0]) / 2  # the other half is for errors of the answers
        searches = _search.num_bisections(ratio, largest / least, width) + reuse
    elif search in ("doubling", "multiplier"):
        searches = 1 + math.ceil(math.log2(largest / least))
    elif search == "fixed":
        least = lipschitz / radius
        iterations = math.ceil(math.sqrt(4 * least * target))
    elif search == "none":
        # F(x_t) - F* ≤ (1 - r/R)^t·LR + λrR/2, for scale at most 1.
        least = scale * excess / (2 * radius * distance)
        iterations = math.ceil(ratio * math.log(4 / 3 * condition)) + 1
    if num_iterations is not None:
        iterations = _checks.require_integer("num_iterations", num_iterations, 1)
    _checks.require_absent(searches > 0, f"with search={search!r}", max_searches=max_searches)
    if max_searches is not None:
        searches = _checks.require_integer("max_searches", max_searches, 1 + reuse)
    return Plan(
        search=search,
        reuse=reuse,
        num_iterations=iterations,
        max_searches=searches,
        lipschitz=lipschitz,
        distance=distance,
        ball_radius=radius,
        excess=excess,
        regularization=least,
        largest=largest,
        window_lower=window[0] * radius,
        window_upper=window[1] * radius,
        step=1.0 if exact or search == "adaptive" else 0.5,
        start_weight=start,
        target_weight=target,
    )
