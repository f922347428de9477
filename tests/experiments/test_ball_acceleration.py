"""The two experiments on ball acceleration, at small sizes."""

import jax
import numpy as np
import pytest

from experiments.studies import monteiro_svaiter
from experiments.studies.ball_acceleration import BallAcceleration
from experiments.studies.monteiro_svaiter import MonteiroSvaiter
from experiments.studies.table import EXPERIMENTS
from tests.experiments.finished import finished


def _finished(experiment, folder):
    table = finished(experiment, folder)
    experiment.report(table, folder)
    return table


@pytest.mark.slow
def test_adaptive_calls_are_less_than_half(tmp_path):
    small = BallAcceleration(dim=100, ratios=(10.0, 30.0), searches=("bisection", "adaptive"))
    table = _finished(small, tmp_path).set_index(["search", "ratio"])
    assert table["reached"].all()
    for ratio in small.ratios:
        calls = table.loc[("bisection", ratio), "calls"]
        assert table.loc[("adaptive", ratio), "calls"] <= calls / 2
    assert (tmp_path / "ball_acceleration.svg").exists()
    assert EXPERIMENTS[small.name] is BallAcceleration


@pytest.mark.slow
def test_second_order_methods_reach_their_gaps(tmp_path):
    methods = ("msn adaptive", "msn bisection", "ball adaptive", "newton")
    small = MonteiroSvaiter(problems=("digits",), methods=methods, gaps=(1e-1, 1e-2))
    table = _finished(small, tmp_path).set_index(["method", "gap"])
    assert (table["reached"] == 1).all()
    for method in methods:
        assert table.loc[(method, 1e-1), "systems"] <= table.loc[(method, 1e-2), "systems"]
    assert (tmp_path / "monteiro_svaiter.svg").exists()
    assert EXPERIMENTS[small.name] is MonteiroSvaiter


@pytest.mark.slow
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
