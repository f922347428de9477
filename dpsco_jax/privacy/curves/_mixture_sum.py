"""Rényi moments of a pair of mixtures that share a part, as sums of positive terms.

P = (1-q) N(0, σ²) + q N(c, σ²) against Q = (1-q) N(0, σ²) + q N(c-1, σ²) with c ≥ 1/2, of which only the half
line where P is the likelier is taken, z = c - 1/2 + σs with s > 0, together with its mirror image: the pair
that is its own reverse. With π the posterior probability under Q of having been sampled,

    L = log dP/dQ = log(1 + π (exp(s/σ) - 1)),   1/π = 1 + exp(λ),
    λ = log((1-q)/q) + (1-c) (2s + c/σ) / (2σ),
    A(α) - 1 = ∫ (exp(αL) - 1) (1 - exp((1-α)L)) dQ over s > 0:

every factor is positive and nothing cancels, however small the loss and however near to 1 the order.

Source: the nodes are those of ``_profile_nodes``. Derivation, discretization and rounding:
docs/privacy/mixtures.md.

Formal guarantee: none by itself. Results are rounded up, exponents included.

Cost: about 30,000 exponentials for all orders, half of which have a companion.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax._numerics import Array
from dpsco_jax.privacy.curves._profile import _log_one_plus, _product
from dpsco_jax.privacy.curves._profile_nodes import CHUNK, Bank, Precision, banks, precision
from dpsco_jax.privacy.orders import ORDERS

_LEAST_SCALE = 1e-15  # its square is a float32


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
    for bank in banks(np.dtype(dtype)):
        least = bank.floors[-1]
        # P first vanishes πσ/c from the real line.
        held = sigma >= least * centre
        safe = xp.maximum(sigma, 0.5 * least)
        c = xp.minimum(centre, safe / least)
        pair = _Pair(*(x[..., None] for x in (1.0 / safe, c, xp.log(q), xp.log1p(-q) - xp.log(q))))
        place = (c / safe)[..., None] > 1.0 / np.asarray(bank.floors[:-1], dtype)
        grid = (place.sum(-1)[..., None] == np.arange(len(bank.floors))).astype(dtype)
        logs.append(_of_bank(xp, bank, grid, pair, settings))
        ends = np.repeat(
            [group.above - 1 for group in bank.groups],
            [group.stop - group.start for group in bank.groups],
        )
        last = _choose(xp, grid, bank.nodes.s[:, ends])
        start, stop = bank.groups[0].start, bank.groups[-1].stop
        reached.append(_reaches(xp, pair, ORDERS[start:stop], last, settings) & held[..., None])
    return xp.concatenate(logs, axis=-1), xp.concatenate(reached, axis=-1)


def _choose(xp: Any, grid: Any, table: Array) -> Any:
    """The row of the grid in use."""
    return table[0] if len(table) == 1 else _product(xp, grid, table)


def _log_posterior(xp: Any, pair: _Pair, s: Any) -> tuple[Any, Any]:
    """-log π, and the sizes of what it is made of."""
    shift = 0.5 * (1.0 - pair.c) * pair.mu * (2.0 * s + pair.c * pair.mu)
    sizes = xp.abs(pair.log_odds) - pair.log_q + xp.abs(shift)
    return xp.logaddexp(0.0, pair.log_odds + shift), sizes


def _loss_and_density(
    xp: Any, pair: _Pair, s: Any, log_weight: Any, settings: Precision
) -> tuple[Any, Any]:
    """L and the log of the weight of a node under Q, both rounded up."""
    eps = xp.finfo(pair.mu.dtype).eps
    w = s * pair.mu
    rarity, sizes = _log_posterior(xp, pair, s)
    x = w - rarity + 4.0 * eps * (w + sizes)  # log π exp(w)
    u = xp.exp(xp.minimum(x, settings.cap)) * -xp.expm1(-w)
    loss = (xp.log1p(u) + xp.maximum(x - settings.cap, 0.0)) * (1.0 + 6.0 * eps)
    square = 0.125 * pair.mu * pair.mu
    slack = 4.0 * eps * (xp.abs(log_weight) + w + square + sizes)
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


def _of_bank(xp: Any, bank: Bank, grid: Any, pair: _Pair, settings: Precision) -> Any:
    groups, dtype = bank.groups, pair.mu.dtype
    first = groups[0].start
    orders = ORDERS[first : groups[-1].stop]
    powers = orders.astype(dtype), (orders - 1.0).astype(dtype)
    nodes = bank.nodes.s, bank.nodes.log_weight

    def terms(tables: tuple[Any, Any]) -> tuple[Any, Any]:
        s, log_weight = (_choose(xp, grid, table) for table in tables)
        return _loss_and_density(xp, pair, s, log_weight, settings)

    # Every fourth node will do for the peak: the second derivative in between is at least about -1.
    loss, term = terms((nodes[0][:, 3::4], nodes[1][:, 3::4]))
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
    middling, _ = _loss_and_density(xp, pair, xp.ones_like(pair.mu), 0.0, settings)
    scale = xp.clip(-xp.expm1(-middling), _LEAST_SCALE, 1.0)
    near = groups[0].below
    total = _accumulate(xp, terms, nodes, slice(None, near), True, powers, peak, scale, None)
    # A segment of far nodes serves the orders that reach beyond it: all of the later groups.
    finished, done = [], 0
    for group in groups:
        begin = group.start - first
        rest = powers[0][begin:], powers[1][begin:]
        which = slice(max(near, done), group.above)
        if which.start < which.stop:
            total = _accumulate(
                xp, terms, nodes, which, False, rest, peak[..., begin:], scale, total
            )
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
    nodes: tuple[Array, Array],
    which: slice,
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

    tables = tuple(table[:, which] for table in nodes)
    if xp is np:
        loss, term = terms(tables)
        order, above_one = order[:, None], above_one[:, None]
        added = summand(
            loss[..., None, :], term[..., None, :], peak[..., None], inverse[..., None]
        ).sum(-1)
        return added if total is None else total + added

    def add(total: Any, chunk: tuple[Any, Any]) -> tuple[Any, None]:
        loss, term = terms(chunk)
        for i in range(CHUNK):
            total += summand(loss[..., i, None], term[..., i, None], peak, inverse)
        return total, None

    chunks = jax.tree.map(
        lambda table: np.moveaxis(table.reshape((table.shape[0], -1, CHUNK)), 1, 0), tables
    )
    start = jnp.zeros_like(peak) if total is None else total
    return jax.lax.scan(add, start, chunks)[0]
