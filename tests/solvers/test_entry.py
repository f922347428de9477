"""Every private solver refuses a start of the wrong size, and every plan an unknown distance, by name."""

import dataclasses
import importlib
import pkgutil

import jax
import jax.numpy as jnp
import pytest

from dpsco_jax._pytrees import Number
from dpsco_jax.geometry import domains
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import (
    _planning,
    element_level,
    heavy_tailed,
    item_level,
    nonconvex,
    resque,
    sampling,
    user_level,
)
from dpsco_jax.solvers.convex import ac_sa
from dpsco_jax.solvers.item_level import erm
from tests.solvers.private_table import DIM, OBJECTIVE, ROWS
from tests.support.planned import planned

USERS = 30
# No distance enters the noise or the steps, or strong convexity bounds it.
NO_DISTANCE = {
    *("finite_class", "metric_entropy", "preconditioned_sgd", "ball_accelerated_regularized_erm"),
    *("exponential_mechanism", "net_exponential_mechanism", "gibbs"),
    *("certify", "select_sosp"),
    "element_level.federated",
    *(
        "adaptive_spider",
        "drift_spider",
        "find_sosp",
        "hessian_escape",
        "noisy_descent",
        "o2nc_multi_pass",
        "o2nc_single_pass",
        "optimal_smoothing",
        "spider",
        "whitened_sgd",
    ),
    *("aggregate_erm", "clipped_gd", "localized_clipped_sgd", "phased_clipped_glm"),
    *("resque_erm", "resque_erm_high_probability", "resque_prox"),
}


def solvers():
    for package in (
        element_level,
        heavy_tailed,
        item_level,
        nonconvex,
        resque,
        sampling,
        user_level,
    ):
        for found in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{found.name}")
            public = not found.name.startswith("_")
            if public and hasattr(module, "plan") and hasattr(module, "solve"):
                yield _name(module)


def _name(module):
    """That of the module, and of its room where there is one of the same name for whole users."""
    room, name = module.__name__.split(".")[-2:]
    return f"{room}.{name}" if room == "element_level" else name


# The first row of every solver.
BY_NAME = {_name(row.solver): row for row in reversed(ROWS)}


def data():
    return UserData(Example(jnp.zeros((USERS, 2, DIM)), jnp.zeros((USERS, 2))))


def test_every_solver_has_a_row():
    assert set(solvers()) == set(BY_NAME)


# Of these the parameters are the candidates.
OF_CANDIDATES = {"finite_class", "select_sosp"}


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - OF_CANDIDATES))
def test_a_start_of_the_wrong_size_is_refused_by_name(name):
    row = BY_NAME[name]
    plan, users = row.plan(), row.data()
    for wrong in (jnp.zeros(DIM + 1), jnp.zeros(1), jnp.zeros(()), jnp.zeros((DIM, 2))):
        with pytest.raises(ValueError, match=r"params must have .*3.*, got"):
            jax.eval_shape(
                lambda start: (
                    row.solver.solve(jax.random.key(0), plan, row.objective, users, start).params
                ),
                wrong,
            )


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - OF_CANDIDATES))
def test_a_start_in_pieces_is_refused_where_the_model_is_linear(name):
    row = BY_NAME[name]
    with pytest.raises(ValueError, match=r"params must be one array, of a linear model, got \["):
        row.solver.solve(jax.random.key(0), row.plan(), row.objective, row.data(), [0.0] * DIM)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_plan_that_lacks_a_number_is_refused_by_the_name_of_the_field(name):
    row = BY_NAME[name]
    plan, users = row.plan(), row.data()
    start = jnp.zeros(DIM) if row.params is None else row.params
    found = [field.name for field in dataclasses.fields(plan) if field.type is Number]
    assert found
    for missing in found:
        edited = dataclasses.replace(plan, **{missing: None})
        with pytest.raises(ValueError, match=rf"plan\.{missing} must be a number, got None"):
            row.solver.solve(jax.random.key(0), edited, row.objective, users, start)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_another_objective_than_that_of_the_plan_is_refused_by_name(name):
    row = BY_NAME[name]
    plan, users = row.plan(), row.data()
    start = jnp.zeros(DIM) if row.params is None else row.params
    for changed in (
        {"lipschitz": 2 * row.objective.lipschitz},
        {"ridge": row.objective.ridge + 0.1},
        {"smoothness": None},
        {"domain": domains.ball(7.0)},
    ):
        other = row.objective._replace(**changed)
        with pytest.raises(
            ValueError, match="objective must be the one that the plan was made for"
        ):
            row.solver.solve(jax.random.key(0), plan, other, users, start)


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - NO_DISTANCE))
def test_a_distance_that_nothing_bounds_is_refused_by_name(name):
    row = BY_NAME[name]
    known = {key: value for key, value in row.settings.items() if key != "distance"}
    unbounded = row.objective._replace(domain=domains.whole_space())
    with pytest.raises(ValueError, match="distance must be"):
        row._replace(objective=unbounded, settings=known).plan()


def test_a_start_of_the_wrong_size_is_refused_without_privacy_and_in_parts():
    plain = planned(ac_sa.plan, OBJECTIVE, num_users=USERS, dim=DIM, num_steps=3, distance=1.0)
    with pytest.raises(ValueError, match=r"params must have plan\.dim = 3 entries, got 4"):
        ac_sa.solve(jax.random.key(0), plain, OBJECTIVE, data(), jnp.zeros(DIM + 1))
    row = BY_NAME["erm"]
    with pytest.raises(ValueError, match=r"params must have plan\.dim = 3 entries, got 1"):
        erm.solve(jax.random.key(0), row.plan(), row.objective, row.data(), jnp.zeros(1))


def test_entries_are_counted_over_all_leaves():
    _planning.require_params("params", 5, {"w": jnp.zeros((2, 2)), "b": jnp.zeros(())})
    with pytest.raises(ValueError, match=r"params must have plan\.dim = 4 entries, got 5"):
        _planning.require_params("params", 4, {"w": jnp.zeros((2, 2)), "b": jnp.zeros(())})
