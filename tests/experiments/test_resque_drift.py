"""Drift of coupled runs, at a small size."""

import pytest

from experiments.studies.resque_drift import ResqueDrift
from experiments.studies.table import EXPERIMENTS
from tests.experiments.finished import finished


@pytest.mark.slow
def test_drift_is_within_its_bound(tmp_path):
    small = ResqueDrift(queries=(32,), ratios=(4.0, 8.0), trials=2000)
    table = finished(small, tmp_path)
    small.report(table, tmp_path)
    fixed, random = (table[table["place"] == place]["mean square"].mean() for place in (0.0, -1.0))
    assert random < 0.5 * fixed < 0.6
    assert (tmp_path / "resque_drift.svg").exists()
    assert EXPERIMENTS[small.name] is ResqueDrift
