"""What a fitted estimator says of itself: the sections of its report, its figure, its intervals.

Nothing is shown that was not declared, public, or released.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from dpsco_jax._checks import require, require_inside, require_instance
from dpsco_jax._extra import needs
from dpsco_jax.estimators.report import Report, Row

_MOST = 20
_SEEN = 2.0  # deviations of the noise
_WIDTH = 70


def report(model: Any) -> Report:
    """The report of a fitted estimator: one function for each section."""
    sections = (
        ("released", _released(model)),
        ("cost", _cost(model)),
        ("sizes", _sizes(model)),
        ("coefficients", _coefficients(model)),
        ("declared, and taken as public", _declared(model)),
    )
    return Report(type(model).__name__, sections, model.certificate_)


def plot(model: Any, ax: Any, reference: Mapping[Hashable, Hashable]) -> Any:
    """Horizontal bars of all coefficients, with intervals where there are standard errors."""
    columns, weights = _compared(model, reference)
    shown = _shown(model, weights)
    unseen = len(columns) - int(shown.sum())
    columns, weights = (
        [name for name, there in zip(columns, shown, strict=True) if there],
        weights[shown],
    )
    if ax is None:
        with needs("sklearn"):
            from matplotlib import pyplot
        ax = pyplot.subplots(figsize=(6, 1 + 0.25 * len(columns)), layout="constrained")[1]
    values = np.atleast_2d(model.coef_) @ weights.T
    names = list(getattr(model, "classes_", [])) if len(values) > 1 else [None]
    height = 0.8 / len(values)
    errors = standard_errors(model, weights)
    reach = None if errors is None else stats.norm.ppf(0.95) * errors
    places = np.arange(len(columns))
    for index, (row, name) in enumerate(zip(values, names, strict=True)):
        shift = (index - (len(values) - 1) / 2) * height
        label = None if name is None else str(name)
        ax.barh(places + shift, row, height, label=label, xerr=reach, error_kw={"elinewidth": 0.9})
    ax.set_yticks(places, columns)
    ax.invert_yaxis()
    ax.axvline(0.0, color="0.5", linewidth=0.8)
    label = "coefficient" if reach is None else "coefficient; bars: 90 % interval"
    if unseen:
        label += f"\nnot drawn: {unseen} that are too rare to be told from noise"
    ax.set_xlabel(label)
    if len(values) > 1:
        ax.legend()
    found = model.certificate_
    ax.set_title(f"{type(model).__name__}, ε = {found.epsilon:.3g}, δ = {found.delta:.3g}")
    return ax


def contrasts(model: Any, column: Hashable, reference: Hashable) -> pd.DataFrame:
    """Coefficients of the levels of a column less that of one of them, with standard errors."""
    require(isinstance(column, Hashable), "column", column, "the name of a column of X")
    names, weights = _compared(model, {column: reference})
    mine = [i for i, row in enumerate(weights) if row.min() < 0.0]
    values = (np.atleast_2d(model.coef_) @ weights[mine].T).T
    classes = model.classes_ if values.shape[1] > 1 else ["difference"]
    made = pd.DataFrame(values, index=[names[i] for i in mine], columns=[*classes])
    errors = standard_errors(model, weights[mine])
    return made if errors is None else made.assign(standard_error=errors)


def _shown(model: Any, weights: np.ndarray) -> np.ndarray:
    """Which bars are drawn: not those of levels and indicators of which nothing is seen through the noise.

    The coefficient of a column that never occurs is noise and nothing else, and may be the longest bar.
    """
    if not hasattr(model, "mean_squares_"):
        return np.full(len(weights), True)
    encoding = model.encoding_
    numbers = [str(column) in map(str, encoding.bounds) for column in model.columns_]
    seen = model.mean_squares_ > _SEEN * model.mean_squares_stddev_
    return np.all((weights == 0.0) | np.asarray(numbers) | seen, axis=1)


def _compared(model: Any, reference: Mapping[Hashable, Hashable]) -> tuple[list[str], np.ndarray]:
    """Names of what is shown, and by which sums of coefficients, ``[shown, columns]``.

    Levels of a column with a reference level are shown by their difference from it, others as they are.
    """
    require_instance("reference", reference, Mapping)
    encoding = model.encoding_
    names, weights = list(model.columns_), np.eye(len(model.columns_))
    left_out = []
    for column, level in reference.items():
        known = encoding.categories.get(column)
        wanted = f"one with declared levels: {[*encoding.categories]}"
        require(known is not None, "column of reference", column, wanted)
        require(level in known, f"reference of {column!r}", level, f"one of its levels {[*known]}")
        base = names.index(f"{column}={level}")
        others = [f"{column}={other}" for other in known]
        # Exactly one of all of these is 1 in a row.
        others += [f"{column} is {what}" for what in ("other", "missing")]
        for place in [names.index(other) for other in others if other in names]:
            weights[place, base] -= 1.0
            names[place] += f" against {level}"
        left_out.append(base)
    kept = [i for i in range(len(names)) if i not in left_out]
    return [names[i] for i in kept], weights[kept]


def _released(model: Any) -> tuple[Row, ...]:
    outputs = f"{np.size(model.coef_)} coefficients"
    outputs += (
        f" and {np.size(model.intercept_)} intercept(s)" if model._asked["fit_intercept"] else ""
    )
    return (
        ("what", outputs),
        ("loss", _loss(model)),
        ("solver", model.solver_),
        ("ended", model.status_),
    )


def _loss(model: Any) -> str:
    kind, number = model._fitted_loss
    return f"{kind}, {number:.6g}" if kind == "quantile" else kind


def _cost(model: Any) -> tuple[Row, ...]:
    found = model.certificate_
    rows = [
        ("epsilon", f"{found.epsilon:.6g}"),
        ("delta", f"{found.delta:.6g}"),
        ("budget", "({epsilon:.6g}, {delta:.6g})".format(**model._asked)),
        ("relation", found.relation.name),
        ("accountant", found.accountant),
        *(("assumes", line) for line in found.assumptions),
    ]
    if model._fits > 1:
        earlier = "with costs of their own, which are not added here"
        if model._seeded:
            earlier += "; of one random_state, they share their noise and nothing is guaranteed"
        rows.append(("earlier fits", f"{model._fits - 1} of this object, {earlier}"))
    if model._asked["unaccounted_tuning"]:
        what = "allowed: the guarantee is that of one fit, not of what was chosen among several"
        rows.append(("unaccounted tuning", what))
    if model._asked["allow_large_delta"]:
        rows.append(
            ("large delta", "allowed: at 1/N it is no protection to publish a user in full")
        )
    return tuple(rows)


def _sizes(model: Any) -> tuple[Row, ...]:
    if model._asked["user_level"]:
        record = f"a user, with at most {model._asked['max_items_per_user']} rows"
    else:
        record = "a row; a person with several rows is protected for each alone"
    return (
        ("record", record),
        ("records", f"{model.n_records_} (public)"),
        ("columns of X", str(model.n_features_in_)),
        ("encoded columns", str(len(model.columns_))),
    )


def _coefficients(model: Any) -> tuple[Row, ...]:
    """The largest by absolute value, in the order of the columns."""
    values = np.atleast_2d(model.coef_).T
    order = np.argsort(-np.abs(values).max(axis=1), kind="stable")[:_MOST]
    errors = standard_errors(model)
    after = [""] * len(values) if errors is None else [f" ± {error:.2g}" for error in errors]
    rows = [(str(model.columns_[i]), _numbers(values[i]) + after[i]) for i in sorted(order)]
    if hasattr(model, "classes_"):
        classes = model.classes_ if values.shape[1] > 1 else model.classes_[1:]
        rows.insert(0, ("for the class", "  ".join(map(str, classes))))
    if len(values) > _MOST:
        rows.append(("...", f"{len(values) - _MOST} smaller ones are in coef_"))
    if model._asked["fit_intercept"]:
        rows.append(("intercept", _numbers(np.ravel(model.intercept_))))
    if errors is not None:
        rows.append(("±", "standard error by noise and sampling, without any bias"))
        rows.append(("error of a prediction", f"{model.prediction_error_:.3g}, root mean square"))
    return tuple(rows)


def _numbers(values: Any) -> str:
    return "  ".join(f"{value:.4g}" for value in values)


def _declared(model: Any) -> tuple[Row, ...]:
    hidden = ("unaccounted_tuning", "epsilon", "delta", "allow_large_delta")
    rows = []
    for name, value in model._asked.items():
        text = repr(value)
        if name not in hidden and value is not None:
            rows.append((name, text if len(text) <= _WIDTH else f"{text[:_WIDTH]} ..."))
    return tuple(rows)


FITTED = ("covariance_", "prediction_error_", "mean_squares_", "mean_squares_stddev_")


def keep(model: Any, released: dict[str, Any] | None) -> None:
    """Sets the attributes of what was released besides, or takes away those of an earlier fit."""
    for name in FITTED:
        vars(model).pop(name, None)
    released = {} if released is None else released
    if "mean_squares" in released:
        first = int(model.encoding_.intercept)
        model.mean_squares_ = np.asarray(released["mean_squares"], np.float64)[first:]
        model.mean_squares_stddev_ = float(released["mean_squares_stddev"])
    if "covariance" in released:
        unit = float(np.ravel(model._in_units(np.ones(1), np.zeros(()))[0])[0])
        covariance = np.asarray(released["covariance"], np.float64)
        model.covariance_ = unit**2 * (covariance + covariance.T) / 2.0
        model.prediction_error_ = unit * float(np.sqrt(released["margin_variance"]))


def standard_errors(model: Any, weights: np.ndarray | None = None) -> np.ndarray | None:
    """Of the coefficients, ``[columns]``, or of sums of them; ``None`` if the fit was without."""
    if not hasattr(model, "covariance_"):
        return None
    first = len(model.covariance_) - len(model.columns_)
    found = model.covariance_[first:, first:]
    found = found if weights is None else weights @ found @ weights.T
    return np.sqrt(np.diagonal(found))


def around(model: Any, level: float) -> np.ndarray:
    """Intervals of a level, ``[columns, 2]``."""
    require_inside("level", level)
    errors = standard_errors(model)
    if errors is None:
        raise ValueError("standard_errors must be True in the fit for intervals, got False")
    reach = stats.norm.ppf(0.5 + level / 2.0) * errors
    middle = np.ravel(model.coef_)
    return np.stack([middle - reach, middle + reach], axis=1)
