"""Coefficients of matrices and of gradients that were seen, against closed forms and projections by hand."""

import numpy as np
import pytest

from dpsco_jax.problems import restricted_lipschitz


def test_of_a_diagonal_they_are_its_entries_by_size():
    found = restricted_lipschitz.coefficients_from_matrix([1.0, -3.0, 2.0])
    np.testing.assert_array_equal(found, [3.0, 2.0, 1.0, 0.0])
    np.testing.assert_allclose(
        restricted_lipschitz.coefficients_from_matrix(np.diag([1.0, 3.0, 2.0])), found
    )


@pytest.mark.parametrize("columns", [3, 6, 9])
def test_of_a_matrix_no_projection_of_that_rank_leaves_less(columns):
    rng = np.random.default_rng(0)
    half = rng.standard_normal((6, columns))
    found = restricted_lipschitz.coefficients_from_matrix(half)
    assert found.shape == (7,)
    assert found[-1] == 0
    left, values, _ = np.linalg.svd(half)
    for rank in range(7):
        best = np.eye(6) - left[:, :rank] @ left[:, :rank].T
        assert np.linalg.norm(best @ half, 2) == pytest.approx(found[rank], abs=1e-12)
        # The longest of many gradients A^{1/2}u comes near, for the best projection; none does for less.
        basis = np.linalg.qr(rng.standard_normal((6, 6)))[0][:, :rank]
        other = np.eye(6) - basis @ basis.T
        assert np.linalg.norm(other @ half, 2) >= found[rank] - 1e-12
    assert values.max() == pytest.approx(found[0])


@pytest.mark.parametrize("shape", [(5, 4), (3, 6)])
def test_of_gradients_residuals_are_those_of_their_own_subspace(shape):
    seen = np.random.default_rng(1).standard_normal(shape) * np.geomspace(1, 0.01, shape[1])
    found = restricted_lipschitz.coefficients_from_gradients(seen)
    _, values, right = np.linalg.svd(seen)
    for rank in range(shape[1] + 1):
        rest = seen - seen @ right[:rank].T @ right[:rank]
        longest = np.linalg.norm(rest, axis=1).max()
        assert found.largest[rank] == pytest.approx(longest, abs=1e-12)
        mean = np.sqrt(np.sum(values[rank:] ** 2) / shape[0])
        assert found.root_mean_square[rank] == pytest.approx(mean, abs=1e-12)
    assert np.all(found.largest >= found.root_mean_square)
    assert np.all(np.diff(found.root_mean_square) <= 0)


def test_what_is_seen_is_at_most_what_there_is():
    rng = np.random.default_rng(2)
    half = np.arange(1.0, 9) ** -1.0
    u = rng.standard_normal((40, 8))
    seen = half * u / np.linalg.norm(u, axis=1, keepdims=True)
    found = restricted_lipschitz.coefficients_from_gradients(seen)
    true = restricted_lipschitz.coefficients_from_matrix(half)
    assert np.all(found.root_mean_square <= true + 1e-12)
    assert found.largest[0] <= true[0]


@pytest.mark.parametrize("bad", [np.zeros((0, 3)), np.full((2, 2), np.nan), "nonsense", None, 3.0])
def test_what_is_no_matrix_is_refused(bad):
    with pytest.raises(ValueError, match="half must be"):
        restricted_lipschitz.coefficients_from_matrix(bad)
    with pytest.raises(ValueError, match="gradients must be"):
        restricted_lipschitz.coefficients_from_gradients(bad)
