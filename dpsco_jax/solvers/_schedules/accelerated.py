"""The schedule of accelerated phased ERM: users, regularizers, steps and batches of every phase.

What it computes: for users cut in blocks of sizes 1, 2^-q, 4^-q, ... and regularizers λ, λ2^p, λ4^p, ...:

- ``chosen``: number of phases, λ, stages and their lengths such that the bound of ``accelerated_bounds`` is
  least for a model of the noise; per phase the fewest steps that come within a tenth of the least gap;
- ``with_batches``: users of a step, by a rule that keeps the noise near that of full batches;
- ``smoothing_radii``: how far a loss that is not smooth may be smoothed.

Source: F, Algorithm 3; T, Algorithm 33 and Theorem 10.8.3. Corrected in ``chosen``: the first block is half
of the users and not a quarter (the exponent counts from zero), batches are at most blocks, and no λ is too
small for the privacy error.

Formal guarantee: none of privacy: that is calibrated for whatever sizes come out. The model of the noise
decides on sizes only; bounds and noise are computed again from those.

Cost: some ten thousand evaluations of a formula on arrays: some milliseconds.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax import _checks
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers._schedules import accelerated_bounds as bounds
from dpsco_jax.solvers._sequence import block_sizes

_LENGTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of a stage, in units of √(smoothness/convexity)
_MOST_STAGES = 4
_REGULARIZERS = np.geomspace(0.03, 3e4, 49)  # in units of the paper's λ
NEAR_BEST = 1.1
_FOR_TESTS = 4096.0

NoiseModel = Callable[[int, Any], Any]
"""``(num_users, num_steps) -> σ`` of the mean released in a step, ``inf`` where there is none.

Numbers of steps may be an array."""


class Size(NamedTuple):
    """One phase.

    Attributes:
        num_users: n.
        regularization: λ.
        stage_length: N, steps between restarts.
        num_stages: S.
        batch_size: K; ``None`` where it is yet to be set.
    """

    num_users: int
    regularization: float
    stage_length: int
    num_stages: int
    batch_size: int | None = None

    @property
    def num_steps(self) -> int:
        """T = S·N."""
        return self.stage_length * self.num_stages


def base_regularization(setting: bounds.Setting, num_users: int) -> float:
    """The paper's λ = (L/R)(1/√(nm) + √d/(εn√m))."""
    items = setting.items_per_user
    statistical = 1.0 / math.sqrt(num_users * items)
    private = math.sqrt(setting.dim) / (setting.epsilon * num_users * math.sqrt(items))
    return setting.lipschitz / setting.distance * (statistical + private)


def steps(
    setting: bounds.Setting, num_users: int, regularizations: np.ndarray, noise: NoiseModel
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The stages of one phase, and the gap that the model of the noise lets expect, for each regularizer.

    Returns:
        Steps of a stage, number of stages, and gaps, each ``[regularizers]``.
    """
    smoothness, convexity = setting.curvature(regularizations)
    root = np.sqrt(smoothness / convexity)
    lengths = np.ceil(np.multiply.outer(_LENGTHS, root))
    gaps = []
    for count in range(1, _MOST_STAGES + 1):
        variance = setting.dim * noise(num_users, count * lengths) ** 2
        gaps.append(bounds.gap(setting, regularizations, variance, lengths, count))
    stages = np.repeat(np.arange(1, _MOST_STAGES + 1), len(_LENGTHS))
    lengths, found = np.tile(lengths, (_MOST_STAGES, 1)), np.concatenate(gaps)
    enough = found <= NEAR_BEST * np.min(found, axis=0)
    chosen = np.argmin(np.where(enough, stages[:, None] * lengths, np.inf), axis=0)
    each = np.arange(len(regularizations))
    return lengths[chosen, each], stages[chosen], found[chosen, each]


def chosen(
    setting: bounds.Setting,
    num_users: int,
    noise: NoiseModel,
    *,
    ratio: float,
    decay: float,
    num_phases: int | None,
    regularization: float | None,
) -> tuple[list[Size], float]:
    """The phases with the least bound, and that bound for the model of the noise.

    Args:
        setting: the public numbers.
        num_users: n, of all phases together.
        noise: the model.
        ratio: q > 0.
        decay: p > 0.
        num_phases: as many phases, if given.
        regularization: λ of the first phase, if given.

    Returns:
        At least one phase; a single one of all users if the model allows none.
    """
    most = max(1, math.ceil(math.log2(num_users * setting.items_per_user) / decay))
    counts = range(1, most + 1) if num_phases is None else (num_phases,)
    base = base_regularization(setting, num_users)
    starts = base * _REGULARIZERS if regularization is None else np.array([regularization])
    best, least = None, math.inf
    for count in counts:
        if num_phases is None and num_users * 0.5 ** (ratio * (count - 1)) < 2:
            break
        blocks = block_sizes(num_users, 0.5**ratio, count)
        if count > 1 and not math.isfinite(noise(blocks[-1], 1)):
            break
        strengths = [starts * 2.0 ** (decay * i) for i in range(count)]
        found = [
            steps(setting, users, each, noise)
            for users, each in zip(blocks, strengths, strict=True)
        ]
        phases = [
            bounds.Phase(users, each, gaps)
            for users, each, (_, _, gaps) in zip(blocks, strengths, found, strict=True)
        ]
        risks = bounds.excess_risk(setting, phases)
        i = int(np.argmin(risks))
        if best is None or risks[i] < least:
            best = [
                Size(users, float(each[i]), int(lengths[i]), int(stages[i]))
                for users, each, (lengths, stages, _) in zip(blocks, strengths, found, strict=True)
            ]
            least = float(risks[i])
    assert best is not None
    return best, least


def default_batch(setting: bounds.Setting, size: Size) -> int:
    """K = max(n/T, nε/√T) + 4096/ε, at most n.

    With q = K/n, T subsampled steps need little more noise than full ones once q√T is about ε or more; the
    last term is for tests, which need some hundred users over ε.
    """
    n, steps = size.num_users, size.num_steps
    wanted = max(n / steps, n * setting.epsilon / math.sqrt(steps))
    return min(n, math.ceil(wanted + _FOR_TESTS / setting.epsilon))


def smoothing_radii(objective: Objective, least: float, distance: float) -> list[float]:
    """Radii to choose from: zero for smooth losses; else the least that privacy can resolve, and larger ones.

    Args:
        objective: for its smoothness.
        least: the paper's radius.
        distance: R; a larger radius makes no sense.

    Raises:
        ValueError: even the least is larger than R: there is no better bound than that of the start then.
    """
    if objective.smoothness is not None:
        return [0.0]
    if least > distance:
        raise ValueError(
            f"smoothing_radius must be at most distance = {distance:g}, but privacy resolves "
            f"{least:g} at best: more users or a larger epsilon are needed"
        )
    return [least * 4.0**k for k in range(math.floor(math.log(distance / least, 4)) + 1)]


def with_batches(
    setting: bounds.Setting,
    sizes: Sequence[Size],
    batch_size: int | Sequence[int] | None,
    constants: str,
) -> list[Size]:
    """The phases with their batches set: as given (at most the block), printed, or by default.

    Raises:
        ValueError: a batch is not positive, there are not as many as phases, or what the paper prints is
            larger than the block that it is drawn from.
    """
    if batch_size is None and constants == "tight":
        return [s._replace(batch_size=default_batch(setting, s)) for s in sizes]
    if batch_size is None:
        for i, s in enumerate(sizes, 1):
            assert s.batch_size is not None
            if s.batch_size > s.num_users:
                raise Infeasible(
                    "num_users must be large enough for constants='paper': phase "
                    f"{i} of {len(sizes)} has {s.num_users} users and draws {s.batch_size} of them"
                )
        return list(sizes)
    given = [batch_size] * len(sizes) if isinstance(batch_size, int) else list(batch_size)
    if len(given) != len(sizes):
        raise ValueError(f"batch_size must be one for each of {len(sizes)} phases, got {given}")
    for batch in given:
        _checks.require_integer("batch_size", batch, 1)
    return [s._replace(batch_size=min(b, s.num_users)) for s, b in zip(sizes, given, strict=True)]
