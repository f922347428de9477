"""The studies on tables: the search, its winner run again, and the comparison."""

import jax
import numpy as np
import pandas as pd
import pytest

from experiments.studies import table_dp_sgd, table_methods, table_search, table_tuning
from experiments.studies.table_search import Config
from experiments.studies.table_solvers import TableSolvers, ratios
from experiments.studies.table_tasks import DESIGN, NAMES, load_table
from experiments.studies.table_tuning import TableTuning
from tests.experiments.finished import reported

EGSINGLE = {("egsingle", 1.0): (Config(5, 1.0, 2.0, 1.0, 1.0, "tail"), 0.01)}


@pytest.fixture
def small_grid(monkeypatch):
    monkeypatch.setattr(table_search, "STEPS", (2, 4))
    monkeypatch.setattr(table_search, "_CLIPS", (0.5, 1.0, 2.0))
    monkeypatch.setattr(table_search, "_SIZES", (1.0, 2.0))
    monkeypatch.setattr(table_search, "_LONGEST", 4)
    monkeypatch.setattr(table_search, "_KEPT", (6, 3))
    monkeypatch.setattr(table_search, "_SEEDS", (2, 2))
    monkeypatch.setattr(table_search, "_BATCHES", (32,))


@pytest.mark.slow
def test_an_evaluation_is_the_runs_one_by_one():
    ready = table_search.bench("egsingle")
    configs = [Config(3, 1.0, 1.0, 0.0, 0.0), Config(2, 0.5, 2.0, 1.0, 1.0)]
    found = table_search.evaluate(ready, configs, 1.0, 1e-5, [4, 5])
    for i, config in enumerate(configs):
        for s, seed in enumerate((4, 5)):
            numbers = table_search.settings(ready, config, 1.0, 1e-5)
            params = table_dp_sgd.run(
                ready.flat, jax.random.key(seed), numbers, ready.objective, config.num_steps
            )
            expected = [table_dp_sgd.excess(ready.flat, w, ready.objective) for w in params]
            np.testing.assert_allclose(found[i, s], expected, rtol=1e-3, atol=1e-6)


def test_a_search_grows_its_axes_and_finds_a_good_setting(small_grid):
    found = table_search.search("egsingle", 8.0, 1e-5)
    assert found.tried > 2 * 3 * 2 * 2 * 4  # the first grid and more
    ready = table_search.bench("egsingle")
    config = found.config._replace(average="last")
    worse = config._replace(step=config.step / 64)
    excess = table_search.evaluate(ready, [config, worse], 8.0, 1e-5, [100, 101])
    means = excess.mean(axis=1)[:, table_dp_sgd.AVERAGES.index(found.config.average)]
    assert means[0] < 0.5 * means[1]


def test_the_winner_runs_again_and_the_report_writes_it(small_grid, tmp_path, capsys):
    study = TableTuning(tables=("egsingle",), epsilons=(8.0,), seeds=3)
    table = reported(study, tmp_path)
    assert len(table) == 3
    assert table["excess_risk"].nunique() == 3
    row = pd.read_csv(tmp_path / "tuned.csv").iloc[0]
    assert row["excess"] == pytest.approx(table["excess_risk"].mean())
    assert row["se"] == pytest.approx(table["excess_risk"].std() / 3**0.5)
    assert row["average"] in table_dp_sgd.AVERAGES
    assert "the best of" in capsys.readouterr().out


@pytest.mark.parametrize(
    "methods",
    [
        (table_methods.TUNED, table_methods.ADA_SSP, table_methods.AMP),
        pytest.param(
            tuple(m for m in table_methods.METHODS if m != table_methods.PRECONDITIONED),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["three", "all"],
)
def test_every_method_that_applies_runs_and_is_compared(methods, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(table_tuning, "tuned", lambda: EGSINGLE)
    monkeypatch.setattr("experiments.studies.table_solvers.tuned", lambda: EGSINGLE)
    monkeypatch.setattr(table_methods, "_NEWTON_STEPS", (2, 3))
    monkeypatch.setattr(table_methods, "_STEPS", 3)
    table_methods.prepare.cache_clear()
    study = TableSolvers(tables=("egsingle",), methods=methods, epsilons=(1.0, 2.0), seeds=2)
    table = reported(study, tmp_path, "table_solvers")
    table_methods.prepare.cache_clear()
    # ε = 2 was not tuned, and users have more than one row.
    assert set(table["epsilon"]) == {1.0}
    assert set(table["method"]) == set(methods) - {table_methods.AMP}
    assert (table["certified_epsilon"] <= 1.0).all()
    said = " ".join(capsys.readouterr().out.split())  # titles of narrow tables are wrapped
    assert "over that of the tuned DP-SGD" in said


def test_ratios_are_those_of_means():
    rows = [("egsingle", 1.0, table_methods.TUNED, x) for x in (1.0, 3.0)]
    rows += [("egsingle", 1.0, table_methods.ADA_SSP, x) for x in (3.9, 4.1)]
    found = ratios(pd.DataFrame(rows, columns=["table", "epsilon", "method", "excess_risk"]))
    assert found["ratio"].tolist() == pytest.approx([2.0])
    assert found["low"].iloc[0] < 2.0 < found["high"].iloc[0]
    alone = pd.DataFrame(rows[2:], columns=["table", "epsilon", "method", "excess_risk"])
    assert list(ratios(alone).groupby("table")) == []


@pytest.mark.slow
def test_methods_apply_where_their_proofs_do():
    found = {
        method: [name for name in NAMES if table_methods.applies(method, load_table(name))]
        for method in table_methods.METHODS
    }
    assert found[table_methods.ADA_SSP] == ["egsingle", "star", "ames"]
    assert found[table_methods.AMP] == ["wa_churn", "credit_data"]
    assert found[table_methods.TUNED] == list(NAMES)


def test_both_studies_keep_to_the_design_tables():
    assert set(TableTuning().tables) == set(TableSolvers().tables)
    assert set(TableSolvers().tables) == set(DESIGN)
