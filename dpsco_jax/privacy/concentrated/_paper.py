"""The budget of a phase as the proof of T Theorem 10.8.1 splits it, repaired and with explicit constants.

The noise has θ = 2/3, threshold 4K/5, sensitivity 24/K, one point (ε₀, δ₀) of the Gaussian curve, amplified
by the rate and composed optimally; half of δ is for the noisy threshold, a quarter for batches that pass
without being concentrated, a quarter for the releases (Lemmas 10.6.7 to 10.6.9; docs/corrections.md). The
tight accounting certifies the same plan for less.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from scipy import optimize

from dpsco_jax.privacy.concentrated import _proof as proof
from dpsco_jax.privacy.concentrated import _tests as tests
from dpsco_jax.privacy.concentrated._proof import SCORE_SENSITIVITY, TEST_ROUNDING
from dpsco_jax.privacy.concentrated._request import Request
from dpsco_jax.privacy.concentrated._search import Split
from dpsco_jax.privacy.curves.composition import optimal_composition, response_gaussian_mu

KEEP_LEVEL, THRESHOLD = 2.0 / 3.0, 0.8
STREAM_SHARES = (0.1, 0.2, 0.3, 0.5, 0.6)
FRESH_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
_SENSITIVITY = 24.0  # (4/θ) (2 + (1 - θ)/(θ - 1/2)), over K
_SLACK = 3.0  # one vector, and one move of the score


def split(request: Request, test: str, share: float) -> Split | None:
    """The plan with this share for the tests; None if the batch is too small."""
    found = _stream(request, share) if test == "stream" else _fresh(request, share)
    if found is None:
        return None
    e1, least_batch, mu = found
    if request.batch < least_batch:
        return None
    threshold, core = THRESHOLD * request.batch, math.ceil(KEEP_LEVEL * request.batch)
    wrong = tests.wrong_pass(test, threshold - core, e1 / TEST_ROUNDING**2, SCORE_SENSITIVITY)
    phase = proof.Phase(
        test=test,
        rate=request.rate,
        num_steps=request.num_steps,
        test_epsilon=e1,
        wrong_pass=wrong,
        coin_failure=0.0,
        mu=mu,
    )
    return Split(phase, threshold, core, KEEP_LEVEL, _SENSITIVITY / request.batch)


def _stream(request: Request, share: float) -> tuple[float, float, float]:
    e1, q, steps = share * request.epsilon, request.rate, request.num_steps
    log_half = math.log(2.0) + e1 - math.log(request.delta)
    gaps = 4.0 / e1 * log_half + 8.0 / e1 * (log_half + math.log(steps * q))
    least_batch = (_SLACK + gaps) / (THRESHOLD - KEEP_LEVEL)
    epsilon, delta = request.epsilon - e1, math.exp(-log_half)
    if q == 1.0:
        return e1, least_batch, response_gaussian_mu(0.0, epsilon, delta) / math.sqrt(steps)
    rate = proof.effective_rate(q, e1)
    epsilon, delta = _one_step(epsilon, delta, steps, rate)
    return e1, least_batch, response_gaussian_mu(0.0, epsilon, delta)


def _fresh(request: Request, share: float) -> tuple[float, float, float]:
    q, steps = request.rate, request.num_steps
    if steps == 1 and q == 1.0:
        epsilon, delta = request.epsilon, request.delta
    else:
        epsilon, delta = _one_step(request.epsilon, request.delta, steps, q)
    e1 = share * epsilon
    least_batch = (_SLACK - 2.0 / e1 * math.log(2.0 * delta)) / (THRESHOLD - KEEP_LEVEL)
    return e1, least_batch, response_gaussian_mu(0.0, epsilon - e1, delta)


def _one_step(epsilon: float, delta: float, num_steps: int, rate: float) -> tuple[float, float]:
    """The (ε₀, δ₀) of one step on a fixed batch that (ε, δ) for all steps on random ones allows."""
    share = 0.5 * delta / num_steps

    def excess(step: float) -> float:
        return optimal_composition(step, share, num_steps, epsilon) - delta

    step = epsilon if excess(epsilon) <= 0 else _root(excess, epsilon)
    return math.log1p(math.expm1(step) / rate), share / rate


def _root(excess: Callable[[float], float], upper: float) -> float:
    return float(optimize.brentq(excess, 1e-9, upper, xtol=1e-13)) * (1.0 - 1e-9)


def best(request: Request, kinds: Sequence[str]) -> Split | None:
    """The plan with the least noise over the kinds of test and their shares; None if there is none."""
    return min(_candidates(request, kinds), key=lambda s: s.noise, default=None)


def is_feasible(request: Request, kinds: Sequence[str]) -> bool:
    """Whether the batch is large enough for some share."""
    return any(True for _ in _candidates(request, kinds))


def _candidates(request: Request, kinds: Sequence[str]) -> Iterator[Split]:
    for kind in kinds:
        for share in STREAM_SHARES if kind == "stream" else FRESH_SHARES:
            if (found := split(request, kind, share)) is not None:
                yield found
