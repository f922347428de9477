"""The bias of the multilevel proximal estimator, at a small size."""

import pytest

from experiments.studies.proximal_bias import ProximalBias
from experiments.studies.table import EXPERIMENTS
from tests.experiments.finished import finished


@pytest.mark.slow
def test_the_bias_is_measured_beside_its_laws(tmp_path):
    # β so large that only the law's 1/√n is left, and the runs so many that the bias is seen.
    small = ProximalBias(users=(64, 1024), places=(0.5,), seeds=1, runs=200, queries=32, beta=20.0)
    table = finished(small, tmp_path)
    small.report(table, tmp_path)
    few, many = (table[table["users"] == n]["mean square"].mean() for n in (64, 1024))
    assert many < few / 4, "16 times as many queries: towards the exact minimizer"
    assert (tmp_path / "proximal_bias.svg").exists()
    assert EXPERIMENTS[small.name] is ProximalBias
