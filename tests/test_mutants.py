"""Every planted fault is caught by the tests that it names."""

import inspect

import pytest

from tests import test_private_steps
from tests.support.mutants import MUTANTS, planted

CASES = [(mutant, test) for mutant in MUTANTS for test in mutant.caught_by]


@pytest.mark.parametrize(("mutant", "test"), CASES, ids=[f"{m.name}: {t}" for m, t in CASES])
def test_the_fault_is_caught(mutant, test):
    # An error of the fault itself would be no proof: only a failed comparison counts.
    with planted(mutant), pytest.raises(AssertionError):
        getattr(test_private_steps, test)()


def test_every_promise_has_a_fault():
    promises = {
        name
        for name, value in inspect.getmembers(test_private_steps, inspect.isfunction)
        if name.startswith("test_")
    }
    assert promises == {test for mutant in MUTANTS for test in mutant.caught_by}
