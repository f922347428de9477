"""Calls of ``dpsco_jax.geometry`` that work, where the common vocabulary does not say it."""

from typing import Any

import numpy as np

from tests.support import kinds

_SIZE = kinds.NONNEGATIVE
_CLIP = {"clip_norm": kinds.NONNEGATIVE_OR_INF}

GOOD: dict[str, dict[str, Any]] = {
    "geometry.clipping.sum_of_clipped": _CLIP,
    "geometry.norms.clip_factor": _CLIP,
    "geometry.norms.clip_to_norm": _CLIP,
    "geometry.domains.ball": {"radius": kinds.NONNEGATIVE_OR_INF},
    "geometry.domains.box": {
        "lower": kinds.TREE(-np.ones(4, np.float32)),
        "upper": kinds.TREE(np.ones(4, np.float32)),
    },
    "geometry.prox.l1": {"weight": _SIZE},
    "geometry.prox.ridge": {"weight": _SIZE},
    "geometry.smoothing.ball_bias": {"radius": _SIZE, "lipschitz": _SIZE},
    "geometry.smoothing.ball_smoothness": {"lipschitz": _SIZE},
    "geometry.smoothing.gaussian_bias": {"stddev": _SIZE, "lipschitz": _SIZE},
    "geometry.smoothing.gaussian_smoothness": {"lipschitz": _SIZE},
    "geometry.smoothing.ball_coordinate": {
        "shape": kinds.Kind("shape", ((-1,), (1.5,), "1", None))((3,))
    },
    "geometry.smoothing.uniform_ball": {"radius": _SIZE},
    "geometry.two_balls.project_two_balls": {"radius_a": _SIZE, "radius_b": _SIZE},
    "geometry.two_balls.two_balls": {"radius_a": _SIZE, "radius_b": _SIZE},
    "geometry.rotations.largest_coordinate": {"norm": _SIZE},
}
EXEMPT: dict[tuple[str, str], str] = {}
