"""What releases cost at least, counted by NumPy alone, from their multipliers and how users are drawn.

For every way of sampling the laws of the noised statistic on two neighbouring data sets that can occur are
written down, mixtures of unit Gaussians on a line, and their divergences are integrated numerically. What a
valid accountant charges cannot be below; how far it may be above is for the caller to say. Nothing here comes
from the package.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

_STEP = 0.004


class Law(NamedTuple):
    """A mixture of Gaussians of unit variance."""

    probabilities: tuple[float, ...]
    means: tuple[float, ...]

    def log_density(self, grid: np.ndarray) -> np.ndarray:
        logs = stats.norm.logpdf(grid[:, None] - np.asarray(self.means))
        with np.errstate(divide="ignore"):
            return special.logsumexp(logs + np.log(np.asarray(self.probabilities)), axis=1)


Pair = tuple[Law, Law]


@functools.cache
def pairs(multiplier: float, scheme: Any) -> list[Pair]:
    """Pairs of laws that neighbours have, for one Gaussian release with unit noise.

    A private interval of parameter ε can be a coin whose log odds the user moves from -ε/2 to ε/2: a
    ``multiplier`` of ε and the scheme ``("interval",)``.

    Args:
        multiplier: standard deviation of the noise over the sensitivity.
        scheme: ``None`` for everybody, ``("poisson", q)`` with a user who is added or removed, or
            ``("poisson", q, "replaced")`` with one who is replaced, ``("without_replacement", population,
            batch)`` or ``("with_replacement", population, draws)`` with a user who is replaced; or
            ``("poisson_users", q, cap)`` with one unit of a user who is replaced, where the user's units are
            drawn together and their sum is ``cap`` units long at most; or ``("poisson_items", q, k)`` with a
            user of k items who is added or removed, each item drawn by itself.
    """
    if scheme is not None and scheme[0] == "interval":
        heads = special.expit(multiplier / 2)
        return [(Law((heads, 1 - heads), (0.0, 40.0)), Law((1 - heads, heads), (0.0, 40.0)))]
    shift = 1.0 / multiplier
    nothing = Law((1.0,), (0.0,))
    if scheme is None:
        return [(Law((1.0,), (shift,)), nothing)]
    name, *numbers = scheme
    if name == "poisson_users":
        # A unit of norm 1/2 is turned round, in line with all that the cap lets the others be.
        chances, far = (1 - numbers[0], numbers[0]), numbers[1]
        ends = [Law(chances, (0.0, shift / 2 * length)) for length in (far, far - 2)]
        return [(ends[0], ends[1]), (ends[1], ends[0])]
    if name == "poisson_items":
        # Of the user's items, all alike, a binomial number is drawn.
        times = np.arange(int(numbers[1]) + 1)
        drawn = Law(
            tuple(stats.binom(int(numbers[1]), numbers[0]).pmf(times)), tuple(shift * times)
        )
        return [(drawn, nothing), (nothing, drawn)]
    if name == "poisson":
        count = stats.binom(1, numbers[0])
        times = np.arange(2)
    elif name == "without_replacement":
        count = stats.binom(1, numbers[1] / numbers[0])
        times = np.arange(2)
    else:
        count = stats.binom(int(numbers[1]), 1 / numbers[0])
        times = np.arange(int(count.isf(1e-12)) + 2)
    chances = tuple(count.pmf(times))
    replaced = "replaced" in numbers
    # Who is not drawn leaves nothing in the place of what moves by half of the sensitivity, C.
    one_sided = Law(chances, tuple(shift * times / (2 if replaced else 1)))
    found = [(one_sided, nothing), (nothing, one_sided)]
    if name != "poisson" or replaced:
        # The others contribute nothing, and the user moves the sum one way or the other.
        found.append(tuple(Law(chances, tuple(s * shift / 2 * times)) for s in (1.0, -1.0)))
    return found


@functools.lru_cache(maxsize=32)  # of one run all releases are alike
def _logs(pair: Pair) -> tuple[np.ndarray, np.ndarray, float]:
    means = [*pair[0].means, *pair[1].means]
    step = 0.005
    grid = np.arange(min(means) - 12.0, max(means) + 12.0, step)
    return pair[0].log_density(grid), pair[1].log_density(grid), step


@functools.cache
def renyi(pair: Pair, order: float) -> float:
    """The Rényi divergence of the two laws."""
    if len(pair[0].means) == len(pair[1].means) == 1:
        return order * (pair[0].means[0] - pair[1].means[0]) ** 2 / 2
    p, q, step = _logs(pair)
    return float(special.logsumexp(order * p + (1 - order) * q + np.log(step)) / (order - 1))


def renyi_of(releases: Sequence[tuple[float, Any]], order: float) -> float:
    """What the releases together cost at least at one order, each by the costliest of its pairs.

    The neighbours are one data set each: the pair is the same in all releases of the same kind.
    """
    return max(
        (sum(renyi(pair, order) for pair in chosen) for chosen in _aligned(releases)), default=0.0
    )


def epsilon(releases: Sequence[tuple[float, Any]], delta: float) -> float:
    """The ε at δ of the releases together: no certificate can be below, but for the grid (0.5 %)."""
    return max((_epsilon(tuple(chosen), delta) for chosen in _aligned(releases)), default=0.0)


def _aligned(releases: Sequence[tuple[float, Any]]) -> list[list[Pair]]:
    found = [pairs(*release) for release in releases]
    count = max((len(each) for each in found), default=0)
    return [[each[min(i, len(each) - 1)] for each in found] for i in range(count)]


@functools.cache
def _epsilon(chosen: tuple[Pair, ...], delta: float) -> float:
    if all(len(law.means) == 1 for pair in chosen for law in pair):
        mu = np.sqrt(sum((p.means[0] - q.means[0]) ** 2 for p, q in chosen))
        losses = np.linspace(-1.0, 60.0, 61001)
        spent = stats.norm.cdf(mu / 2 - losses / mu) - np.exp(
            losses + stats.norm.logcdf(-mu / 2 - losses / mu)
        )
        return float(max(0.0, losses[np.argmax(spent <= delta)]))
    step, span = _STEP, 2**15
    centre = span // 2
    total = np.zeros(span)
    total[centre] = 1.0
    for pair in chosen:
        p, q, width = _logs(pair)
        place = np.clip(np.rint((p - q) / step).astype(int) + centre, 0, span - 1)
        mass = np.bincount(place, np.exp(p) * width, span)
        spectrum = np.fft.rfft(total, 2 * span) * np.fft.rfft(mass, 2 * span)
        total = np.fft.irfft(spectrum)[centre : centre + span]
    losses = (np.arange(span) - centre) * step
    low, high = 0.0, 40.0
    for _ in range(40):
        middle = (low + high) / 2
        above = losses > middle
        if np.sum(total[above] * -np.expm1(middle - losses[above])) <= delta:
            high = middle
        else:
            low = middle
    return low


@functools.cache
def stream_distances(
    steps: int, weights: tuple[float, ...] = (), decays: tuple[float, ...] = ()
) -> tuple[float, ...]:
    """Of each step of a stream of correlated noise: how far a move of one there is, over the fresh noise's
    size.

    Args:
        steps: of the stream.
        weights: of buffers, each of which keeps a decaying sum of the noise before, and is taken back; none:
            noise of dyadic blocks.
        decays: of the buffers.
    """
    if weights:
        taken, buffers = np.eye(steps), np.zeros((len(decays), steps))
        for t in range(steps):
            taken[t] -= weights @ buffers
            buffers = np.array(decays)[:, None] * buffers + np.eye(steps)[t]
        covariance = taken @ taken.T
    else:
        of_sums = np.array(
            [
                [len(_blocks(s) & _blocks(t)) for s in range(1, steps + 1)]
                for t in range(1, steps + 1)
            ]
        )
        differences = np.eye(steps) - np.eye(steps, k=-1)
        covariance = differences @ of_sums @ differences.T
    return tuple(np.sqrt(np.diag(np.linalg.inv(covariance))))


def _blocks(t: int) -> set[tuple[int, int]]:
    """The dyadic blocks of the first t steps."""
    found, done = set(), 0
    for level in reversed(range(t.bit_length())):
        if t & 2**level:
            found.add((done, done + 2**level))
            done += 2**level
    return found
