"""The grid of the baseline on a toy task."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from dpsco_jax.problems.users import mean_loss
from dpsco_jax.solvers.user_level import sgd
from dpsco_jax.sweeps.cells import cells_of, key_words
from experiments.studies import tasks
from experiments.studies import user_level_tuning as tuning
from tests.experiments.toy_task import every_task_is_the_toy, finish, toy_task

SMALL = tuning.UserLevelTuning(
    tasks=("insteval",),
    schedules=("50 full", "200 of a quarter"),
    epsilons=(2.0,),
    clips=(0.5, 1.0),
    steps=(1e-4, 1.0),
    seeds=2,
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return finish(SMALL, tmp_path_factory.mktemp("tuning"))


@pytest.mark.slow
def test_one_run_gives_what_the_solver_gives_under_each_averaging(table):
    assert len(table) == 16
    cell = next(c for c in cells_of(SMALL) if c.settings["step"] == 1.0)
    row = table[table["id"] == cell.id].iloc[0]
    first, second = key_words([cell.id])[0]
    with every_task_is_the_toy():
        problem = tasks.load_problem("insteval")
        for name in tuning.AVERAGINGS:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), first), second)
            config = tuning.Config("50 full", cell.settings["clip"], 1.0, name)
            plan = tuning.dp_sgd_plan(problem.task, 2.0, 1e-5, config)
            objective, train = problem.task.objective, problem.task.train
            found = sgd.solve(key, plan, objective, train, jnp.zeros(problem.task.dim)).params
            excess = mean_loss(objective)(found, train) - problem.data.least
            np.testing.assert_allclose(row[f"excess_{name}"], excess, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_the_report_picks_the_least_mean_excess_risk(table, tmp_path, capsys):
    SMALL.report(table, tmp_path)
    best = pd.read_csv(tmp_path / "tuned.csv").iloc[0]
    assert best["step"] == 1.0  # the other one does not move
    means = {
        (name, *key): rows[f"excess_{name}"].mean()
        for name in tuning.AVERAGINGS
        for key, rows in table.groupby(["schedule", "clip", "step"])
    }
    assert (best["averaging"], best["schedule"], best["clip"], best["step"]) == min(
        means, key=means.get
    )
    assert "best of 24 by excess risk" in capsys.readouterr().out


def test_privacy_does_not_depend_on_what_is_tuned():
    with every_task_is_the_toy():
        for schedule in tuning.SCHEDULES:
            for clip, step in ((1.0, 1.0), (0.25, 3.0)):
                config = tuning.Config(schedule, clip, step, "last")
                plan = tuning.dp_sgd_plan(toy_task("insteval"), 1.0, 1e-5, config)
                assert 0.99 < plan.certificate().epsilon <= 1.0
                assert plan.batch_size == round(400 * tuning.SCHEDULES[schedule].rate)


def test_the_default_grid_has_a_hundred_configurations():
    default = tuning.UserLevelTuning()
    each = len(default.cells()) // (len(default.tasks) * len(default.epsilons) * default.seeds)
    assert each * len(tuning.AVERAGINGS) == 108
