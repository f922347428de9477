"""All solvers on a toy task, the tuned one with a made-up configuration."""

import pandas as pd
import pytest

from experiments.studies import user_level_solvers as solvers
from experiments.studies.tasks import load_problem
from experiments.studies.user_level_tuning import SCHEDULES, Config
from tests.experiments.finished import report
from tests.experiments.toy_task import every_task_is_the_toy, finish, toy_task

SMALL = solvers.UserLevelSolvers(
    tasks=("insteval",),
    solvers=(solvers.TUNED, solvers.AC_SA, solvers.PRECONDITIONED, "accelerated phased ERM"),
    epsilons=(0.05, 10.0),
    seeds=2,
    num_steps=20,
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    config = Config("50 full", 1.0, 3.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solvers, "tuned_configs", lambda: {("insteval", 10.0): config})
        folder = tmp_path_factory.mktemp("solvers")
        return finish(SMALL, folder, statuses={"ok", "nonfinite"})


@pytest.mark.slow
def test_every_solver_runs_or_says_how_many_users_it_needs(table):
    refused = table["needed_users"] > 0
    assert set(table[refused]["solver"]) == {"accelerated phased ERM"}
    assert (table[refused]["needed_users"] > 400).all()
    ran = table[~refused]
    assert set(ran["solver"]) == set(SMALL.solvers[:3])
    assert (ran["certified_epsilon"] <= ran["epsilon"] * (1 + 1e-9)).all()
    assert (ran["excess_risk"] > 0).all()
    good = ran[(ran["epsilon"] == 10.0) & ran["solver"].isin(SMALL.solvers[:3])]
    assert (good["excess_risk"] < 0.5 * good["trivial_excess"]).all()


@pytest.mark.slow
def test_the_tuned_solver_runs_only_where_it_was_tuned(table):
    assert set(table[table["solver"] == solvers.TUNED]["epsilon"]) == {10.0}


@pytest.mark.slow
def test_report_says_who_wins(table, tmp_path, capsys):
    report(SMALL, table, tmp_path, "user_level_solvers")
    printed = capsys.readouterr().out
    assert "excess risk over that of the tuned DP-SGD" in printed
    assert "refused: too few users" in printed


def test_ratios_are_those_of_the_means():
    rows = pd.DataFrame(
        [("a", 1.0, v) for v in (2.0, 4.0)] + [(solvers.TUNED, 1.0, v) for v in (1.0, 1.0)],
        columns=["solver", "epsilon", "excess_risk"],
    )
    found = solvers.winners(rows).iloc[0]
    assert found["best"] == solvers.TUNED
    assert found["a"].startswith("3 [")


def test_plans_depend_on_public_sizes_only():
    with every_task_is_the_toy():
        problem = load_problem("insteval")
        users = problem.task.train
        empty = users._replace(mask=users.mask & False)
        other = problem._replace(task=toy_task("insteval")._replace(train=empty))
        for solver in (solvers.PLANNED, solvers.AC_SA, solvers.PRECONDITIONED, "winsorized ERM"):
            plans = [solvers.make_plan(p, solver, 1.0, 1e-5, 10) for p in (problem, other)]
            assert str(plans[0]) == str(plans[1])


def test_tuned_configurations_that_are_shipped_are_of_the_grid():
    for (task, epsilon), config in solvers.tuned_configs().items():
        assert task in solvers.TASKS
        assert epsilon in solvers.EPSILONS
        assert config.schedule in SCHEDULES


def test_the_default_compares_all_solvers():
    cells = pd.DataFrame(solvers.UserLevelSolvers().cells())
    assert set(cells["solver"]) >= set(solvers.SOLVERS) - {solvers.TUNED}
