"""The feasible region of private ball acceleration, at one cell."""

import pytest
from rich.console import Console

from dpsco_jax.sweeps.engine import Options, run
from dpsco_jax.sweeps.progress import Progress
from dpsco_jax.sweeps.report import frame
from dpsco_jax.sweeps.store import Store
from experiments.studies.feasible_region import FeasibleRegion
from experiments.studies.table import EXPERIMENTS


@pytest.mark.slow
def test_more_users_less_error(tmp_path):
    small = FeasibleRegion(users=(2000, 8000), dims=(2,), conditions=(3.0,))
    with Store(tmp_path) as store:
        with Progress(Console(quiet=True), "test") as progress:
            run(small, store, Options(), progress)
        table = frame(small, store)
    assert set(table["status"]) == {"ok"}, table["traceback"].dropna().unique()
    small.report(table.drop(columns=["traceback"]), tmp_path)
    few, many = (table[table["users"] == n].iloc[0] for n in small.users)
    assert many["error"] < 0.5 * few["error"]
    assert (table["error"] < table["error_triple"]).all()
    assert (tmp_path / "feasible_region.svg").exists()
    assert EXPERIMENTS[small.name] is FeasibleRegion
