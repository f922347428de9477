"""Pipelines whose transformers learn nothing: neighbours stay neighbours on the way to a private estimator.

What it computes: ``PrivatePipeline`` is scikit-learn's ``Pipeline`` with a private estimator at its end,
which refuses to be fitted behind transformers that are not known to map each row by itself.

Source: ``docs/data.md``, "What may depend on the data".

Formal guarantee: that of the estimator at the end, if every transformer maps each row by itself and by
numbers that are public: two tables that differ in the rows of one user are then mapped to two such tables. A
``StandardScaler``, a ``PCA``, an imputer by the mean, levels, bins or frequent categories found in the data
make every row depend on every other one, so that the guarantee at the end speaks of pairs of tables that do
not occur. What a ``FunctionTransformer`` computes cannot be seen: the caller's word is taken for it.

An estimator cannot see what happened to its rows. In scikit-learn's own ``Pipeline``, or fed with
``scaler.fit_transform(X)``, it is fitted without a word: only the caller can refuse that.

Example:
    >>> from sklearn.preprocessing import PolynomialFeatures, StandardScaler
    >>> from dpsco_jax.estimators import PrivateLogisticRegression, make_private_pipeline
    >>> model = PrivateLogisticRegression(epsilon=1.0, delta=1e-6, bounds=(-1, 1), classes=[0, 1])
    >>> make_private_pipeline(PolynomialFeatures(2), model).steps[0][0]
    'polynomialfeatures'
    >>> make_private_pipeline(StandardScaler(), model)
    Traceback (most recent call last):
    ...
    ValueError: steps must map each row by itself, by public numbers, got StandardScaler ...
"""

from typing import Any

import sklearn
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    SplineTransformer,
)

from dpsco_jax._checks import require_instance
from dpsco_jax._given import require_one_order
from dpsco_jax.estimators._base import PrivateEstimator

__all__ = ["PrivatePipeline", "make_private_pipeline"]

_STATELESS = (
    *(Binarizer, FeatureHasher, FunctionTransformer),
    *(HashingVectorizer, Normalizer, PolynomialFeatures),
)


class PrivatePipeline(Pipeline):
    """Transformers that learn nothing, and a private estimator.

    Allowed are ``Binarizer``, ``Normalizer``, ``PolynomialFeatures``, ``FeatureHasher``,
    ``HashingVectorizer``, ``FunctionTransformer`` (by your word: its function must map each row by itself),
    ``OneHotEncoder`` and ``OrdinalEncoder`` with lists of categories and without ``min_frequency`` and
    ``max_categories``, ``SplineTransformer`` with given knots, ``SimpleImputer`` with a given constant,
    ``keep_empty_features=True`` and no indicator, ``"passthrough"`` and ``"drop"``, and pipelines, unions and
    ``ColumnTransformer`` of these, with names or numbers of columns and ``sparse_threshold=0``, without
    ``memory`` and ``n_jobs``, which write rows to files. All others are refused, subclasses of these too.
    Errors that a transformer raises are its own, and may show entries.

    Args:
        steps: (name, transformer) in order, the last one (name, private estimator).
        transform_input: passed on to ``Pipeline``.
        memory: must be None, that of pipelines among the steps too: a cache on disk would keep private rows.
        verbose: passed on to ``Pipeline``.

    Raises:
        ValueError: from ``fit``, if a step is refused.
    """

    def __init__(
        self,
        steps: Any,
        *,
        transform_input: Any = None,
        memory: Any = None,
        verbose: bool = False,
    ):
        super().__init__(steps, transform_input=transform_input, memory=memory, verbose=verbose)

    def fit(self, X: Any, y: Any = None, groups: Any = None, **params: Any) -> "PrivatePipeline":
        """Fits the estimator to the transformed rows.

        Args:
            X: whatever the first transformer takes.
            y: the label of each row.
            groups: which user each row belongs to; given to the last step.
            **params: passed on to ``Pipeline.fit``.

        Raises:
            ValueError: a step is refused, or the estimator refuses the data.
        """
        _require_private(self.steps, self.memory)
        require_one_order(X=X, y=y, groups=groups, **params)
        if groups is not None:
            routed = sklearn.get_config()["enable_metadata_routing"]
            params["groups" if routed else f"{self.steps[-1][0]}__groups"] = groups
        super().fit(X, y, **params)
        return self

    def score(self, X: Any, y: Any, sample_weight: Any = None, **params: Any) -> Any:
        """The ``score`` of the estimator on the transformed rows.

        Args:
            X: whatever the first transformer takes.
            y: the label of each row.
            sample_weight: of each row; all the same if left out.
            **params: passed on to ``Pipeline.score``.

        Raises:
            ValueError: the estimator refuses the rows, or tables have different indexes of pandas.
        """
        require_one_order(X=X, y=y, sample_weight=sample_weight)
        return super().score(X, y, sample_weight, **params)


def make_private_pipeline(*steps: Any) -> PrivatePipeline:
    """A ``PrivatePipeline`` whose steps are named as by scikit-learn's ``make_pipeline``.

    Args:
        *steps: transformers, and a private estimator at the end.

    Raises:
        ValueError: if a step is refused; at once, not only when it is fitted.
    """
    named = make_pipeline(*steps).steps if steps else []
    _require_private(named, None)
    return PrivatePipeline(named)


def _require_private(steps: Any, memory: Any) -> None:
    if not steps:
        raise ValueError("steps must be transformers and a private estimator, got none")
    _require_no_files("memory", memory)
    for _, step in steps[:-1]:
        _require_stateless(step)
    require_instance("the last of steps", steps[-1][1], PrivateEstimator)


def _require_no_files(name: str, value: Any) -> None:
    if value is not None:
        what = "a cache keeps, and other processes are handed, private rows in files"
        raise ValueError(f"{name} must be None: {what}, got {value!r}")


def _require_stateless(step: Any) -> None:
    """Raise ``ValueError`` unless the transformer maps each row by itself, by public numbers."""
    inner = _inner(step)
    if inner is not None:
        for part in inner:
            _require_stateless(part)
        return
    why = _learns(step)
    if why:
        raise ValueError(
            f"steps must map each row by itself, by public numbers, got {type(step).__name__} {why}: what it "
            "learns depends on all rows, so that two tables which differ in one user are mapped to tables "
            "which differ in every row, and the guarantee does not speak of such"
        )


def _inner(step: Any) -> list[Any] | None:
    """The parts of a transformer that is made of others; ``None`` of one that is not."""
    if type(step) in (FeatureUnion, ColumnTransformer) and step.n_jobs != 1:
        _require_no_files("n_jobs", step.n_jobs)
    if type(step) in (Pipeline, PrivatePipeline):
        _require_no_files("memory", step.memory)
        return [part for _, part in step.steps]
    if type(step) is FeatureUnion:
        return [part for _, part in step.transformer_list]
    if type(step) is ColumnTransformer:
        for name, _, columns in step.transformers:
            if callable(columns):
                raise ValueError(
                    f"columns of {name!r} must be given, got a function, which sees the rows"
                )
        if step.sparse_threshold != 0:
            raise ValueError(
                "sparse_threshold must be 0, got "
                f"{step.sparse_threshold!r}: whether the output is sparse would follow from the rows"
            )
        return [*(part for _, part, _ in step.transformers), step.remainder]
    return None


def _learns(step: Any) -> str:
    """Why a transformer is refused; empty if it is not."""
    if step is None or (isinstance(step, str) and step in ("passthrough", "drop")):
        return ""
    if type(step) in _STATELESS:
        return ""
    if type(step) in (OneHotEncoder, OrdinalEncoder):
        if isinstance(step.categories, str):
            return f"with categories={step.categories!r}: give the list"
        if step.min_frequency is not None or step.max_categories is not None:
            return "with min_frequency or max_categories, which count rows"
        return ""
    if type(step) is SplineTransformer:
        return f"with knots={step.knots!r}: give the array" if isinstance(step.knots, str) else ""
    if type(step) is SimpleImputer:
        given = step.strategy == "constant" and step.fill_value is not None
        kept = step.keep_empty_features and not step.add_indicator
        return (
            ""
            if given and kept
            else "other than with a constant, keep_empty_features, no indicator"
        )
    return "which is not on the list of those that learn nothing (see PrivatePipeline)"
