"""Calls of ``dpsco_jax.oracles`` that work, where the common vocabulary does not say it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.oracles import _linear_rows, gradients, linear, preconditioned, resque, sampling
from dpsco_jax.problems.stored import StoredUsers
from tests.support import kinds
from tests.support.kinds import Fresh, Kind
from tests.support.objects import DATA, DIM, OBJECTIVE, VECTOR

_MODEL = OBJECTIVE.linear_model
_LEVEL = Kind("integer in [0, 31]", (-1, 32, *kinds.INTEGER.bad))(2)
_SHIFTS = np.full((4, DIM), 0.01, np.float32)
_SMOOTHING = {"smoothing_radius": kinds.NONNEGATIVE(0.1)}
_RADIUS = {"radius": kinds.NONNEGATIVE(0.1)}
_TWO_POINTS = {"radius": kinds.POSITIVE(0.1), "directions": kinds.COUNT(2)}
_POOL = {"shifts": kinds.NUMBERS(_SHIFTS), "point": VECTOR}

_GHOST = {
    "loss": kinds.FUNCTION(lambda params, example: jnp.sum(jnp.tanh(params * example))),
    "params": kinds.TREE(jnp.asarray(VECTOR)),
}
_CLIP = {"clip_norm": kinds.POSITIVE(1.0)}

GOOD: dict[str, dict[str, Any]] = {
    "oracles.second_order.second_order": {
        "least_curvature": kinds.Kind("real <= 0", (0.5, kinds.NAN, "1", None, 1j))(-1.0),
        "most_curvature": kinds.POSITIVE(1.0),
    },
    "oracles.streamed.Sums": {
        "oracle": kinds.OBJECT(
            gradients.clipped_gradient_sum(gradients.user_gradient(OBJECTIVE), 1.0)
        ),
        "data": kinds.OBJECT(StoredUsers(np.ones((12, 3, DIM), np.float32))),
    },
    "oracles.clipped_sums.clipped_gradient_sum": {**_CLIP, "way": kinds.CHOICE("chunks")},
    "oracles.ghost.sums.clipped_sum": {
        **_GHOST,
        **_CLIP,
        "examples": Kind("arrays of one length", (7, (), (np.ones(2), np.ones(3))))(
            np.ones((12, DIM), np.float32)
        ),
        "normalize": kinds.POSITIVE.but(None)(0.1),
        "in_parts": kinds.FLAG(False),
    },
    "oracles.ghost.report.explain": {**_GHOST, "example": kinds.ANY(np.ones(DIM, np.float32))},
    "oracles.ghost.sums.clipped_gradient_sum": {
        **_CLIP,
        "normalize": kinds.POSITIVE.but(None)(None),
    },
    "oracles.linear.clipped_gradient_sum": {
        **_SMOOTHING,
        "derivative": kinds.FUNCTION(_linear_rows.at_point),
    },
    "oracles.linear_users.per_user_gradients": _SMOOTHING,
    "oracles.unclipped.mean_gradient": {**_SMOOTHING, "count": kinds.COUNT(5)},
    "oracles.linear.shifts": {
        "rows": kinds.ANY(Fresh(lambda: linear.prepare(_MODEL, DATA, DIM))),
        "position": kinds.ANY(jnp.arange(12)),
        **_SMOOTHING,
    },
    "oracles.multilevel.combine": {
        "base": kinds.TREE(VECTOR),
        "fine": kinds.TREE(VECTOR),
        "coarse": kinds.TREE(VECTOR),
        "level": _LEVEL,
    },
    "oracles.multilevel.draw_levels": {
        "max_level": _LEVEL,
        "shape": Kind("shape", ((-1,), (1.5,), "1", None))((3,)),
    },
    "oracles.multilevel.expected_calls": {"max_level": _LEVEL},
    "oracles.multilevel.estimate": {
        "levels": Kind("functions", ("nonsense", 7, None, (), (7,)))(
            [lambda key: (jax.random.normal(key), jnp.zeros(()))] * 2
        ),
        "level": kinds.COUNT_OR_ZERO(0),
    },
    "oracles.sampling.one_pass": {
        "first": kinds.ANY(2),
        "size": kinds.ANY(3),
        "most": kinds.COUNT(4),
    },
    "oracles.sampling.draw_batch": {"batch": kinds.OBJECT(sampling.batch_of(9, 3))},
    "oracles.row_moments.means": {"bound": kinds.POSITIVE},
    "oracles.row_moments.mean_squares": {"bound": kinds.POSITIVE},
    "oracles.row_moments.second_moments": {"bound": kinds.POSITIVE},
    "oracles.row_moments.rounding_covered": {"items": kinds.COUNT(3), "dim": kinds.COUNT(3)},
    "oracles.row_moments.triangle": {"matrix": kinds.ANY(np.eye(3, dtype=np.float32))},
    "oracles.row_moments.from_triangle": {
        "entries": kinds.ANY(np.ones(6, np.float32)),
        "dim": kinds.COUNT(3),
    },
    "oracles.preconditioned.joint_bound": {
        "component_weight": kinds.NONNEGATIVE,
        "inside_weight": kinds.NONNEGATIVE,
    },
    "oracles.sandwich.sandwich_sums": {"curvature": kinds.POSITIVE(0.25), "bound": kinds.POSITIVE},
    "oracles.preconditioned.scaled_sums": {
        "component": kinds.OBJECT(preconditioned.Component(np.zeros(DIM, np.float32), 1.0, 0.0)),
        "inside_weight": kinds.NONNEGATIVE,
        "inside_fraction": kinds.POSITIVE,
    },
    "oracles.resque.log_weight": {"shift": VECTOR, "smoothing_radius": kinds.POSITIVE},
    "oracles.resque.log_weights": _POOL,
    "oracles.resque.draw_pool": {
        "gradient": kinds.FUNCTION(lambda key, points: points),
        "center": kinds.NUMBERS(VECTOR),
    },
    "oracles.resque.reweighted_gradient": {
        **_POOL,
        "pool": kinds.OBJECT(resque.Pool(jnp.asarray(VECTOR), jnp.asarray(_SHIFTS), _SHIFTS)),
    },
    "oracles.resque.user_gradient": {"center": kinds.NUMBERS(VECTOR)},
    "oracles.resque.weighted_sum": {
        "weights": np.ones(4, np.float32),
        "rows": kinds.NUMBERS(_SHIFTS),
    },
    "oracles.sampling.with_replacement": {"num_draws": kinds.COUNT(4)},
    "oracles.smoothed.at_shifted_point": {
        **_RADIUS,
        "oracle": kinds.FUNCTION(lambda key, params, data: params),
    },
    "oracles.smoothed.gradient_difference": {
        "radius": kinds.POSITIVE(0.5),
        "draws": kinds.COUNT(2),
    },
    "oracles.smoothed.two_point_difference": _TWO_POINTS,
    "oracles.smoothed.two_point_gradient": _TWO_POINTS,
    "oracles.smoothed.two_point_slopes": {
        "model": kinds.OBJECT(_MODEL),
        "rows": kinds.ANY(np.ones((4, 3), np.float32)),
        "labels": kinds.ANY(np.ones(4, np.float32)),
        "params": kinds.ANY(np.ones(3, np.float32)),
        "directions": kinds.ANY(np.eye(3, dtype=np.float32)),
        "width": kinds.POSITIVE(0.1),
        "clip_norm": kinds.POSITIVE(1.0),
    },
    "oracles.smoothed.user_gradient": _RADIUS,
    "oracles.smoothed.user_gradient_by_item": _RADIUS,
}
EXEMPT: dict[tuple[str, str], str] = {
    **{
        (f"oracles.{name}", "*"): "a part of an oracle, called for every chunk behind its checks"
        for name in (
            "linear.shifts",
            "gradients.count_items",
            "chunks.add_chunks",
            "spider.query",
            "spider.sum_form",
            "user_gradients.clipped_sum_form",
            "user_gradients.clipped_sum_oracle",
            "user_gradients.rows_form",
            "user_gradients.user_rows_oracle",
        )
    },
    ("oracles.chunks.map_over_users", "data"): "any pytree with an axis of users",
    ("oracles.chunks.most_rows", "data"): "any pytree with an axis of users",
    ("oracles.chunks.split_sum_over_users", "data"): "any pytree with an axis of users",
    ("oracles.chunks.sum_over_users", "data"): "any pytree with an axis of users",
}
