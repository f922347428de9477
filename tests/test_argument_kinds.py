"""Annotations say what arguments may be: what is not is refused by name, and what is comes as it is used."""

import functools
from typing import Annotated

import numpy as np
import pytest

from dpsco_jax._argument_kinds import Count, Inside, Positive, checked, kinds_of, one_of


@checked
def made(
    count: Count,
    length: Positive | None = None,
    *,
    share: Inside = 0.5,
    form: Annotated[str, one_of("tight", "paper")] = "tight",
    other: int = -1,
) -> tuple:
    """What came in."""
    return count, length, share, form, other


def test_values_come_as_their_checks_return_them():
    found = made(np.int64(3), np.float32(0.5), share=0.25, form="paper", other=None)
    assert found == (3, 0.5, 0.25, "paper", None)
    assert [type(value) for value in found[:2]] == [int, float]
    assert made(1) == (1, None, 0.5, "tight", -1)


@pytest.mark.parametrize(
    ("given", "named", "said"),
    [
        ((0,), {}, "count must be an integer at least 1, got 0"),
        ((1, 0.0), {}, r"length must be in \(0, inf\), got 0.0"),
        ((), {"count": 1, "length": -1.0}, r"length must be in \(0, inf\), got -1.0"),
        ((1,), {"share": 1.0}, r"share must be in \(0, 1\), got 1.0"),
        ((1,), {"share": None}, r"share must be in \(0, 1\), got None"),
        ((1,), {"form": "loose"}, "form must be one of tight, paper, got 'loose'"),
    ],
)
def test_what_is_not_of_its_kind_is_refused_by_name(given, named, said):
    with pytest.raises(ValueError, match=f"^{said}$"):
        made(*given, **named)


def test_a_call_that_no_signature_allows_is_a_type_error():
    for given, named in (((), {}), ((1, 1.0, 0.5), {}), ((1,), {"count": 1}), ((1,), {"no": 1})):
        with pytest.raises(TypeError):
            made(*given, **named)


def test_kinds_are_found_behind_decorators():
    @functools.wraps(made)
    def outer(*given, **named):
        return made(*given, **named)

    found = kinds_of(outer)
    assert set(found) == {"count", "length", "share", "form"}
    assert [found[name][1] for name in ("count", "length")] == [False, True]
    assert made.__doc__ == "What came in."
