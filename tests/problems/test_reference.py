"""The reference optimum against scikit-learn, and its gap against the truth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses, reference
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData

DIM, RIDGE = 6, 0.03


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    columns = np.stack([rng.integers(0, 3, (40, 7)), rng.integers(3, DIM, (40, 7))], -1)
    columns[0, 0] = -1
    labels = (rng.random((40, 7)) < 0.3 + 0.4 * (columns[..., 0] == 1)).astype(np.float32)
    mask = rng.random((40, 7)) < 0.7
    items = Example(OneHot(jnp.asarray(columns.astype(np.int32))), jnp.asarray(labels))
    return UserData(items, jnp.asarray(mask))


def test_rows_labels_and_weights(data):
    rows, labels, weights = reference.sparse_rows(losses.logistic(1.0), data, DIM)
    mask = np.asarray(data.mask)
    assert rows.shape == (mask.sum(), DIM)
    np.testing.assert_array_equal(labels, np.asarray(data.items.label)[mask])
    np.testing.assert_allclose(np.square(rows.toarray()).sum(axis=1)[1:], 1.0)
    users, _ = np.nonzero(mask)
    np.testing.assert_allclose(np.bincount(users, weights), mask.any(axis=1) / 40)


@pytest.mark.parametrize("dense", [False, True])
def test_agrees_with_scikit_learn(data, dense):
    objective = losses.logistic(1.0, ridge=RIDGE)
    if dense:
        columns = np.asarray(data.items.features.columns)
        features = (columns[..., None] == np.arange(DIM)).any(axis=-2) / np.float32(1.5)
        data = data._replace(items=Example(jnp.asarray(features), data.items.label))
    found = reference.solve(objective, data, DIM)
    assert found.gap <= 1e-12
    rows, labels, weights = reference.sparse_rows(objective, data, DIM)
    # scikit-learn minimizes C·Σ weight·loss + ½‖w‖².
    peer = LogisticRegression(C=1 / RIDGE, fit_intercept=False, tol=1e-10, max_iter=10_000)
    peer.fit(rows.toarray(), labels, sample_weight=weights)
    np.testing.assert_allclose(found.params, peer.coef_[0], atol=1e-6)
    margins = rows @ found.params
    value = weights @ (np.logaddexp(0, margins) - labels * margins)
    np.testing.assert_allclose(found.value, value + RIDGE / 2 * found.params @ found.params)


def test_gap_bounds_the_distance_to_the_optimum(data):
    objective = losses.huber(1.0, delta=0.4, ridge=RIDGE)
    exact = reference.solve(objective, data, DIM)
    rough = reference.solve(objective, data, DIM, tol=1e-3)
    assert 0.0 <= rough.value - exact.value <= rough.gap + 1e-12
    assert exact.gap <= 1e-12


def test_what_cannot_be_solved_is_refused(data):
    for objective in (
        losses.logistic(1.0),
        losses.hinge(1.0, ridge=0.1),
        losses.geometric_median(),
    ):
        with pytest.raises(ValueError, match="smooth linear model"):
            reference.solve(objective, data, DIM)
    small = losses.logistic(1.0, domains.ball(1e-3), ridge=RIDGE)
    with pytest.raises(ValueError, match="domain must contain"):
        reference.solve(small, data, DIM)
    with pytest.raises(ValueError, match="tol must be reachable"):
        reference.solve(losses.logistic(1.0, ridge=RIDGE), data, DIM, max_steps=1)
    assert jax.config.jax_enable_x64 is False
