"""Calls of ``dpsco_jax.rates`` that work, where the common vocabulary does not say it."""

from typing import Any

from dpsco_jax.rates import accelerated, user_level, winsorized
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
_STABILITY = {
    **_POSITIVE,
    "variance": kinds.NONNEGATIVE,
    "lipschitz": kinds.NONNEGATIVE,
    "step_size": kinds.NONNEGATIVE,
    "distance": kinds.NONNEGATIVE,
    "smoothness": kinds.NONNEGATIVE,
    "failure": kinds.PROBABILITY,
}
_USER = {"s": kinds.OBJECT(user_level.Setting(1000, 3, 4)), "strong_convexity": kinds.POSITIVE}
_EXPONENT = kinds.NONNEGATIVE(1)


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
    **_of(_STABILITY, "stability", "generalization_gap", "iterate_stability", "sgd_excess_risk"),
    **_of(_USER, "user_level", "lower_bound", "statistical", "strongly_convex"),
    "rates.user_level.table": _POSITIVE,
    **_of(
        _CLASS,
        "winsorized",
        *("convex_erm_rate", "erm_has_enough_users", "finite_class_lower_bound_rate"),
        *("finite_class_rate", "phased_erm_most_smoothness", "phased_erm_rate"),
        *("sco_lower_bound_rate", "stationarity_rate", "strongly_convex_erm_rate"),
    ),
    **_of(
        _POSITIVE,
        "winsorized",
        *("finite_class_error", "mean_failure", "mean_variance", "mean_is_private"),
    ),
    "rates.winsorized.fixed_users_lower_bound": {
        **_POSITIVE,
        "epsilon": kinds.NONNEGATIVE,
        "delta": kinds.SHARE,
    },
    "rates.winsorized.heterogeneous_risk": {**_POSITIVE, "distance": kinds.NONNEGATIVE},
}
EXEMPT: dict[tuple[str, str], str] = {}
