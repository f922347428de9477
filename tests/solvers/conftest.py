"""Rows of the table that ask for float64 get it, in whatever test they are run."""

from collections.abc import Iterator

import jax
import pytest

from tests.solvers.private_table import ROWS

_WIDE = {row.name for row in ROWS if row.float64}
_WIDE_SOLVERS = {row.solver.__name__.split(".")[-1] for row in ROWS if row.float64}


@pytest.fixture(autouse=True)
def _float64_where_it_is_asked_for(request: pytest.FixtureRequest) -> Iterator[None]:
    given = getattr(getattr(request.node, "callspec", None), "params", {})
    row, name = given.get("row"), given.get("name")
    wide = getattr(row, "name", None) in _WIDE or (
        isinstance(name, str) and name in _WIDE | _WIDE_SOLVERS
    )
    with jax.enable_x64(True) if wide else jax.enable_x64(jax.config.read("jax_enable_x64")):
        yield
