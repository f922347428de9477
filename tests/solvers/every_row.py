"""The rows of ``private_table`` as pytest takes them; the table is read on machines without pytest, too."""

import pytest

from tests.solvers.private_table import LATER, ROWS

EVERY_ROW = pytest.mark.parametrize(
    "row",
    [pytest.param(r, id=r.name, marks=[pytest.mark.slow] * (r.name in LATER)) for r in ROWS],
)
