"""Private geometric medians: gradients, medians without noise, and the study at a small size."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import first_order, methods
from experiments.studies import mahalanobis
from experiments.studies.geometric_median import (
    BLIND,
    COLUMNS,
    GRID,
    PLANNED,
    GeometricMedian,
    best,
    noise_multiplier,
)
from tests.experiments.finished import finished, reported

pytestmark = pytest.mark.slow  # of studies alone: nothing that is installed rests on it


def test_gradients_are_those_of_the_loss():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        half, x, points = (
            rng.uniform(0.1, 2, 7),
            rng.standard_normal(7),
            rng.standard_normal((9, 3)),
        )
        found = np.asarray(mahalanobis.gradient_sum(*map(jnp.asarray, (x, half, points)))) / 9
        # The whole vectors, zeros and all, in NumPy.
        whole = np.pad(points, ((0, 0), (0, 4)))
        loss = lambda y: np.mean(np.linalg.norm(half * (y - whole), axis=1))  # noqa: E731
        steps = 1e-6 * np.eye(7)
        differences = [(loss(x + h) - loss(x - h)) / 2e-6 for h in steps]
        np.testing.assert_allclose(found, differences, atol=1e-5)
        value, slope = jax.value_and_grad(mahalanobis.mean_distance)(
            *map(jnp.asarray, (x, half, points))
        )
        assert float(value) == pytest.approx(loss(x))
        np.testing.assert_allclose(slope, found, rtol=1e-12)
        assert all(np.linalg.norm(g) <= half.max() for g in [found])


def test_a_point_at_the_parameters_counts_as_zero():
    half, points = jnp.array([1.0, 0.5, 0.2]), jnp.array([[0.3], [0.7]])
    at = jnp.array([0.3, 0.0, 0.0])
    other = mahalanobis.gradient_sum(at, half, points[1:])
    np.testing.assert_array_equal(mahalanobis.gradient_sum(at, half, points), other)
    slope = jax.grad(mahalanobis.mean_distance)(at, half, points)
    np.testing.assert_allclose(slope, other / 2, rtol=1e-6)


def _without_noise(half, points, steps, size):
    """Algorithm 35 on full batches, the noise traced to nothing; the mean of the last half of the points."""

    def descend(multiplier, start):
        mean = mahalanobis.ClosedForm(half, 1.0, multiplier)
        method = methods.ProjectedSgd(size)
        data = UserData(points[:, None])
        return first_order.run(
            jax.random.key(0),
            mean,
            method,
            mahalanobis.OBJECTIVE,
            data,
            start,
            steps,
            steps,
            first_order.Pull(0.0),
        ).params

    return jax.jit(descend)(0.0, jnp.zeros(len(half)))


def _weiszfeld(points):
    found = points.mean(axis=0)
    for _ in range(2000):
        weights = 1 / np.linalg.norm(points - found, axis=1)
        found = weights @ points / weights.sum()
    return found


def test_without_noise_medians_are_those_of_weiszfeld():
    points = np.random.default_rng(1).standard_normal((51, 3)) + 0.5
    x = points.mean(axis=0)
    for _ in range(2):  # averages forget their beginning as 1/T
        x = x + np.asarray(
            _without_noise(jnp.ones(3), jnp.asarray(points - x, jnp.float32), 1500, 0.5)
        )
    target = _weiszfeld(points)
    assert np.linalg.norm(x - target) < 1e-4
    with jax.enable_x64(True):
        slope = mahalanobis.gradient_sum(jnp.asarray(target), jnp.ones(3), jnp.asarray(points))
        assert float(jnp.linalg.norm(slope)) < 1e-9


def test_in_one_dimension_it_is_the_sample_median():
    points = np.random.default_rng(2).standard_normal((41, 1)).astype(np.float32)
    x = _without_noise(jnp.ones(1), jnp.asarray(points), 3000, 0.01)
    gap = float(mahalanobis.mean_distance(x, jnp.ones(1), jnp.asarray(points)))
    least = mahalanobis.least_distance(points, np.ones(1))
    assert least <= gap <= least + 1e-3
    assert least == pytest.approx(np.mean(np.abs(points - np.median(points))))


def test_noise_is_least_by_the_accountant_and_by_far_largest_by_advanced_composition():
    pld, zcdp, advanced = (
        noise_multiplier(a, 500, 40, 2.0, 1e-6) for a in ("pld", "zcdp", "advanced")
    )
    rho = (math.sqrt(2 + math.log(1e6)) - math.sqrt(math.log(1e6))) ** 2
    assert zcdp == pytest.approx(math.sqrt(40 / (2 * rho)))
    assert pld < zcdp < advanced / 5
    assert GeometricMedian().true_epsilon(1.0, 40) <= 2.0


def test_lines_are_chosen_on_even_seeds_and_shown_on_odd_ones():
    rows = [
        {
            "method": GRID,
            "convention": "text",
            "spectrum": "const",
            "dim": 20,
            "steps": 10,
            "pull": pull,
            "step size": size,
            "seed": seed,
            "excess": excess,
            "train": 0.0,
            "test": 0.0,
            "epsilon": 2.0,
        }
        for size, pull, even, odd in (
            (0.1, 0.0, 1.0, 5.0),
            (0.3, 0.0, 2.0, 0.5),
            (0.1, 0.2, 0.9, 4.0),
        )
        for seed, excess in enumerate((even, odd, even, odd))
    ]
    found = best(pd.DataFrame(rows)).set_index("line")
    assert found.loc["tuned", "excess"] == 4.0
    assert found.loc["tuned, no pull", "excess"] == 5.0
    assert found.loc["tuned", "pull"] == 0.2


def test_the_study_runs(tmp_path):
    small = GeometricMedian(
        methods=(GRID, PLANNED, BLIND),
        conventions=("companion_corrected",),
        spectra=("linear",),
        dims=(200,),
        steps=(40,),
        step_sizes=(0.3,),
        seeds=4,
        num_users=100,
    )
    table = reported(small, tmp_path, "geometric_median")
    shown = best(table).set_index("line")
    assert shown.loc[PLANNED, "bound"] < shown.loc[BLIND, "bound"]
    assert shown["excess"].between(0, shown["bound"]).all()
    assert shown["epsilon"].max() <= 2.0


@pytest.mark.slow
def test_the_table_of_zcdp_noise(tmp_path):
    """Independent runs of the same noise: means and deviations of five seeds, best of the same grid."""
    others = {
        "A = I": ((0.0015, 0.0002), (0.171, 0.006)),
        "A = diag(j^-1/2)": ((0.0028, 0.0010), (0.075, 0.004)),
        "A = diag(j^-1)": ((0.0036, 0.0012), (0.029, 0.003)),
        "A^1/2 = diag(j^-1)": ((0.0018, 0.0005), (0.003, 0.001)),
    }
    at = []
    for convention, spectrum, label in COLUMNS:
        study = GeometricMedian(
            methods=(GRID,),
            conventions=(convention,),
            spectra=(spectrum,),
            dims=(20, 2000),
            accountant="zcdp",
        )
        shown = best(finished(study, tmp_path))
        shown = shown[shown["line"] == "tuned"].sort_values("dim")
        for excess, error, (mean, deviation) in zip(
            shown["excess"], shown["excess_se"], others[label], strict=True
        ):
            assert abs(excess - mean) <= 3 * math.hypot(error, deviation / math.sqrt(5))
        at.append(tuple(shown["excess"]))
    assert at[0][1] > at[1][1] > at[2][1] > at[3][1]
    assert at[0][1] / at[0][0] > 30
    assert at[3][1] / at[3][0] < 4
