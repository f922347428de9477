"""Rényi moments of a sampled Gaussian, as sums of positive terms over its privacy profile.

Let w = log(N(1, σ²)/N(0, σ²)), u = q (exp(w) - 1), and L = log(1 + u) the privacy loss of the sampled
pair. For z ~ N(0, σ²), writing (1+u)^α - 1 - αu as α(α-1) times a double integral of (1+v)^(α-2) gives

    A(α) - 1 = α(α-1) ∫ exp((α-1)L) H dL,   H(L) = E[(u(z) - u)_+] for L > 0, E[(u - u(z))_+] for L < 0.

With s = |w|σ, H is q exp(w) φ(t) (R(s - 1/(2σ)) - R(s + 1/(2σ))), where φ is the normal density at
t = wσ + 1/(2σ) and R = (1 - Φ)/φ is Mills' ratio: everything is positive and nothing cancels, however
small the loss and however near to 1 the order.

Source: the integral representation is that of Sason and Verdú 2016. Derivation, discretization and
rounding: docs/theory/subsampling.md.

Results are rounded up, exponents included.

Cost: about 30,000 exponentials for all orders, 600 evaluations of everything else.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax._numerics import Array
from dpsco_jax.privacy.curves._profile_nodes import CHUNK, Bank, Nodes, Precision, banks, precision
from dpsco_jax.privacy.orders import ORDERS


def log_moments(
    xp: Any, sigma: Any, q: Any, *, mirrored: bool, orders: slice = slice(None)
) -> tuple[Any, Any]:
    """Log A at each order, rounded up, and at which orders the nodes reach far enough.

    Args:
        xp: NumPy or jax.numpy.
        sigma: noise multiplier, above 0, shape ``[...]``.
        q: sampling probability, strictly between 0 and 1, same shape and dtype.
        mirrored: False for the pair itself; True for the symmetric pair, whose profile is that of the
            half line L > 0 in both directions: 1 + α(α-1) ∫ (exp((α-1)L) + exp(-αL)) H dL over L > 0.
        orders: those that are wanted, of ``ORDERS``, in a row.

    Returns:
        Two arrays of shape ``[..., orders]``; the first means nothing where the second is false.
    """
    dtype = sigma.dtype
    settings = precision(dtype)
    logs, reached = [], []
    for bank in (_part(bank, orders) for bank in banks(np.dtype(dtype))):
        if not bank.groups:
            continue
        pair = _pair(xp, bank, sigma, q, settings)
        peak, total = _sums(xp, bank, pair, settings, mirrored)
        start, stop = bank.groups[0].start, bank.groups[-1].stop
        order, excess = ORDERS[start:stop].astype(dtype), (ORDERS[start:stop] - 1.0).astype(dtype)
        factor = order * excess * (pair.q * pair.mu) ** 2
        logs.append(_log_one_plus(xp, factor, peak, total, settings))
        ends = np.repeat(
            [group.above - 1 for group in bank.groups],
            [group.stop - group.start for group in bank.groups],
        )
        last = pair.choose(xp, bank.nodes.s[:, ends])
        held = (sigma >= bank.floors[-1])[..., None]
        reached.append((order * pair.mu + settings.reach <= last) & held)
    return xp.concatenate(logs, axis=-1), xp.concatenate(reached, axis=-1)


def _part(bank: Bank, orders: slice) -> Bank:
    """The groups that hold some of the orders, with no others in them; nodes are counted as before."""
    start, stop, _ = orders.indices(len(ORDERS))
    cut = (
        group._replace(start=max(group.start, start), stop=min(group.stop, stop))
        for group in bank.groups
    )
    return bank._replace(groups=tuple(group for group in cut if group.start < group.stop))


class _Pair(NamedTuple):
    """What the profile depends on, each of shape ``[..., something]``."""

    mu: Any  # 1/σ
    q: Any
    powers: Any  # (μ/2)^(k-1) for k = 1, 3, ... at the place of the grid in use, 0 elsewhere
    grid: Any  # 1 for the grid in use, 0 for the others

    def choose(self, xp: Any, table: Array) -> Any:
        """The row of the grid in use."""
        return table[0] if len(table) == 1 else _product(xp, self.grid, table)


def _pair(xp: Any, bank: Bank, sigma: Any, q: Any, settings: Precision) -> _Pair:
    mu = (1.0 / xp.maximum(sigma, bank.floors[-1]))[..., None]
    powers = (0.25 * mu * mu) ** np.arange(settings.terms, dtype=mu.dtype)
    place = (mu > 1.0 / np.asarray(bank.floors[:-1], mu.dtype)).sum(-1)
    grid = (place[..., None] == np.arange(len(bank.floors))).astype(mu.dtype)
    powers = (grid[..., None] * powers[..., None, :]).reshape((*grid.shape[:-1], -1))
    return _Pair(mu, q[..., None], powers, grid)


def _product(xp: Any, left: Any, table: Array) -> Any:
    return xp.matmul(left, table, **({"precision": "highest"} if xp is jnp else {}))


def _common(xp: Any, pair: _Pair, nodes: Nodes) -> tuple[Any, Any]:
    """W and the part of the log of H dL that both signs of the privacy loss share, rounded up."""
    log_weight = pair.choose(xp, nodes.log_weight)
    w = pair.choose(xp, nodes.s) * pair.mu
    # (R(s - μ/2) - R(s + μ/2)) / μ, from its odd derivatives.
    difference = xp.log(_product(xp, pair.powers, nodes.mills))
    slack = 2.0 * xp.finfo(w.dtype).eps * (xp.abs(log_weight) + 1.5 * w)
    return w, log_weight - 0.125 * pair.mu * pair.mu + difference + slack


def _sums(xp: Any, bank: Bank, pair: _Pair, settings: Precision, mirrored: bool) -> tuple[Any, Any]:
    """∫ exp((α-1)L) H dL / (qμ)² at the orders of the bank, as (peak, integral / exp(peak))."""
    eps = xp.finfo(pair.mu.dtype).eps

    def above(nodes: Nodes) -> tuple[Any, Any]:
        w, common = _common(xp, pair, nodes)
        u = pair.q * xp.expm1(xp.minimum(w, settings.cap))
        ratio = xp.log1p(u) + xp.maximum(w - settings.cap, 0.0)
        return ratio * (1.0 + 3.0 * eps), common + 1.5 * w - ratio

    def below(nodes: Nodes) -> tuple[Any, Any]:
        w, common = _common(xp, pair, nodes)
        ratio = xp.log1p(pair.q * xp.expm1(-w))
        return ratio * (1.0 - 3.0 * eps), common - 1.5 * w - ratio

    groups = bank.groups
    orders = ORDERS[groups[0].start : groups[-1].stop]
    rate, mirror = (orders - 1.0).astype(pair.mu.dtype), (-orders).astype(pair.mu.dtype)
    # Every fourth node will do for the peak: the second derivative in between is at least about -1.
    ratio, term = above(bank.nodes.part(slice(3, None, 4)))
    peak = xp.concatenate(
        [
            (rates[:, None] * ratio[..., None, :count] + term[..., None, :count]).max(-1)
            for rates, count in (
                (rate[g.start - groups[0].start : g.stop - groups[0].start], g.above // 4)
                for g in groups
            )
        ],
        axis=-1,
    )
    # A segment of nodes serves the orders that reach beyond it: all of the later groups.
    zeros = xp.zeros_like(peak)
    totals, finished, first = (zeros, zeros), [], 0
    for group in groups:
        done = group.start - groups[0].start
        exponents = [(rate[done:], -peak[..., done:])] + [(mirror[done:], 0.0)] * mirrored
        nodes = bank.nodes.part(slice(first, group.above))
        totals = _accumulate(xp, above, nodes, exponents, totals)
        size = group.stop - group.start
        finished.append(tuple(total[..., :size] for total in totals))
        totals, first = tuple(total[..., size:] for total in totals), group.above
    total, rest = (xp.concatenate(parts, axis=-1) for parts in zip(*finished, strict=True))
    if not mirrored:
        nodes = bank.nodes.part(slice(None, max(group.below for group in groups)))
        (rest,) = _accumulate(xp, below, nodes, [(rate, 0.0)], (rest,))
    return peak, total + rest * xp.exp(-peak)


def _accumulate(
    xp: Any,
    terms: Callable[[Nodes], tuple[Any, Any]],
    nodes: Nodes,
    exponents: list[tuple[Any, Any]],
    totals: tuple[Any, ...],
) -> tuple[Any, ...]:
    """Each total plus Σ exp(rate · ratio + term + shift) over the nodes; totals without exponent stay.

    In JAX a few nodes at a time: a reduction would write orders × nodes exponentials to memory.
    """
    if xp is np:
        ratio, term = terms(nodes)
        added = [
            np.exp(
                rate[:, None] * ratio[..., None, :]
                + term[..., None, :]
                + np.asarray(shift, rate.dtype)[..., None]
            )
            for rate, shift in exponents
        ]
        sums = [total + new.sum(-1) for total, new in zip(totals, added, strict=False)]
        return (*sums, *totals[len(sums) :])

    def add(totals: tuple[Any, ...], chunk: Nodes) -> tuple[tuple[Any, ...], None]:
        ratio, term = terms(chunk)
        sums = list(totals)
        for k, (rate, shift) in enumerate(exponents):
            for i in range(CHUNK):
                sums[k] += jnp.exp(rate * ratio[..., i, None] + (term[..., i, None] + shift))
        return tuple(sums), None

    chunks = jax.tree.map(
        lambda table: np.moveaxis(table.reshape((table.shape[0], -1, CHUNK)), 1, 0), nodes
    )
    return jax.lax.scan(add, totals, chunks)[0]


def _log_one_plus(xp: Any, factor: Any, peak: Any, total: Any, settings: Precision) -> Any:
    """Log of 1 + factor · exp(peak) · total, rounded up."""
    total = total * (1.0 + 256.0 * math.exp(-settings.decay))
    log_factor = xp.log(xp.maximum(factor, xp.finfo(factor.dtype).tiny))
    large = peak + log_factor > 0.0
    above = xp.where(large, peak + log_factor, 0.0)
    scaled = xp.where(large, 1.0, factor * xp.exp(xp.where(large, 0.0, peak)))
    return above + xp.log1p(scaled * total + xp.expm1(-above))
