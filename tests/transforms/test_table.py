"""Properties that every transformation has: see the table."""

import copy
import functools
import pickle

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax import privacy
from tests.transforms.table import PARAMS, ROWS, updates_for

every_row = pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
STEPS = 3
PER_USER = [row for row in ROWS if row.per_user]
every_row_of_users = pytest.mark.parametrize("row", PER_USER, ids=[row.name for row in PER_USER])


def run(transformation, params, updates, steps):
    """Parameters, state and last updates after some steps of a loop."""

    def step(_, carry):
        params, state, _ = carry
        moves, state = transformation.update(updates, state, params)
        params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, moves)
        return params, state, moves

    state = transformation.init(params)
    moves = jax.eval_shape(transformation.update, updates, state, params)[0]
    moves = jax.tree.map(lambda m: jnp.zeros(m.shape, m.dtype), moves)
    return jax.lax.fori_loop(0, steps, step, (params, state, moves))


@functools.cache
def alone(row_name):
    """A run of a row with its first numbers, on a vector, for the tests that compare with it."""
    row = next(row for row in ROWS if row.name == row_name)
    params = PARAMS["vector"]()
    updates = updates_for(row, params)
    return jax.jit(lambda: run(row.make(**row.numbers[0]), params, updates, STEPS))()


def plain(tree):
    """Leaves as NumPy arrays, keys as their data."""

    def leaf_of(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.asarray(leaf)

    return [leaf_of(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same(first, second, rtol=1e-5, trust=()):
    """The same up to rounding: ledgers by what they say has been spent, not by their residues."""

    def comparable(run):
        params, state, moves = run
        nodes = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, privacy.Ledger))
        held = any(isinstance(node, privacy.Ledger) for node in nodes)
        spent = privacy.privacy_spent(state, trust=trust) if held else None
        return plain((params, moves, spent))

    for a, b in zip(comparable(first), comparable(second), strict=True):
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=rtol, atol=1e-6)


@every_row
@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("x64", [False, True])
def test_shapes_and_dtypes(row, kind, x64):
    """Updates fit the parameters, and the state keeps its types: what ``scan`` and ``cond`` need.

    No rank is promoted on the way.
    """
    with jax.enable_x64(x64), jax.numpy_rank_promotion("raise"):
        params = PARAMS[kind]()
        updates = updates_for(row, params)
        transformation = row.make(**row.numbers[0])
        state = jax.eval_shape(transformation.init, params)
        moves, new_state = jax.eval_shape(transformation.update, updates, state, params)
        assert jax.tree.structure(moves) == jax.tree.structure(params)
        assert jax.tree.structure(new_state) == jax.tree.structure(state)
        for move, param in zip(jax.tree.leaves(moves), jax.tree.leaves(params), strict=True):
            assert move.shape == param.shape
            wide = jnp.promote_types(param.dtype, jnp.float32)
            assert move.dtype == (param.dtype if row.keeps_dtype else wide)
        for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(new_state), strict=True):
            assert (before.shape, before.dtype) == (after.shape, after.dtype)
            assert not before.weak_type


@every_row
def test_numbers_may_be_traced_and_every_update_is_charged(row):
    """Two settings one after the other and both at once under ``vmap``, one trace each."""
    params = PARAMS["nested"]()
    updates = updates_for(row, params)
    traces = []

    @jax.jit
    def run_with(numbers, steps):
        traces.append(1)
        return run(row.make(**numbers), params, updates, steps)

    separate = [run_with(numbers, 3) for numbers in row.numbers]
    longer = run_with(row.numbers[0], 6)
    assert len(traces) == 1
    if row.private:
        spent = [privacy.privacy_spent(result[1]).rdp for result in (separate[0], longer)]
        assert np.all(spent[0] > 0)
        charges = 1 if row.charged_at_once else 2
        np.testing.assert_allclose(spent[1], charges * spent[0], rtol=1e-5)
    stacked = jax.tree.map(lambda *values: jnp.array(values), *row.numbers)
    together = jax.jit(jax.vmap(run_with, in_axes=(0, None)))(stacked, 3)
    for lane, alone in enumerate(separate):
        found = jax.tree.map(lambda leaf, i=lane: leaf[i], together)
        if row.private and row.name != "account":
            # The lanes have one key, so that their difference has no noise.
            assert np.all(np.isinf(privacy.privacy_spent(found[1]).rdp))
            alone, found = ((run[0], (), run[2]) for run in (alone, found))
        assert_same(alone, found)


@every_row
def test_state_survives_a_checkpoint_and_buffers_may_be_donated(row):
    params = PARAMS["nested"]()
    updates = updates_for(row, params)
    transformation = row.make(**row.numbers[0])
    state = transformation.init(params)
    leaves = jax.tree.leaves((params, state))
    leaves = [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in leaves
        if x.size
    ]
    pointers = [leaf.unsafe_buffer_pointer() for leaf in leaves]
    assert len(set(pointers)) == len(pointers)
    step = jax.jit(transformation.update, donate_argnums=1)
    state = step(updates, state, params)[1]
    stored = pickle.loads(pickle.dumps(plain(state)))
    restored = jax.tree.unflatten(
        jax.tree.structure(state),
        [
            jax.random.wrap_key_data(jnp.asarray(data))
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else jnp.asarray(data)
            for data, leaf in zip(stored, jax.tree.leaves(state), strict=True)
        ],
    )
    # What is donated is used up: the results are taken before, as NumPy arrays.
    expected = plain(step(updates, state, params))
    for a, b in zip(plain(step(updates, restored, params)), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    # Nothing that the factory holds has been donated away.
    step(updates, transformation.init(params), params)


@every_row
@pytest.mark.slow
def test_wrappers_change_nothing(row):
    """Concrete numbers, in one nest of optax's wrappers and without any."""
    params = PARAMS["vector"]()
    updates = updates_for(row, params)

    def nested():
        scheduled = optax.inject_hyperparams(row.make)(**row.numbers[0])
        labelled = optax.multi_transform({"all": scheduled, "none": optax.set_to_zero()}, "all")
        return optax.chain(optax.identity(), optax.masked(labelled, True))

    # Of what they may do to other leaves there is nothing here.
    trust = (optax.MaskedState, optax.PartitionState)
    found = jax.jit(lambda: run(nested(), params, updates, STEPS))()
    assert_same(alone(row.name), found, trust=trust)


@every_row
def test_numbers_out_of_range_are_refused(row):
    for name in row.numbers[0]:
        if name == "limit":
            continue
        with pytest.raises(ValueError, match=name):
            row.make(**{**row.numbers[0], name: -1.0})


@every_row
@pytest.mark.slow
def test_copies_do_what_the_original_does(row):
    """Also in another process: closures travel, with what they hold."""
    params = PARAMS["vector"]()
    updates = updates_for(row, params)
    # A copy of a copy of a copy: each way of copying has to keep what the one before has kept.
    other = copy.deepcopy(row.make(**row.numbers[0]))
    other = jax.tree.map(lambda leaf: leaf, cloudpickle.loads(cloudpickle.dumps(other)))
    # A copy has a copy of the key, so that it draws the same noise: here this is wanted.
    with jax.debug_key_reuse(False):
        expected = alone(row.name)
        assert_same(expected, jax.jit(lambda: run(other, params, updates, STEPS))())


@pytest.mark.parametrize("name", ["project", "average", "ac_sa", "restart_every"])
def test_what_moves_parameters_is_given_them(name):
    (row,) = (row for row in ROWS if row.name == name)
    transformation = row.make(**row.numbers[0])
    with pytest.raises(ValueError, match="params must be given"):
        transformation.update(jnp.zeros(2), transformation.init(jnp.zeros(2)))


@every_row_of_users
def test_complex_updates_are_refused(row):
    """Noise on the real part would let the imaginary part out as it is."""
    params = PARAMS["nested"]()
    updates = jax.tree.map(lambda u: u.astype(jnp.complex64), updates_for(row, params))
    transformation = row.make(**row.numbers[0])
    state = transformation.init(params)
    for update in (transformation.update, lambda *a: jax.eval_shape(transformation.update, *a)):
        with pytest.raises(ValueError, match="updates must be a tree of real"):
            update(updates, state, params)


@every_row_of_users
def test_users_who_are_masked_out_contribute_nothing(row):
    params = PARAMS["nested"]()
    updates = updates_for(row, params)
    transformation = row.make(**row.numbers[0])

    @jax.jit
    def update(updates, mask):
        state = row.make(**row.numbers[0]).init(params)
        return transformation.update(updates, state, params, user_mask=mask)[0]

    def moved(updates, mask):
        return plain(update(updates, mask))

    mask = jnp.arange(6) != 2
    spoiled = jax.tree.map(lambda u: u.at[2].set(jnp.nan), updates)
    large = jax.tree.map(lambda u: u.at[2].set(1e3), updates)
    for other in (spoiled, large):
        for a, b in zip(moved(updates, mask), moved(other, mask), strict=True):
            np.testing.assert_array_equal(a, b)
    everybody = moved(updates, jnp.ones(6, bool))
    same = [np.array_equal(a, b) for a, b in zip(everybody, moved(updates, mask), strict=True)]
    assert not all(same)
    for wrong in (jnp.ones(6), jnp.ones(5, bool), [True] * 6):
        with pytest.raises(ValueError, match="user_mask must be an array of booleans"):
            jax.eval_shape(lambda wrong=wrong: update(updates, wrong))
