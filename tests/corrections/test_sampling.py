"""Section X of docs/corrections.md: the printed claim fails, ours holds. Reference values are exact."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import losses
from dpsco_jax.solvers.sampling import regularized
from tests.support.gaussians import gaussian_delta


def printed(n, dim, epsilon, delta, lipschitz, theta):
    """k and μ of T Theorem 4.4.2."""
    root = math.sqrt(2 * math.log(1 / (2 * delta)))
    k = math.sqrt(dim) * n * epsilon / (lipschitz * math.sqrt(theta) * root)
    mu = lipschitz * math.sqrt(dim) * root / (math.sqrt(theta) * n * epsilon)
    return k, mu


@pytest.mark.parametrize("n", [100, 10_000])
def test_x2_replacing_a_record_moves_a_mean_of_losses_by_twice_the_slope(n):
    # Linear losses ±G·⟨u, x⟩: draws are N(-mean/μ, I/(kμ)), and one record moves the mean by 2G/(nμ).
    k, mu = printed(n, 5, 1.0, 1e-6, 1.0, 0.5)
    apart = (2.0 / (n * mu)) * math.sqrt(k * mu)
    assert apart == pytest.approx(0.3904, abs=2e-4)
    assert gaussian_delta(1.0, apart) > 1000 * 1e-6
    # With G in place of the true 2G it looks private.
    assert gaussian_delta(1.0, apart / 2) < 1e-6


def test_x2_the_certificate_sees_it():
    k, mu = printed(100, 5, 1.0, 1e-6, 1.0, 0.5)
    with jax.enable_x64(True):
        problem = Problem(losses.huber(1.0), num_users=100, dim=5, distance=1.0)
        plan = regularized.plan(problem, Budget(1.0, 1e-6), regularization=mu)
        assert plan.inverse_temperature < 0.4 * k
        as_printed = dataclasses.replace(
            plan, inverse_temperature=k, num_steps=np.ceil(1.2 * plan.num_steps),
            num_trials=np.ceil(1.4 * plan.num_trials),
        )  # fmt: skip
        assert as_printed.gdp == pytest.approx(0.3904, abs=2e-4)
        assert 1.7 < as_printed.certificate().epsilon < 1.75


def test_x3_a_root_that_ends_too_early_is_not_private():
    # √(2·log(1/(2δ)) + 2ε) - √(2·log(1/(2δ))), and what is left of it where the roots end too early.
    for epsilon, delta in ((0.5, 1e-6), (1.0, 1e-4), (2.0, 1e-6)):
        log = 2 * math.log(1 / (2 * delta))
        meant = math.sqrt(log + 2 * epsilon) - math.sqrt(log)
        read = (math.sqrt(log) + 2 * epsilon) - math.sqrt(log)
        assert gaussian_delta(epsilon, meant) <= 0.78 * delta
        assert read == pytest.approx(2 * epsilon)
        assert gaussian_delta(epsilon, read) > 1000 * delta
