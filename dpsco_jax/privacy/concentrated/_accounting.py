"""What a phase of tested, outlier-removed, noisy means costs: (ε, δ) by the tightest proof, on the host.

For T steps on K of N users each, with one noisy threshold for all ("stream") or a fresh test in each step
("fresh"), ε at δ and δ at ε, from the distance μ of the two Gaussians of one step. This replaces U Theorem
3.2 and Lemma 3.6, T Theorem 10.8.1 and Lemma 10.7.2. Proofs: docs/theory/concentrated_mean.md, sections 4
(fresh, one step), 5 (stream, everybody), 6 (stream, random batches), 7 (fresh). The process stops at the
first test that fails; batches are uniform, of fixed size, without replacement, and secret. Rounding is
upwards.
"""

import math

import numpy as np
from scipy import optimize

from dpsco_jax.privacy import accountants, pld
from dpsco_jax.privacy.certified_noise import decreasing_root
from dpsco_jax.privacy.concentrated import _coins
from dpsco_jax.privacy.concentrated._proof import Phase
from dpsco_jax.privacy.curves.composition import log_response_gaussian_delta
from dpsco_jax.privacy.pld import pairs
from dpsco_jax.privacy.pld._chernoff import chernoff_epsilon
from dpsco_jax.privacy.pld.pairs import Pair
from dpsco_jax.privacy.pld.pld_window import discretize, log_moments

FEW_POINTS = accountants.FEW_POINTS

_TILTS = np.geomspace(0.3, 3e3, 60)


def is_closed_form(phase: Phase) -> bool:
    """Whether the curve is that of one randomized response with one Gaussian."""
    one_response = phase.test == "stream" or phase.num_steps == 1
    return phase.rate == 1.0 and one_response and phase.coins is None


def components(phase: Phase) -> list[pld.Component]:
    """Dominating pairs of the phase, apart from the threshold's shift and the failures."""
    steps, q, e1 = phase.num_steps, phase.effective_rate, phase.test_epsilon
    coins = phase.coins
    step = pairs.gaussian(1.0 / phase.mu) if coins is None else _coins.pair(coins, phase.mu)
    if q < 1.0:
        tested = step if phase.test == "stream" else with_response(step, e1)
        return [(sampled_pair(tested, q), steps)]
    responses = 1 if phase.test == "stream" else steps
    if phase.coins is None:
        step, steps = pairs.gaussian(1.0 / (phase.mu * math.sqrt(steps))), 1
    return [(pairs.approximate_dp(e1, 0.0), responses), (step, steps)]


def epsilon_at(phase: Phase, delta: float) -> float:
    """The least ε that is proven at δ; ``inf`` if the failures alone exceed δ."""
    if is_closed_form(phase):
        return _closed_form_epsilon(phase, delta)
    rest = (delta * (1.0 - 1e-14) - phase.failure) / phase.factor
    if rest <= 0.0:
        return math.inf
    return math.log(phase.factor) + pld.epsilon(components(phase), rest)


def quick_epsilon(phase: Phase, delta: float) -> float:
    """Like ``epsilon_at``, by a Chernoff bound on some thousand losses: some 10 % larger, in 2 ms."""
    if is_closed_form(phase):
        return _closed_form_epsilon(phase, delta)
    rest = (delta * (1.0 - 2e-14) - phase.failure) / phase.factor
    if rest <= 0.0:
        return math.inf
    moments, infinite, steps = np.zeros_like(_TILTS), 0.0, 0
    for pair, count in components(phase):
        reach = max(abs(end) for end in pair.support(1e-3 * rest / count))
        positive = reach * np.geomspace(1e-5, 1.0, 500)
        law = discretize(pair, np.concatenate([-positive[::-1], [0.0], positive]))
        moments = moments + count * log_moments(law, _TILTS)
        infinite, steps = infinite + count * law.infinite, steps + count
    # Losses without end, and the rounding of masses and sums, compounded over the steps.
    rest = (rest - infinite) * (1.0 - min(1e-13 * (steps + 100.0), 0.5))
    if rest <= 0.0:
        return math.inf
    return math.log(phase.factor) + float(chernoff_epsilon(moments, _TILTS, rest))


def delta_at(phase: Phase, epsilon: float) -> float:
    """The least δ that is proven at ε; above it by about 1e-3, relative, where no closed form holds."""
    if is_closed_form(phase):
        return _closed_form_delta(phase, epsilon)
    shifted = epsilon - math.log(phase.factor)
    if shifted < 0.0:
        return 1.0
    parts = components(phase)

    def curve(point: float) -> float:
        # ε is about proportional to the root of log(1/δ): the slope of what follows is about -1.
        return math.exp(-math.exp(-2.0 * point))

    def excess(point: float, max_points: int = pld.MAX_POINTS) -> float:
        spent = pld.epsilon(parts, curve(point), max_points)
        return math.log(spent / max(shifted, 1e-9)) if spent > 0.0 else -1.0

    least, most = -0.5 * math.log(430.0), -0.5 * math.log(1e-9)
    if excess(most, FEW_POINTS) > 0.0:
        return 1.0
    if excess(least, FEW_POINTS) <= 0.0:
        root = least
    else:
        near = decreasing_root(lambda x: excess(_clip(x, least, most), FEW_POINTS), -1.3, 1e-3)
        root = decreasing_root(lambda x: excess(_clip(x, least, most)), near, 2e-5)
    return min(
        (phase.factor * curve(_clip(root, least, most)) + phase.failure) * (1.0 + 1e-14), 1.0
    )


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _closed_form_delta(phase: Phase, epsilon: float) -> float:
    mu = phase.mu * math.sqrt(phase.num_steps)
    curve = math.exp(log_response_gaussian_delta(phase.test_epsilon, mu, epsilon))
    if phase.test == "fresh":
        # Either one of the two batches is concentrated, or neither is: the cases exclude each other.
        return min(max(curve, phase.wrong_pass), 1.0)
    return min(curve + phase.wrong_pass, 1.0)


def _closed_form_epsilon(phase: Phase, delta: float) -> float:
    if _closed_form_delta(phase, 0.0) <= delta:
        return 0.0
    if (_closed_form_delta(phase, 1e6)) > delta:
        return math.inf
    upper = 1.0
    while _closed_form_delta(phase, upper) > delta:
        upper *= 2.0
    root = optimize.brentq(
        lambda e: math.log(max(_closed_form_delta(phase, e), 1e-320) / delta),
        0.0,
        upper,
        xtol=1e-13,
    )
    return accountants.raised(root, lambda e: _closed_form_delta(phase, e) <= delta)


def as_numbers(*values: object) -> list[float]:
    """Host floats of a plan's leaves.

    Raises:
        TypeError: for a tracer; accounting of this kind is on the host.
    """
    return [float(np.asarray(value)) for value in values]


def with_response(pair: Pair, response_epsilon: float) -> Pair:
    """Randomized response of ε₁ times a pair: the loss is that of the pair, plus or minus ε₁.

    It dominates a pure ε₁-DP test next to a release that the pair dominates (Kairouz, Oh and Viswanath 2015).
    """
    likely = 1.0 / (1.0 + math.exp(-response_epsilon))
    unlikely = likely * math.exp(-response_epsilon)

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        up_p, up_q = pair.cells(edges - response_epsilon)
        down_p, down_q = pair.cells(edges + response_epsilon)
        return likely * up_p + unlikely * down_p, unlikely * up_q + likely * down_q

    def support(tail: float) -> tuple[float, float]:
        low, high = pair.support(tail)
        return low - response_epsilon, high + response_epsilon

    return Pair(cells, support)


def sampled_pair(pair: Pair, sampling_fraction: float) -> Pair:
    """The pair whose curve is q δ(log(1 + (e^ε - 1)/q)) for ε >= 0, and which is its own reverse.

    It dominates a release on a uniform batch of fixed size, given that ``pair`` dominates the replacement of
    one of the batch's vectors by any other, whatever the relation (Balle, Barthe and Gaboardi 2018).

    Args:
        pair: of continuous losses and its own reverse, with the curve δ.
        sampling_fraction: q in (0, 1].
    """
    q = sampling_fraction

    def unsampled(losses: np.ndarray) -> np.ndarray:
        """U with e^x = 1 + q (e^u - 1), for x >= 0."""
        return losses - math.log(q) + np.log1p((q - 1.0) * np.exp(-losses))

    def positive_half(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        upper, lower = (masses[1:] for masses in pair.cells(unsampled(edges)))
        return q * upper + (1.0 - q) * lower, lower

    # P and Q lose the same mass to losses of zero.
    above, below = (masses[0] for masses in positive_half(np.zeros(1)))
    at_zero = max(1.0 - above - below, 0.0)

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        zero = int(np.searchsorted(edges, 0.0))
        upper, lower = positive_half(edges[zero:])
        mirrored_upper, mirrored_lower = positive_half(-edges[zero::-1])
        p = np.concatenate([mirrored_lower[::-1], upper])
        q_masses = np.concatenate([mirrored_upper[::-1], lower])
        p[zero] += at_zero
        q_masses[zero] += at_zero
        return p, q_masses

    def support(tail: float) -> tuple[float, float]:
        _, high = pair.support(tail)
        reach = float(np.logaddexp(math.log1p(-q), math.log(q) + high)) if q < 1.0 else high
        return -reach, reach

    return Pair(cells, support)
