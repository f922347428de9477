"""What all estimators share: from a table and what is declared of it to released coefficients.

``fit`` checks the arguments, encodes the table on the host (``problems.tables``), plans, runs the compiled
solver (``_solving``), and keeps what was released: coefficients, cost, sizes.

The fitted estimator is (ε, δ)-DP for one record, of a fixed public number of them, under replacement; a
record is all rows of a user with ``user_level=True``, otherwise one row. It holds no row and no identifier.
The key is used for one fit. Public, and so not protected: all arguments but ``random_state``, the names of
the columns, the number of records. One more fit is one more release.
"""

import copy
import os
import secrets
import warnings
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from dpsco_jax import privacy
from dpsco_jax._checks import (
    require,
    require_flag,
    require_integer,
    require_nonnegative,
    require_positive,
    require_real,
    require_undisclosed,
)
from dpsco_jax._given import plain, require_one_order
from dpsco_jax.estimators import _declared, _files, _frames, _reporting, _solving
from dpsco_jax.estimators._declared import LABEL, USER
from dpsco_jax.estimators.report import Report
from dpsco_jax.problems import tables
from dpsco_jax.problems.encoding import Encoding
from dpsco_jax.solvers.solution import Status

_Estimator = TypeVar("_Estimator", bound="PrivateEstimator")
_CLONED = (
    "unaccounted_tuning must be True for a clone to be fitted, got False. This estimator was made by "
    "sklearn.base.clone, as grid searches, cross-validation and ensembles do, which fit many clones on the "
    "same data: each fit is a release of its own, whose costs add up, and what is chosen by private data is "
    "not covered by any of them. Choose settings on public data, or say unaccounted_tuning=True and do not "
    "claim the guarantee of one fit for what was chosen"
)

_SEED_IS_SECRET = (
    "random_state is as secret as the data: "
    "who knows or guesses it computes the noise and takes it away"
)


class PrivateEstimator(BaseEstimator):
    """The common part of the estimators; not to be used by itself.

    Attributes:
        coef_: coefficients of the encoded columns ``columns_``; see the class for shape and units.
        intercept_: one number, or one for each class.
        covariance_: with ``standard_errors``: that of the intercept, if there is one, and the coefficients
            after it, in their units, ``[numbers, numbers]``.
        prediction_error_: with ``standard_errors``: the error of coef_ · row + intercept_ from the same
            causes, root mean square over rows.
        mean_squares_: where the solver releases them, the mean square of each encoded column, with noise,
            ``[columns]``: of a level, its share of the rows, each user's counted by their mean.
        mean_squares_stddev_: the standard deviation of that noise.
        columns_: names of the encoded columns, without the intercept.
        certificate_: the (ε, δ) of the fit by the tightest accountant; ``certificate_.epsilon <= epsilon``.
        privacy_: the ledger of the run, a ``PrivacyLoss`` that composes with those of other releases. By
            itself it proves a larger ε than ``certificate_``, which is the one to publish.
        plan_: the solver's plan; ``print(estimator.plan_)``. Not there after ``load``.
        encoding_: the map from rows to features.
        n_records_: number of users, or of rows with ``user_level=False``.
        n_features_in_: number of columns of X.
        feature_names_in_: their names, where all are texts.
        status_: how the run ended: ``"OK"``, or else what went wrong.
        solver_: which solver ran.
    """

    def __new__(cls: type[_Estimator], *positional: Any, **named: Any) -> _Estimator:
        """An estimator, whose arguments have names.

        Raises:
            ValueError: an argument is given without its name.
        """
        if positional:
            raise ValueError(
                f"all arguments of {cls.__name__} must be given by name, as in {cls.__name__}(epsilon=1.0, "
                f"delta=1e-6, ...), got {positional[0]!r} without one"
            )
        return super().__new__(cls)

    def _take(self, arguments: dict[str, Any]) -> None:
        """Keeps the arguments of a constructor under their names, and does nothing with them."""
        self.__dict__.update({name: value for name, value in arguments.items() if name != "self"})

    def fit(self: _Estimator, X: Any, y: Any, groups: Any = None) -> _Estimator:
        """Releases the coefficients of a model of y.

        Args:
            X: the table: a pandas or polars frame, a NumPy array or a scipy.sparse matrix (which becomes
                dense), ``[rows, columns]``. Every column is a feature. Masked entries of NumPy's masked
                arrays are missing, here and in what follows.
            y: the label of each row, ``[rows]``.
            groups: which user each row belongs to, ``[rows]``; any values that can be sorted. Needed with
                ``user_level=True``, otherwise refused. Rows are matched by position: those of X, y and groups
                that have a pandas index must have the same index, in the same order.

        Raises:
            ValueError: if an argument is out of its range, a public fact is missing, or tables and
                declarations contradict each other. Messages show no entry of X, y or groups.
            TypeError: if an array of objects holds something that is no number in a column with bounds.
            RuntimeError: if the run has left the numbers for which its guarantee is proven. Nothing of it is
                kept, but its releases are not covered by the budget.
        """
        self._require_no_search()
        budget = self._budget()
        require_one_order(X=X, y=y, groups=groups)
        frame, named = _frames.frame_of(X)
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y is None."
            )
        labels = self._labels(y, len(frame))
        slots = _declared.records(self.user_level, self.max_items_per_user, groups)
        users = (
            np.arange(len(frame))
            if groups is None
            else _frames.column_of("groups", groups, len(frame))
        )
        columns = list(frame.columns)
        declaration = self._declaration(columns)
        frame = frame if named else _frames.with_numbers(frame, declaration["bounds"])
        key = _fresh_key(self.random_state)
        validate_data(self, X, reset=True, skip_check_array=True)

        rows_key, run_key = jax.random.split(key)
        table = frame.copy(deep=False)
        for name, values in ((LABEL, labels), (USER, users)):
            table[name] = _frames.series_of(values).set_axis(table.index)
        made = tables.from_frame(rows_key, table, USER, columns, LABEL, slots, **declaration)
        records = jax.tree.leaves(made.data.items)[0].shape[0]
        if records < 2:
            raise ValueError(
                f"X must have rows of at least 2 records, got 1, with n_samples = {len(frame)}"
            )
        model = self._model(made.encoding)
        errors = require_flag("standard_errors", self.standard_errors)
        run = _solving.fit(run_key, model, made.data, slots, budget, errors)
        self._keep(run, made.encoding, records, named)
        return self

    def report(self) -> Report:
        """What was released, at what cost, from how many records, and what was declared."""
        check_is_fitted(self, "coef_")
        return _reporting.report(self)

    def plot(self, ax: Any = None, reference: Mapping[Hashable, Hashable] | None = None) -> Any:
        """The coefficients as bars, one group for each class where there are several.

        Levels and indicators whose released share is within two standard deviations of noise are not drawn:
        their coefficients may be noise and nothing else. The axis says how many.

        Args:
            ax: matplotlib axes; a new figure is made if left out.
            reference: a level by column: all other levels of that column are shown by their difference from
                it, since of the levels of a column only differences are determined.

        Returns:
            The axes.

        Raises:
            ValueError: a column of ``reference`` has no declared levels, or not this one.
        """
        check_is_fitted(self, "coef_")
        return _reporting.plot(self, ax, {} if reference is None else reference)

    def contrasts(self, column: Hashable, reference: Hashable) -> pd.DataFrame:
        """The coefficients of a column's levels less that of one of them.

        Of the levels of a column only differences are determined: any number can be added to all of them and
        taken off the intercept.

        Args:
            column: of X, with declared levels.
            reference: the level that the others are compared with.

        Returns:
            A row for each other level, and for what is missing or unknown where that has a coefficient, in
            units of ``coef_``: ``"difference"``, or a column for each class where there are several; and
            ``"standard_error"`` after a fit with ``standard_errors=True``.

        Raises:
            ValueError: the column has no declared levels, or not this one.
        """
        check_is_fitted(self, "coef_")
        return _reporting.contrasts(self, column, reference)

    def interval(self, level: float = 0.9) -> np.ndarray:
        """Intervals of the coefficients that account for the noise of privacy and the chance of sampling.

        They are coefficient ± z·s, s its standard error and z the quantile of the normal law. On synthetic
        data with 3,000 users or more 88 to 91 % of the intervals of level 0.9 contained the truth, and 85
        and 92 % with a class of 1 and 3 %. They are too narrow if there are many columns for the number of
        users and ε, or if gradients have heavy tails, since they do not account for bias by clipping or
        shrinkage. Each is for one coefficient alone.

        Args:
            level: the share of intervals that are to contain the coefficient of the population, in (0, 1).

        Returns:
            ``[columns, 2]``, in the units of ``coef_``.

        Raises:
            ValueError: if the fit was without ``standard_errors``, or ``level`` is not in (0, 1).
        """
        check_is_fitted(self, "coef_")
        return _reporting.around(self, level)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what was declared and released to a file: NumPy's npz with a text in JSON, no pickle.

        ``random_state`` is not written: whoever has it can take the noise away.

        Args:
            path: of the file; an existing one is overwritten.

        Raises:
            ValueError: if a declared level or name is no number, text, bytes, date, span of time, or pair of
                such.
        """
        check_is_fitted(self, "coef_")
        _files.write(path, self)

    @classmethod
    def load(cls: type[_Estimator], path: str | os.PathLike[str]) -> _Estimator:
        """The fitted estimator that ``save`` wrote, to the last bit; without ``plan_`` and ``random_state``.

        Args:
            path: of the file.

        Raises:
            ValueError: if ``save`` did not write the file, or it is of another class, has arguments that the
                class does not have, or is of an unknown version.
        """
        return _files.read(path, cls)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """The names of the encoded columns, ``columns_``, as an array of texts.

        Args:
            input_features: not used.
        """
        check_is_fitted(self, "coef_")
        return np.asarray(self.columns_, object)

    def _scores(self, X: Any) -> np.ndarray:
        """coef_ · row + intercept_ of each row, ``[rows]`` or ``[rows, classes]``, in float64."""
        check_is_fitted(self, "coef_")
        frame, named = _frames.frame_of(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        known = list(self.encoding_.feature_columns)
        if named and self._named and list(frame.columns) != known:
            raise ValueError(
                f"X must have the columns of the fit in their order, {known}, got {list(frame.columns)}"
            )
        frame = frame.set_axis(known, axis=1)
        frame = frame if named else _frames.with_numbers(frame, self.encoding_.bounds)
        rows = self.encoding_.apply(frame, labelled=False)
        features = rows.features[:, int(self.encoding_.intercept) :].astype(np.float64)
        return features @ self.coef_.T + self.intercept_

    def _labels(self, y: Any, rows: int) -> np.ndarray:
        """The label of each row as the table takes it."""
        return _frames.column_of("y", self._checked_label(_frames.labels_of(y)), rows)

    def _score(self, measure: Any, X: Any, y: Any, weights: Any) -> float:
        """A measure of scikit-learn's of labels and predictions, on the rows that have a label.

        As these measures would do it, rows with another index would be compared, and labels be shown.
        """
        require_one_order(X=X, y=y, sample_weight=weights)
        found = self._predicted(X)
        labels = _frames.series_of(self._labels(y, len(found)), LABEL)
        truth, known = self._truth(labels)
        if weights is not None:
            masked = isinstance(weights, np.ma.MaskedArray)
            weights = weights if masked else plain("sample_weight", weights)
            weights = _frames.column_of("sample_weight", weights, len(found))
            require(weights.dtype.kind in "biuf", "sample_weight", weights.dtype, "real numbers")
            good = np.isfinite(weights) & (weights >= 0)
            require_undisclosed(good, "sample_weight", "finite and at least 0")
            weights = weights[known]
        return float(measure(truth[known], found[known], sample_weight=weights))

    def _declaration(self, columns: list[Any]) -> dict[str, Any]:
        """The arguments of ``tables.from_frame``, or of an ``Encoding``, that are declared."""
        bounds, categories = _declared.features(columns, self.bounds, self.categories)
        chosen = _declared.unexpected(self.missing, self.unknown, self.unlabelled)
        intercept = require_flag("fit_intercept", self.fit_intercept)
        label = self._label_declaration()
        bounds |= label.pop("bounds", {})
        return {
            "bounds": bounds,
            "categories": categories,
            "intercept": intercept,
            **chosen,
            **label,
        }

    def _encoding(self, columns: list[Any]) -> Encoding:
        """The map of a fit, from what is declared alone."""
        declared = self._declaration(columns)
        return Encoding(feature_columns=columns, label_column=LABEL, **declared)

    def _budget(self) -> privacy.Budget:
        for name, value in (("epsilon", self.epsilon), ("delta", self.delta)):
            if value is None:
                raise ValueError(
                    f"{name} must be given: the budget (epsilon, delta) of the fit, such as (1.0, 1e-6), "
                    "with delta well below one over the number of records; got None"
                )
        require_positive("epsilon", self.epsilon)
        require_real("delta", self.delta, 1e-37, 1)  # below it is zero in float32
        require_positive("max_norm", self.max_norm)
        require_nonnegative("ridge", self.ridge)
        return privacy.Budget(self.epsilon, self.delta, allow_large_delta=self.allow_large_delta)

    def _model(self, encoding: Encoding) -> _solving.Model:
        loss, number = self._loss()
        width, bound = len(encoding.columns), encoding.feature_bound
        radius, ridge = float(self.max_norm), float(self.ridge)
        made = _solving.Model(loss, bound, width, radius, ridge, bool(encoding.intercept), number)
        return _solving.simplified(made)

    def _keep(self, run: _solving.Run, encoding: Encoding, records: int, named: bool) -> None:
        """Keeps what was released, if all of it is covered."""
        # Once on the host, where no operation is compiled.
        spent = jax.tree.map(np.asarray, run.solution.privacy)
        if not np.isfinite(privacy.epsilon(spent, float(self.delta))):
            raise RuntimeError(
                "the run has left the numbers for which its guarantee is proven (scales or radii that are "
                "not finite): nothing of it is kept, and nothing of it must be used"
            )
        self.status_ = Status(int(run.solution.status)).name
        if self.status_ != "OK":
            warnings.warn(f"the run of {run.solver} ended as {self.status_}", stacklevel=3)
        self.plan_, self.solver_ = run.plan, run.solver
        certificate = run.plan.certificate()
        if self.random_state is not None:
            certificate = certificate._replace(
                assumptions=(*certificate.assumptions, _SEED_IS_SECRET)
            )
        self.certificate_ = certificate
        self.privacy_ = spent
        self.n_records_ = records
        self._fits = getattr(self, "_fits", 0) + 1
        self._seeded = self.random_state is not None
        self._remember(encoding, named)
        weights = np.asarray(run.solution.params, np.float64)
        first = int(encoding.intercept)
        constant = weights[0, ...] if first else np.zeros(weights.shape[1:])
        self.coef_, self.intercept_ = self._in_units(weights[first:], constant)
        _reporting.keep(self, run.solution.released)

    def _remember(self, encoding: Encoding, named: bool) -> None:
        self.encoding_, self._named = encoding, named
        # As of this fit, whatever is set or changed afterwards.
        asked = {k: v for k, v in self.get_params(deep=False).items() if k != "random_state"}
        self._asked, self._fitted_loss = copy.deepcopy(asked), self._loss()
        self.columns_ = encoding.columns[int(encoding.intercept) :]

    def _require_no_search(self) -> None:
        """Raise ``ValueError`` in a clone, unless tuning is allowed.

        Who calls ``fit``, an estimator cannot know: the stack says nothing in another process, and other
        searches are not scikit-learn's. That it is a clone it does know, and a search of scikit-learn's fits
        nothing else. A plain clone that is fitted once is refused as well: it looks the same.
        """
        allowed = require_flag("unaccounted_tuning", self.unaccounted_tuning)
        if getattr(self, "_cloned", False) and not allowed:
            raise ValueError(_CLONED)

    def __sklearn_clone__(self) -> Any:
        """A clone as scikit-learn makes it, which knows that it is one."""
        params = self.get_params(deep=False)
        made = type(self)(**{name: clone(value, safe=False) for name, value in params.items()})
        if hasattr(self, "_metadata_request"):
            made._metadata_request = copy.deepcopy(self._metadata_request)
        made._cloned = True
        return made

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.missing != "error"
        tags.target_tags.required = True
        return tags


def _fresh_key(random_state: Any) -> jax.Array:
    """A typed key.

    Args:
        random_state: ``None`` for 64 bits from the operating system, as many as a key has; or an integer of
            at least 0, of any length, for a fit that can be repeated.

    Raises:
        ValueError: if it is no such number. A ``RandomState`` is refused too: its state can be read by
            others.
    """
    if random_state is None:
        words = [secrets.randbits(32) for _ in range(2)]
    else:
        # `jax.random.key` reads 32 bits of an integer unless x64 is enabled.
        seed = require_integer("random_state", random_state, 0)
        words = np.random.SeedSequence(seed).generate_state(2, np.uint32).tolist()
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl="threefry2x32")
