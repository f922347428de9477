"""What a failed cell says is the exception's own message, whole."""

import dataclasses

import pytest

from dpsco_jax.sweeps import _failures, axis, cells, product
from dpsco_jax.sweeps._work import _traceback

SAID = "noise must be positive, got -1\nwhich is what a plan with\n    no noise would have"


def raised(error, cause=None):
    try:
        if cause is None:
            raise error
        try:
            raise cause
        except type(cause) as first:
            raise error from first
    except Exception as found:
        return _traceback(found)


def test_all_lines_of_a_message_are_shown():
    assert _failures.message(raised(ValueError(SAID))) == f"ValueError: {SAID}"


def test_of_two_exceptions_the_last_is_meant():
    assert (
        _failures.message(raised(RuntimeError("late"), KeyError("early"))) == "RuntimeError: late"
    )


def test_a_text_that_is_no_traceback_is_its_own_message():
    assert _failures.message("WorkerLostError: 3 workers were lost") == (
        "WorkerLostError: 3 workers were lost"
    )


def test_long_messages_are_cut():
    found = _failures.message(raised(ValueError("\n".join(map(str, range(100)))))).splitlines()
    assert (len(found), found[0], found[-1]) == (20, "ValueError: 0", "...")


def test_equal_messages_are_counted_and_the_most_frequent_is_first():
    texts = [raised(ValueError("a")), raised(ValueError("b")), raised(ValueError("b"))]
    assert _failures.counted(texts) == ["2 cells: ValueError: b", "1 cell: ValueError: a"]


@pytest.mark.parametrize("seeds", [1.5, "3", None, -1, 0])
def test_an_axis_that_is_no_list_of_values_is_refused_by_its_name(seeds):
    @dataclasses.dataclass(frozen=True)
    class Own:
        seeds: int = axis("seed", 2)

    for read in (product, cells.axes):
        with pytest.raises(ValueError, match=r"seeds must be .* got"):
            read(Own(seeds))
