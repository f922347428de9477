"""Intervals for what experiments compare: ratios of means, and slopes of power laws.

What it computes: a 95 % interval for the ratio of two means by the delta method on logarithms, and the slope
of log(typical value) against log(x) with a percentile bootstrap interval over seeds.

Source: Efron and Tibshirani 1993, chapters 13 and 9 (bootstrap of regression).

Formal guarantee: none of privacy; measurements for studies.

Cost: milliseconds.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from dpsco_jax._checks import (
    require,
    require_callable,
    require_integer,
    require_number,
    require_positive,
)

_RESAMPLES = 2000


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.3g} [{self.low:.3g}, {self.high:.3g}]"


def ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Mean of ``above`` over mean of ``below``, two independent samples.

    Args:
        above: real numbers, at least one.
        below: real numbers, at least one.

    Returns:
        The ratio with its 95 % interval, which is not a number where a mean is not positive or a sample
        has one value only.
    """
    _require_sample("above", above)
    _require_sample("below", below)
    means, errors, counts = [], [], []
    for sample in (np.asarray(above, float), np.asarray(below, float)):
        means.append(sample.mean())
        enough = len(sample) > 1
        errors.append(sample.std(ddof=1) / len(sample) ** 0.5 if enough else np.nan)
        counts.append(len(sample))
    if min(means) <= 0:
        return Interval(means[0] / means[1] if means[1] else np.nan, np.nan, np.nan)
    spread = float(np.hypot(errors[0] / means[0], errors[1] / means[1]))
    reach = scipy.stats.t.ppf(0.975, max(min(counts) - 1, 1)) * spread
    estimate = means[0] / means[1]
    return Interval(estimate, estimate * np.exp(-reach), estimate * np.exp(reach))


def power(
    samples: Mapping[float, Sequence[float]], typical: Callable[..., Any] = np.mean, seed: int = 0
) -> Interval:
    """The exponent p of typical(y) ≈ c·x^p, by least squares on logarithms.

    Args:
        samples: for each x > 0 the values of all seeds; at least two different x.
        typical: ``typical(values, axis=-1)``, positive: ``np.mean``, or a root mean square for a standard
            deviation.
        seed: of the bootstrap, which resamples the seeds of each x independently.
    """
    many = isinstance(samples, Mapping) and len(samples) > 1
    require(many, "samples", samples, "values for each of at least two numbers")
    for place, found in samples.items():
        require_positive("samples: each x", place)
        _require_sample("samples", found)
    require_callable("typical", typical)
    seed = require_integer("seed", seed, 0)
    places = np.log(np.array([*samples], float))
    values = [np.asarray(v, float) for v in samples.values()]
    centred = places - places.mean()
    weights = centred / np.sum(centred**2)
    rng = np.random.default_rng(seed)
    drawn = [v[rng.integers(0, len(v), (_RESAMPLES, len(v)))] for v in values]

    def exponent(levels: Any) -> Any:
        return np.log(np.stack(levels, axis=-1)) @ weights

    low, high = np.quantile(exponent([typical(d, axis=-1) for d in drawn]), (0.025, 0.975))
    return Interval(float(exponent([typical(v, axis=-1) for v in values])), float(low), float(high))


def _require_sample(name: str, values: Any) -> None:
    require_number(name, values, "a sequence of real numbers")
    require(np.ndim(values) == 1 and len(values) > 0, name, values, "at least one number")
