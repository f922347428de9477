"""The main job on a toy task: columns and labels of the form of the real ones."""

import jax
import jax.numpy as jnp
import pytest

from experiments.studies import user_level_tradeoff as tradeoff
from tests.experiments.finished import report
from tests.experiments.toy_task import finish, toy_task

SMALL = tradeoff.UserLevelTradeoff(tasks=("nlswork",), epsilons=(0.5, 20.0), seeds=3, num_steps=30)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """All solvers on the toy task in the place of nlswork."""
    return finish(SMALL, tmp_path_factory.mktemp("tradeoff"))


def test_every_cell_has_a_sound_result(table):
    assert len(table) == 24
    assert set(table["solver_status"]) == {0}
    assert table["test_auc"].between(0, 1).all()
    assert (table["excess_risk"] > 0).all()


def test_the_certificate_meets_the_budget_and_the_ledger_is_never_below_it(table):
    assert (table["certified_epsilon"] <= table["epsilon"] * (1 + 1e-12)).all()
    assert (table["certified_epsilon"] > table["epsilon"] * 0.999).all()
    assert (table["ledger_epsilon"] >= table["certified_epsilon"]).all()
    assert (table["ledger_epsilon"] < 1.3 * table["certified_epsilon"]).all()


def test_more_privacy_loss_buys_less_risk(table):
    means = table.groupby(["solver", "epsilon"])["excess_risk"].mean().unstack()
    able = means.loc[[tradeoff.TUNED, tradeoff.AC_SA]]  # 30 steps of the plan's size are not enough
    assert (able[20.0] < 0.1 * able[0.5]).all()
    assert (means[20.0] < table["trivial_excess"][0]).all()
    best = table[table["epsilon"] == 20.0].groupby("solver")["test_auc"].mean()
    assert (abs(best - table["optimum_auc"][0]) < 0.05).all()


def test_seeds_differ_and_solvers_do_not_share_noise(table):
    assert len(set(table["excess_risk"])) == len(table)


def test_report_writes_table_and_figures(table, tmp_path, capsys):
    report(SMALL, table, tmp_path, "user_level_tradeoff")
    printed = capsys.readouterr().out
    assert "ε, certificate" in printed
    assert "private AC-SA" in printed
    summary = (tmp_path / "summary.csv").read_text().splitlines()
    assert len(summary) == 1 + 4 * 2


def test_the_tuned_baseline_exists_only_where_it_was_tuned():
    cells = tradeoff.UserLevelTradeoff(tasks=("nlswork", "flights")).cells()
    solvers = {
        task: {c["solver"] for c in cells if c["task"] == task} for task in ("nlswork", "flights")
    }
    assert solvers["nlswork"] - solvers["flights"] == {tradeoff.TUNED}


def test_the_default_is_what_the_readme_shows():
    assert len(tradeoff.UserLevelTradeoff().cells()) == 800


def test_plans_depend_on_public_sizes_only():
    task = toy_task("nlswork")
    other = task._replace(train=jax.tree.map(jnp.zeros_like, task.train))
    for solver in (tradeoff.DP_SGD, tradeoff.TUNED, tradeoff.AC_SA):
        plans = [tradeoff._plan(t, solver, 1.0, 1e-5, 10) for t in (task, other)]
        assert plans[0] == plans[1]
