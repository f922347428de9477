"""Leading subspaces against SciPy's decomposition, rank deficiency, chunks, and the slope of a power law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from dpsco_jax.geometry import subspaces

ROWS, DIM = 200, 500


@pytest.fixture(scope="module")
def decaying():
    """Rows with σ_k = k^-0.6 exactly, and their right singular vectors."""
    rng = np.random.default_rng(0)
    left = np.linalg.qr(rng.normal(size=(ROWS, ROWS)))[0]
    right = np.linalg.qr(rng.normal(size=(DIM, ROWS)))[0]
    values = np.arange(1, ROWS + 1) ** -0.6
    return (left * values) @ right.T, values, right


def angle(first, second):
    """Sine of the largest angle between two spans."""
    return np.linalg.norm(first - second @ (second.T @ first), 2)


def test_orthogonal_iteration_finds_the_singular_values(decaying):
    rows, values, right = decaying

    # 90 to spare: at k^-0.6 the ratio of neighbours is near one.
    @jax.jit
    def find(key, rows):
        return subspaces.orthogonal_iteration(key, rows, 20, spare=80, chunk_size=64)

    found = find(jax.random.key(0), jnp.asarray(np.float32(rows)))
    np.testing.assert_allclose(found.singular_values, values[:20], rtol=1e-3)
    assert subspaces.orthonormality_error(found.basis) < 1e-5
    assert angle(np.float64(found.basis), right[:, :20]) < 1e-2


def test_the_gram_route_is_exact(decaying):
    rows, values, right = decaying
    found = subspaces.gram_subspace(rows, 100)
    np.testing.assert_allclose(found.singular_values, values[:100], rtol=1e-10)
    np.testing.assert_allclose(scipy.linalg.svdvals(rows)[:100], found.singular_values, rtol=1e-10)
    assert angle(found.basis, right[:, :100]) < 1e-9
    # Column by column, up to the sign, and not only their span.
    np.testing.assert_allclose(np.abs(np.sum(found.basis * right[:, :100], axis=0)), 1.0, atol=1e-9)


def test_chunks_and_spares_do_not_run_over():
    """More chunks than rows, more spares than there are directions; a rank that the rows do not have."""
    rng = np.random.default_rng(1)
    rows = np.float32(rng.normal(size=(5, 2)) @ rng.normal(size=(2, 4)))
    expected = scipy.linalg.svdvals(rows)
    for chunk in (None, 2, 9):
        found = subspaces.orthogonal_iteration(
            jax.random.key(0), rows, 3, spare=50, chunk_size=chunk
        )
        np.testing.assert_allclose(found.singular_values, expected[:3], atol=2e-3 * expected[0])
        assert subspaces.orthonormality_error(found.basis) < 1e-5
        assert np.linalg.norm(rows - rows @ found.basis[:, :2] @ found.basis[:, :2].T) < 1e-5
    exact = subspaces.gram_subspace(rows, 3)
    assert subspaces.orthonormality_error(exact.basis) < 1e-12
    assert exact.singular_values[2] < 1e-6


def test_the_slope_of_a_power_law():
    values = 3.0 * np.arange(1, 101) ** -0.6
    found = subspaces.decay(values)
    assert found.exponent == pytest.approx(-0.6, abs=1e-12)
    assert found.level == pytest.approx(3.0)
    assert found.r_squared == pytest.approx(1.0)
    noisy = values * np.exp(0.05 * np.random.default_rng(0).normal(size=100))
    found = subspaces.decay(noisy)
    assert abs(found.exponent + 0.6) < 0.03
    assert 0.9 < found.r_squared < 1
    # Ranks are counted from 1, also where the first ones do not count.
    kinked = np.concatenate([np.ones(10), values[10:60], np.ones(40)])
    assert subspaces.decay(kinked, 11, 60).exponent == pytest.approx(-0.6, abs=1e-12)
    assert subspaces.decay(kinked).r_squared < 0.5
    assert subspaces.decay(np.ones(5)) == pytest.approx((0.0, 1.0, 1.0))


def test_the_slope_of_what_is_found(decaying):
    rows = decaying[0]
    values = subspaces.gram_subspace(rows, 100).singular_values
    assert abs(subspaces.decay(values).exponent + 0.6) < 0.01
    rough = subspaces.orthogonal_iteration(
        jax.random.key(1), jnp.asarray(np.float32(rows)), 100, spare=60
    )
    assert abs(subspaces.decay(rough.singular_values).exponent + 0.6) < 0.01


def test_the_error_of_a_basis_bounds_what_it_lengthens():
    rng = np.random.default_rng(2)
    basis = np.float32(rng.normal(size=(6, 3)))
    error = subspaces.orthonormality_error(basis)
    operator = np.linalg.norm(np.float64(basis) @ np.float64(basis).T, 2)
    assert 1 + error >= operator
    np.testing.assert_allclose(jax.jit(subspaces.orthonormality_error)(basis), error, rtol=1e-5)
    assert subspaces.orthonormality_error(np.eye(4)[:, :2]) == 0


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda rows: subspaces.gram_subspace(rows, 4), "rank"),
        (lambda rows: subspaces.gram_subspace(rows * np.nan, 2), "rows"),
        (lambda rows: subspaces.orthogonal_iteration(jax.random.key(0), rows, 4), "rank"),
        (lambda rows: subspaces.orthogonal_iteration(jax.random.key(0), rows[0], 1), "rows"),
        (lambda rows: subspaces.decay([1.0]), "values"),
        (lambda rows: subspaces.decay([1.0, 0.0, 2.0]), "values"),
        (lambda rows: subspaces.decay([1.0, 2.0], 1, 3), "last"),
    ],
)
def test_bad_arguments(call, named):
    with pytest.raises(ValueError, match=f"{named} must be"):
        call(np.ones((3, 5)))
