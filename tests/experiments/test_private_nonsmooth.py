"""Private solvers on a loss that is not smooth, at a small size."""

import pytest

from experiments.studies.private_nonsmooth import BALL, DP_SGD, PrivateNonsmooth
from experiments.studies.table import EXPERIMENTS
from tests.experiments.finished import finished


@pytest.mark.slow
def test_both_kinds_of_solver_gain_on_the_start(tmp_path):
    small = PrivateNonsmooth(
        solvers=(BALL, DP_SGD),
        conditions=(4.0,),
        shares=(0.2,),
        passes=(4.0,),
        factors=(4.0,),
        seeds=1,
        num_users=2000,
        dim=3,
        steps=50,
        epsilon=8.0,
    )
    table = finished(small, tmp_path)
    small.report(table, tmp_path)
    assert (table["excess_risk"] < 0.7 * table["trivial"]).all()
    assert (tmp_path / "private_nonsmooth.svg").exists()
    assert EXPERIMENTS[small.name] is PrivateNonsmooth
