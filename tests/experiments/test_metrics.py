import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from experiments.studies.metrics import roc_auc


@pytest.mark.parametrize("levels", [2, 7, 10**6])
def test_agrees_with_scikit_learn_ties_included(levels):
    rng = np.random.default_rng(levels)
    labels = rng.random(500) < 0.3
    scores = (rng.integers(0, levels, 500) + labels * levels // 3).astype(np.float32)
    expected = roc_auc_score(labels, scores)
    assert float(roc_auc(scores[~labels], scores[labels])) == pytest.approx(expected, abs=1e-6)


def test_extremes():
    low, high = jnp.zeros(3), jnp.ones(2)
    assert float(roc_auc(low, high)) == 1.0
    assert float(roc_auc(high, low)) == 0.0
    assert float(roc_auc(low, low)) == 0.5


@pytest.mark.parametrize("where", [0, 1])
def test_a_score_that_is_not_a_number_shows(where):
    scores = [jnp.zeros(2), jnp.ones(2)]
    scores[where] = jnp.array([jnp.nan, 0.0])
    assert jnp.isnan(roc_auc(*scores))
