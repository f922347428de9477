"""Reference laws and simulations of one call of private ReSQue, independent of the package.

Instances: the loss of a user is ⟨s, x⟩, all users but one have s = 0, and the differing one has +u or -u of
norm L. Then a phase is a Gaussian whose mean the record moves by ± step size · L · Σ share · weight.
"""

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
