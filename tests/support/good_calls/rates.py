"""Calls of ``dpsco_jax.rates`` that work, where the common vocabulary does not say it."""

from typing import Any

import numpy as np

from dpsco_jax.rates import accelerated, heavy_tailed, user_level, winsorized
from tests.support import kinds

_POSITIVE = dict.fromkeys(
    ("num_users", "items_per_user", "dim", "num_choices", "num_steps", "num_items"), kinds.POSITIVE
)
_SETTING = {"setting": kinds.OBJECT(accelerated.Setting(1000, 4))}
_TABLE = {"method": "BFGT20", "problem": "convex SCO"}
_PARALLEL = {"method": "SGD", "dim": kinds.POSITIVE, "lipschitz": kinds.POSITIVE}
_CLASS = {
    "c": kinds.OBJECT(winsorized.Class(1000, 3, 4)),
    "num_steps": kinds.POSITIVE,
    "num_choices": kinds.POSITIVE,
    "strong_convexity": kinds.POSITIVE,
}
_USER = {"s": kinds.OBJECT(user_level.Setting(1000, 3, 4)), "strong_convexity": kinds.POSITIVE}
_EXPONENT = kinds.NONNEGATIVE(1)
_FALLING = (1.0, 0.5, 0.2, 0.0)
_RESTRICTED = {
    "coefficients": kinds.Kind(
        "falling numbers to 0",
        ("nonsense", 7, None, (1.0,), (1.0, 1.1, 0.0), (1.0, 0.5), (np.nan, 0.0)),
    )(_FALLING),
    "rank": kinds.COUNT(2),
    "dims": kinds.NONNEGATIVE(3),
    "slope": kinds.NONNEGATIVE(0.5),
    "stddev": kinds.NONNEGATIVE(1.0),
    "regularization": kinds.NONNEGATIVE(0.1),
    "decay": kinds.Kind("real > 1/2", (0.5, *kinds.POSITIVE.bad))(1.0),
}
_DRAW = {
    **dict.fromkeys(("num_users", "dim", "lipschitz", "strong_convexity"), kinds.POSITIVE),
    **dict.fromkeys(("inverse_temperature", "regularization"), kinds.POSITIVE(1.0)),
    "gdp": kinds.POSITIVE(1.0),
    "lipschitz_diff": kinds.Kind("in (0, 2 * lipschitz]", (2.1, *kinds.POSITIVE.bad))(2.0),
    "regularizer_range": kinds.POSITIVE(0.5),
    "failure": kinds.OPEN_PROBABILITY,
}
_ANY_DIFF = _DRAW | {"lipschitz_diff": kinds.POSITIVE(2.0)}
_P = (0.5, -1.0, kinds.NAN, "1", None, 1j, True)
_NORM = {"p": kinds.Kind("in [1, inf]", _P)(1.5), "q": kinds.Kind("in [1, inf]", _P)(2.0)}
_HARD = {
    "p": kinds.Kind("in [1, 2]", (2.5, kinds.INF, *_P))(1.5),
    "queries": kinds.COUNT(100),
    "direction": kinds.CHOICE("signs"),
    "regularization": kinds.POSITIVE(1.0),
}
_RATE = _HARD | {"queries": kinds.POSITIVE(100), "bounded": kinds.FLAG(False)}
_ELEMENT = {
    **dict.fromkeys(("num_users", "num_items"), kinds.COUNT(100)),
    "items_per_user": kinds.COUNT(5),
    "largest_probability": kinds.POSITIVE.also(0.2)(0.05),
    "stddev": kinds.NONNEGATIVE(1.0),
    "mistakes": kinds.POSITIVE.also(100.0)(2.0),
}
_PRESENCE = {
    **dict.fromkeys(("probability", "first", "larger"), kinds.PROBABILITY(0.2)),
    **dict.fromkeys(("second", "smaller"), kinds.PROBABILITY.also(0.9)(0.1)),
}
_SQUARE = kinds.Kind(
    "square matrix", (np.ones(2), np.ones((2, 1)), np.full((2, 2), np.nan), "x", 1j)
)


_MOMENTS = {
    "moments": kinds.OBJECT(heavy_tailed.Moments(3.0, 2.0, 1.0)),
    **dict.fromkeys(("lipschitz", "distance", "rho", "strength", "step_size"), kinds.POSITIVE(1.0)),
    "convexity": kinds.POSITIVE(1.0),
    "clip_norm": kinds.POSITIVE(3.0),
    "first": kinds.NONNEGATIVE(1.0),
    "error": kinds.NONNEGATIVE(0.1),
    "failure": kinds.OPEN_PROBABILITY,
    "num_phases": kinds.COUNT(3),
    "num_users": kinds.COUNT(1024),
    "printed": kinds.FLAG(False),
}


def _of(table: dict[str, Any], room: str, *names: str) -> dict[str, dict[str, Any]]:
    return {f"rates.{room}.{name}": table for name in names}


GOOD: dict[str, dict[str, Any]] = {
    **_of(
        _SETTING | _TABLE,
        "accelerated",
        *("excess_risk", "gradient_complexity", "log_exponent", "lower_bound", "risk_exponent"),
        "variables",
    ),
    **_of(_PARALLEL, "parallel", "cost_exponents", "costs"),
    **_of(_SETTING | {"method": "BST14"}, "parallel", "excess_risk", "gradient_complexity"),
    "rates.parallel.log_exponent": {
        "method": "BST14",
        "epsilon_exponent": kinds.Kind("real <= 0", (1.0, *kinds.SIGNED.bad))(0),
    },
    **_of(
        _RESTRICTED,
        "dimension_free",
        *(
            "excess_bound",
            "optimal_rank",
            "printed_excess_bound",
            "regularization",
            "risk_exponent",
        ),
        "tail",
    ),
    "rates.dimension_free.squared_distance": _RESTRICTED | {"regularization": kinds.POSITIVE(0.1)},
    "rates.dimension_free.require_coefficients": {
        "name": kinds.ANY("values"),
        "values": _RESTRICTED["coefficients"],
    },
    **_of(
        _MOMENTS,
        "heavy_tailed",
        *("glm_bound", "high_probability", "lipschitz", "localization_bound", "optimal", "smooth"),
        "strongly_convex",
    ),
    "rates.heavy_tailed.Moments": {
        "order": kinds.Kind("at least 2", (1.9, kinds.NAN, "1", None, 1j, True))(3.0),
        "highest": kinds.POSITIVE(2.0),
        "second": kinds.POSITIVE.also(3.0)(1.0),
        "first": kinds.POSITIVE.also(1.5)(0.5),
    },
    **_of(_NORM, "norms", "best_exponent", "dual_exponent", "norm_ratio", "regularizer_range"),
    **_of(_NORM, "norms", "regularizer_weight"),
    **_of(_ANY_DIFF, "sampling", "deviation", "erm", "gdp_of_draw", "pure_erm"),
    **_of(_DRAW, "sampling", "sco", "thrifty_sco"),
    "rates.sampling.strongly_convex": _ANY_DIFF,
    "rates.sampling_printed.printed": {
        **_DRAW,
        "theorem": kinds.CHOICE("4.4.2"),
        "delta": kinds.Kind("in (0, 1/2)", (0.5, *kinds.OPEN_PROBABILITY.bad))(1e-6),
    },
    "rates.sampling_tables.general_norm_rate": {
        **_NORM,
        "num_users": kinds.POSITIVE,
        "lipschitz_diff": kinds.POSITIVE(1.0),
        "population": kinds.FLAG(False),
        "columns": kinds.COUNT(2),
    },
    "rates.uniform_convergence.erm_sosp_to_population": {
        "stationarity": kinds.NONNEGATIVE(0.1),
        "hessian_lipschitz": kinds.POSITIVE(1.0),
        "weak_convexity": kinds.NONNEGATIVE(0.5),
    },
    **{
        f"rates.nonconvex.{name}": {
            **_POSITIVE,
            "method": method,
            "norm": kinds.POSITIVE(0.1),
            "gap": kinds.POSITIVE(1.0),
            "reach": kinds.POSITIVE(1.0),
        }
        for name, method in (
            ("stationarity", "spider, empirical"),
            ("excess_risk", "Gibbs, empirical"),
            ("goldstein_samples", "single pass"),
        )
    },
    "rates.sampling_tables.sampling_complexity": {
        "method": "GT20",
        "dim": kinds.POSITIVE,
        "order": kinds.POSITIVE(2.0),
    },
    **_of(_RATE, "sampling_tables", "minimax_rate", "sampling_distance_rate"),
    **_of(_RATE, "sampling_tables", "sampling_queries_rate"),
    **_of(_POSITIVE, "sampling_tables", "sco_lower_bound_rate", "sco_queries_rate"),
    **_of(_HARD, "value_queries", "hard_scales", "minimax_lower_bound", "query_ratio"),
    **_of(_HARD, "value_queries", "reach_and_share"),
    **_of(_HARD, "bounded_losses", "bounded_lower_bound", "bounded_scales", "sampling_diameter"),
    **_of(_HARD, "bounded_losses", "sampling_distance"),
    **_of(_USER, "user_level", "lower_bound", "statistical", "strongly_convex"),
    **_of(_ELEMENT, "element_level", "ordering_gap"),
    **_of(_ELEMENT | _PRESENCE, "element_level", "joint_presence", "misorder_probability"),
    "rates.element_level.projection_radius": {
        "items_per_user": kinds.COUNT.also(2)(5),
        "cluster_probability": kinds.PROBABILITY(0.2),
        "bits": kinds.NONNEGATIVE(1.0),
    },
    "rates.element_level.averaged_sgd_covariance": {
        **dict.fromkeys(("hessian", "gradient_covariance"), _SQUARE(np.eye(2))),
        **dict.fromkeys(("steps_per_user", "batch_size"), kinds.POSITIVE(1.0)),
        "noise_stddev": kinds.NONNEGATIVE(1.0),
        "step_second_moment": _SQUARE(np.eye(2)),
    },
    **_of(
        _CLASS,
        "winsorized",
        *("convex_erm_rate", "erm_has_enough_users", "finite_class_lower_bound_rate"),
        *("finite_class_rate", "phased_erm_most_smoothness", "phased_erm_rate"),
        *("sco_lower_bound_rate", "stationarity_rate", "strongly_convex_erm_rate"),
    ),
}
EXEMPT: dict[tuple[str, str], str] = {
    ("rates.norms.require_exponent", "*"): "a check itself, by whatever name it is given",
}
