"""Trials under keys that fold by exclusive or: none draws what another one, or another step, draws."""

import jax
import pytest

from tests.solvers.every_row import EVERY_ROW
from tests.support.recorder import Recorded

IMPL = "unsafe_rbg"


@pytest.mark.slow
@EVERY_ROW
def test_trials_that_a_caller_numbers_share_no_key(row):
    """Of trial 0 and trial 1, parts and steps 0 and 1 would be exchanged: that is what exclusive or does."""
    plan, data = row.plan(), row.data()

    def solve(words, data, start):
        return row.solve(jax.random.wrap_key_data(words, impl=IMPL), plan, data, start)

    words = [
        jax.random.key_data(jax.random.fold_in(jax.random.key(7, impl=IMPL), trial))
        for trial in (0, 1)
    ]
    compiled = Recorded(solve, words[0], data, row.start)
    runs = [compiled(given, data, row.start) for given in words]
    keys = [run.by_key().keys() | {*run.samples, *run.used} for run in runs]
    assert keys[0]
    assert not keys[0] & keys[1]
