"""Estimators with scikit-learn's interface: a private regression from a table, in three lines.

``docs/first_private_regression.md`` has a complete example. All of this room needs the extra ``sklearn``.
"""

from dpsco_jax._extra import needs

with needs("sklearn"):
    import pandas  # noqa: F401
    import sklearn  # noqa: F401

from dpsco_jax.estimators.classification import PrivateLogisticRegression, PrivateSoftmaxRegression
from dpsco_jax.estimators.exploring import Exploration, explore
from dpsco_jax.estimators.pipelines import PrivatePipeline, make_private_pipeline
from dpsco_jax.estimators.regression import PrivateRegression
from dpsco_jax.estimators.report import Report

__all__ = [
    "Exploration",
    "PrivateLogisticRegression",
    "PrivatePipeline",
    "PrivateRegression",
    "PrivateSoftmaxRegression",
    "Report",
    "explore",
    "make_private_pipeline",
]
