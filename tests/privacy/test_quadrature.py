"""All curves of sampled Gaussians against quadrature, at random settings, in both precisions.

The quadrature knows the two densities and nothing else: Gauss and Legendre on panels, in float64, at places
that no curve uses.
"""

import math

import numpy as np
import pytest
from scipy import special, stats

from dpsco_jax._numerics import round_up
from dpsco_jax.privacy import ORDERS
from dpsco_jax.privacy.curves import _mixture_sum, binomial, mixtures, poisson, subsampling
from dpsco_jax.privacy.curves._profile_nodes import precision

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def _panels(start, stop, width):
    """Places and weights; next to 0 the panels are short, where losses come near to zero."""
    near = np.geomspace(1e-8, 1.0, 33) * width
    right = np.concatenate([[0.0], near, np.arange(2, stop / width + 1) * width])
    left = -np.concatenate([[0.0], near, np.arange(2, -start / width + 1) * width])[::-1]
    edges = right if start == 0 else np.concatenate([left, right[1:]])
    middle, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges)
    return (middle[:, None] + half[:, None] * _POINTS).ravel(), np.outer(half, _WEIGHTS).ravel()


def _log_sum(logs, signs=1.0):
    peak = logs.max()
    return peak + math.log(np.sum(signs * np.exp(logs - peak)))


def _mirrored(sigma, q, cap, order):
    """Log A of the pair that is its own reverse: (1-q) N(0) + q N(c) against N(c-1), right of c - 1/2."""
    centre = cap / 2
    steepest = max(centre, 1.0) / sigma
    s, weight = _panels(0.0, order / sigma + 30 + 2 * steepest, min(0.1, 0.2 / steepest))
    z = s + (centre - 0.5) / sigma
    nobody = math.log1p(-q) - 0.5 * z**2
    somebody = math.log(q) - 0.5 * (s + 0.5 / sigma) ** 2
    likely = special.expit(somebody - nobody)
    w = s / sigma
    loss = np.where(
        w < 300,
        np.log1p(likely * np.expm1(np.minimum(w, 300))),
        w - np.logaddexp(0.0, nobody - somebody),
    )
    with np.errstate(divide="ignore"):
        factors = np.log(-np.expm1(-order * loss)) + np.log(-np.expm1((1 - order) * loss))
    logs = np.logaddexp(nobody, somebody) - 0.5 * math.log(2 * math.pi)
    return np.logaddexp(0.0, _log_sum(logs + order * loss + factors + np.log(weight)))


def _one_sided(sigma, log_chances, order):
    """Log A of Σ_j p_j N(j) against N(0)."""
    places = np.arange(len(log_chances)) / sigma
    steepest = max(places[-1], 1.0)
    z, weight = _panels(-30.0, order * places[-1] + 30, min(0.1, 0.2 / steepest))
    # Σ_j p_j (e^x - 1) is small and exact near z where little is told; elsewhere its logarithm is.
    x = places[:, None] * z - 0.5 * places[:, None] ** 2
    rise = np.sum(np.exp(log_chances)[:, None] * np.expm1(np.minimum(x, 300)), axis=0)
    loss = special.logsumexp(log_chances[:, None] + x, axis=0)
    loss = np.where(np.abs(rise) < 0.5, np.log1p(np.clip(rise, -0.5, 0.5)), loss)
    small = np.abs(order * loss) < 0.03
    base = np.log(weight) - 0.5 * z**2 - 0.5 * math.log(2 * math.pi)
    near = np.where(small, loss, 0.0)
    series = sum(
        (order**n - order) * near**n / math.factorial(n) for n in range(2, 9)
    )  # of e^(αL) - 1 - α(e^L - 1)
    tall = np.maximum(order * loss, 0.0)
    with np.errstate(under="ignore", over="ignore"):
        rest = (
            np.exp(order * loss - tall)
            - np.exp(-tall)
            - order * (np.exp(loss - tall) - np.exp(-tall))
        )
    values = np.where(small, series, rest)
    with np.errstate(divide="ignore"):
        logs = base + np.where(small, 0.0, tall) + np.log(np.maximum(values, 0.0))
    return np.logaddexp(0.0, _log_sum(logs))


def _between(rng, low, high):
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _probability(rng):
    """From 1e-12 up to the last number below 1 of float32."""
    if rng.random() < 0.2:
        return float(np.float32(1.0 - _between(rng, 1e-7, 0.5)))
    return float(np.float32(_between(rng, 1e-12, 1.0 - 1e-6)))


def _settings(seed, count, largest_cap):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        sigma = float(np.float32(_between(rng, 0.3, 200.0)))
        cap = _between(rng, 1.0, largest_cap(sigma)) if rng.random() < 0.6 else rng.choice([1, 2])
        yield sigma, _probability(rng), float(np.float32(min(cap, 8 * sigma))), rng


def _orders(rng, least, count=4):
    """Places of a few orders that are worth a sum: beyond these every curve is a looser bound."""
    eligible = np.flatnonzero(least * ORDERS <= 26.0)
    return rng.choice(eligible, min(count, len(eligible)), replace=False)


def _compare(found, single, truth, places, setting):
    """In float64 within rounding, where the sum reaches; never below the truth in either."""
    wide, narrow = found[places], np.float64(single[places])
    # The numbers of the reference are themselves sums of some thousand.
    assert np.all(wide >= truth * (1 - 1e-9)), setting
    assert np.all(narrow >= truth * (1 - 1e-9)), setting
    return wide / truth, narrow / truth


def _of(curve, dtype, *numbers):
    found = curve(np, *(np.asarray(number, dtype) for number in numbers))
    assert found.dtype == dtype
    return found


def _both(module, curve, *numbers):
    """Log A as the module has it, rounded up as its curve is, in float64 and in float32."""
    return [
        round_up(_of(curve, dtype, *numbers), module._ROUNDING_ULPS)
        for dtype in (np.float64, np.float32)
    ]


NAMED = [(14.06, 2.88e-8, 29.3, 141.0), (107.6, 1.2e-9, 100.0, 2897.0)]


@pytest.mark.parametrize(("sigma", "q", "cap", "order"), NAMED)
def test_posteriors_that_turn_between_two_steps(sigma, q, cap, order):
    sigma, q, cap = (float(np.float32(x)) for x in (sigma, q, cap))
    place = int(np.flatnonzero(order == ORDERS)[0])
    wide, narrow = _both(mixtures, mixtures._log_moments, sigma, q, 0.5 * cap)
    truth = _mirrored(sigma, q, cap, order)
    assert truth * (1 - 1e-10) <= wide[place] <= truth * (1 + 1e-9)
    assert truth <= narrow[place] <= truth * (1 + 5e-2)


@pytest.mark.parametrize(
    ("sigma", "q", "cap", "order"),
    [(3.8238, 4.559e-10, 6.7452, 71.0), (3.806, 1.3557e-9, 2.8112, 305.0)],
)
def test_posteriors_that_turn_beyond_the_last_node(sigma, q, cap, order):
    """The order's own bump has all its nodes; the posterior has made another."""
    sigma, q, cap = (float(np.float32(x)) for x in (sigma, q, cap))
    place = int(np.flatnonzero(order == ORDERS)[0])
    for found in _both(mixtures, mixtures._log_moments, sigma, q, 0.5 * cap):
        assert found[place] >= _mirrored(sigma, q, cap, order) * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_users_sampled_with_all_their_units(seed):
    wide, narrow = [], []
    for sigma, q, cap, rng in _settings(seed, 40, lambda sigma: 8 * sigma + 1):
        if cap < 1:
            continue
        places = _orders(rng, (max(cap / 2, 0.5) if cap < 2 else 1.0) ** 2 / sigma**2)
        found = _both(mixtures, mixtures._log_moments, sigma, q, 0.5 * cap)
        truth = np.array([_mirrored(sigma, q, cap, ORDERS[place]) for place in places])
        ratios = _compare(*found, truth, places, (sigma, q, cap, ORDERS[places]))
        wide, narrow = [*wide, *ratios[0]], [*narrow, *ratios[1]]
    # A few orders lie beyond the last node of posteriors that turn late.
    assert np.quantile(wide, 0.97) < 1 + 1e-8
    assert np.quantile(narrow, 0.9) < 1 + 3e-3
    assert np.median(narrow) < 1 + 2e-4


def _poisson_truth(sigma, q, order):
    return _one_sided(sigma, np.array([math.log1p(-q), math.log(q)]), order)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("module", "curve", "exact"),
    [
        (poisson, lambda *args: poisson.log_moments(*args)[0], _poisson_truth),
        # One replaced by another: the pair of κ = 2, by another sum.
        (
            subsampling,
            subsampling._symmetric_log_moments,
            lambda sigma, q, order: _mirrored(sigma, q, 2.0, order),
        ),
    ],
    ids=["units added or removed", "batches of a fixed size"],
)
def test_one_unit_sampled(module, curve, exact, seed):
    wide, narrow = [], []
    for sigma, q, _, rng in _settings(seed, 40, lambda sigma: 2.0):
        places = _orders(rng, 1.0 / sigma**2)
        found = _both(module, curve, sigma, q)
        truth = np.array([exact(sigma, q, ORDERS[place]) for place in places])
        ratios = _compare(*found, truth, places, (sigma, q, ORDERS[places]))
        wide, narrow = [*wide, *ratios[0]], [*narrow, *ratios[1]]
    assert max(wide) < 1 + 1e-8
    assert np.quantile(narrow, 0.9) < 1 + 3e-3
    assert np.median(narrow) < 1 + 1e-4


@pytest.mark.parametrize("seed", range(2))
def test_items_sampled_one_by_one(seed):
    wide, narrow = [], []
    for sigma, q, _, rng in _settings(seed, 40, lambda sigma: 2.0):
        items = int(rng.integers(1, 7))
        places = _orders(rng, items**2 / sigma**2)
        if not len(places):
            continue
        found = _both(
            binomial, lambda *args, items=items: binomial._log_moments(*args, items), sigma, q
        )
        chances = stats.binom.logpmf(np.arange(items + 1), items, q)
        truth = np.array([_one_sided(sigma, chances, ORDERS[place]) for place in places])
        ratios = _compare(*found, truth, places, (sigma, q, items, ORDERS[places]))
        wide, narrow = [*wide, *ratios[0]], [*narrow, *ratios[1]]
    assert np.quantile(wide, 0.9) < 1 + 1e-6
    assert np.median(narrow) < 1 + 1e-3


def _complex_sum(first, second):
    peak = np.maximum(first.real, second.real)
    return peak + np.log(np.exp(first - peak) + np.exp(second - peak))


def _log_size(s, sigma, q, centre, order):
    """Log of the size of (e^(αL) - 1)(1 - e^((1-α)L)) Q, but for a factor, at complex places in a row."""
    z = s + (centre - 0.5) / sigma
    nobody = math.log1p(-q) - 0.5 * z * z
    with_p = math.log(q) - 0.5 * (z - centre / sigma) ** 2
    with_q = math.log(q) - 0.5 * (z - (centre - 1) / sigma) ** 2
    p, other = _complex_sum(nobody, with_p), _complex_sum(nobody, with_q)
    with np.errstate(over="ignore", invalid="ignore"):
        small = np.exp(with_q - other) * np.expm1(s / sigma)
    # NumPy's logarithm of 1 + x is no better than that of a sum where x is complex.
    near, middle = np.abs(small) < 1e-4, np.abs(small) < 0.5
    little = np.where(near, small, 0)
    series = little * (1 - little * (1 / 2 - little * (1 / 3 - little / 4)))
    loss = np.where(
        near, series, np.where(middle, np.log(1 + np.where(middle, small, 0)), p - other)
    )
    loss = loss.real + 1j * np.unwrap(loss.imag)

    def less_one(x):
        tall = x.real > 30
        return np.where(tall, x.real, np.log(np.abs(np.expm1(np.where(tall, 1.0, x)))))

    return other.real + less_one(order * loss) + less_one((1 - order) * loss)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_steps_are_short_enough_for_the_growth_along_their_contour(dtype):
    """The error of equal steps is at most what the integral along the contour says."""
    settings = precision(dtype)
    worst = -math.inf
    for sigma, q, cap, rng in _settings(5, 40, lambda sigma: 8 * sigma + 1):
        centre = max(0.5 * cap, 0.5)
        eligible = ORDERS[ORDERS * max(1.0, centre) ** 2 <= settings.coverage * sigma**2 + 2]
        log_odds = math.log1p(-q) - math.log(q)
        grid = _mixture_sum.steps(
            np, np.float64(1 / sigma), np.float64(centre), log_odds, ORDERS[-1], settings
        )
        height, step = 0.5 * math.pi * grid.scale, grid.ratio * grid.scale
        for order in rng.choice(eligible, 2):
            v = np.arange(-12.0, (order / sigma + 40) / grid.scale, 0.01 / max(1.0, grid.scale))
            logs = []
            for turned in (v + 0j, v + 0.5j * math.pi):
                soft = np.where(v > 30, turned, np.log1p(np.exp(np.where(v > 30, 0.0, turned))))
                slope = (turned - soft).real
                logs.append(_log_sum(_log_size(grid.scale * soft, sigma, q, centre, order) + slope))
            error = math.log(2) + logs[1] - logs[0] - 2 * math.pi * height / step
            worst = max(worst, error + settings.decay)
    assert math.log(4) < worst < math.log(64)
