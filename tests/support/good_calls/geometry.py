"""Calls of ``dpsco_jax.geometry`` that work, where the common vocabulary does not say it."""

from typing import Any

import numpy as np

from tests.support import kinds
from tests.support.objects import VECTORS

_SIZE = kinds.NONNEGATIVE
_CLIP = {"clip_norm": kinds.POSITIVE}

GOOD: dict[str, dict[str, Any]] = {
    # Rows without a leaf, such as None, are an empty tree, as are their sums.
    "geometry.clipping.sum_of_clipped": {**_CLIP, "rows": kinds.TREE(VECTORS)},
    "geometry.clipping.layers": _CLIP,
    "geometry.domains.require_proven_moves": {"name": kinds.WORDS("domain")},
    "geometry.norms.clip_factor": _CLIP,
    "geometry.norms.clip_to_norm": _CLIP,
    "geometry.domains.ball": {"center": kinds.TREE},
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
    "geometry.rotations.largest_coordinate": {"norm": _SIZE},
}
for _name in ("hadamard", "rotate", "rotate_back"):
    GOOD[f"geometry.rotations.{_name}"] = {"vectors": kinds.NUMBERS(np.ones((12, 4), np.float32))}

EXEMPT: dict[tuple[str, str], str] = {
    ("geometry.norms.all_finite", "*"): "asks any tree whatever, also of what is no number",
}
