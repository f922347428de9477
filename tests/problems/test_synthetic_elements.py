"""The generators against their stated laws."""

import jax
import numpy as np
import pytest

from dpsco_jax.problems import elements, synthetic_elements

SEED = 3


def test_logistic_points_stand_around_the_centres_of_their_elements():
    made = synthetic_elements.logistic(
        jax.random.key(SEED), num_users=60, elements_per_user=3, items_per_user=40
    )
    (features, labels), mask = (jax.tree.map(np.asarray, part) for part in made.data)
    assert features.shape[:2] == (60, 10)
    assert mask.sum() == 60 * 40
    held = np.asarray(elements.elements_of_users(made.data))
    assert held.max() == 3
    assert (held == 3).mean() > 0.9
    offsets = np.linalg.norm(features - made.centres[None, :, None], axis=-1)[mask]
    np.testing.assert_allclose(offsets, 1.0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(made.centres, axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(made.params), 1.0, rtol=1e-6)
    # Labels are of the stated law: no correlation of what is left with the margin, 4 standard errors.
    margins = features[mask] @ made.params
    left = labels[mask] - 1 / (1 + np.exp(-margins))
    for weight in (np.ones_like(margins), margins):
        assert abs(np.sum(weight * left)) < 4 * np.sqrt(np.sum(weight**2) / 4)
    assert np.corrcoef(labels[mask], margins)[0, 1] > 0.2


def test_logistic_packed_holds_the_same_points():
    arguments = {"num_users": 20, "elements_per_user": 3, "items_per_user": 12}
    dense = synthetic_elements.logistic(jax.random.key(SEED), **arguments)
    packed = synthetic_elements.logistic(
        jax.random.key(SEED), **arguments, packed=True, items_per_element=12
    )
    assert packed.data.mask.shape == (20, 3, 12)
    dense, packed = (
        np.sort(np.asarray(m.data.items.features).sum(axis=-1).ravel()) for m in (dense, packed)
    )
    np.testing.assert_array_equal(dense[dense != 0], packed[packed != 0])


def test_bad_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match=r"^elements_per_user"):
        synthetic_elements.logistic(jax.random.key(SEED), 3, 11)
