"""The feasible region of private ball acceleration, at one cell."""

import pytest

from experiments.studies.feasible_region import FeasibleRegion
from experiments.studies.table import EXPERIMENTS
from tests.experiments.finished import finished


@pytest.mark.slow
def test_more_users_less_error(tmp_path):
    small = FeasibleRegion(users=(2000, 8000), dims=(2,), conditions=(3.0,))
    table = finished(small, tmp_path)
    small.report(table, tmp_path)
    few, many = (table[table["users"] == n].iloc[0] for n in small.users)
    assert many["error"] < 0.5 * few["error"]
    assert (table["error"] < table["error_triple"]).all()
    assert (tmp_path / "feasible_region.svg").exists()
    assert EXPERIMENTS[small.name] is FeasibleRegion
