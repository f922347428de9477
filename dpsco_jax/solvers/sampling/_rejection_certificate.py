"""How far a chain of ``rejection_oracle`` is from its target, from sizes and constants alone.

What it computes: for c = η(kG)², T steps and N trials the parts of

    τ = mixing + T·δ(c, A) + rounding + cap,

or the other way round: step size, terms, steps and trials for a τ.

Source: T, Algorithms 13 and 14, Theorem 3.5.2, with constants of our own (docs/corrections.md).

Formal guarantee: docs/theory/rejection_oracle.md derives each part. For every data set of n records whose
losses are convex and G-Lipschitz the law of the last point is within total variation τ of the target. Normal
numbers are taken for exact, and points for the real numbers that they are; whatever tests them is charged.

Cost: a few thousand passes over short arrays, on the host; the parts of a given chain may be traced, in
float64, but for ``ball_radius`` without ``ball_bounds``.

Example:
    >>> losses = rounded_losses(69.6, 10, 1.0, start_norm=0.0, start_loss=1.0)
    >>> chain = planned(2.7e-6, Sizes(100, 10, 69.6, 20.0, 1.0, losses, reach=1.0))
    >>> 1.6e6 < chain.num_steps < 1.9e6, bool(chain.variation <= 2.7e-6)
    (True, True)
"""

import contextlib
import math
from collections.abc import Iterable
from typing import Any, NamedTuple, SupportsFloat

from dpsco_jax import _checks
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import Scalar, as_floats
from dpsco_jax.solvers.sampling import _rejection_rounding as roundings
from dpsco_jax.solvers.sampling import _tangent_numbers as tangents
from dpsco_jax.solvers.sampling import chain_lengths
from dpsco_jax.solvers.sampling._counted_attempts import counted, tangent_step
from dpsco_jax.solvers.sampling._rejection_error import MOST_TERMS, inner_variation, largest_c
from dpsco_jax.solvers.sampling._rejection_rounding import Rounding, rounded_losses

__all__ = ["Chain", "Rounding", "Sizes", "certified", "planned", "rounded_losses"]

_UP = 1.0 + 2.0**-30
_MOST_TRIALS = 2**31 - 1
_MIXING, _INNER, _CAP, ESCAPE = 0.5, 0.25, 0.0625, 0.0625  # of τ; rounding has what is left
_SLACK = 1.0 - 2.0**-10


class Sizes(NamedTuple):
    """What is known of the target before any data.

    Attributes:
        num_records: n.
        dim: d.
        lipschitz: kG, the Lipschitz constant of every k·f(·; s) on K.
        convexity: κ of ψ, above 0: the target is κ-strongly log-concave.
        start_distance: W ≥ √E‖x_0 - x‖² for x of the target; the farthest point of K will do.
        rounding: of computed losses or differences.
        reach: the largest distance of a point of K from x_0; ``None`` for the whole space, and then x_0 must
            be the centre of ψ.
        ball_radius: of a ball K on which ``convex_set`` draws; ``None`` where every attempt counts.
        ball_bounds: the largest deviation √v of a proposal, and how far outside a mean may be over it, for
            which attempts on the ball are counted with; what suits the chain if ``None``.
        tangent: ψ, centred at x_0, if ``restricted_gaussian.tangent`` draws from it on the whole space.
    """

    num_records: int
    dim: int
    lipschitz: Any
    convexity: Any
    start_distance: Any
    rounding: Rounding
    reach: float | None = None
    ball_radius: float | None = None
    ball_bounds: tuple[float, float] | None = None
    tangent: tangents.Power | None = None


class Chain(NamedTuple):
    """What runs, and how far it is from its target.

    Attributes:
        step_size: η.
        num_terms: A.
        num_steps: T.
        num_trials: N.
        indices: ``"prefix"`` or ``"fresh"``.
        acceptance: a lower bound on the probability that a trial succeeds.
        mixing: the total variation that T exact steps leave.
        inner: T·δ(c, A).
        rounding: what float64 costs.
        cap: the probability that fewer than T of N trials succeed, or that a bound that this rests on fails.
    """

    step_size: Any
    num_terms: int
    num_steps: Any
    num_trials: Any
    indices: str
    acceptance: Any
    mixing: Any
    inner: Any
    rounding: Any
    cap: Any

    @property
    def variation(self) -> Any:
        """τ, rounded up."""
        xp, (total,) = as_floats(self.mixing + self.inner + self.rounding + self.cap)
        return xp.minimum(1.0, _UP * total)


def certified(
    sizes: Sizes,
    step_size: Scalar,
    num_terms: int,
    num_steps: Scalar,
    num_trials: Scalar,
    indices: str = "prefix",
    escape: Scalar = 1e-12,
) -> Chain:
    """The parts of τ of a chain that is given.

    Args:
        sizes: of the target.
        step_size: η, above 0; may be traced.
        num_terms: A, in [3, 18].
        num_steps: T, at least 1; may be traced.
        num_trials: N, at least 1; may be traced.
        indices: ``"prefix"`` or ``"fresh"``.
        escape: how likely points may be farther out than bounds on attempts and roundings hold for.

    Raises:
        ValueError: a concrete argument is out of range.
    """
    _require(sizes)
    _checks.require_positive("step_size", step_size)
    _checks.require_whole("num_steps", num_steps, 1)
    _checks.require_whole("num_trials", num_trials, 1)
    _checks.require_within("num_trials", num_trials, 1, _MOST_TRIALS)
    _checks.require_inside("escape", escape)
    xp, (eta, steps, trials, escape, slope, convexity, distance) = as_floats(
        *(step_size, num_steps, num_trials, escape),
        *(sizes.lipschitz, sizes.convexity, sizes.start_distance),
    )
    c, drift, everywhere = eta * slope**2, eta * convexity, sizes.reach is None
    farther = xp.zeros_like(eta)  # the probability that a bound that this rests on fails
    reach = sizes.reach
    if reach is None:
        reach = roundings.farthest_point(sizes.dim, eta, convexity, distance, steps, escape)
    deviation = xp.sqrt(eta / (1.0 + drift))
    found, failing = counted(
        *(sizes.dim, sizes.tangent, sizes.ball_radius, sizes.ball_bounds),
        *(steps, eta, deviation, reach, escape),
    )
    error = sizes.rounding.within(reach) + found.potential
    shifted = 0.0
    if sizes.rounding.consistent:
        c, convexity, distance, shifted = roundings.computed_target(c, convexity, distance, error)
    if everywhere:
        farther = escape * xp.exp(xp.minimum(700.0, 2.0 * error * steps))

    # A density within e^{±2h} has tails that are e^{4h} as heavy at most, for x and for z.
    one = inner_variation(c, num_terms, indices) * xp.exp(8.0 * xp.minimum(found.potential, 1.0))
    counts = 0.5 * (1.0 - xp.minimum(one, 1.0))
    left = 0.0 if sizes.rounding.consistent else error
    wrong = roundings.acceptance_error(c, num_terms, sizes.num_records, left) + 2.0 * found.error
    proven = (wrong < counts) & (shifted < 1.0)
    wrong, counts = xp.where(proven, wrong, 0.0), xp.where(proven, counts, 0.5)
    norms = roundings.power_norms(c, num_terms, 0.0)
    spread = sum(norm / math.factorial(b) for b, norm in enumerate(norms)) - 1.0
    contracts = not everywhere and not sizes.rounding.consistent
    rounding = shifted + roundings.steps_rounding(wrong, counts, spread, drift, steps, contracts)
    acceptance = xp.where(proven, (counts - wrong) * found.acceptance**2, 0.0)
    possible = acceptance > 0.0
    capped = chain_lengths.trials_variation(steps, trials, xp.where(possible, acceptance, 0.5))
    return Chain(
        *(step_size, num_terms, num_steps, num_trials, indices),
        acceptance,
        chain_lengths.mixing_variation(steps, eta, convexity, distance),
        xp.minimum(1.0, steps * one),
        xp.where(proven, xp.minimum(1.0, rounding), 1.0),
        xp.minimum(1.0, farther + failing + xp.where(possible, capped, 1.0)),
    )


def planned(
    variation: SupportsFloat,
    sizes: Sizes,
    num_terms: int | None = None,
    indices: str = "prefix",
) -> Chain:
    """A chain whose τ is at most the given one.

    Args:
        variation: τ, in (0, 1).
        sizes: of the target.
        num_terms: A; the one with the largest η if left out.
        indices: ``"prefix"`` or ``"fresh"``.

    Raises:
        ValueError: an argument is out of range.
        Infeasible: float64 cannot reach that distance, or there would be 2³¹ trials.
    """
    _require(sizes)
    tau = _checks.require_real("variation", variation, 0.0, 1.0)
    choices = range(3, MOST_TERMS + 1) if num_terms is None else (num_terms,)
    steps, known = 0, 1
    while steps < known:  # a larger T asks for a smaller δ, so for a smaller η and a larger T
        steps = known
        share = _SLACK * _INNER * tau / steps
        c, terms = _widest(share, choices, indices)
        if num_terms is None:  # a smaller δ asks for more terms, never many
            choices = range(terms, min(terms + 3, MOST_TERMS + 1))
        eta = _SLACK * c / sizes.lipschitz**2
        if sizes.tangent is not None:
            eta = tangent_step(
                *(sizes.tangent, sizes.dim, eta, float(sizes.convexity)),
                *(float(sizes.start_distance), max(steps, 1), ESCAPE * tau / 2.0),
            )
        known = chain_lengths.mixing_steps(
            _SLACK * _MIXING * tau, eta, sizes.convexity, sizes.start_distance
        )
    escape = ESCAPE * tau / 2.0
    draft = certified(sizes, eta, terms, known, _MOST_TRIALS, indices, escape)
    needed = draft.mixing + draft.inner + draft.rounding + draft.cap
    if draft.acceptance <= 0.0 or needed > (1.0 - _CAP) * tau:
        raise Infeasible(
            f"variation must be larger: in float64 {draft.rounding:.3g} of it is rounding, and trials succeed"
            f" with probability {draft.acceptance:.3g} or more, got {tau}"
        )
    trials = chain_lengths.capped_trials(known, draft.acceptance, _SLACK * _CAP * tau)
    return certified(sizes, eta, terms, known, trials, indices, escape)


def _widest(share: float, choices: Iterable[int], indices: str) -> tuple[float, int]:
    """The largest c for which a draw is within the distance, and the least A that has it."""
    found = []
    for terms in choices:
        with contextlib.suppress(Infeasible):
            found.append((largest_c(share, terms, indices), -terms))
    if not found:
        raise Infeasible(f"variation must be larger: no step is within {share:.3g} of its law")
    c, terms = max(found)
    return c, -terms


def _require(sizes: Sizes) -> None:
    _checks.require_instance("sizes", sizes, Sizes)
    _checks.require_integer("num_records", sizes.num_records, 1, 2**31 - 1)
    _checks.require_integer("dim", sizes.dim, 1)
    for name in ("lipschitz", "convexity", "start_distance"):
        _checks.require_positive(name, getattr(sizes, name))
    _checks.require_instance("rounding", sizes.rounding, Rounding)
    for name in ("at_start", "slope"):
        _checks.require_nonnegative(name, getattr(sizes.rounding, name))
    for name in ("reach", "ball_radius"):
        if getattr(sizes, name) is not None:
            _checks.require_real(name, getattr(sizes, name), 0.0)
    quadratic = sizes.tangent is None or (sizes.reach is None and sizes.ball_radius is None)
    _checks.require(quadratic, "tangent", sizes.tangent, "None on a bounded set")
