"""Faults in the private moments and in the stages of whitened SGD."""

from tests.mutation import Fault, rows

_ROW = rows("whitened_sgd")
_SOLVER = ("tests/solvers/test_whitened_sgd.py::test_the_ledger_of_a_run_is_that_of_the_plan",)
_PUBLIC = (
    "tests/solvers/test_contract.py::test_nothing_public_is_computed_from_the_data_but_by_releases"
    "[whitened_sgd]",
)
_MOMENTS = ("tests/oracles/test_row_moments.py",)
_COORDINATES = "solvers/user_level/_coordinates.py"
_WHITENED = "solvers/user_level/whitened_sgd.py"

FAULTS = (
    Fault(
        "whitened: means are free",
        _COORDINATES,
        "set(0.0), privacy.compose(spent, loss)",
        "set(0.0), spent",
        _SOLVER,
    ),
    Fault(
        "whitened: terms of moments are not clipped",
        "oracles/row_moments.py",
        "factor = jax.vmap(norms.clip_factor, (0, None))(terms, bound)",
        "factor = jnp.ones(len(terms))",
        _MOMENTS,
    ),
    Fault(
        "whitened: the triangle holds entries off the diagonal once",
        "oracles/row_moments.py",
        "return matrix[rows, columns] * np.where(rows == columns, 1.0, 2.0**0.5).astype(np.float32)",
        "return matrix[rows, columns]",
        _MOMENTS,
    ),
    Fault(
        "whitened: scales from the true mean squares",
        _COORDINATES,
        "variances = squares - ",
        "variances = total / users - ",
        _PUBLIC,
    ),
    Fault(
        "whitened: coordinates from the true matrix",
        _COORDINATES,
        "row_moments.from_triangle(entries, dim), stddev",
        "row_moments.from_triangle(total / users, dim), stddev",
        _PUBLIC,
    ),
    Fault(
        "whitened: sensitivity of the mean squares halved",
        _COORDINATES,
        "noisy(squares_key, total, bound, plan.squares_multiplier, True)",
        "noisy(squares_key, total, 0.5 * bound, plan.squares_multiplier, True)",
        _ROW,
    ),
    Fault(
        "whitened: means as if none were negative",
        _COORDINATES,
        "means_key, total, feature_bound, plan.means_multiplier, False",
        "means_key, total, feature_bound, plan.means_multiplier, True",
        _ROW,
    ),
    Fault(
        "whitened: the intercept is free",
        _WHITENED,
        "set(found[0]), privacy.privacy_spent(end.opt_state), end.num_gradients",
        "set(found[0]), privacy.zero(), end.num_gradients",
        _SOLVER,
    ),
    Fault(
        "whitened: sensitivity of the share inside halved",
        _WHITENED,
        "transforms.summed_contributions(0.5, plan.num_users)",
        "transforms.summed_contributions(0.25, plan.num_users)",
        _ROW,
    ),
    Fault(
        "whitened: both phases have one key",
        _WHITENED,
        "noise_key, oracle_key = jax.random.split(keys[3 + phase])",
        "noise_key, oracle_key = jax.random.split(keys[3])",
        _ROW,
    ),
)
