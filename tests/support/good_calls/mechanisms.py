"""Calls of ``dpsco_jax.mechanisms`` that work, where the common vocabulary does not say it."""

import functools
from typing import Any

import numpy as np

from dpsco_jax.mechanisms import histogram_releases, sparse_vector, two_stage_histogram
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
_ANSWERS = {"threshold_epsilon": kinds.POSITIVE(0.5), "answer_epsilon": kinds.POSITIVE(0.1)}
_STREAM = kinds.OBJECT(
    Fresh(functools.cache(lambda: sparse_vector.fixed_threshold(0.0, 0.5, 0.1, 1.0)))
)
_WIDTH = {"radius": kinds.POSITIVE(0.1), "bin_width": kinds.POSITIVE(0.05)}
_CLUSTERS = np.array([0, 0, 1])
_CLUSTERED = kinds.OBJECT(
    Fresh(
        functools.cache(
            lambda: histogram_releases.calibrate_histogram(4, _CLUSTERS, 2.0, 1.0, 1e-5)
        )
    )
)
_TWO_STAGES = kinds.OBJECT(
    Fresh(
        functools.cache(
            lambda: two_stage_histogram.calibrate_two_stages(4, _CLUSTERS, 2.0, 1.0, 1e-5)
        )
    )
)
_RELEASED = kinds.OBJECT(
    Fresh(
        lambda: two_stage_histogram.TwoStageHistogram(
            np.ones(3, np.float32), np.ones(32, np.float32), np.float32(1), np.ones(3, np.float32)
        )
    )
)
_PAIRS = dict.fromkeys(("users", "items"), kinds.INTEGERS(np.array([0, 1, 2])))
_ENTRIES = {**_PAIRS, "counts": kinds.NUMBERS(np.ones(3, np.float32))}
_ITEM_CLUSTERS = kinds.Kind(
    "clusters", (-_CLUSTERS, _CLUSTERS[:0], _CLUSTERS[None], *kinds.INTEGERS.bad)
)(_CLUSTERS)
_RADIUS = kinds.POSITIVE.also(np.ones(1))(1.0)

GOOD: dict[str, dict[str, Any]] = {
    "mechanisms.additive.gaussian": {"stddev": kinds.NONNEGATIVE},
    "mechanisms.additive.laplace": {"scale": kinds.NONNEGATIVE},
    "mechanisms.additive.gaussian_loss": {"stddev": kinds.NONNEGATIVE_OR_INF},
    "mechanisms.additive.bounded_laplace": {
        "scale": kinds.POSITIVE,
        "bound": kinds.POSITIVE.also(np.ones(1))(2.0),
    },
    "mechanisms.additive.bounded_laplace_loss": {
        "scale": kinds.POSITIVE,
        "bound": kinds.POSITIVE(100.0),
    },
    "mechanisms.additive.laplace_loss": {"scale": kinds.POSITIVE_OR_INF},
    "mechanisms.clustered_histogram.clustered_histogram": {**_ENTRIES, "releases": _CLUSTERED},
    "mechanisms.clustered_histogram.projected_mean": {**_ENTRIES, "releases": _CLUSTERED},
    "mechanisms.clustered_histogram.project_clusters": {
        **_ENTRIES,
        "cluster_of_item": _ITEM_CLUSTERS,
        "radius": _RADIUS,
        "signed": kinds.FLAG(False),
    },
    "mechanisms.heavy_hitters.heavy_hitter_counts": {**_PAIRS, "stddev": kinds.NONNEGATIVE},
    "mechanisms.heavy_hitters.heavy_hitter_loss": {"stddev": kinds.NONNEGATIVE_OR_INF},
    "mechanisms.heavy_hitters.ordering_loss": {
        "noisy": kinds.SIGNED(np.arange(3.0)),
        "probabilities": kinds.SIGNED(np.arange(3.0)),
        "gap": kinds.POSITIVE(0.5),
    },
    "mechanisms.histogram_releases.calibrate_histogram": {
        "cluster_of_item": _ITEM_CLUSTERS,
        "radius": _RADIUS,
        "signed": kinds.FLAG(False),
    },
    "mechanisms.two_stage_histogram.calibrate_two_stages": {
        "cluster_of_item": _ITEM_CLUSTERS,
        "coarse_bound": kinds.POSITIVE(2.0),
        "coarse_share": kinds.OPEN_PROBABILITY(0.2),
        "least_radius": kinds.POSITIVE.also(3.0)(1.0),
        "num_radii": kinds.Kind("at least 2", (1, 0, -1, 2.5, "a"))(8),
    },
    "mechanisms.two_stage_histogram.two_stage_histogram": {**_ENTRIES, "releases": _TWO_STAGES},
    "mechanisms.denoised_histogram.denoised_histogram": {
        "released": _RELEASED,
        "releases": _TWO_STAGES,
    },
    "mechanisms.denoised_histogram.projection_factor": {
        "released": _RELEASED,
        "releases": _TWO_STAGES,
    },
    "mechanisms.concentrated.concentrated_mean.concentration": {"block_size": kinds.COUNT(5)},
    "mechanisms.concentrated.concentrated_mean.inlier_weights": {
        "degrees": kinds.INTEGERS(np.arange(12)),
        "keep_level": Kind("in (1/2, 1)", (0.5, 1.0, 0.2, *kinds.PROBABILITY.bad))(0.75),
    },
    "mechanisms.buffered_noise.buffered": {
        "min_separation": 2,
        "buffers": kinds.Kind("in [1, 16]", (0, -1, 17, 2.5, "a"))(2),
        "disjoint": kinds.FLAG(False),
    },
    "mechanisms.correlated_noise.banded_square_root": {
        "min_separation": 2,
        "disjoint": kinds.FLAG(False),
    },
    "mechanisms.tree.tree_noise": {
        "index": kinds.COUNT(3),
        "like": np.zeros(3, np.float32),
        "stddev": kinds.NONNEGATIVE,
        "segment": kinds.COUNT_OR_ZERO(0),
    },
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
    "mechanisms.sparse_vector.fixed_threshold": {
        "threshold": kinds.SIGNED(1.0),
        **_ANSWERS,
    },
    "mechanisms.sparse_vector.fixed_threshold_loss": _ANSWERS,
    "mechanisms.sparse_vector.outcomes": {"stream": _STREAM, "queries": kinds.NUMBERS(np.ones(3))},
    "mechanisms.sparse_vector.resetting": {
        "threshold": kinds.SIGNED(1.0),
        "scale": kinds.POSITIVE(1e4),
        "bound": kinds.POSITIVE(1e7),
        "num_queries": kinds.COUNT(100),
    },
    "mechanisms.winsorized.winsorized_calibration.calibrate_winsorized": {
        **_BUDGET,
        "radius": kinds.POSITIVE(0.1),
    },
    "mechanisms.winsorized.winsorized_mean.winsorized_mean": {"releases": RELEASES},
    "mechanisms.winsorized.winsorized_mean.winsorized_mean_1d": _WIDTH,
    "mechanisms.winsorized.winsorized_mean.winsorized_mean_1d_loss": {"epsilon": kinds.POSITIVE},
}
EXEMPT: dict[tuple[str, str], str] = {}
