"""Every private solver refuses a start of the wrong size, and every plan an unknown distance, by name."""

import importlib
import inspect
import pkgutil

import jax
import jax.numpy as jnp
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _planning, item_level, resque, user_level
from dpsco_jax.solvers.convex import ac_sa
from dpsco_jax.solvers.item_level import erm
from tests.support.planned import planned

USERS, ITEMS, DIM = 3000, 4, 3
SIZES = {
    "num_users": USERS,
    "items_per_user": ITEMS,
    "dim": DIM,
    "epsilon": 1.0,
    "delta": 1e-6,
    "num_steps": 20,
    "batch_size": 100,
    "ball_radius": 0.1,
    "regularization": 0.1,
    "strong_convexity": 0.1,
    "loss_range": (0.0, 3.0),
    "lower": -1.0,
    "upper": 1.0,
}
ASKED = ("num_users", "items_per_user", "dim", "epsilon", "delta")
# Their plans take ten seconds and more; what they run is in the table as well.
LONG = {"sco", "auto", "resque_prox", "ball_accelerated_regularized_erm", "ball_accelerated_sco"}
WITHOUT_A_START = {"finite_class"}  # its params are the candidates
# No distance enters the noise or the steps, or strong convexity bounds it.
NO_DISTANCE = {
    *("finite_class", "metric_entropy", "preconditioned_sgd", "ball_accelerated_regularized_erm"),
    *("resque_erm", "resque_erm_high_probability", "resque_prox"),
}


def solvers():
    for package in (item_level, resque, user_level):
        for found in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{found.name}")
            if hasattr(module, "plan") and hasattr(module, "solve"):
                yield found.name, module


SOLVERS = dict(solvers())


def settings_of(module):
    names = inspect.signature(module.plan).parameters
    wanted = {name for name, p in names.items() if p.default is p.empty and name in SIZES}
    wanted |= {"batch_size"} & set(names)
    if module is SOLVERS.get("accelerated_sgd"):
        wanted -= {"batch_size"}
    if "resque_prox" in module.__name__ or "high_probability" in module.__name__:
        wanted |= {"regularization"}
    if module.__name__.endswith("localized_sgd"):
        wanted |= {"num_steps"}
    wanted |= set(ASKED)
    return {name: SIZES[name] for name in wanted}


def objective(name, domain):
    smooth = losses.logistic if "resque" not in name and "ball" not in name else losses.absolute
    made = smooth(1.0, domain)
    return made if name in {"finite_class", "metric_entropy"} else made._replace(ridge=0.1)


def marked(names):
    """The names, the long ones marked as slow."""
    return [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in sorted(names)]


def data():
    zeros = Example(jnp.zeros((USERS, ITEMS, DIM)), jnp.zeros((USERS, ITEMS)))
    return UserData(zeros)


@pytest.mark.parametrize("name", marked(set(SOLVERS) - WITHOUT_A_START))
def test_a_start_of_the_wrong_size_is_refused_by_name(name):
    module = SOLVERS[name]
    public = objective(name, domains.ball(1.0))
    plan = planned(module.plan, public, **settings_of(module))
    for wrong in (jnp.zeros(DIM + 1), jnp.zeros(1), jnp.zeros(()), jnp.zeros((DIM, 2))):
        with pytest.raises(ValueError, match=r"params must have .*3.*, got"):
            jax.eval_shape(
                lambda start: module.solve(jax.random.key(0), plan, public, data(), start).params,
                wrong,
            )


@pytest.mark.parametrize("name", sorted(set(SOLVERS) - NO_DISTANCE - {"ball_accelerated_erm"}))
def test_a_distance_that_nothing_bounds_is_refused_by_name(name):
    module = SOLVERS[name]
    with pytest.raises(ValueError, match="distance must be"):
        planned(module.plan, objective(name, domains.whole_space()), **settings_of(module))


def test_the_table_is_whole():
    assert len(SOLVERS) == 26, sorted(SOLVERS)


def test_a_start_of_the_wrong_size_is_refused_without_privacy_and_in_parts():
    public = objective("ac_sa", domains.ball(1.0))
    plain = planned(ac_sa.plan, public, num_users=USERS, dim=DIM, num_steps=3, distance=1.0)
    with pytest.raises(ValueError, match=r"params must have plan\.dim = 3 entries, got 4"):
        ac_sa.solve(jax.random.key(0), plain, public, data(), jnp.zeros(DIM + 1))
    of_parts = planned(erm.plan, public, **settings_of(erm))
    with pytest.raises(ValueError, match=r"params must have plan\.dim = 3 entries, got 1"):
        erm.solve(jax.random.key(0), of_parts, public, data(), jnp.zeros(1))


def test_entries_are_counted_over_all_leaves():
    _planning.require_params("params", 5, {"w": jnp.zeros((2, 2)), "b": jnp.zeros(())})
    with pytest.raises(ValueError, match=r"params must have plan\.dim = 4 entries, got 5"):
        _planning.require_params("params", 4, {"w": jnp.zeros((2, 2)), "b": jnp.zeros(())})
