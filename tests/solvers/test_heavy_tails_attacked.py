"""Solvers for heavy tails on numbers that are none, have no end or no size: results are finite, by rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers.heavy_tailed import (
    aggregate_erm,
    clipped_gd,
    localized_clipped_sgd,
    localized_erm,
    phased_clipped_glm,
    population_localize,
)

USERS, DIM, BUDGET = 48, 3, Budget(2.0, 1e-6)
MOMENTS = {"moments": Moments(4.0, 2.0, 1.5, 1.2)}
FEW = {"num_steps": 4}
SQUARED, RIDGED = (losses.squared(1.0, 1e6, 2.0, ridge=ridge) for ridge in (0.0, 0.5))
# Solver, loss, arguments of the plan, and whether it runs in float64.
CASES = {
    "clipped_gd": (clipped_gd, RIDGED, MOMENTS | FEW | {"regularization": 0.5}, False),
    "quantile": (clipped_gd, SQUARED, FEW | {"regularization": 0.5, "clip_norm": 0.1}, False),
    "quantile, tiny": (clipped_gd, SQUARED, FEW | {"regularization": 0.5, "clip_norm": 1e-25}, False),
    "copies": (
        aggregate_erm, SQUARED, MOMENTS | FEW | {"regularization": 0.5, "num_copies": 3}, False,
    ),
    "rounds": (population_localize, RIDGED, MOMENTS | FEW | {"num_rounds": 2, "num_phases": 1}, False),
    "bounded": (localized_erm, SQUARED, FEW | {"num_phases": 2}, False),
    "linear models": (phased_clipped_glm, SQUARED, MOMENTS | {"num_phases": 2}, True),
    "hidden test": (localized_clipped_sgd, SQUARED, MOMENTS | {"num_phases": 2}, True),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_numbers_leave_results_finite_and_count_as_zero(name):
    solver, objective, given, wide = CASES[name]
    with jax.enable_x64(wide):
        dtype = np.float64 if wide else np.float32
        far, near = (1e308, 5e-324) if wide else (3.4e38, 1e-45)
        bad = [np.nan, np.inf, -np.inf, -0.0, 1e30, 1e-40, far, near]
        problem = Problem(objective, num_users=USERS, dim=DIM, distance=1.0)
        plan = solver.plan(problem, BUDGET, **given)
        rng = np.random.default_rng(0)
        a = rng.standard_normal((USERS, 1, DIM))
        a = (a / np.linalg.norm(a, axis=-1, keepdims=True)).astype(dtype)
        y = rng.standard_normal((USERS, 1)).astype(dtype)
        features, labels = [], []
        for value in bad:
            for who in (slice(7, 8), slice(None)):
                worse = a.copy(), y.copy()
                worse[0][who], worse[1][who] = value, value
                features += [worse[0], a]
                labels += [y, worse[1]]
        # A row with a number that is none is a row of zeros, and so is its gradient.
        for row in ([0.0, 0.0, 0.0], [np.nan, 1.0, 1.0], [1.0, np.inf, 1.0]):
            rows = a.copy()
            rows[7] = row
            features, labels = [*features, rows], [*labels, y]

        @jax.jit
        @jax.vmap
        def run(a, y):
            data = UserData(Example(a, y), None)
            found = solver.solve(jax.random.key(5), plan, objective, data, jnp.zeros(DIM, dtype))
            return found.params, found.status

        points, statuses = run(np.stack(features), np.stack(labels))
        points = np.asarray(points)
        assert np.all(np.isfinite(points))
        assert not np.any(np.asarray(statuses))
        np.testing.assert_array_equal(points[-1], points[-3])
        np.testing.assert_array_equal(points[-2], points[-3])


@pytest.mark.parametrize("which", ["data", "start"])
def test_bfloat16_is_widened_before_anything_is_bounded(which):
    """A run on numbers of bfloat16 is the run on the same numbers in float32."""
    solver, objective, given, _ = CASES["quantile"]
    plan = solver.plan(Problem(objective, num_users=USERS, dim=DIM), BUDGET, **given)
    rng = np.random.default_rng(1)
    a = jnp.asarray(rng.standard_normal((USERS, 1, DIM)), jnp.bfloat16)
    y = jnp.asarray(rng.standard_normal((USERS, 1)), jnp.bfloat16)

    @jax.jit
    def run(a, y, start):
        data = UserData(Example(a, y), None)
        return solver.solve(jax.random.key(5), plan, objective, data, start).params

    wide = [x.astype(jnp.float32) for x in (a, y)]
    wanted = run(*wide, jnp.zeros(DIM))
    if which == "data":
        found = run(a, y, jnp.zeros(DIM))
        np.testing.assert_allclose(found, wanted, atol=0.02)
        assert found.dtype == jnp.float32
    else:
        found = run(*wide, jnp.zeros(DIM, jnp.bfloat16))
        assert found.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.float32(found), wanted, atol=0.05)
