"""Keys: of their own for every number, whoever folds what before and after; draws of their own in batches."""

import itertools

import jax
import numpy as np
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


@pytest.mark.parametrize("impl", ["threefry2x32", "philox4x32", "rbg", "unsafe_rbg"])
def test_what_a_key_draws_in_a_batch_is_known(impl):
    keys = [jax.random.key(number, impl=impl) for number in range(3, 6)]
    together = jax.numpy.stack(keys)
    ways = (
        lambda key: jax.random.bits(key, (5,)),
        lambda key: jax.random.key_data(jax.random.split(key, 3)),
        lambda key: jax.random.key_data(jax.random.fold_in(key, 7)),
    )
    with jax.debug_key_reuse(False):
        apart = all(
            np.array_equal(jax.vmap(draw)(together), [draw(key) for key in keys]) for draw in ways
        )
    assert _keys.draw_apart(together.dtype) is apart
    assert _keys.draw_apart(np.dtype(np.uint32))
