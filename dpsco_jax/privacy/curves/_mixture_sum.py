"""Rényi moments of a pair of mixtures that share a part, as sums of positive terms.

P = (1-q) N(0, σ²) + q N(c, σ²) against Q = (1-q) N(0, σ²) + q N(c-1, σ²) with c ≥ 1/2, of which only the half
line where P is the likelier is taken, z = c - 1/2 + σs with s > 0, together with its mirror image: the pair
that is its own reverse. With π the posterior probability under Q of having been sampled,

    L = log dP/dQ = log(1 + π (exp(s/σ) - 1)),   1/π = 1 + exp(λ),
    λ = log((1-q)/q) + (1-c) (2s + c/σ) / (2σ),
    A(α) - 1 = ∫ (exp(αL) - 1) (1 - exp((1-α)L)) dQ over s > 0:

every factor is positive and nothing cancels, however small the loss and however near to 1 the order.

Derivation, discretization and rounding: docs/theory/mixtures.md.

Results are rounded up, exponents included.

Cost: about 37,000 exponentials for all orders in float32, a quarter of which have a companion.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax.privacy.curves._profile import _log_one_plus
from dpsco_jax.privacy.curves._profile_nodes import CHUNK, Group, Precision, banks, precision
from dpsco_jax.privacy.orders import ORDERS

_LEAST_SCALE = 1e-15  # its square is a float32
_LEAST_RATIO = 0.25  # of σ to c
# In float32 and in float64: nodes with every factor as it is, and how many nodes for each of the profile's
# (steps are finer where posteriors turn).
_NEAR, _MORE = (48, 176), (1.75, 1.35)


_LOG_ROOM = math.log(16.0)
"""The sum is within 64 exp(-decay) of the integral but for tails, and 256 exp(-decay) of itself is added."""


_HIGHEST = 3.3  # of the strip: a higher one has longer steps and more of them near 0


_ZERO_OF_P = 2.2  # instead of π


_TURN = 1.25  # instead of π/2


_TURN_SLOPE = 0.207  # log(1/cos θ) <= θ²/2 / (1 - this θ²) up to there


class Steps(NamedTuple):
    """Of the nodes of a pair, each of shape ``[..., 1]``.

    Attributes:
        ratio: ρ.
        scale: λ.
    """

    ratio: Any
    scale: Any


class Node(NamedTuple):
    """Nodes, each of shape ``[..., nodes]``.

    Attributes:
        s: where they are.
        log_weight: log of step times normal density.
        ulps: by how much s may be off, over the distance of the numbers of its dtype at 1.
    """

    s: Any
    log_weight: Any
    ulps: Any


def steps(
    xp: Any, mu: Any, centre: Any, log_odds: Any, largest_order: float, settings: Precision
) -> Steps:
    """Steps short enough for all orders up to the largest.

    The half line s > 0 is s = λ log(1 + exp(v)), with equal steps ρ of v (Trefethen and Weideman 2014). How
    long these may be is told by how the integrand grows within a strip around the real line. P and Q have no
    zero there, but that is not enough: where the posterior of Q turns from 0 to 1, Q to the power 1 - α grows
    as if the integrand had bumps that are far narrower than the normal density. With R = c/σ, r = |c-1|/σ and
    τ = log(1/cos(ry))/R,

        |P/Q| at s + iy is at most P/Q at s + τ,

    and what that costs is counted into the step. Derivation: docs/theory/mixtures.md, section 4.

    Args:
        xp: NumPy or jax.numpy.
        mu: 1/σ.
        centre: c, at least 1/2.
        log_odds: log((1-q)/q).
        largest_order: of those that are summed.
        settings: how exact the sum has to be.
    """
    zero_of_p, turn = centre * mu, xp.abs(centre - 1.0) * mu
    log_order = math.log(largest_order)
    # How far, over r, the integrand has to be moved by τ: until Q has turned but for 1/α.
    rarity = xp.where(centre >= 1.0, log_odds, -log_odds) + 0.5 * turn * turn
    excess = xp.maximum(rarity + log_order, 0.0)
    # For c < 1 and q small Q has turned by then wherever it does so more than P.
    order_gone = (2.0 * centre - 1.0) * log_order < log_odds + 0.5 * turn * zero_of_p
    turns = (centre >= 1.0) | ~order_gone
    # Zero where noise is so large that nothing turns.
    distance = xp.where(zero_of_p > 0, zero_of_p, 1.0)
    share = xp.where(turns, turn / distance, 0.0)
    decay = settings.decay - _LOG_ROOM
    bent = 1.0 + share * excess
    height = xp.minimum(_HIGHEST, _ZERO_OF_P / distance)
    height = xp.minimum(height, xp.sqrt(2.0 * decay / bent))
    height = xp.where(turns, xp.minimum(height, _TURN / xp.maximum(turn, 1e-3)), height)
    half_square = 0.5 * height * height
    angle = xp.where(turns, turn * height, 0.0)
    half_square_turned = half_square / (1.0 - _TURN_SLOPE * angle * angle)
    shift = share * turn * half_square_turned
    growth = half_square + share * excess * half_square_turned + 0.5 * shift * shift
    return Steps(math.pi**2 / (decay + growth), (2.0 / math.pi) * height)


def nodes(xp: Any, grid: Steps, indices: Any, settings: Precision) -> Node:
    """The nodes of a grid.

    Args:
        xp: NumPy or jax.numpy.
        grid: of the pair.
        indices: from 0, in the dtype of the pair.
        settings: those of the steps.
    """
    v = grid.ratio * indices - settings.left
    soft = xp.logaddexp(0.0, v)
    s = grid.scale * soft
    log_step = xp.log(grid.ratio * grid.scale) + v - soft
    log_weight = log_step - 0.5 * s * s - 0.5 * math.log(2.0 * math.pi)
    # v is off by half a rounding of itself and of itself plus ``left``, and moves s by λ/(1 + exp(-v)).
    return Node(s, log_weight, 3.0 * s + settings.left * xp.minimum(s, grid.scale))


def halves_of_sensitivity(cap: Any, relation: NeighboringRelation) -> Any:
    """The cap on a user's sum, over the norm of a unit, in halves of the sensitivity to that unit."""
    return 2.0 * cap if relation is NeighboringRelation.REPLACE_SPECIAL else cap


class _Pair(NamedTuple):
    """What the integrand depends on, each of shape ``[..., 1]``."""

    mu: Any  # 1/σ
    c: Any
    log_q: Any
    log_odds: Any  # log((1-q)/q)


def log_moments(xp: Any, sigma: Any, q: Any, centre: Any) -> tuple[Any, Any]:
    """Log A at each order, rounded up, and at which orders the nodes reach far enough.

    Args:
        xp: NumPy or jax.numpy.
        sigma: noise multiplier, above 0, shape ``[...]``.
        q: sampling probability, strictly between 0 and 1, same shape and dtype.
        centre: c, at least 1/2, same shape and dtype; may be infinite.

    Returns:
        Two arrays of shape ``[..., orders]``; the first means nothing where the second is false.
    """
    dtype = sigma.dtype
    settings = precision(dtype)
    logs, reached = [], []
    # P first vanishes πσ/c from the real line.
    held = sigma >= _LEAST_RATIO * centre
    safe = xp.maximum(sigma, 0.5 * _LEAST_RATIO)
    c = xp.minimum(centre, safe / _LEAST_RATIO)
    pair = _Pair(*(x[..., None] for x in (1.0 / safe, c, xp.log(q), xp.log1p(-q) - xp.log(q))))
    wide = np.dtype(dtype) == np.float64
    near, more = _NEAR[wide], _MORE[wide]
    for bank in banks(np.dtype(dtype)):
        groups = tuple(
            group._replace(above=_in_chunks(more * group.above), below=near)
            for group in bank.groups
        )
        start, stop = groups[0].start, groups[-1].stop
        grid = steps(xp, pair.mu, pair.c, pair.log_odds, float(ORDERS[stop - 1]), settings)
        value = _of_bank(xp, groups, grid, pair, settings)
        logs.append(value)
        ends = np.repeat(
            [group.above - 1 for group in groups], [group.stop - group.start for group in groups]
        )
        last = nodes(xp, grid, ends.astype(dtype), settings).s
        reaches = _reaches(xp, pair, ORDERS[start:stop], last, settings)
        reaches |= _ends(xp, pair, ORDERS[start:stop], last, value, settings)
        reached.append(reaches & held[..., None])
    return xp.concatenate(logs, axis=-1), xp.concatenate(reached, axis=-1)


def _in_chunks(count: float) -> int:
    return math.ceil(count / CHUNK) * CHUNK


def _log_posterior(xp: Any, pair: _Pair, s: Any) -> tuple[Any, Any]:
    """-log π, and the sizes of what it is made of."""
    shift = 0.5 * (1.0 - pair.c) * pair.mu * (2.0 * s + pair.c * pair.mu)
    return xp.logaddexp(0.0, pair.log_odds + shift), xp.abs(pair.log_odds) + xp.abs(shift)


def _loss_and_density(xp: Any, pair: _Pair, node: Node, settings: Precision) -> tuple[Any, Any]:
    """L and the log of the weight of a node under Q, both rounded up."""
    eps = xp.finfo(pair.mu.dtype).eps
    s, log_weight, ulps = node
    w = (s + eps * ulps) * pair.mu
    rarity, sizes = _log_posterior(xp, pair, s)
    slack = eps * (4.0 * (w + sizes) + xp.abs(pair.c - 1.0) * pair.mu * ulps)
    x = w - rarity + slack  # log π exp(w)
    u = xp.exp(xp.minimum(x, settings.cap)) * -xp.expm1(-w)
    loss = (xp.log1p(u) + xp.maximum(x - settings.cap, 0.0)) * (1.0 + 6.0 * eps)
    square = 0.125 * pair.mu * pair.mu
    slack = slack + eps * (
        4.0 * (2.0 + xp.abs(log_weight) + square - pair.log_q) + (s + pair.mu) * ulps
    )
    return loss, log_weight + pair.log_q - 0.5 * w - square + rarity + slack


def _reaches(xp: Any, pair: _Pair, orders: np.ndarray, last: Any, settings: Precision) -> Any:
    """Whether the bump of the integrand ends before the last node.

    The log of P^α Q^(1-α) has at z the slope (αE_P - (α-1)E_Q - z)/σ², where E_P ≤ c and E_Q = (c-1)π are
    means of the position. Beyond a point that lies right of its own centre, all do.
    """
    dtype = pair.mu.dtype
    start = xp.maximum(last - settings.reach, 0.0)
    posterior = xp.exp(-_log_posterior(xp, pair, start)[0])
    own, other = orders.astype(dtype), (orders - 1.0).astype(dtype)
    centre = own * pair.c - other * (pair.c - 1.0) * posterior - pair.c + 0.5
    return centre * pair.mu + settings.reach <= last


def _ends(
    xp: Any, pair: _Pair, orders: np.ndarray, last: Any, value: Any, settings: Precision
) -> Any:
    """Whether all that may lie beyond the last node is little of the sum, whose log A is given.

    The log of P/Q is at most w = s/σ, and exp(αw) Q is a sum of two Gaussians.
    """
    own = orders.astype(pair.mu.dtype)
    w = last * pair.mu
    below = xp.square(last + 0.5 * pair.mu)
    beyond = own * w + pair.log_q - 0.5 * below + _log_posterior(xp, pair, last)[0]
    grown = -xp.expm1(-value)
    excess = xp.where(grown > 0, value + xp.log(xp.where(grown > 0, grown, 1.0)), -xp.inf)
    falls = last >= xp.maximum(own - pair.c + 0.5, own - 0.5) * pair.mu
    return falls & (beyond + settings.decay <= excess)


def _of_bank(
    xp: Any, groups: tuple[Group, ...], grid: Steps, pair: _Pair, settings: Precision
) -> Any:
    dtype = pair.mu.dtype
    first = groups[0].start
    orders = ORDERS[first : groups[-1].stop]
    powers = orders.astype(dtype), (orders - 1.0).astype(dtype)
    count = np.arange(groups[-1].above, dtype=dtype)

    def terms(indices: Any) -> tuple[Any, Any]:
        return _loss_and_density(xp, pair, nodes(xp, grid, indices, settings), settings)

    # Every fourth node will do for the peak: the second derivative in between is at least about -1.
    loss, term = terms(count[3::4])
    peak = xp.concatenate(
        [
            (
                powers[0][g.start - first : g.stop - first, None] * loss[..., None, : g.above // 4]
                + term[..., None, : g.above // 4]
            ).max(-1)
            for g in groups
        ],
        axis=-1,
    )
    # Losses are counted in units of one of middling size, so that their squares are normal numbers.
    middling, _ = _loss_and_density(xp, pair, Node(xp.ones_like(pair.mu), 0.0, 0.0), settings)
    scale = xp.clip(-xp.expm1(-middling), _LEAST_SCALE, 1.0)
    near = groups[0].below
    total = _accumulate(xp, terms, count[:near], True, powers, peak, scale, None)
    # A segment of far nodes serves the orders that reach beyond it: all of the later groups.
    finished, done = [], 0
    for group in groups:
        begin = group.start - first
        rest = powers[0][begin:], powers[1][begin:]
        which = count[max(near, done) : group.above]
        if len(which):
            total = _accumulate(xp, terms, which, False, rest, peak[..., begin:], scale, total)
        finished.append(total[..., : group.stop - group.start])
        total, done = total[..., group.stop - group.start :], group.above
    total = xp.concatenate(finished, axis=-1)
    return _log_one_plus(xp, xp.broadcast_to(scale**2, peak.shape), peak, total, settings)


def _lost(xp: Any, x: Any) -> Any:
    """1 - exp(-x), x ≥ 0; in float32 rounded up, by the tangent that XLA has without exponentials."""
    if x.dtype == np.float64:
        return -xp.expm1(-x)
    half = xp.tanh(0.5 * x)
    return (2.0 + 8.0 * np.finfo(np.float32).eps) * half / (1.0 + half)


def _accumulate(
    xp: Any,
    terms: Any,
    which: np.ndarray,
    near: bool,
    powers: tuple[Any, Any],
    peak: Any,
    scale: Any,
    total: Any,
) -> Any:
    """The total plus Σ exp(αL + term - peak) (1 - exp(-αL)) (1 - exp((1-α)L)) / scale² over the nodes.

    Far nodes take min(1, x) for 1 - exp(-x): where they count at all, both are 1. In JAX a few nodes at a
    time: a reduction would write orders × nodes numbers to memory.
    """
    order, above_one = powers
    inverse = 1.0 / scale

    def summand(loss: Any, term: Any, peak: Any, inverse: Any) -> Any:
        grown = xp.exp(order * loss + (term - peak))
        if not near:
            return (
                grown
                * (xp.minimum(above_one * loss, 1.0) * inverse)
                * (xp.minimum(order * loss, 1.0) * inverse)
            )
        lost = _lost(xp, above_one * loss)
        less = lost * inverse
        return grown * less * (less + (1.0 - lost) * (-xp.expm1(-loss) * inverse))

    if xp is np:
        loss, term = terms(which)
        order, above_one = order[:, None], above_one[:, None]
        added = summand(
            loss[..., None, :], term[..., None, :], peak[..., None], inverse[..., None]
        ).sum(-1)
        return added if total is None else total + added

    def add(total: Any, chunk: Any) -> tuple[Any, None]:
        loss, term = terms(chunk)
        for i in range(CHUNK):
            total += summand(loss[..., i, None], term[..., i, None], peak, inverse)
        return total, None

    start = jnp.zeros_like(peak) if total is None else total
    return jax.lax.scan(add, start, which.reshape(-1, CHUNK))[0]
