"""Standard errors of what an estimator has released, and intervals from them.

What it computes: the covariance that a solver released, in units of the coefficients; from its diagonal
standard errors and intervals.

Source: Wald intervals; the covariance is that of ``solvers.user_level._covariance``.

Formal guarantee: post-processing of what was released.

Cost: none.
"""

from typing import Any

import numpy as np
from scipy import stats

from dpsco_jax._checks import require_inside

FITTED = ("covariance_", "prediction_error_")


def keep(model: Any, released: dict[str, Any] | None) -> None:
    """Sets ``covariance_`` and ``prediction_error_``, or takes away those of an earlier fit."""
    for name in FITTED:
        vars(model).pop(name, None)
    if released is not None:
        unit = float(np.ravel(model._in_units(np.ones(1), np.zeros(()))[0])[0])
        covariance = np.asarray(released["covariance"], np.float64)
        model.covariance_ = unit**2 * (covariance + covariance.T) / 2.0
        model.prediction_error_ = unit * float(np.sqrt(released["margin_variance"]))


def standard_errors(model: Any) -> np.ndarray | None:
    """Of the coefficients, ``[columns]``; ``None`` if the fit was without."""
    if not hasattr(model, "covariance_"):
        return None
    found = np.sqrt(np.diagonal(model.covariance_))
    return found[len(found) - len(model.columns_) :]


def around(model: Any, level: float) -> np.ndarray:
    """Intervals of a level, ``[columns, 2]``."""
    require_inside("level", level)
    errors = standard_errors(model)
    if errors is None:
        raise ValueError("standard_errors must be True in the fit for intervals, got False")
    reach = stats.norm.ppf(0.5 + level / 2.0) * errors
    middle = np.ravel(model.coef_)
    return np.stack([middle - reach, middle + reach], axis=1)
