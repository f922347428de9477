"""How a phase spends its budget: the split between test, failures and noise with the least noise.

For a kind of test and a share of ε for it: where the threshold lies, how concentrated a batch that passes
must be, and how far apart the Gaussians may be; then the best share, of some hundred in arrays. Where batches
are random, each share has a quick bound, and the best is calibrated by privacy loss distributions. What is
chosen is certified afterwards, from the numbers alone. ``PAPER`` is the allocation of T Algorithm 32 with its
constants made explicit.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from dpsco_jax.privacy.certified_noise import root_above
from dpsco_jax.privacy.concentrated import _accounting as accounting
from dpsco_jax.privacy.concentrated import _proof as proof
from dpsco_jax.privacy.concentrated import _tests as tests
from dpsco_jax.privacy.concentrated._mean_sensitivity import (
    REPLACE_ONE,
    coupled_sensitivity,
    mean_sensitivity,
    selection_coins,
    vectors_of_one_user,
    weighted_shift,
)
from dpsco_jax.privacy.concentrated._proof import SCORE_SENSITIVITY, TEST_ROUNDING
from dpsco_jax.privacy.concentrated._request import Request
from dpsco_jax.privacy.curves.composition import response_gaussian_mu

SHARES = {
    "stream": tuple(0.6 * 0.86**k for k in range(22)),
    "fresh": tuple(2.4 * 0.87**k for k in range(40)),
}
"""Of ε, for the tests: what is searched. Random batches amplify fresh tests, which may cost more than ε."""

FAILURE_SHARES = (0.5, 0.2, 0.05, 0.01)
_COIN_SHARE = 0.01  # of δ, for the coupling of random selections
_UNDER_BUDGET = 2e-5
_ROUGHLY = 5e-3
_CHERNOFF = 0.924  # mostly, of Chernoff's bound on ε, what loss distributions prove
_ASIDE = 0.02  # in the logarithm of the noise, where a slope is taken
_OF_ARRAYS = 1e-6  # what μ of arrays may be off, amply
_MOST_MU = 100.0  # with so little noise, what protects is the sampling alone
LEAST_KEEP_LEVEL = 0.505
LEAST_MU = 1e-6
_MACHINE = float(np.finfo(np.float64).eps)
_MOST_NEWTON = 80
_NEAR_ROOT = 1e-12


class Split(NamedTuple):
    """One way to spend the budget; ``phase.mu`` is what may be spent on Gaussians (roughly, at first)."""

    phase: proof.Phase
    threshold: float
    core: int
    keep_level: float
    sensitivity: float

    @property
    def noise(self) -> float:
        """Standard deviation in units of the score radius."""
        return self.sensitivity / self.phase.mu


def threshold_for(request: Request, test: str, test_epsilon: float) -> float:
    """Where the threshold lies: as high as concentrated data allow, or at the given fraction."""
    if request.threshold_fraction is not None:
        return request.threshold_fraction * request.batch
    gap = tests.false_halt_gap(
        test, request.false_halt_probability, request.num_steps, test_epsilon, SCORE_SENSITIVITY
    )
    return request.batch - gap


def split(request: Request, test: str, share: float, failure_share: float) -> Split | None:
    """The split with these shares; None if no batch of this size can pass and be concentrated.

    Its μ is a rule of thumb where there is no closed form.
    """
    e1 = share * request.epsilon
    q, steps = request.rate, request.num_steps
    phase = proof.Phase(
        test=test,
        rate=q,
        num_steps=steps,
        test_epsilon=e1,
        wrong_pass=0.0,
        coin_failure=0.0,
        mu=1.0,
    )
    delta = request.delta
    if request.selection == "bernoulli":
        coins = 0.5 * _COIN_SHARE * delta / (steps * phase.effective_rate * phase.factor)
        phase, delta = phase._replace(coin_failure=coins), delta * (1.0 - _COIN_SHARE)
    ever = proof.test_failure(phase._replace(wrong_pass=1.0))
    alone = test == "fresh" and q == 1.0 and steps == 1 and request.selection == "weighted"
    budget = delta if alone else failure_share * delta
    gap = tests.gap_for(test, min(budget / ever, 0.4), e1, SCORE_SENSITIVITY)
    threshold = threshold_for(request, test, e1)
    core = min(math.floor(threshold - gap), request.batch - 1)
    keep = request.keep_level
    if keep is None:
        keep = (core - 0.25) / request.batch
        if keep < LEAST_KEEP_LEVEL:
            return None
    elif core < keep * request.batch:
        return None
    relation = request.relation if q == 1.0 else REPLACE_ONE
    if request.selection == "weighted":
        kappa = mean_sensitivity(request.batch, core, keep, relation)
    else:
        vectors = request.batch, core, keep, phase.coin_failure, relation
        kappa = coupled_sensitivity(*vectors)
        phase = phase._replace(coins=selection_coins(*vectors))
    wrong = tests.wrong_pass(test, threshold - core, e1 / TEST_ROUNDING**2, SCORE_SENSITIVITY)
    phase = phase._replace(wrong_pass=float(wrong))
    rest = (delta if alone else delta - proof.test_failure(phase)) / phase.factor
    mu = _rule_of_thumb(request.epsilon, phase, rest)
    return Split(phase._replace(mu=mu), threshold, core, keep, kappa)


def _rule_of_thumb(epsilon: float, phase: proof.Phase, delta: float) -> float:
    """μ of one step: exact where there is a closed form; else as if losses added to a Gaussian one."""
    if phase.coins is not None:
        spread = float(phase.coins.weights() @ phase.coins.fractions() ** 2)
        return _rule_of_thumb(epsilon, phase._replace(coins=None), delta) / math.sqrt(spread)
    steps, e1 = phase.num_steps, phase.test_epsilon
    if accounting.is_closed_form(phase):
        return response_gaussian_mu(e1, epsilon, delta) / math.sqrt(steps)
    left = epsilon - math.log(phase.factor)
    total = response_gaussian_mu(0.0, left, delta)
    q = phase.effective_rate
    # The χ² divergences of steps add: q² ((1 + χ²(response)) e^(μ²) - 1) each.
    response = math.expm1(e1) ** 2 * math.exp(-e1) if phase.test == "fresh" else 0.0
    exponent = math.log1p(total**2 / (steps * q**2)) - math.log1p(response)
    return math.sqrt(max(exponent, LEAST_MU**2))


def calibrated(
    request: Request,
    rough: Split,
    epsilon_at: Callable[[proof.Phase, float], float],
    under: float,
    slope: float | None = None,
) -> Split | None:
    """The split with the largest μ that meets the budget, up to ``under``; None if none does.

    ``slope`` is that of log ε against the logarithm of the noise, if it is known: it saves looks.
    """
    phase = rough.phase
    if accounting.is_closed_form(phase):
        # Searches come here with the μ of arrays, which is not rounded down for certain.
        rest = request.delta - (0.0 if phase.test == "fresh" else proof.test_failure(phase))
        return rough._replace(phase=phase._replace(mu=_rule_of_thumb(request.epsilon, phase, rest)))

    def excess(log_noise: float) -> float:
        spent = epsilon_at(phase._replace(mu=math.exp(-log_noise)), request.delta)
        return math.log(min(max(spent / request.epsilon, 1e-2), 1e2))

    low = -math.log(_MOST_MU) if request.rate < 1.0 else -math.inf
    root = root_above(excess, -math.log(phase.mu), under, low, -math.log(LEAST_MU), slope)
    if root == math.inf:
        return None
    if root == low:
        return rough._replace(phase=phase._replace(mu=_MOST_MU))
    return rough._replace(phase=phase._replace(mu=math.exp(-root)))


class Promises(NamedTuple):
    """Splits of the budget: one for each share of ε, with the best of the shares of δ.

    Attributes:
        test_epsilon: of the tests, ``[splits]`` as all that follows.
        threshold: of the score.
        core: c.
        keep_level: θ.
        sensitivity: κ.
        wrong_pass: of one test.
        mu: sensitivity over noise of one step, by the rule of thumb.
    """

    test_epsilon: np.ndarray
    threshold: np.ndarray
    core: np.ndarray
    keep_level: np.ndarray
    sensitivity: np.ndarray
    wrong_pass: np.ndarray
    mu: np.ndarray


def promises(
    request: Request, test: str, shares: Sequence[float], failure_shares: Sequence[float]
) -> Promises:
    """The splits of a weighted selection that are possible, in arrays over both kinds of shares.

    They are what ``split`` finds for one share of ε and one of δ, by the same formulas, which tests compare
    entry by entry: 160 splits take a millisecond.

    Args:
        request: with ``selection="weighted"``.
        test: "stream" or "fresh".
        shares: of ε, for the tests.
        failure_shares: of δ, for batches that pass and are not concentrated.
    """
    batch, steps, delta, q = request.batch, request.num_steps, request.delta, request.rate
    asked = np.asarray(shares) * request.epsilon
    phase = proof.Phase(test, q, steps, asked[:, None], 1.0, 0.0, 1.0)
    ever = proof.test_failure(phase)
    alone = test == "fresh" and q == 1.0 and steps == 1
    budgets = [delta if alone else part * delta for part in failure_shares]
    # Gaps are inverse to ε of the test.
    unit_gaps = np.array(
        [tests.gap_for(test, min(b / ever, 0.4), 1.0, SCORE_SENSITIVITY) for b in budgets]
    )
    if request.threshold_fraction is None:
        halts = request.false_halt_probability, steps, 1.0, SCORE_SENSITIVITY
        threshold = batch - tests.false_halt_gap(test, *halts) / phase.test_epsilon
    else:
        threshold = np.full_like(phase.test_epsilon, request.threshold_fraction * batch)
    core = np.minimum(np.floor(threshold - unit_gaps / phase.test_epsilon), batch - 1.0)
    if request.keep_level is None:
        keep = (core - 0.25) / batch
        possible = keep >= LEAST_KEEP_LEVEL
    else:
        keep = np.full_like(core, request.keep_level)
        possible = core >= keep * batch
    e1, threshold, factor, effective_rate = (
        np.broadcast_to(each, core.shape)[possible]
        for each in (phase.test_epsilon, threshold, phase.factor, phase.effective_rate)
    )
    core, keep = core[possible], keep[possible]
    sides = vectors_of_one_user(request.relation if q == 1.0 else REPLACE_ONE)
    kappa = weighted_shift(batch, core, keep, sides)
    wrong = tests.wrong_pass(test, threshold - core, e1 / TEST_ROUNDING**2, SCORE_SENSITIVITY)
    rest = (delta if alone else delta - ever * wrong) / factor * np.ones_like(wrong)
    if accounting.is_closed_form(phase):
        mu = response_mus(e1, request.epsilon, rest) / math.sqrt(steps)
    else:
        left = request.epsilon - np.log(factor)
        total = response_mus(np.zeros_like(rest), left, rest)
        response = np.expm1(e1) ** 2 * np.exp(-e1) if test == "fresh" else 0.0
        exponent = np.log1p(total**2 / (steps * effective_rate**2)) - np.log1p(response)
        mu = np.sqrt(np.maximum(exponent, LEAST_MU**2))
    noise = np.full(possible.shape, np.inf)
    noise[possible] = kappa / mu
    order = np.cumsum(possible).reshape(possible.shape) - 1
    some = np.any(possible, axis=1)
    best = order[some, np.argmin(noise[some], axis=1)]
    found = Promises(e1, threshold, core, keep, kappa, wrong, mu)
    return Promises(*(each[best] for each in found))


def response_mus(
    response_epsilons: np.ndarray, epsilons: np.ndarray | float, deltas: np.ndarray
) -> np.ndarray:
    """``composition.response_gaussian_mu`` of many, without checks and exact to some 1e-9, relative.

    Args:
        response_epsilons: ε₁, ``[requests]``, in [0, ε).
        epsilons: positive, one or ``[requests]``.
        deltas: ``[requests]``, in (0, 1).

    Returns:
        μ, on either side of the exact one, ``[requests]``.
    """
    test, eps, target = np.broadcast_arrays(response_epsilons, epsilons, np.log(deltas))
    weights = -np.logaddexp(0.0, -test), -np.logaddexp(0.0, test)

    def curve(log_mu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The logarithm of δ over what is allowed, and its slope in log μ."""
        mu = np.exp(log_mu)
        parts, slopes = [], []
        for at, weight in zip((eps - test, eps + test), weights, strict=True):
            first, second = 0.5 * mu - at / mu, -0.5 * mu - at / mu
            one, other = special.log_ndtr(first), at + special.log_ndtr(second)
            rounding = 8.0 * _MACHINE * (np.abs(one) + np.abs(other) + np.abs(at) + 1.0)
            gap = one - other + rounding
            parts.append(weight + one + rounding + np.log(-np.expm1(-gap)))
            slopes.append(weight + log_mu - 0.5 * first**2 - 0.5 * math.log(2.0 * math.pi))
        both = np.logaddexp(*parts)
        return both + 4.0 * _MACHINE - target, np.exp(np.logaddexp(*slopes) - both)

    point = np.log(0.5 * (eps - test) / np.sqrt(2.0 * np.maximum(-target, 1.0)))
    low, high = np.full_like(point, -40.0), np.full_like(point, 20.0)
    # Newton's steps where they stay in the bracket, bisections elsewhere.
    for _ in range(_MOST_NEWTON):
        with np.errstate(all="ignore"):
            value, slope = curve(point)
            ahead = point - value / slope
        if np.all(np.abs(ahead - point) <= _NEAR_ROOT):
            break
        low, high = np.where(value <= 0.0, point, low), np.where(value <= 0.0, high, point)
        point = np.where((ahead > low) & (ahead < high), ahead, 0.5 * (low + high))
    return np.exp(point)


def splits(request: Request, test: str) -> Iterator[Split]:
    """For each share of ε, the best split by the rule of thumb."""
    whole = request.rate == 1.0
    shares = [s for s in request.shares or SHARES[test] if s < 1.0 or not whole]
    if request.selection == "weighted":
        yield from _of(request, test, promises(request, test, shares, FAILURE_SHARES))
        return
    for share in shares:
        made = [split(request, test, share, part) for part in FAILURE_SHARES]
        rough = min(filter(None, made), key=lambda s: s.noise, default=None)
        if rough:
            yield rough


def _of(request: Request, test: str, found: Promises) -> Iterator[Split]:
    for e1, threshold, core, keep, kappa, wrong, mu in zip(
        *map(np.ndarray.tolist, found), strict=True
    ):
        phase = proof.Phase(test, request.rate, request.num_steps, e1, wrong, 0.0, mu)
        yield Split(phase, threshold, int(core), keep, kappa)


def least_noise(
    request: Request,
    roughs: Iterable[Split],
    epsilon_at: Callable[[proof.Phase, float], float],
    under: float,
    slope: float | None = None,
) -> Split | None:
    """The split that needs the least noise, each calibrated up to ``under``; None if none meets the budget.

    What does not meet the budget with the least noise so far needs more, and is not calibrated. These
    are nearly all of them, since what promises the least noise comes first; the order decides only the time.
    """
    found: Split | None = None
    is_hopeless = False
    for rough in sorted(roughs, key=lambda s: s.noise):
        if accounting.is_closed_form(rough.phase):
            if found is not None and rough.noise > (1.0 + _OF_ARRAYS) * found.noise:
                continue
        elif found is not None or is_hopeless:
            # After one that no noise helps, whether any helps is asked first.
            most = rough.sensitivity / found.noise if found is not None else LEAST_MU
            phase = rough.phase._replace(mu=most)
            if epsilon_at(phase, request.delta) > request.epsilon:
                continue
        exact = calibrated(request, rough, epsilon_at, under, slope)
        is_hopeless = exact is None
        if exact is not None and (found is None or exact.noise < found.noise):
            found = exact
    return found


# Searches over plans ask for the same again; a request holds numbers and names alone, and all that counts.
@functools.lru_cache(maxsize=1024)
def best(request: Request, kinds: tuple[str, ...]) -> Split | None:
    """The split with the least noise over the kinds of test; None if there is none."""
    found = _of_kinds(request, kinds)
    if not found:
        return None
    slope = None
    first = found[0].phase
    if not accounting.is_closed_form(first):
        # Chernoff's bound has about the slope of what it bounds, and is mostly as far above it.
        less = first._replace(mu=first.mu * math.exp(-_ASIDE))
        both = [accounting.quick_epsilon(phase, request.delta) for phase in (less, first)]
        slope = math.log(both[0] / both[1]) / _ASIDE if min(both) > 0.0 else None
    if slope is not None and -10.0 < slope < -0.1:
        nearer = math.exp(math.log(_CHERNOFF) / slope)
        found = tuple(s._replace(phase=s.phase._replace(mu=s.phase.mu * nearer)) for s in found)
    return least_noise(request, found, accounting.epsilon_at, _UNDER_BUDGET, slope)


def rough(request: Request, kinds: tuple[str, ...]) -> Split | None:
    """Like ``best``, by Chernoff's bound alone: some 10 % more noise, in a tenth of the time."""
    return next(iter(_of_kinds(request, kinds)), None)


@functools.lru_cache(maxsize=1024)
def _of_kinds(request: Request, kinds: tuple[str, ...]) -> tuple[Split, ...]:
    """Of each kind of test the split with the least noise, by Chernoff's bound; the least first."""
    made = [
        least_noise(request, splits(request, kind), accounting.quick_epsilon, _ROUGHLY)
        for kind in kinds
    ]
    return tuple(sorted(filter(None, made), key=lambda s: s.noise))


def is_feasible(request: Request, kinds: Sequence[str]) -> bool:
    """Whether some split lets concentrated data pass, and nothing else."""
    return any(
        calibrated(request, rough, accounting.quick_epsilon, _ROUGHLY)
        for kind in kinds
        for rough in splits(request, kind)
    )
