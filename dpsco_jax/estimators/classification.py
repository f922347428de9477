"""Private classification: logistic regression for two classes, softmax regression for more.

What it computes: a linear model of the classes, fitted with user-level differential privacy to a table of
which bounds, levels and classes are declared.

Source: ``problems.losses``, ``problems.tables``, and the solvers that ``_solving`` names.

Formal guarantee: (ε, δ)-DP for all rows of a user, under replacement of one user. Predictions
on rows of others are post-processing. ``score`` of private data is a number about them, and not private.

Cost: a compilation for each shape of the data, seconds; then the passes of the solver over the data.

Example:
    >>> import numpy as np
    >>> from dpsco_jax.estimators import PrivateLogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> users, x = np.repeat(np.arange(300), 2), rng.uniform(-1, 1, (600, 2))
    >>> y = (x[:, 0] + 0.3 * rng.normal(size=600) > 0).astype(int)
    >>> model = PrivateLogisticRegression(epsilon=8.0, delta=1e-5, bounds=(-1, 1), classes=[0, 1],
    ...                                   missing="error", max_items_per_user=2)
    >>> model.fit(x, y, groups=users).coef_.shape
    (1, 2)
    >>> model.certificate_.epsilon <= 8.0, model.n_records_, bool(model.score(x, y) > 0.75)
    (True, 300, True)
"""

from typing import Any

import numpy as np
from scipy import special
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score

from dpsco_jax.estimators import _declared
from dpsco_jax.estimators._base import PrivateEstimator

__all__ = ["PrivateLogisticRegression", "PrivateSoftmaxRegression"]


class _PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """What the two classifiers share."""

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        bounds: Any = None,
        categories: Any = None,
        classes: Any = None,
        max_items_per_user: int | None = None,
        user_level: bool = True,
        missing: str = "indicator",
        unknown: str = "error",
        unlabelled: str = "error",
        fit_intercept: bool = True,
        ridge: float = 1e-4,
        max_norm: float = 10.0,
        standard_errors: bool = False,
        random_state: int | None = None,
        unaccounted_tuning: bool = False,
        allow_large_delta: bool = False,
    ):
        self._take(locals())

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, ``[rows]``.

        Args:
            X: a table with the columns of the fit.

        Raises:
            ValueError: if its columns are others, or a value has no image (see ``missing``, ``unknown``).
        """
        places = self._predicted(X)
        return self.classes_[places]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of rows whose class is predicted. Not private if the rows are to be protected.

        Args:
            X: a table with the columns of the fit.
            y: the class of each row, ``[rows]``. Rows without one are an error, or left out: ``unlabelled``.
            sample_weight: of each row, ``[rows]``, at least 0; all the same if left out.

        Raises:
            ValueError: rows or labels are such as ``predict`` or ``fit`` refuses.
        """
        return self._score(accuracy_score, X, y, sample_weight)

    def _truth(self, labels: Any) -> tuple[np.ndarray, np.ndarray]:
        number, known = self.encoding_.label(labels)
        return number.astype(int), known

    def _checked_label(self, y: np.ndarray) -> np.ndarray:
        return y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # with few rows: noise
        return tags

    def _remember(self, encoding: Any, named: bool) -> None:
        super()._remember(encoding, named)
        self.classes_ = np.asarray(encoding.labels)


class PrivateLogisticRegression(_PrivateClassifier):
    """Logistic regression for two classes, private for each user.

    Args:
        epsilon: ε of the fit, positive.
        delta: δ of the fit, positive, well below one over the number of users (rows, if each is one).
        bounds: (low, high) by numeric column, or one pair for all columns without levels (columns of arrays
            are called 0, 1, ...). Public; values outside are clipped.
        categories: levels by other column. Public.
        classes: the two values of the label. Public. As everywhere in scikit-learn they are sorted, and
            coefficients speak for the second, ``classes_[1]``.
        max_items_per_user: the most rows of a user that count; if there are more, they are chosen at random.
            Public.
        user_level: whether all rows of a user are one record. If False each row is one, and the guarantee is
            for a row: it says little to a person who has several.
        missing: what a missing feature is: ``"indicator"``, a column of its own says so; ``"zero"``, the
            middle of the bounds, or no level; or an ``"error"``.
        unknown: levels that were not declared are an ``"error"``, or have the column ``"other"``.
        unlabelled: rows whose label is missing or was not declared are an ``"error"``, or ``"drop_row"``.
        fit_intercept: whether there is a constant.
        ridge: λ ≥ 0 of (λ/2)·‖coefficients‖², the intercept included, on the scale of the encoded columns.
        max_norm: the largest norm that coefficients can have on that scale, positive.
        standard_errors: whether standard errors of the coefficients are released too, for 6 % of the budget
            and a wider clip; see ``interval``.
        random_state: None, or an integer from which all noise follows, for runs that can be repeated: it is
            as secret as the data, must not be guessed, and serves one fit: two fits of one seed share their
            noise, and their difference has none. ``repr`` and pickle show it, ``save`` and ``report`` do not.
            By default, as in all real use, the key comes from the operating system and is forgotten.
        unaccounted_tuning: whether clones may be fitted, as searches and cross-validation do. Their costs are
            not added up.
        allow_large_delta: whether ``delta`` may be one over the number of users, or more. ``fit`` refuses it
            otherwise, since publishing all rows of one user, chosen at random, is within such a budget.

    ``fit`` raises ``ValueError`` for whatever is out of range. ``coef_`` has shape ``(1, columns)``: by how
    much the log odds rise as a column goes from the middle of its bounds to the upper one, or for those who
    have a level.
    """

    def decision_function(self, X: Any) -> np.ndarray:
        """The log odds of ``classes_[1]`` for each row, ``[rows]``.

        Args:
            X: a table with the columns of the fit.

        Raises:
            ValueError: if its columns are others, or a value has no image (see ``missing``, ``unknown``).
        """
        return self._scores(X)[:, 0]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class of ``classes_``, ``[rows, 2]``; X has the columns of the fit."""
        positive = special.expit(self.decision_function(X))
        return np.stack([1.0 - positive, positive], axis=1)

    def _predicted(self, X: Any) -> np.ndarray:
        return (self.decision_function(X) > 0).astype(int)

    def _label_declaration(self) -> dict[str, Any]:
        found = _declared.labels(self.classes, 2, 2, "PrivateSoftmaxRegression")
        return {"labels": found.tolist()}

    def _loss(self) -> tuple[str, float]:
        return "logistic", 0.0

    def _in_units(self, weights: np.ndarray, constant: np.ndarray) -> tuple[Any, Any]:
        return weights[None, :], np.reshape(constant, (1,))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class PrivateSoftmaxRegression(_PrivateClassifier):
    """Multinomial logistic regression for three classes and more, private for each user.

    Arguments are those of ``PrivateLogisticRegression``. ``standard_errors=True`` is refused: they would
    need the curvature in all coefficients of all classes together, a matrix of which too little would be
    seen through its noise. ``classes`` are three or more, and ``max_norm`` is the norm of the whole matrix.
    Each class has a coefficient of every column, and all of them get noise: many classes and columns need
    many users.

    ``coef_`` has shape ``(classes, columns)``, ``intercept_`` ``(classes,)``.
    """

    def decision_function(self, X: Any) -> np.ndarray:
        """The logit of each class for each row, ``[rows, classes]``.

        Args:
            X: a table with the columns of the fit.

        Raises:
            ValueError: if its columns are others, or a value has no image (see ``missing``, ``unknown``).
        """
        return self._scores(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class of ``classes_``, ``[rows, classes]``; X is as in the fit."""
        return special.softmax(self.decision_function(X), axis=1)

    def _predicted(self, X: Any) -> np.ndarray:
        return np.argmax(self.decision_function(X), axis=1)

    def _label_declaration(self) -> dict[str, Any]:
        found = _declared.labels(self.classes, 3, None, "PrivateLogisticRegression")
        return {"labels": found.tolist()}

    def _loss(self) -> tuple[str, float]:
        return "softmax", float(len(self.classes))

    def _in_units(self, weights: np.ndarray, constant: np.ndarray) -> tuple[Any, Any]:
        return np.ascontiguousarray(weights.T), constant
