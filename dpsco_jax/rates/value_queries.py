"""Lower bounds: what no algorithm does that sees few values of losses, private or not.

What it computes: for linear losses <x, s> on the ℓp ball of diameter D around the origin, 1 <= p <= 2, 1/p +
1/q = 1, and algorithms that see k values, each of one record at one point: a risk that none is below on
average over an unknown direction v, s ~ N(κv, σ²·I) with κ = ρσ, ρ = √(d/(4k)):

    signs   v uniform in {-1, 1}^d              (1 - 1/p)·κ·D·d^(1/q)/8
    axis    v uniform among ±e_1, ..., ±e_d     κ·D/4

with E‖s‖_q² <= G². ``bounded_losses`` has the same for ‖s‖_q <= G; orders of growth are in
``sampling_tables``.

Source: T Theorem 3.7.1, Proposition 5.7.4; Duchi, Jordan, Wainwright and Wibisono 2015. Corrected where
docs/corrections.md says so: Theorem 3.7.1 ends in GD/(16·√(1 + 4k/d)), and min(1, √(d/4k)) costs a factor √2;
for p near 1 the signs of Proposition 5.7.4 prove nothing, since one of them is enough: there the bound is
that of ``axis``.

Formal guarantee: both bounds are proved, with their constants:

- signs: a point of the ball with h wrong signs has <x, v> >= -R·(d - h)^(1/q), R = D/2, so its excess risk is
  at least κR·(d^(1/q) - (d - h)^(1/q)) >= κR·h·d^(-1/p)/q. The k values say of all signs together no more
  than Σ_j TV_j² <= κ²k/σ² (Claim 3.7.5), so that E h >= (d/2)·(1 - κ√k/(σ√d)) = d/4.
- axis: the excess risk κ(R + <x, v>) lies in [0, 2κR] and is κR on average if nothing is known of v. Against
  κ = 0, a value at a point scaled to norm 1 says κ²x_j²/(2σ²) of ±e_j, which is κ²/(2dσ²) on average over v,
  so by Pinsker TV <= κ√k/(2σ√d) = ¼ on average, and the mean is at least κR·(1 - 2·¼).
- moments: for 2 <= r <= q, ‖s‖_q <= ‖s‖_r, and E‖s‖_r² <= ‖E|s|^r‖^(2/r) <= κ²‖v‖_r² + (r - 1)σ²d^(2/r), by
  (E|m + σZ|^r)^(2/r) <= m² + (r - 1)σ² (Nelson's hypercontractivity); the least over r is taken, and at p = 2
  it is attained: there ``signs`` is Theorem 3.7.1 with its own σ.

Of one record at most d values say anything, so k counts for nd at most where there are n records.

Cost: none; float64 on the host.
"""

import math
from typing import Annotated, Any, NamedTuple

from dpsco_jax._argument_kinds import Count, Kind, Positive, checked, one_of
from dpsco_jax._checks import require_within
from dpsco_jax.rates.norms import dual_exponent, require_exponent

DIRECTIONS = ("signs", "axis")


class Scales(NamedTuple):
    """The law N(κv, σ²·I) of a record, and the excess risk that no algorithm is below.

    Attributes:
        mean: κ.
        stddev: σ.
        risk: over the diameter D of the ball.
    """

    mean: float
    stddev: float
    risk: float


def _up_to_two(name: str, value: Any) -> float:
    require_within(name, value, 1.0, 2.0)
    return require_exponent(name, value)


UpToTwo = Annotated[float, Kind(_up_to_two)]
Direction = Annotated[str, one_of(*DIRECTIONS)]


@checked
def hard_scales(
    queries: Count,
    dim: Count,
    lipschitz: Positive = 1.0,
    p: UpToTwo = 2.0,
    direction: Direction = "signs",
    num_users: Count | None = None,
) -> Scales:
    """κ and σ of the hard law with E‖s‖_q² <= G², and its lower bound for D = 1.

    Args:
        queries: k, how many values are seen.
        dim: d.
        lipschitz: G.
        p: exponent of the ball's norm, in [1, 2].
        direction: "signs" or "axis": from where v is drawn.
        num_users: n, if the values are of n records.

    Example:
        >>> tuple(round(x, 7) for x in hard_scales(4, 16))
        (0.1767767, 0.1767767, 0.0441942)
    """
    ratio = query_ratio(queries, dim, num_users)
    q = dual_exponent(p)
    power = _best_power(dim, ratio if direction == "signs" else 0.0, q)
    spread = (power - 1.0) * dim ** (2.0 / power)
    length = dim ** (2.0 / power) if direction == "signs" else 1.0
    stddev = lipschitz / math.sqrt(ratio**2 * length + spread)
    reach, share = reach_and_share(p, dim, direction)
    return Scales(ratio * stddev, stddev, ratio * stddev * reach * share)


@checked
def minimax_lower_bound(
    queries: Count,
    dim: Count,
    lipschitz: Positive = 1.0,
    diameter: Positive = 1.0,
    p: UpToTwo = 2.0,
    direction: Direction | None = None,
    num_users: Count | None = None,
) -> float:
    """Excess population risk that no algorithm is below that sees k values (T Thm 3.7.1, Prop 5.7.4).

    At p = 2 with signs GD/(16·√(1 + 4k/d)). Of all laws with E‖s‖_q² <= G², p of the ball of diameter D.

    Args:
        queries: k.
        dim: d.
        lipschitz: G.
        diameter: D, in the ℓp norm.
        p: in [1, 2].
        direction: "signs" or "axis"; ``None`` is the better of both.
        num_users: n, if the values are of n records.

    Example:
        >>> round(minimax_lower_bound(100, 25), 5), round(minimax_lower_bound(100, 25, p=1), 5)
        (0.01516, 0.01639)
    """
    if direction is not None:
        return diameter * hard_scales(queries, dim, lipschitz, p, direction, num_users).risk
    found = (hard_scales(queries, dim, lipschitz, p, word, num_users).risk for word in DIRECTIONS)
    return diameter * max(found)


@checked
def reach_and_share(p: UpToTwo, dim: Count, direction: Direction) -> tuple[float, float]:
    """The largest excess risk on the ball over κD, and how much of it no algorithm is below.

    Args:
        p: in [1, 2].
        dim: d.
        direction: "signs" or "axis".
    """
    if direction == "axis":
        return 1.0, 0.25
    return dim ** (1.0 - 1.0 / p), (1.0 - 1.0 / p) / 8.0


@checked
def query_ratio(queries: Count, dim: Count, num_users: Count | None = None) -> float:
    """ρ = κ/σ = √(d/(4k)), of k values at most d for a record.

    Args:
        queries: k.
        dim: d.
        num_users: n, if the values are of n records.
    """
    seen = queries if num_users is None else min(queries, num_users * dim)
    return 0.5 * math.sqrt(dim / seen)


def _best_power(dim: int, ratio: float, q: float) -> float:
    """The r in [2, q] of least d^(2/r)·(ρ² + r - 1): its derivative has the sign of r² - 2L(ρ² + r - 1)."""
    log = math.log(dim)
    rest = log * log + 2.0 * log * (ratio**2 - 1.0)
    return min(max(log + math.sqrt(rest), 2.0), q) if rest >= 0.0 else 2.0
