"""Calls of ``dpsco_jax.mechanisms`` that work, where the common vocabulary does not say it."""

import functools
from typing import Any

import numpy as np

from dpsco_jax.mechanisms.winsorized import winsorized_calibration
from tests.support import kinds
from tests.support.kinds import Fresh, Kind

_BUDGET = {"num_users": 500, "dim": 4, "num_queries": 2, "epsilon": 4.0, "delta": 1e-5}
RELEASES = kinds.OBJECT(
    Fresh(
        functools.cache(
            lambda: winsorized_calibration.calibrate_winsorized(
                12, 4, 2, 4.0, 1e-5, radius=0.1, bound=1.0, form="clipped"
            )
        )
    )
)
_WIDTH = {"radius": kinds.POSITIVE(0.1), "bin_width": kinds.POSITIVE(0.05)}

GOOD: dict[str, dict[str, Any]] = {
    "mechanisms.additive.gaussian": {"stddev": kinds.NONNEGATIVE},
    "mechanisms.additive.laplace": {"scale": kinds.NONNEGATIVE},
    "mechanisms.additive.gaussian_loss": {"stddev": kinds.NONNEGATIVE_OR_INF},
    "mechanisms.additive.laplace_loss": {"scale": kinds.POSITIVE_OR_INF},
    "mechanisms.concentrated.concentrated_mean.concentration": {"block_size": kinds.COUNT(5)},
    "mechanisms.concentrated.concentrated_mean.inlier_weights": {
        "degrees": kinds.INTEGERS(np.arange(12)),
        "keep_level": Kind("in (1/2, 1)", (0.5, 1.0, 0.2, *kinds.PROBABILITY.bad))(0.75),
    },
    "mechanisms.correlated_noise.banded_square_root": {"min_separation": 2},
    "mechanisms.spiked_matrix.denoised": {
        "noisy": kinds.ANY(np.eye(3, dtype=np.float32)),
        "stddev": kinds.POSITIVE,
        "largest_middle": kinds.POSITIVE(1.0),
    },
    "mechanisms.denoising.posterior_means": {
        "stddev": kinds.POSITIVE,
        "upper": kinds.POSITIVE(1.0),
    },
    "mechanisms.histograms.frequencies": {
        "categories": kinds.INTEGERS(np.zeros((12, 3), np.int32)),
    },
    "mechanisms.noisy_iteration.last_point": {
        "move": kinds.FUNCTION(lambda t, x: x),
        "project": kinds.FUNCTION(lambda x: x),
        "sensitivity": kinds.NONNEGATIVE,
        "noise_multiplier": kinds.POSITIVE,
    },
    "mechanisms.histograms.user_level_histogram": {
        "rows": kinds.NUMBERS(np.full((12, 4), 0.25, np.float32)),
        "releases": RELEASES,
        "project": kinds.FLAG(True),
    },
    "mechanisms.winsorized.private_range.half_width": _WIDTH,
    "mechanisms.winsorized.private_range.law": _WIDTH,
    "mechanisms.winsorized.private_range.num_bins": _WIDTH,
    "mechanisms.winsorized.private_range.private_range": _WIDTH,
    "mechanisms.winsorized.private_range.miss_probability": _WIDTH,
    "mechanisms.private_selection.geometric_selection": {
        "stopping_probability": kinds.POSITIVE_PROBABILITY
    },
    "mechanisms.private_selection.geometric_selection_loss": {
        "candidate_epsilon": kinds.NONNEGATIVE_OR_INF(1.0)
    },
    "mechanisms.sparse_vector.above_threshold": {"threshold": kinds.SIGNED(1.0)},
    "mechanisms.sparse_vector.below_threshold": {"threshold": kinds.SIGNED(1.0)},
    "mechanisms.winsorized.winsorized_calibration.calibrate_winsorized": {
        **_BUDGET,
        "radius": kinds.POSITIVE(0.1),
    },
    "mechanisms.winsorized.winsorized_mean.winsorized_mean": {"releases": RELEASES},
    "mechanisms.winsorized.winsorized_mean.winsorized_mean_1d": _WIDTH,
    "mechanisms.winsorized.winsorized_mean.winsorized_mean_1d_loss": {"epsilon": kinds.POSITIVE},
}
EXEMPT: dict[tuple[str, str], str] = {}
