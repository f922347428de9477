"""Reference laws and simulations of one call of private ReSQue, independent of the package.

Instances: the loss of a user is ⟨s, x⟩, all users but one have s = 0, and the differing one has +u or -u of
norm L. Then a phase is a Gaussian whose mean the record moves by ± step size · L · Σ share · weight.
"""

import itertools
import math

import numpy as np
from scipy import special, stats

_GRID = np.linspace(-40.0, 40.0, 8001)
_SPACING = _GRID[1] - _GRID[0]


def log_mixture(probabilities, means):
    """Log density of a mixture of unit Gaussians on the grid."""
    logs = stats.norm.logpdf(_GRID[:, None] - means) + np.log(probabilities)
    return special.logsumexp(logs, axis=1)


def rdp(first, second, order):
    """Rényi divergence of two mixtures, each given as (probabilities, means)."""
    p, q = log_mixture(*first), log_mixture(*second)
    return special.logsumexp(order * p + (1 - order) * q + np.log(_SPACING)) / (order - 1)


def hockey_stick(first, second, epsilon):
    p, q = (np.exp(log_mixture(*law)) for law in (first, second))
    return np.sum(np.maximum(p - np.exp(epsilon) * q, 0.0)) * _SPACING


def weights(radius_over_rho, nodes=41):
    """The law of the weight at distance r from the center: probabilities and values (Gauss-Hermite).

    Values of probability below 1e-10 are left out.
    """
    x, w = special.roots_hermitenorm(nodes)
    kept = w / w.sum() > 1e-10
    return (w / w.sum())[kept], np.exp(radius_over_rho * x - radius_over_rho**2 / 2)[kept]


def phase(beta, rate, shares, radius_over_rho=0.0, others=0.0):
    """Laws of what one phase releases, in standard deviations, on two neighbouring data sets.

    Args:
        beta: of the call.
        rate: probability that the record is used, once, in this phase.
        shares: of the average that its possible positions, all equally likely, move: (T - j)/T for step j.
        radius_over_rho: distance of the iterates from the center.
        others: the slope of all other users, in [-1, 1]; not zero only if one position counts, as in the
            first phase of four queries.
    """
    chance, weight = weights(radius_over_rho) if radius_over_rho else (np.ones(1), np.ones(1))
    used = beta * np.outer(shares, weight).ravel()
    chances = np.outer(np.full(len(shares), 1 / len(shares)), chance).ravel()
    unused, chances_unused = others * beta * shares[0] * weight, chance
    probabilities = np.append(rate * chances, (1 - rate) * chances_unused)
    if rate == 1.0:
        probabilities, unused = chances, np.zeros(0)
    return tuple((probabilities, np.append(sign * used, unused)) for sign in (1.0, -1.0))


def ternary_divergence(points, rate, order, span=14.0, step=0.04):
    """D(sP + (1-s)R ‖ sQ + (1-s)R) of unit Gaussians in the plane at the three points, by quadrature."""
    x, y = np.meshgrid(*[np.arange(-span, span, step)] * 2)
    p, q, r = (np.exp(-((x - a) ** 2 + (y - b) ** 2) / 2) / (2 * np.pi) for a, b in points)
    u, v = rate * p + (1 - rate) * r, rate * q + (1 - rate) * r
    return np.log(np.sum(np.exp(order * np.log(u) + (1 - order) * np.log(v))) * step**2) / (
        order - 1
    )


def drift_tail(num_queries, ratio):
    """S of docs/theory/resque.md, Lemma 2, in plain NumPy: a function x -> bound on P(X > x) in one phase.

    Written from the lemma, term by term; nothing of it is shared with the package.
    """
    a = 1.0 / ratio
    step = 2.0 * a / (4.0 * math.sqrt(num_queries))  # η_1 L / ρ
    growths = [0.0, 0.0]  # log of (η L M_q / ρ)^q for q = 0, 1, ...
    for q in range(2, 401):
        normal = math.sqrt(2.0) * math.exp(
            (math.lgamma((q + 1) / 2) - math.lgamma(0.5)) / q
        )  # ‖N(0, 1)‖_q
        moment = math.exp((q - 1) * a * a / 2.0) * ((q - 1) * a + normal)
        growths.append(q * math.log(step * moment))
    norms = []
    for p in range(1, 201):
        total, n = 0.0, 2 * p
        for q in range(2, n + 1):
            choose = math.lgamma(n + 1) - math.lgamma(q + 1) - math.lgamma(n - q + 1)
            total += math.exp(min(choose + growths[q], 700.0))
        growth = math.log1p(total) / n
        norms.append((n - 1) * a * a / 2.0 + (num_queries // 2 - 1) * growth)
    norms, powers = np.array(norms), 2.0 * np.arange(1, 201)

    def tail(x):
        logs = powers * (norms - np.log(np.maximum(x, 1e-9))[..., None])
        return np.exp(np.minimum(logs.min(axis=-1), 0.0))

    return tail


def positions(num_queries):
    """(phase, share) of every position of a call: what a record used there moves of the phase's average."""
    found = []
    for phase in range(1, num_queries.bit_length()):
        steps = num_queries >> phase
        # y_0, ..., y_{steps - 1} are averaged; used in step j, a record moves those from y_j on.
        found += [(phase, (steps - j) / steps) for j in range(1, steps + 1)]
    return found


def union_tail(num_queries, ratio, uses, shifts):
    """P(Σ shares · largest drift > shift), a union over the phases: exactly, over all sets of positions."""
    tail = drift_tail(num_queries, ratio)
    total, count = np.zeros(len(shifts)), 0
    for places in itertools.combinations(positions(num_queries), uses):
        share = sum(share for _, share in places)
        count += 1
        if share > 0:
            total += np.minimum(len({phase for phase, _ in places}) * tail(shifts / share), 1.0)
    return total / count


def drawn_shifts(rng, num_queries, ratio, uses, trials):
    """Draws of Σ shares · largest drift: distinct positions, a drift of law S in every phase they touch."""
    tail, places = drift_tail(num_queries, ratio), np.array(positions(num_queries))
    grid = np.geomspace(0.5, 60.0, 20_000)
    above = tail(grid)
    order = np.argsort(rng.random((trials, len(places))), axis=1)[:, :uses]
    phases, shares = places[order, 0].astype(int), places[order, 1]
    # One drift for every phase, independent of the others: the first of the grid whose tail is below.
    uniform = rng.random((trials, phases.max() + 1))
    drifts = grid[np.minimum(np.searchsorted(-above, -uniform), len(grid) - 1)]
    touched = np.take_along_axis(drifts, phases, axis=1)
    return shares.sum(axis=1) * touched.max(axis=1)
