"""Private regression of a number: its mean, its mean without outliers, or a quantile.

What it computes: a linear model of a bounded label, fitted with user-level differential privacy to a table of
which bounds and levels are declared.

Source: ``problems.losses``, ``problems.tables``, and the solvers that ``_solving`` names.

Formal guarantee: (ε, δ)-DP for all rows of a user, under replacement of one user. Predictions
on rows of others are post-processing. ``score`` of private data is a number about them, and not private.

Cost: a compilation for each shape of the data, seconds; then the passes of the solver over the data.

Example:
    >>> import numpy as np
    >>> from dpsco_jax.estimators import PrivateRegression
    >>> rng = np.random.default_rng(0)
    >>> users, x = np.repeat(np.arange(300), 2), rng.uniform(-1, 1, (600, 2))
    >>> y = 50 + 20 * x[:, 0] + rng.normal(size=600)
    >>> model = PrivateRegression(epsilon=8.0, delta=1e-5, bounds=(-1, 1), label_bounds=(0, 100),
    ...                           missing="error", max_items_per_user=2)
    >>> model.fit(x, y, groups=users).coef_.shape
    (2,)
    >>> model.certificate_.epsilon <= 8.0, bool(model.score(x, y) > 0.75)
    (True, True)
"""

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from dpsco_jax._checks import require, require_choice, require_inside, require_positive
from dpsco_jax.estimators import _declared, _frames
from dpsco_jax.estimators._base import PrivateEstimator
from dpsco_jax.estimators._declared import LABEL
from dpsco_jax.estimators._solving import LOSSES

__all__ = ["PrivateRegression"]

_THRESHOLDS = 100.0  # in the width of the label, at most: with ten times as many R² is .63 for .99


class PrivateRegression(RegressorMixin, PrivateEstimator):
    """Linear regression of a bounded number, private for each user.

    Args:
        loss: ``"squared"`` for the mean, ``"huber"`` for a mean that large deviations move less,
            ``"quantile"``.
        epsilon: ε of the fit, positive.
        delta: δ of the fit, positive, well below one over the number of users (rows, if each is one).
        bounds: (low, high) by numeric column, or one pair for all columns without levels (columns of arrays
            are called 0, 1, ...). Public; values outside are clipped.
        categories: levels by other column. Public.
        label_bounds: (low, high) of the label. Public; labels outside are clipped.
        max_items_per_user: the most rows of a user that count; if there are more, they are chosen at random.
            Public.
        user_level: whether all rows of a user are one record. If False each row is one, and the guarantee is
            for a row: it says little to a person who has several.
        huber_threshold: deviations beyond it count linearly; in units of the label. At least a hundredth of
            the width of ``label_bounds``, a tenth of it if ``None``: the steps of a fit do not get to the end
            with a smaller one, whose limit is the median. A threshold above all possible deviations gives
            the squared loss. Used with ``loss="huber"``.
        quantile: the level in (0, 1); 0.5 is the median. Used with ``loss="quantile"``.
        missing: what a missing feature is: ``"indicator"``, a column of its own says so; ``"zero"``, the
            middle of the bounds, or no level; or an ``"error"``.
        unknown: levels that were not declared are an ``"error"``, or have the column ``"other"``.
        unlabelled: rows without a label are an ``"error"``, or ``"drop_row"``.
        fit_intercept: whether a constant is fitted besides the middle of ``label_bounds``, which is always
            there.
        ridge: λ ≥ 0 of (λ/2)·‖coefficients‖², the intercept included, where columns and label are in [-1, 1].
        max_norm: the largest norm that coefficients can have on that scale, positive.
        standard_errors: whether standard errors of the coefficients are released too, for 6 % of the budget
            and a wider clip; see ``interval``. Not with ``loss="quantile"``.
        random_state: None, or an integer as secret as the data, from which all noise of one fit follows.
        unaccounted_tuning: whether clones may be fitted, as searches and cross-validation do. Their costs are
            not added up.
        allow_large_delta: whether ``delta`` may be one over the number of users, or more. ``fit`` refuses it
            otherwise, since publishing all rows of one user, chosen at random, is within such a budget.

    ``fit`` raises ``ValueError`` for whatever is out of range. ``coef_`` has shape ``(columns,)``: by how
    many units the label rises as a column goes from the middle of its bounds to the upper one, or for those
    who have a level.
    """

    def __init__(
        self,
        *,
        loss: str = "squared",
        epsilon: float | None = None,
        delta: float | None = None,
        bounds: Any = None,
        categories: Any = None,
        label_bounds: Any = None,
        max_items_per_user: int | None = None,
        user_level: bool = True,
        huber_threshold: float | None = None,
        quantile: float = 0.5,
        missing: str = "indicator",
        unknown: str = "error",
        unlabelled: str = "error",
        fit_intercept: bool = True,
        ridge: float = 1e-4,
        max_norm: float = 3.0,
        standard_errors: bool = False,
        random_state: int | None = None,
        unaccounted_tuning: bool = False,
        allow_large_delta: bool = False,
    ):
        self._take(locals())

    def predict(self, X: Any) -> np.ndarray:
        """The prediction for each row in units of the label, ``[rows]``; it may lie outside of its bounds.

        Args:
            X: a table with the columns of the fit.

        Raises:
            ValueError: if its columns are others, or a value has no image (see ``missing``, ``unknown``).
        """
        return self._scores(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the predictions. A number about the rows: not private if they are to be protected.

        Args:
            X: a table with the columns of the fit.
            y: the label of each row, ``[rows]``. Rows without one are an error, or left out: ``unlabelled``.
            sample_weight: of each row, ``[rows]``, at least 0; all the same if left out.

        Raises:
            ValueError: rows or labels are such as ``predict`` or ``fit`` refuses.
        """
        return self._score(r2_score, X, y, sample_weight)

    def _predicted(self, X: Any) -> np.ndarray:
        return self.predict(X)

    def _truth(self, labels: Any) -> tuple[np.ndarray, np.ndarray]:
        known = self.encoding_.label(labels)[1]
        return labels.to_numpy(np.float64), known

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # with few rows: noise
        return tags

    def _checked_label(self, y: np.ndarray) -> np.ndarray:
        try:
            return _frames.numbers_of("y", y) if y.dtype.kind == "O" else y
        except TypeError:
            raise ValueError("y must be real numbers, got objects that are none") from None

    def _label_declaration(self) -> dict[str, Any]:
        return {"bounds": {LABEL: _declared.label_bounds(self.label_bounds)}}

    def _loss(self) -> tuple[str, float]:
        loss = require_choice("loss", self.loss, LOSSES)
        require_inside("quantile", self.quantile)
        low, high = _declared.label_bounds(self.label_bounds)
        threshold = (high - low) / 10 if self.huber_threshold is None else self.huber_threshold
        require_positive("huber_threshold", threshold)
        least = (high - low) / _THRESHOLDS
        what = f"at least a hundredth of the width of label_bounds, {least:g} (loss='quantile' has none)"
        require(
            loss != "huber" or threshold >= least, "huber_threshold", self.huber_threshold, what
        )
        scaled = 2.0 * float(threshold) / (high - low)
        return loss, {"squared": 0.0, "huber": scaled, "quantile": float(self.quantile)}[loss]

    def _in_units(self, weights: np.ndarray, constant: np.ndarray) -> tuple[Any, Any]:
        low, high = _declared.label_bounds(self.label_bounds)
        half = (high - low) / 2
        return weights * half, float(low + half * (1.0 + constant))
