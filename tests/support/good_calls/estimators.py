"""Calls of ``dpsco_jax.estimators`` that work, where the common vocabulary does not say it."""

from typing import Any

from sklearn.preprocessing import StandardScaler

from dpsco_jax.estimators import PrivateLogisticRegression
from tests.support import kinds
from tests.support.kinds import Kind

_LATE = "scikit-learn's constructors take what they are given; fit refuses (tests/estimators)"

GOOD: dict[str, dict[str, Any]] = {
    "estimators.pipelines.make_private_pipeline": {
        "steps": Kind("steps", ("nonsense", 7, None, StandardScaler()))(PrivateLogisticRegression())
    },
    "estimators.report.Report": {
        "title": Kind("text", (7, None))("a fit"),
        "sections": Kind("sections", ("nonsense", 7, None, (7,), (("one", 7),)))(
            (("one", (("a", "b"),)),)
        ),
        "certificate": kinds.OBJECT(None),
    },
}

EXEMPT: dict[tuple[str, str], str] = {
    ("estimators.exploring.explore", "*"): "fits models (tests/estimators/test_exploring.py)",
    ("estimators.classification.PrivateLogisticRegression", "*"): _LATE,
    ("estimators.classification.PrivateSoftmaxRegression", "*"): _LATE,
    ("estimators.pipelines.PrivatePipeline", "*"): _LATE,
    ("estimators.regression.PrivateRegression", "*"): _LATE,
}
