"""Query depth at small sizes; its fits on made-up rounds."""

import numpy as np
import pandas as pd
import pytest

from experiments.studies import depth_report, query_depth
from tests.experiments.finished import reported

BALLS, ACCELERATED = depth_report.BALLS, depth_report.ACCELERATED


def made_up(method, level, in_condition, in_dim):
    points = [(condition, 64) for condition in (8, 16, 32)] + [(16, dim) for dim in (32, 128)]
    return [
        {
            "instance": "chain",
            "method": method,
            "condition": condition,
            "dim": dim,
            "rounds": level * condition**in_condition * dim**in_dim,
            "proved_rounds": condition**2,
        }
        for condition, dim in points
    ]


def test_exponents_and_crossovers_of_power_laws():
    rows = made_up(BALLS, 4.0, 2 / 3, 1 / 3) + made_up(ACCELERATED, 1.0, 1.0, 1 / 3)
    summary = pd.DataFrame(rows)
    table = depth_report.exponents(summary, base_dim=64, base_condition=16)
    np.testing.assert_allclose(table["in_condition"], [2 / 3, 1])
    np.testing.assert_allclose(table["in_dim"], [1 / 3, 1 / 3])
    np.testing.assert_allclose(table["proved_condition"], [2, 2])
    crossing = depth_report.crossovers(table, summary, 64)
    assert len(crossing) == 1
    assert crossing.loc[0, "from"] == pytest.approx(64)  # 4κ^(2/3) = κ
    assert crossing.loc[0, ""] == "extrapolated"
    assert crossing.loc[0, "largest"] == 32
    assert crossing.loc[0, "ratio"] == pytest.approx(4 / 32 ** (1 / 3))


def test_points_without_rounds_are_left_out_and_slower_growth_never_meets():
    rows = made_up(BALLS, 1.0, 1.0, 0.0) + made_up(ACCELERATED, 1.0, 0.5, 0.0)
    for row in rows:
        row["rounds"] = 0 if row["condition"] == 8 else row["rounds"]
    summary = pd.DataFrame(rows)
    table = depth_report.exponents(summary, base_dim=64, base_condition=16)
    np.testing.assert_allclose(table["in_condition"], [1, 0.5])
    assert depth_report.crossovers(table, summary, 64).loc[0, "from"] == np.inf


@pytest.mark.slow
def test_a_small_run_shows_the_exponents_of_the_chain(tmp_path, capsys):
    small = query_depth.QueryDepth(
        instances=(depth_report.CHAIN,),
        methods=(BALLS, ACCELERATED, depth_report.SGD, depth_report.SAMPLED_BALLS),
        conditions=(8, 32),
        dims=(32,),
        seeds=2,
        base_dim=32,
        base_condition=8,
        sampled_condition=8,
    )
    table = reported(small, tmp_path, "query_depth")
    assert (table["reached"] == 1).all()
    assert (table["rounds"] <= table["proved_rounds"]).all()
    assert "theory in brackets" in capsys.readouterr().out
    found = pd.read_csv(tmp_path / "exponents.csv").set_index("method")["in_condition"]
    assert found[BALLS] < 0.85 < found[ACCELERATED] + 0.1 < 1.4 < found[depth_report.SGD]
