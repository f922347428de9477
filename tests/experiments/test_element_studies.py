"""The studies of element-level privacy at small sizes, and what they compare."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import elements, losses
from dpsco_jax.problems.datasets.task import Table, categorical
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.element_level import sgd as element_sgd
from experiments.studies import element_extras as extras
from experiments.studies import element_logistic as simulated
from experiments.studies import element_tables as tables
from experiments.studies import element_tasks as tasks
from tests.experiments.finished import reported

GRAINS = {
    "user": tasks.Grain(1, 1, 8),
    "month": tasks.Grain(3, 3, 4, 3),
}


@pytest.fixture(scope="module")
def toy():
    """60 users, 5 to 8 rows each in three months."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(60), rng.integers(5, 9, 60))
    color, month = rng.integers(0, 4, len(user)), rng.integers(0, 3, len(user))
    fields = [categorical("color", color, range(4)), categorical("month", month, range(3))]
    labels = rng.random(len(user)) < (0.2 + 0.2 * color)
    return Table(user, fields, labels), {"month": month}


@pytest.mark.slow
def test_logistic_errors_are_those_of_methods_plans_and_data(tmp_path, capsys):
    small = simulated.ElementLogistic(
        elements=(2,),
        methods=(simulated.ELEMENT, simulated.USER),
        epsilons=(4.0,),
        first_steps=(3.0,),
        seeds=2,
        num_users=60,
        items_per_user=4,
        num_steps=20,
        batch_size=30,
    )
    table = reported(small, tmp_path, "element_logistic")
    assert len(table) == 2 * 2 * 2
    noisy = table[table["epsilon"] != simulated.INFINITE]
    assert (noisy["certified_epsilon"] <= 4.0).all()
    element = noisy["method"] == simulated.ELEMENT
    assert (noisy[element]["user_epsilon"] > noisy[element]["certified_epsilon"]).all()
    assert (noisy[~element]["user_epsilon"] == noisy[~element]["certified_epsilon"]).all()
    exact = table[table["epsilon"] == simulated.INFINITE]
    assert exact["error"].mean() < noisy["error"].mean()
    assert "falls in k" in capsys.readouterr().out


@pytest.mark.slow
def test_the_baselines_protect_what_they_say():
    study = simulated.ElementLogistic(num_users=60, items_per_user=4, num_steps=20, batch_size=6)
    made = {
        m: simulated.make_plan(study, 5, m, 1.0) for m in (*simulated.METHODS[:3], "users sampled")
    }
    stddev = {m: facts["stddev"] for m, (_, facts) in made.items()}
    assert stddev[simulated.USER] == pytest.approx(stddev[simulated.ELEMENT])
    assert stddev[simulated.PRINTED] == pytest.approx(10 * stddev[simulated.ELEMENT])
    assert stddev[simulated.SAMPLED] > 1.05 * stddev[simulated.ELEMENT]
    printed = made[simulated.PRINTED][0]
    assert (printed.protects, printed.elements_per_user) == ("user", 10)
    assert all(plan.certificate().epsilon <= 1.0 for plan, _ in made.values())


def test_rearranged_data_hold_the_same_points():
    data = simulated.data_sets(5, 1, 20, 10)
    units = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data.units)
    one = simulated.rearranged(units, simulated.USER)
    ten = simulated.rearranged(units, simulated.PRINTED)
    assert (elements.num_slots(one), elements.num_slots(ten)) == (1, 10)
    held = elements.elements_of_users(units)
    np.testing.assert_array_equal(elements.elements_of_users(ten), held)
    for other in (one, ten):
        assert int(other.mask.sum()) == int(units.mask.sum()) == 20 * 10
        np.testing.assert_allclose(
            (other.items.features * other.mask[..., None]).sum((1, 2, 3)),
            (units.items.features * units.mask[..., None]).sum((1, 2, 3)),
            rtol=1e-4,
            atol=1e-4,
        )


def test_the_verdicts_find_what_fails():
    rows = [
        (k, m, e, error)
        for k, e in ((2, 1.0), (5, 1.0))
        for m, error in ((simulated.ELEMENT, k), (simulated.USER, 3.0), (simulated.PRINTED, 9.0))
    ]
    best = pd.DataFrame(rows, columns=["elements", "method", "epsilon", "error"])
    said = dict(simulated.verdicts(best))
    assert said["element: error falls in k"] == "not at ε = 1, k = 2 to 5"
    assert said["user: largest over least error in k is at most 1.3"] == "everywhere"
    assert said["element below both users"] == "not below user at ε = 1, k = 5"


@pytest.mark.slow
def test_judges_are_the_two_objectives_over_all_rows(toy):
    task = tasks.make_task(*toy, GRAINS, "month")
    params = jnp.linspace(-1.0, 1.0, task.dim)
    found = tasks.measure(params, task.judges)
    # Nothing is dropped here but rows beyond the fourth of a user's month: group again without a bound.
    all_rows = {name: grain._replace(kept=8) for name, grain in GRAINS.items()}
    whole = tasks.make_task(*toy, all_rows, "month")
    values = [
        elements.mean_element_loss(losses.logistic(1.0, ridge=tasks.RIDGE * grain.typical))(
            params, whole.data[name]
        )
        for name, grain in GRAINS.items()
    ]
    held = task.facts["elements_month"]
    assert found["excess_user"] + task.judges.least[0] == pytest.approx(float(values[0]), rel=1e-5)
    element = float(found["excess_element"]) + task.judges.least[1]
    assert element == pytest.approx(float(values[1]) / held, rel=1e-5)
    assert 0 < task.facts["trivial_user"] < math.log(2)
    assert task.facts["element_optimum_excess"] >= -1e-6


@pytest.mark.slow
def test_tables_run_and_choose_by_the_user_objective(toy, tmp_path, monkeypatch, capsys):
    task = tasks.make_task(*toy, GRAINS, "month")
    monkeypatch.setattr(tables, "load_elements", lambda name: task)
    monkeypatch.setitem(tables.GRAINS, "flights", GRAINS)
    small = tables.ElementTables(
        tasks=("flights",),
        methods=(tables.USER, "month"),
        epsilons=(2.0,),
        steps=(0.05, 0.5),
        seeds=1,
        num_steps=5,
    )
    table = reported(small, tmp_path)
    assert len(table) == 4
    assert (table["certified_epsilon"] <= 2.0).all()
    month = table["method"] == "month"
    assert (table[month]["user_epsilon"] >= table[month]["typical_user_epsilon"]).all()
    assert (table[month]["typical_user_epsilon"] > 2.5).all()
    assert (table[~month]["user_epsilon"] == table[~month]["certified_epsilon"]).all()
    best = pd.read_csv(tmp_path / "best.csv")
    least = table.groupby("method")["excess_user"].min()
    assert all(
        best.set_index("method")["excess_user"][m] == pytest.approx(least[m]) for m in least.index
    )
    assert "month" in capsys.readouterr().out


def test_every_plan_of_the_tables_protects_its_record(toy):
    task, study = tasks.make_task(*toy, GRAINS, "month"), tables.ElementTables(num_steps=5)
    for method in (
        tables.USER,
        tables.MOMENTUM,
        tables.USER + tables.PLANNED,
        "month",
        "month, plan",
    ):
        plan = tables.make_plan(study, task, method, 1.0, 1.0)
        assert 0.99 < plan.certificate().epsilon <= 1.0
        if tables.is_tuned(method):
            kept = GRAINS[tables.grain_of(method)].kept
            assert plan.clip_norm == pytest.approx(1 / math.sqrt(kept))
        if method.startswith("month"):
            assert isinstance(plan, element_sgd.Plan)
            assert (plan.relation_name, plan.sampling, plan.protects) == (
                "replace",
                "full",
                "element",
            )


@pytest.mark.slow
def test_an_adaptive_radius_follows_the_units_drawn():
    """Clipped sums over q·n users, and a radius that moves by the share of units drawn that are inside."""
    rng = np.random.default_rng(3)
    rows, label = rng.standard_normal((20, 1, extras.DIM)), np.ones((20, 1))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    units = UserData(Example(jnp.float32(rows), jnp.float32(label)), jnp.ones((20, 1), bool))
    objective = losses.logistic(extras.BOUND)
    problem = Problem(objective, num_users=10, dim=extras.DIM, distance=1.0)
    plan = element_sgd.plan(
        problem, Budget(4.0, 1e-2), num_steps=2, elements_per_user=2, batch_size=5, accountant="rdp"
    )
    # Gradients at the origin have the norm 1/2: within 0.9 of a radius of 1, and beyond a radius of 0.1.
    for radius in (1.0, 0.1):
        quiet = plan.replace(noise_multiplier=1e-6, clip_norm=radius)
        mean = extras.AdaptiveUpdates(quiet.releases, radius, 8)
        opened = mean.open(jax.random.key(0), objective, units, jnp.zeros(extras.DIM))
        made = opened.oracle(jax.random.key(1), jnp.zeros(extras.DIM), opened.data)
        counted = made.extra_args["user_mask"]
        assert 0 < counted.sum() < 20
        state = opened.release.init(jnp.zeros(extras.DIM))
        update, state = opened.release.update(made.gradient, state, **made.extra_args)
        clipped = made.gradient * min(1.0, radius / 0.5)
        np.testing.assert_allclose(update, clipped.sum(0) / 5, atol=1e-4)
        share = counted.sum() / 10 if radius == 1.0 else 0.0
        expected = radius * math.exp(-extras.RATE * (share - extras.QUANTILE))
        assert optax.tree.get(state, "radius") == pytest.approx(expected, rel=1e-3)


def test_gains_are_over_the_same_data_sets():
    rows = [
        ("isotropic", 2, 1.0, m, 1.0, 1.0, seed, 1.0 + seed - less)
        for m, less in ((extras.SGD, 0.0), (extras.AC_SA, -0.5), (extras.SHAPE, 0.25))
        for seed in range(3)
    ]
    names = ["task", "elements", "epsilon", "method", "clip", "step", "seed", "excess"]
    table = pd.DataFrame(rows, columns=names)
    found = extras.gains(table, table[names[:6]].drop_duplicates()).set_index("method")
    assert found["gain"].to_dict() == {extras.AC_SA: -0.5, extras.SHAPE: 0.25}
    assert (found["standard_error"] == 0).all()
