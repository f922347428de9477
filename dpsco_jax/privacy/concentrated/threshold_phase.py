"""A phase of noisy means of concentrated vectors: what is released, what it costs, how much noise it needs.

What it describes: T steps; in each, K of N users (everybody, or a fresh uniform batch without replacement)
hold one vector each. A score, the mean number of vectors within one radius of a vector, is compared with a
noisy threshold; if it is above, the mean of the inliers is released with Gaussian noise; else the phase
stops. "stream": one threshold noise for all steps. "fresh": an independent test in each step.

Source: U Algorithm 1 and Theorem 3.2 (T Algorithm 28, Theorem 9.3.2); T Algorithm 32 and Theorem 10.8.1
(F Algorithm 2); T Algorithm 31, lines 10 to 22. Constants and proofs are ours.

Formal guarantee: (ε, δ)-DP for a user's whole data, whatever the data, under REPLACE_ONE, or under
REPLACE_SPECIAL, where the special user is close to no user but itself and has weight zero. Assumed:
a user moves one vector; batches and noisy thresholds stay secret; the phase stops at the first failed test;
a vector's closeness to another depends on these two alone. Proofs: docs/theory/concentrated_mean.md.

Cost: a plan takes milliseconds where everybody takes part, else one to three seconds on the host.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks
from dpsco_jax._conditions import same_numbers
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import float32_above
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy import loss
from dpsco_jax.privacy.certificates import Certificate, accounted_by
from dpsco_jax.privacy.concentrated import _accounting as accounting
from dpsco_jax.privacy.concentrated import _loss
from dpsco_jax.privacy.concentrated import _paper as papers
from dpsco_jax.privacy.concentrated import _proof as proof
from dpsco_jax.privacy.concentrated import _request as request
from dpsco_jax.privacy.concentrated import _search as search
from dpsco_jax.privacy.concentrated import _tests as tests
from dpsco_jax.privacy.concentrated._mean_sensitivity import (
    RELATIONS,
    REPLACE_ONE,
    coupled_sensitivity,
    mean_sensitivity,
)
from dpsco_jax.privacy.concentrated._request import MOST_USERS
from dpsco_jax.privacy.sampling import FullBatch, WithoutReplacement

__all__ = [
    "MOST_USERS",
    "ConcentratedReleases",
    "ConcentratedRun",
    "calibrate_concentrated",
    "coupled_sensitivity",
    "fewest_users",
    "mean_sensitivity",
]

_MOST_RAISES = 1000
ACCOUNTANTS = ("pld", "chernoff")
_ASSUMES = ("the key, the batches and the noisy thresholds stay secret",)


@pytree
class ConcentratedReleases:
    """A phase of T tested, outlier-removed, noisy means. Sizes are static, numbers are pytree leaves.

    Attributes:
        population_size: N, users of the phase.
        batch_size: K, users of a step, at most ``MOST_USERS``; N means everybody.
        num_steps: T.
        test: ``"stream"``, one noisy threshold for all steps, or ``"fresh"``, an independent test each.
        selection: ``"weighted"``, the mean weighted by inlier weights, or ``"bernoulli"``, the mean over a
            random set drawn with these probabilities.
        relation: REPLACE_ONE or REPLACE_SPECIAL.
        keep_level: θ in (1/2, 1); a vector with f others (and itself) within TWICE the score radius has
            weight clip((f - K/2) / ((θ - 1/2) K), 0, 1).
        threshold: of the score, in [1, K].
        core: c, a choice of the proof, which nothing that runs depends on: how many vectors that neighbours
            share lie within a radius of some point if a score is above c; at least θ K, below K. A score in
            between c and the threshold passes by mistake. The claims are true whatever c is.
        test_epsilon: pure-DP share: of the whole stream, or of one fresh test.
        coin_failure: another choice of the proof, for a Bernoulli selection: the probability, in one step,
            that its coins differ more than ``sensitivity`` allows; of no meaning for weights.
        noise_stddev: standard deviation of the Gaussian noise on each coordinate of the mean, in units of
            the score radius.
        epsilon: budget of the phase, which nothing is computed from.
        delta: δ at which ``certificate`` speaks.
    """

    population_size: int = static()
    batch_size: int = static()
    num_steps: int = static()
    test: str = static()
    selection: str = static()
    relation: NeighboringRelation = static()
    keep_level: Number
    threshold: Number
    core: Number
    test_epsilon: Number
    coin_failure: Number
    noise_stddev: Number
    epsilon: Number
    delta: Number

    @property
    def scheme(self) -> FullBatch | WithoutReplacement:
        """How the users of a step are drawn."""
        if self.batch_size == self.population_size:
            return FullBatch()
        return WithoutReplacement(self.population_size, self.batch_size)

    def __post_init__(self) -> None:
        _checks.require_choice("test", self.test, request.TESTS)
        _checks.require_choice("selection", self.selection, request.SELECTIONS)
        _checks.require_relation("relation", self.relation, RELATIONS)
        _checks.require_integer("population_size", self.population_size, 2)
        most = min(self.population_size, MOST_USERS)
        _checks.require_integer("batch_size", self.batch_size, 2, most)
        _checks.require_integer("num_steps", self.num_steps, 1)

    @property
    def sampling_rate(self) -> float:
        """Q = K/N."""
        return self.batch_size / self.population_size

    @property
    def score_sensitivity(self) -> float:
        """2; the test's noise has scale 2/ε₁ (fresh), or 4/ε₁ for the threshold and 8/ε₁ for each query."""
        return proof.SCORE_SENSITIVITY

    @property
    def sensitivity(self) -> Any:
        """κ, ℓ2 shift of the mean in score radii; ``inf`` where nothing is proven."""
        return proof.as_run(self).sensitivity

    @property
    def failure(self) -> Any:
        """The part of δ spent on what the Gaussian curve does not cover; ``inf`` where nothing is proven."""
        return proof.as_run(self).failure

    def loss(self) -> loss.PrivacyLoss:
        """What the whole phase costs, by Rényi curves; for ledgers, also of traced leaves.

        ``delta_at`` and ``certificate`` are never above it. Infinite where numbers are out of their ranges.
        """
        return self.lowered().cost

    def lowered(self) -> "ConcentratedRun":
        """What a run uses of the phase: all sizes as numbers, and the loss of the whole."""
        run = proof.as_run(self)
        made = ConcentratedRun(
            capacity=self.batch_size,
            test=self.test,
            selection=self.selection,
            relation=self.relation,
            scheme=self.scheme,
            num_users=self.batch_size,
            num_steps=self.num_steps,
            keep_level=self.keep_level,
            threshold=self.threshold,
            test_epsilon=self.test_epsilon,
            noise_stddev=self.noise_stddev,
            sensitivity=run.sensitivity,
            cost=loss.unbounded_unless(run.holds, _loss.phase_loss(run.phase)),
            proven_words=(),
            proven=None,
        )
        return dataclasses.replace(made, proven_words=made.words, proven=made.numbers)

    def delta_at(self, epsilon: float) -> float:
        """The least δ proven at ``epsilon``; host, from the numbers that the mechanism uses."""
        phase = self.on_host()
        if phase is None:
            return 1.0
        by_moments = float(loss.delta(_loss.phase_loss(phase), float(epsilon)))
        return min(by_moments, accounting.delta_at(phase, float(epsilon)))

    def certificate(self) -> Certificate:
        """ε proven at the plan's δ; host, from the numbers that the mechanism uses.

        Infinite where they are out of their ranges.
        """
        (delta,) = accounting.as_numbers(self.delta)
        phase = self.on_host()
        if phase is None or not 0.0 < delta < 1.0:
            spent, how = math.inf, "definition"
        else:
            spent = accounting.epsilon_at(phase, delta)
            closed = accounting.is_closed_form(phase)
            how = "closed form" if closed else "privacy loss distribution"
            by_moments = float(loss.epsilon(_loss.phase_loss(phase), delta))
            spent, how = min((spent, how), (by_moments, "Rényi curves"))
        return Certificate(spent, delta, self.relation, accounted_by(how), _ASSUMES)

    def false_halt(self) -> float:
        """Probability that data within one radius of each other fail some test (utility only)."""
        threshold, eps = accounting.as_numbers(self.threshold, self.test_epsilon)
        gap = self.batch_size - threshold
        return tests.false_halt(self.test, gap, self.num_steps, eps, proof.SCORE_SENSITIVITY)

    def on_host(self) -> proof.Phase | None:
        """The phase in float64; ``None`` where nothing is proven."""
        run = proof.as_run(jax.tree.map(lambda leaf: float(np.asarray(leaf)), self))
        if not run.holds:
            return None
        phase = run.phase
        coins = phase.coins and proof.Coins(*map(float, phase.coins))
        return phase._replace(coins=coins)


@pytree
class ConcentratedRun:
    """A phase whose sizes are numbers, as ``ConcentratedReleases.lowered`` makes it.

    It proves nothing: sensitivity and loss are those that the releases have proven for their own static sizes
    and the numbers that run. Several phases of one structure can be stacked, and be those of one program.

    Attributes:
        capacity: users of a step of the largest phase in the program; vectors have so many rows.
        test: as in ``ConcentratedReleases``.
        selection: as in ``ConcentratedReleases``.
        relation: REPLACE_ONE or REPLACE_SPECIAL.
        scheme: how the users of a step are drawn.
        num_users: K, users of a step, at most ``capacity``.
        num_steps: T.
        keep_level: θ.
        threshold: of the score.
        test_epsilon: pure-DP share of the stream, or of one fresh test.
        noise_stddev: σ in score radii.
        sensitivity: κ, of the mean, in score radii.
        cost: the loss of the whole phase.
        proven_words: the ``words`` for which it was proven.
        proven: the ``numbers`` for which it was proven.
    """

    capacity: int = static(joined=max)
    test: str = static()
    selection: str = static()
    relation: NeighboringRelation = static()
    scheme: Any
    num_users: Number
    num_steps: Number
    keep_level: Number
    threshold: Number
    test_epsilon: Number
    noise_stddev: Number
    sensitivity: Number
    cost: loss.PrivacyLoss
    proven_words: tuple[str, ...] = static()
    proven: Any

    def lowered(self) -> "ConcentratedRun":
        """Itself."""
        return self

    @property
    def words(self) -> tuple[str, ...]:
        """What the proof rests on beside numbers."""
        return self.test, self.selection, self.relation.name

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What the proof rests on, for this run."""
        sizes = self.scheme, self.num_users, self.num_steps, self.sensitivity
        return *sizes, self.keep_level, self.threshold, self.test_epsilon, self.noise_stddev

    @property
    def charged(self) -> loss.PrivacyLoss:
        """``cost``; infinite for other words or numbers than those that it was proven for."""
        same = same_numbers(self.numbers, self.proven)
        return loss.unbounded_unless(same & (self.words == self.proven_words), self.cost)

    @property
    def score_sensitivity(self) -> float:
        """2, as for ``ConcentratedReleases``."""
        return proof.SCORE_SENSITIVITY

    @property
    def live(self) -> Any:
        """How many of the rows are users, the first ones; ``None`` where all are."""
        return None if isinstance(self.num_users, int) else self.num_users


def calibrate_concentrated(
    num_users: int,
    num_steps: int,
    epsilon: float,
    delta: float,
    *,
    batch_size: int | None = None,
    test: str = "auto",
    selection: str = "weighted",
    relation: NeighboringRelation = REPLACE_ONE,
    test_share: float | str = "auto",
    keep_level: float | str = "auto",
    threshold: float | str = "auto",
    false_halt_probability: float = 0.05,
    constants: str = "tight",
    accountant: str = "pld",
) -> ConcentratedReleases:
    """The phase with the least noise that is (ε, δ)-DP.

    Args:
        num_users: N, users of the phase.
        num_steps: T, at least 1.
        epsilon: budget of the whole phase, positive.
        delta: δ of that budget, in (0, 1).
        batch_size: K, users of a step, drawn uniformly without replacement; everybody if None. At most
            ``MOST_USERS``.
        test: ``"stream"``, ``"fresh"``, or ``"auto"``, the one that needs less noise.
        selection: ``"weighted"`` or ``"bernoulli"``.
        relation: REPLACE_ONE or REPLACE_SPECIAL.
        test_share: share of ε for the stream's tests, or for one fresh test, in (0, 1); ``"auto"``
            searches a grid.
        keep_level: θ in (1/2, 1); ``"auto"`` is the largest that the threshold guarantees, which needs the
            least noise. A lower one gives full weight to users whom fewer others are close to.
        threshold: of the score as a fraction of K; ``"auto"`` is as high as ``false_halt_probability``
            allows if all vectors lie within a radius of each other. A lower one tolerates outliers: if a
            share x of the users is far away, the score is about (1 - x)² K.
        false_halt_probability: of the whole phase; used where ``threshold`` is ``"auto"``.
        constants: ``"tight"``, or ``"paper"``: θ = 2/3, threshold 4/5, sensitivity 24/K and the budget
            split of T Algorithm 32, with its proof's constants made explicit. Its noise is only larger.
        accountant: where there is no closed form, ``"pld"``, loss distributions, or ``"chernoff"``, a bound
            on them: some 10 % more noise, in a tenth of the time. The paper's noise is its own.

    Returns:
        The plan of the phase. Its certificate is at most (ε, δ).

    Raises:
        Infeasible: too few users take part; ``needed`` says how many would do.
    """
    users = _checks.require_integer("num_users", num_users, 2)
    batch = users if batch_size is None else batch_size
    asked = request.Request(
        population=users,
        batch=_checks.require_integer("batch_size", batch, 2, min(users, MOST_USERS)),
        num_steps=_checks.require_integer("num_steps", num_steps, 1),
        relation=_checks.require_relation("relation", relation, RELATIONS),
        epsilon=_checks.require_real("epsilon", epsilon, 0.0),
        delta=_checks.require_real("delta", delta, 0.0, 1.0),
        selection=_checks.require_choice("selection", selection, request.SELECTIONS),
        keep_level=request.number("keep_level", keep_level, 0.5),
        threshold_fraction=request.number("threshold", threshold, 0.0),
        false_halt_probability=_checks.require_real(
            "false_halt_probability", false_halt_probability, 0.0, 1.0
        ),
        shares=request.shares(test_share),
    )
    kinds, is_paper = request.kinds(test), request.is_paper(constants)
    _checks.require_choice("accountant", accountant, ACCOUNTANTS)
    found = _calibrated(asked, kinds, is_paper, accountant)
    if found is None:
        allocation = papers if is_paper else search
        raise request.too_few(asked, lambda other: allocation.is_feasible(other, kinds))
    return found


# Schedules ask for one phase again and again. The key is all of the request, and what decides the search.
@functools.lru_cache(maxsize=1024)
def _calibrated(
    asked: request.Request, kinds: tuple[str, ...], is_paper: bool, accountant: str
) -> ConcentratedReleases | None:
    roughly = accountant == "chernoff" and not is_paper
    best = (papers.best if is_paper else search.rough if roughly else search.best)(asked, kinds)
    if best is None:
        return None
    return _releases(asked, best, accounting.quick_epsilon if roughly else accounting.epsilon_at)


def fewest_users(calibrate: Callable[[int], Any]) -> int:
    """The smallest number of users for which a budget, threshold and number of steps are possible.

    Args:
        calibrate: ``calibrate_concentrated`` with all arguments given but ``num_users``.

    Raises:
        Infeasible: no number of users would do.
    """
    _checks.require_callable("calibrate", calibrate)
    try:
        calibrate(2)
    except Infeasible as refusal:
        if "num_users" not in refusal.needed:
            raise
        return int(refusal.needed["num_users"])
    return 2


def _releases(
    asked: request.Request,
    best: search.Split,
    epsilon_at: Callable[[proof.Phase, float], float],
) -> ConcentratedReleases:
    phase = best.phase
    plan = ConcentratedReleases(
        population_size=asked.population,
        batch_size=asked.batch,
        num_steps=asked.num_steps,
        test=phase.test,
        selection=asked.selection,
        relation=asked.relation,
        keep_level=best.keep_level,
        threshold=float32_above(best.threshold),
        core=float(best.core),
        test_epsilon=phase.test_epsilon / proof.TEST_ROUNDING,
        coin_failure=phase.coin_failure,
        noise_stddev=float32_above(best.noise),
        epsilon=asked.epsilon,
        delta=asked.delta,
    )
    # The search ends on the private side, up to what float32 and the grids of losses may do.
    for _ in range(_MOST_RAISES):
        # A certificate is at most this, and knows what Rényi curves prove besides.
        run = plan.on_host()
        proven = math.inf if run is None else epsilon_at(run, asked.delta)
        if proven <= asked.epsilon or plan.certificate().epsilon <= asked.epsilon:
            return plan
        plan = dataclasses.replace(plan, noise_stddev=float32_above(1.001 * plan.noise_stddev))
    raise AssertionError("the noise that was found does not meet the budget")
