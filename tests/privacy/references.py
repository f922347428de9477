"""Slow, plain computations to compare curves with, in arbitrary precision."""

import mpmath as mp
import numpy as np

mp.mp.dps = 30


def sampled_gaussian_rdp(order: float, sigma: float, q: float) -> mp.mpf:
    """Divergence of (1-q) N(0, σ²) + q N(1, σ²) from N(0, σ²): binomial sum, or integral."""
    sigma, q, order = mp.mpf(float(sigma)), mp.mpf(float(q)), mp.mpf(float(order))
    if order == int(order):
        terms = (
            mp.binomial(order, k)
            * q**k
            * (1 - q) ** (order - k)
            * mp.expm1(mp.mpf(k * (k - 1)) / (2 * sigma**2))
            for k in range(2, int(order) + 1)
        )
        return mp.log1p(mp.fsum(terms)) / (order - 1)

    def integrand(t):
        u = q * mp.expm1(t / sigma - 1 / (2 * sigma**2))
        return mp.npdf(t) * ((1 + u) ** order - 1 - order * u)

    top = order / sigma + 14
    # The integrand is smooth: Gauss and Legendre need a tenth of the values of mpmath's usual rule.
    panels = mp.linspace(-14, top, int(top + 14) + 2)
    return mp.log1p(mp.quadgl(integrand, panels)) / (order - 1)


def symmetric_sampled_gaussian_rdp(order: float, sigma: float, q: float) -> mp.mpf:
    """The integral of hockey-stick divergences, from their definition."""
    sigma, q, order = mp.mpf(float(sigma)), mp.mpf(float(q)), mp.mpf(float(order))

    def profile(eps):
        inner = mp.log1p(mp.expm1(eps) / q)
        mu = 1 / sigma
        gaussian = mp.ncdf(mu / 2 - inner / mu) - mp.exp(inner) * mp.ncdf(-mu / 2 - inner / mu)
        return q * gaussian

    def integrand(eps):
        return (mp.exp((order - 1) * eps) + mp.exp(-order * eps)) * profile(eps)

    top = (order / sigma + 14) / sigma
    points = [0, *(top * mp.mpf(2) ** -k for k in range(12, -1, -1))]
    total = mp.quad(integrand, points)
    return mp.log1p(order * (order - 1) * total) / (order - 1)


def mixture_rdp(order, weights_p, means_p, weights_q, means_q, sigma) -> float:
    """Divergence between two mixtures of normals of one variance, by a fine sum."""
    means = np.concatenate([means_p, means_q])
    reach = (12.0 + order) * sigma + order * np.abs(means).max()
    z = np.linspace(-reach, reach, 400_001)

    def log_density(weights, means):
        parts = np.log(weights)[:, None] - 0.5 * ((z - means[:, None]) / sigma) ** 2
        return np.logaddexp.reduce(parts, axis=0)

    log_p = log_density(np.asarray(weights_p), np.asarray(means_p))
    log_q = log_density(np.asarray(weights_q), np.asarray(means_q))
    exponent = order * log_p + (1 - order) * log_q
    total = np.logaddexp.reduce(exponent) + np.log(z[1] - z[0]) - 0.5 * np.log(2 * np.pi * sigma**2)
    return total / (order - 1)


def sampled_gaussian_log_moments(orders: np.ndarray, sigma: float, q: float) -> np.ndarray:
    """Log of E[(1+u)^α] at any orders, in float64 (to about 1e-12), or a bound where it is steep.

    The mean of u is zero, so (1+u)^α - 1 - αu has the same mean as (1+u)^α - 1: equal steps in t.
    """
    y = (orders - 1) / (2 * sigma**2)
    bound = orders * np.where(y < 600, np.log1p(q * np.expm1(np.minimum(y, 600))), np.log(q) + y)
    result = bound.copy()
    strip = min(np.pi * sigma, 8.5)
    step = 2 * np.pi * strip / (strip**2 / 2 + 36)
    for part in np.array_split(np.flatnonzero(orders <= 70 * sigma**2 + 2), 24):
        if not len(part):
            continue
        alpha = orders[part, None]
        t = step * np.arange(-np.ceil(9 / step), np.ceil((alpha.max() / sigma + 9) / step))
        w = t / sigma - 0.5 / sigma**2
        u = q * np.expm1(np.minimum(w, 600))
        loss, half = np.log1p(u) + np.maximum(w - 600, 0), t * t / 2
        peak = np.maximum((alpha * loss - half).max(1, keepdims=True), 0)
        direct = np.exp(alpha * loss - half - peak)
        direct -= (alpha - (alpha - 1) * np.exp(-loss)) * np.exp(loss - half - peak)
        cut = 0.5 / np.maximum(alpha, 4)
        near = np.clip(u, -cut, cut)
        series = np.ones_like(near)
        for k in range(14, 0, -1):
            series = 1 + (alpha - 1 - k) / (k + 2) * near * series
        series *= alpha * (alpha - 1) / 2 * near**2 * np.exp(-half - peak)
        total = np.where(np.abs(u) < cut, series, direct).sum(1) * step / np.sqrt(2 * np.pi)
        value = peak[:, 0] + np.log1p(total + np.expm1(-peak[:, 0]))
        result[part] = np.minimum(value, bound[part])
    return result
