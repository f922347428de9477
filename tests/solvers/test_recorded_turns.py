"""Turns whose releases are those of no row of the table: recorded and checked as its rows are."""

import pytest

from dpsco_jax.solvers.user_level import accelerated_phased_erm, localized_sgd
from tests.solvers import test_recorded_releases as recorded
from tests.solvers.private_table import RIDGED, TESTED, TWO_PHASES, _row

INTERVALS = {
    "most_steps": 1,
    "radius": 0.01,
    "epsilon": 20.0,
    "above": 1.3,
    "groups": 2,
    "seams": (80,),
}
NEAR = {"groups": 2, "spread": 0.1} | TESTED | {"radius": 0.5}
ROWS = (
    _row("phased_erm, winsorized", TWO_PHASES, 120, form="winsorized", **INTERVALS),
    _row("phased_erm, refined", TWO_PHASES, 120, form="refined", **INTERVALS),
    _row("localized_sgd, tested", localized_sgd, 180, num_blocks=2, num_steps=2, objective=RIDGED,
        seams=(60,), **NEAR),
    # Of many steps a tested mean is charged far more than a Gaussian one.
    _row("accelerated_phased_erm, tested batches", accelerated_phased_erm, 180, num_phases=2,
        batch_size=[70, 45], seams=(120,), **NEAR | {"above": 6.0}),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_turns_release_is_bounded_disjoint_and_paid_for(row, monkeypatch):
    monkeypatch.setattr(recorded, "ROWS", (*recorded.ROWS, row))
    recorded.test_what_is_released_is_bounded_disjoint_and_paid_for(row)
