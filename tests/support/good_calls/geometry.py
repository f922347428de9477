"""Calls of ``dpsco_jax.geometry`` that work, where the common vocabulary does not say it."""

from typing import Any

import numpy as np

from tests.support import kinds
from tests.support.objects import VECTORS

_SIZE = kinds.NONNEGATIVE
_CLIP = {"clip_norm": kinds.POSITIVE}
_EXPONENT = {"p": kinds.Kind("in [1, inf]", (0.5, -1.0, kinds.NAN, "1", None, 1j, True))(1.5)}
_SIDES = {"rows": kinds.COUNT(3), "columns": kinds.COUNT(2)}
_MATRIX = kinds.Kind("matrix", ("nonsense", None, np.ones(3), np.array([[1j]])))(
    np.ones((3, 2), np.float32)
)

_DUAL = kinds.Kind("exponent in (1, 2]", (0.5, 1.0, 2.5, kinds.NAN, "1", None, 1j, True))
_SCALE = {"scale": kinds.POSITIVE(0.5)}

_BLOCKS = {
    "values": kinds.Kind("real floating", (np.ones(3, int), np.ones((3, 1), np.float32), 7, None))(
        np.ones(3, np.float32)
    ),
    "starts": kinds.MASK(np.ones(3, bool)),
}
_ROWS = kinds.Kind("matrix [rows, dim]", ("nonsense", None, np.ones(3), np.array([[1j]])))(
    np.diag([4.0, 2.0, 1.0]).astype(np.float32)
)

GOOD: dict[str, dict[str, Any]] = {
    **{
        f"geometry.lasry_lions.{name}": {
            "values": kinds.Kind(
                "floats on a grid", (7, "1", None, np.zeros((2, 2, 2)), np.zeros(3, int))
            )(np.linspace(-1.0, 1.0, 9, dtype=np.float32)),
            "spacing": kinds.POSITIVE(0.25),
            "smoothing": kinds.POSITIVE(0.5),
            "weight": kinds.POSITIVE(0.5),
        }
        for name in ("grid_envelope", "lasry_lions")
    },
    "geometry.block_norms.block_norms": _BLOCKS,
    "geometry.block_norms.clip_blocks": {
        **_BLOCKS,
        "radius": kinds.POSITIVE.also(np.ones(2))(1.0),
    },
    # Rows without a leaf, such as None, are an empty tree, as are their sums.
    "geometry.clipping.split_sum_of_clipped": {**_CLIP, "rows": kinds.TREE(VECTORS)},
    "geometry.clipping.sum_of_clipped": {**_CLIP, "rows": kinds.TREE(VECTORS)},
    "geometry.clipping.layers": _CLIP,
    "geometry.domains.require_proven_moves": {"name": kinds.WORDS("domain")},
    "geometry.norms.clip_bias": {
        "moment": kinds.POSITIVE(2.0),
        "order": kinds.Kind("above 1", (1.0, kinds.NAN, "1", None, 1j, True))(3.0),
        "clip_norm": kinds.POSITIVE(1.0),
        "sharp": kinds.FLAG(False),
    },
    "geometry.norms.clip_factor": _CLIP,
    "geometry.norms.clip_to_norm": _CLIP,
    "geometry.domains.ball": {"center": kinds.TREE},
    "geometry.domains.box": {
        "lower": kinds.TREE(-np.ones(4, np.float32)),
        "upper": kinds.TREE(np.ones(4, np.float32)),
    },
    "geometry.subspaces.decay": {
        "values": kinds.Kind("positive numbers", ([1.0], [1.0, 0.0], "nonsense", None, 1j))(
            np.array([4.0, 2.0, 1.0])
        ),
        "first": kinds.COUNT(1),
        "last": kinds.COUNT.but(None)(None),
    },
    "geometry.subspaces.gram_subspace": {"rows": _ROWS, "rank": kinds.COUNT.also(4)(2)},
    "geometry.subspaces.orthogonal_iteration": {
        "rows": _ROWS,
        "rank": kinds.COUNT.also(4)(2),
        "spare": kinds.COUNT_OR_ZERO(1),
        "num_iterations": kinds.COUNT(2),
        "chunk_size": kinds.COUNT.but(None)(2),
    },
    "geometry.subspaces.orthonormality_error": {"basis": _ROWS},
    "geometry.log_laplace.LpLogLaplace": {
        **_SCALE,
        "p": _DUAL.also(1.97)(1.5),
        "dim": kinds.COUNT(2),
        "reach": kinds.POSITIVE.but(None)(None),
    },
    "geometry.log_laplace.at_zero": {**_SCALE, "p": _DUAL.but(1.0)(1.5)},
    "geometry.log_laplace.rise_at_one": {
        **_SCALE,
        "radius": kinds.NONNEGATIVE.also(100.0)(1.0),
    },
    "geometry.lp.Regularizer": _EXPONENT,
    "geometry.lp.SchattenRegularizer": {**_EXPONENT, **_SIDES},
    "geometry.lp.attaining": {**_EXPONENT, "vector": kinds.NUMBERS(np.ones(4, np.float32))},
    "geometry.lp.attaining_matrix": {**_EXPONENT, "matrix": _MATRIX},
    "geometry.lp.flat_entries": {"tree": kinds.TREE(np.ones(4, np.float32)), "dim": 4},
    "geometry.lp.lp_norm": {**_EXPONENT, "tree": kinds.TREE(np.ones(4, np.float32))},
    "geometry.lp.schatten_norm": {**_EXPONENT, "matrix": _MATRIX},
    "geometry.lp_balls.lp_ball": _EXPONENT,
    "geometry.lp_balls.schatten_ball": {**_EXPONENT, **_SIDES},
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
    ("geometry.lp.require_matrix", "*"): "a check itself: tests/geometry/test_lp.py",
    ("geometry.norms.all_finite", "*"): "asks any tree whatever, also of what is no number",
}
