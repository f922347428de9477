"""Drift of coupled runs, at a small size."""

import pytest
from rich.console import Console

from dpsco_jax.sweeps.engine import Options, run
from dpsco_jax.sweeps.progress import Progress
from dpsco_jax.sweeps.report import frame
from dpsco_jax.sweeps.store import Store
from experiments.studies.resque_drift import ResqueDrift
from experiments.studies.table import EXPERIMENTS


@pytest.mark.slow
def test_drift_is_within_its_bound(tmp_path):
    small = ResqueDrift(queries=(32,), ratios=(4.0, 8.0), trials=2000)
    with Store(tmp_path) as store:
        with Progress(Console(quiet=True), "test") as progress:
            run(small, store, Options(), progress)
        table = frame(small, store)
    assert set(table["status"]) == {"ok"}, table["traceback"].dropna().unique()
    small.report(table.drop(columns=["traceback"]), tmp_path)
    fixed, random = (table[table["place"] == place]["mean square"].mean() for place in (0.0, -1.0))
    assert random < 0.5 * fixed < 0.6
    assert (tmp_path / "resque_drift.svg").exists()
    assert EXPERIMENTS[small.name] is ResqueDrift
