"""Studies that have nothing to test but what they show, at small sizes; one method by its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import nnls

from dpsco_jax.solvers.nonconvex import goldstein
from experiments.studies import (
    monteiro_svaiter,
    robust_regression,
    rough_losses,
    stationary_points,
)
from experiments.studies.ball_acceleration import BallAcceleration
from experiments.studies.feasible_region import FeasibleRegion
from experiments.studies.monteiro_svaiter import MonteiroSvaiter
from experiments.studies.private_nonsmooth import BALL, DP_SGD, PrivateNonsmooth
from experiments.studies.proximal_bias import ProximalBias
from experiments.studies.resque_drift import ResqueDrift
from experiments.studies.robust_regression import RobustRegression
from experiments.studies.rough_losses import CLUSTERS, MANY, NETWORK, RoughLosses
from experiments.studies.stationary_points import COMPLETION, FOUND, WELLS, StationaryPoints
from tests.experiments.finished import reported

pytestmark = pytest.mark.slow


def test_adaptive_calls_of_ball_acceleration_are_less_than_half(tmp_path):
    small = BallAcceleration(dim=100, ratios=(10.0, 30.0), searches=("bisection", "adaptive"))
    table = reported(small, tmp_path, "ball_acceleration").set_index(["search", "ratio"])
    assert table["reached"].all()
    for ratio in small.ratios:
        calls = table.loc[("bisection", ratio), "calls"]
        assert table.loc[("adaptive", ratio), "calls"] <= calls / 2


def test_the_feasible_region_of_more_users_has_less_error(tmp_path):
    small = FeasibleRegion(users=(2000, 8000), dims=(2,), conditions=(3.0,))
    table = reported(small, tmp_path, "feasible_region")
    few, many = (table[table["users"] == n].iloc[0] for n in small.users)
    assert many["error"] < 0.5 * few["error"]
    assert (table["error"] < table["error_triple"]).all()


def test_both_kinds_of_private_solver_gain_on_the_start_of_a_loss_that_is_not_smooth(tmp_path):
    small = PrivateNonsmooth(
        solvers=(BALL, DP_SGD), conditions=(4.0,), shares=(0.2,), passes=(4.0,), factors=(4.0,),
        seeds=1, num_users=2000, dim=3, steps=50, epsilon=8.0,
    )  # fmt: skip
    table = reported(small, tmp_path, "private_nonsmooth")
    assert (table["excess_risk"] < 0.7 * table["trivial"]).all()


def test_the_bias_of_the_multilevel_estimator_is_measured_beside_its_laws(tmp_path):
    # β so large that only the law's 1/√n is left, and the runs so many that the bias is seen.
    small = ProximalBias(users=(64, 1024), places=(0.5,), seeds=1, runs=200, queries=32, beta=20.0)
    table = reported(small, tmp_path, "proximal_bias")
    few, many = (table[table["users"] == n]["mean square"].mean() for n in (64, 1024))
    assert many < few / 4, "16 times as many queries: towards the exact minimizer"


def test_drift_of_coupled_runs_is_within_its_bound(tmp_path):
    small = ResqueDrift(queries=(32,), ratios=(4.0, 8.0), trials=2000)
    table = reported(small, tmp_path, "resque_drift")
    fixed, random = (table[table["place"] == place]["mean square"].mean() for place in (0.0, -1.0))
    assert random < 0.5 * fixed < 0.6


def test_second_order_methods_reach_their_gaps(tmp_path):
    methods = ("msn adaptive", "msn bisection", "ball adaptive", "newton")
    small = MonteiroSvaiter(problems=("digits",), methods=methods, gaps=(1e-1, 1e-2))
    table = reported(small, tmp_path, "monteiro_svaiter").set_index(["method", "gap"])
    assert (table["reached"] == 1).all()
    for method in methods:
        assert table.loc[(method, 1e-1), "systems"] <= table.loc[(method, 1e-2), "systems"]


def test_the_adaptive_method_by_its_definition():
    """A plain loop of the published algorithm, on the host, gives the same points."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((60, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    with jax.enable_x64(True):
        end = monteiro_svaiter.trajectory("msn adaptive", rows, num_iterations=12)
    point, weight = _adaptive(rows, 12)
    np.testing.assert_allclose(end.params, point, rtol=1e-8)
    assert float(end.weight) == pytest.approx(weight, rel=1e-8)


def _adaptive(rows, steps):
    n, dim = rows.shape

    def sigmoid(w):
        return 1 / (1 + np.exp(-rows @ w))

    def gradient(w):
        return sigmoid(w) @ rows / n

    def oracle(y, lam, lazy):
        p = sigmoid(y)
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows / n

        def check(lam):
            x = y - np.linalg.solve(hessian + lam * np.eye(dim), gradient(y))
            error = np.linalg.norm(x - y + gradient(x) / lam)
            return x, error <= 0.5 * np.linalg.norm(x - y)

        x, fits = check(lam)
        if fits and lazy:
            return x, lam
        good, bad = (lam, 0.0) if fits else (np.inf, lam)
        best, power = x, 0
        while bad == 0 or good == np.inf:
            lam = lam / 2 ** (2**power) if fits else lam * 2 ** (2**power)
            power += 1
            x, ok = check(lam)
            good, bad, best = (lam, bad, x) if ok else (good, lam, best)
            if ok != fits:
                break
        while bad < good / 2:
            lam = np.sqrt(good * bad)
            x, ok = check(lam)
            good, bad, best = (lam, bad, x) if ok else (good, lam, best)
        return best, good

    x, v, weight, guess = np.zeros(dim), np.zeros(dim), 0.0, 0.1
    for step in range(steps):
        a = (1 + np.sqrt(1 + 4 * guess * weight)) / (2 * guess)
        y = (weight * x + a * v) / (weight + a)
        tilde, lam = oracle(y, guess, lazy=step > 0)
        if step == 0:
            guess, a = lam, 1 / lam
        gamma = min(1.0, guess / lam)
        new = weight + gamma * a
        x = ((1 - gamma) * weight * x + gamma * (weight + a) * tilde) / new
        v = v - gamma * a * gradient(tilde)
        weight, guess = new, guess / 2 if lam <= guess else 2 * guess
    return x, weight


def test_robust_regression_beats_the_start_and_is_measured_as_by_hand(tmp_path):
    small = RobustRegression(
        tables=("wages",), solvers=("SpiderBoost", "noisy descent"), outliers=(0.2,), epsilons=(1.0,),
        seeds=1, most_steps=20,
    )  # fmt: skip
    table = reported(small, tmp_path, "robust_regression").set_index("solver")
    rows = robust_regression.rows("wages", 0.2)
    start = robust_regression.measured(rows, (rows.data(), rows.test), jnp.zeros(rows.dim))
    weighted = -rows.labels * np.exp(-0.5 * rows.labels**2) / rows.columns.shape[1] ** 0.5
    by_hand = np.bincount(
        rows.columns.ravel(), np.repeat(weighted, rows.columns.shape[1]), rows.dim
    )
    assert float(start["gradient"]) == pytest.approx(
        np.linalg.norm(by_hand) / len(weighted), rel=1e-4
    )
    assert (table["gradient"] < 0.9 * float(start["gradient"])).all()


def test_a_point_of_two_wells_that_is_found_is_no_saddle_and_completion_starts_at_one(tmp_path):
    small = StationaryPoints(
        tasks=(WELLS,), solvers=(FOUND,), epsilons=(4.0,), seeds=2, num_users=5000, most_steps=20,
    )  # fmt: skip
    table = reported(small, tmp_path, "stationary_points")
    assert (table["found"] == 1).all()
    assert (table["least curvature"] > 0.5 * table["start curvature"]).all()
    with jax.enable_x64(True):
        at = stationary_points.saddle(COMPLETION, 0)
        start = stationary_points.measured(at, at.data, jnp.asarray(at.start))
    assert float(start["gradient"]) == 0
    # Bounded ratings are shorter than those of which the design takes the eigenvalue.
    assert -at.curvature <= float(start["least curvature"]) < -0.5 * at.curvature


def test_a_rough_loss_ends_nearer_to_stationary_than_it_began(tmp_path):
    small = RoughLosses(
        tasks=(CLUSTERS,), solvers=(MANY,), num_users=(1000, 2000), epsilons=(8.0,), seeds=2, points=20,
    )  # fmt: skip
    table = reported(small, tmp_path, "rough_losses")
    assert (table["norm"] < 0.5 * table["start"]).all()
    assert (table["risk"] < table["start risk"]).all()
    assert (table["certified"] <= 8.0).all()


def test_goldstein_norms_of_the_network_are_those_of_numpy():
    """Gradients by hand at the points that were drawn; the shortest vector of their hull by least squares."""
    at = rough_losses.rough(NETWORK, 500)
    near, count = 0.2, 20
    points = goldstein._points(
        jax.random.key(0), at.objective, at.data, jnp.asarray(at.start), near, count
    )
    rows, labels = (np.asarray(x, float)[:, 0] for x in at.data.items)
    outer = np.array([0.5, -0.5, 0.5, -0.5])
    found = []
    for w in np.asarray(points, float):
        assert np.linalg.norm(w - at.start) <= near * (1 + 1e-5)
        inner = rows @ w
        side = np.sign(np.maximum(inner, 0) @ outer - labels)
        slopes = side[:, None] * (inner > 0) * outer
        found.append((rows.T @ slopes / len(rows)).ravel())
    hull = np.array(found)
    # Weights that sum to one by a row that is a hundred times as heavy.
    heavy = 100 * np.ones((1, len(hull)))
    weights, _ = nnls(np.vstack([hull.T, heavy]), np.r_[np.zeros(hull.shape[1]), 100.0])
    shortest = np.linalg.norm(weights / weights.sum() @ hull)
    norm = goldstein.goldstein_norm(
        jax.random.key(0), at.objective, at.data, jnp.asarray(at.start), near, count
    ).norm
    assert float(norm) == pytest.approx(shortest, rel=1e-3)
