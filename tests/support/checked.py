"""Runtime checks of annotations, with the numeric tower of PEP 484: an ``int`` is a ``float``.

Tests that pass an argument of a wrong type, to see the library refuse it, end as skipped where the checker
refuses it first.
"""

import types

import jaxtyping
import pytest
from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))


def skip_refused_by_checker() -> None:
    """Makes ``pytest.raises`` skip a test in whose block the checker refuses an argument."""
    leave = pytest.RaisesExc.__exit__

    def leave_or_skip(
        block: pytest.RaisesExc[BaseException],
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> bool:
        if isinstance(error, jaxtyping.TypeCheckError):
            pytest.skip("the checker of annotations refuses what is passed on purpose")
        return leave(block, kind, error, trace)

    pytest.RaisesExc.__exit__ = leave_or_skip  # type: ignore[method-assign]
