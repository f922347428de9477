"""Keys of parts: of their own for every number, whoever folds what before and after."""

import itertools

import jax
import pytest

from dpsco_jax import _keys


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_numbers_of_trials_parts_and_steps_are_not_exchanged(impl):
    def word(key):
        return tuple(jax.random.key_data(key).tolist())

    run, fold = jax.random.key(3, impl=impl), jax.random.fold_in
    numbers = list(itertools.product(range(3), repeat=3))
    found = {
        word(fold(_keys.of_part(fold(run, trial), part), step)) for trial, part, step in numbers
    }
    inner = {
        word(_keys.of_part(_keys.of_part(fold(run, trial), part), step))
        for trial, part, step in numbers
    }
    assert len(found) == len(inner) == len(numbers)
    if impl != "unsafe_rbg":
        assert word(_keys.of_part(run, 2)) == word(fold(run, 2))
