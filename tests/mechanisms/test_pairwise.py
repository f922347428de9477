"""Blocked pairwise counts: right up to the margin, a matter of the pair alone, small in memory."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.mechanisms.concentrated import _blocks, _pairwise, concentrated_mean
from tests.devices.table import environment

REACH = 16.0


def count(vectors, radius=1.0, anchor=None, counted=None, block_size=64, reach=REACH):
    vectors = jax.tree.map(jnp.asarray, vectors)
    users = jax.tree.leaves(vectors)[0].shape[0]
    if anchor is None:
        anchor = jax.tree.map(lambda x: jnp.zeros(x.shape[1:]), vectors)
    counted = jnp.ones(users, bool) if counted is None else counted
    return _degrees(vectors, radius, anchor, counted, reach, block_size)


_degrees = jax.jit(_pairwise.degrees, static_argnums=(4, 5))


def distances(vectors):
    """In float64, between the vectors as they are stored."""
    rows = np.float64(vectors)
    return np.linalg.norm(rows[:, None] - rows[None, :], axis=-1)


@pytest.mark.parametrize(
    ("users", "dim", "block"), [(1, 3, 64), (7, 1, 4), (64, 5, 64), (150, 40, 64), (97, 600, 32)]
)
def test_blocks_agree_with_brute_force(rng, users, dim, block):
    """A shift of 14 radii costs precision; the counts stay between those at both ends of the margin."""
    shift = rng.standard_normal(dim)
    shift *= 14.0 / np.linalg.norm(shift)
    spread = rng.choice([0.3, 0.7, 1.2], (users, 1)) * rng.standard_normal((users, dim))
    vectors = (shift + spread / np.sqrt(dim)).astype(np.float32)
    found = count(vectors, block_size=block)
    exact, margin = distances(vectors), 1 + _pairwise.headroom(vectors[0], REACH)
    for radius, degrees in ((1.0, found.near), (2.0, found.near_twice)):
        assert np.all(np.sum(exact <= radius, axis=1) <= degrees)
        assert np.all(degrees <= np.sum(exact <= radius * margin, axis=1))
    assert degrees.dtype == jnp.int32


def test_integers_are_counted_exactly_whatever_the_blocks(rng):
    vectors = rng.integers(-4, 5, (230, 6)).astype(np.float32)
    exact = distances(vectors)
    for block in (16, 100, 2048):
        found = count(vectors, radius=3.0, block_size=block)
        np.testing.assert_array_equal(found.near, np.sum(exact <= 3.0, axis=1))
        np.testing.assert_array_equal(found.near_twice, np.sum(exact <= 6.0, axis=1))


def test_verdicts_near_the_radius_keep_their_promise(rng):
    """Pairs at the edge of the reach, distances within a few margins of ρ and of 2ρ."""
    pairs, dim = 3000, 300
    margin = _pairwise.headroom(np.zeros(dim, np.float32), REACH)
    first = rng.standard_normal((pairs, dim))
    first *= 13.9 / np.linalg.norm(first, axis=1, keepdims=True)
    step = rng.standard_normal((pairs, dim))
    step /= np.linalg.norm(step, axis=1, keepdims=True)
    length = rng.choice([1.0, 2.0], pairs) * (1 + rng.uniform(-2, 2, pairs) * margin)
    both = np.stack([first, first + length[:, None] * step], axis=1).astype(np.float32)
    exact = np.linalg.norm(np.float64(both[:, 0]) - np.float64(both[:, 1]), axis=1)
    found = jax.jit(jax.vmap(count))(both)
    for radius, degrees in ((1.0, found.near), (2.0, found.near_twice)):
        near = np.asarray(degrees[:, 0]) == 2
        np.testing.assert_array_equal(degrees[:, 0], degrees[:, 1])
        assert np.all(near[exact <= radius])
        assert not np.any(near[exact > radius * (1 + margin)])
        assert 100 < np.sum(near) < pairs - 100


def test_two_that_are_near_a_third_are_near_each_other_at_twice_the_radius(rng):
    """Collinear triples whose outer distance is as large as the margin allows."""
    triples, dim = 2000, 200
    centre = rng.standard_normal((triples, dim))
    centre *= 13.5 / np.linalg.norm(centre, axis=1, keepdims=True)
    step = rng.standard_normal((triples, dim))
    step /= np.linalg.norm(step, axis=1, keepdims=True)
    margin = _pairwise.headroom(np.zeros(dim, np.float32), REACH)
    length = 1 + rng.uniform(0, 1, (triples, 1)) * margin
    vectors = np.stack([centre - length * step, centre, centre + length * step], axis=1)
    found = jax.jit(jax.vmap(count))(vectors.astype(np.float32))
    premise = np.asarray(found.near[:, 1]) == 3
    assert np.sum(premise) > 200
    np.testing.assert_array_equal(found.near_twice[premise], 3)


def test_verdicts_on_others_do_not_depend_on_a_user(rng):
    """Removing user 0 takes from each degree what the pair with user 0 had given, bit for bit."""
    vectors = (rng.standard_normal((90, 8)) / 2.3).astype(np.float32) + 5.0
    others = jnp.arange(90) > 0
    without = count(vectors, counted=others)
    alone_with = jax.jit(jax.vmap(lambda first, row: count(jnp.stack([first, row])), (None, 0)))
    for changed in (vectors[1, 3], 6.0, 1e3, 1e6, 1e30, 3e38, np.inf, np.nan):
        moved = vectors.copy()
        moved[0, 3] = changed
        found = count(moved)
        alone = alone_with(moved[0], moved[1:])
        for total, rest, pair in zip(found, without, alone, strict=True):
            np.testing.assert_array_equal(total[1:] - rest[1:], pair[:, 0] == 2)
            assert total[0] == np.sum(pair[:, 0] == 2) + (pair[0, 0] >= 1)
            assert rest[0] == 0


def test_users_who_are_not_there_are_near_nobody(rng):
    vectors = rng.standard_normal((40, 3)).astype(np.float32)
    spoiled = vectors.copy()
    spoiled[3] = np.nan
    spoiled[7, 1] = -np.inf
    spoiled[9] = 2e38
    spoiled[11, 0] = 40.0
    there = ~np.isin(np.arange(40), (3, 7, 9, 11))
    found, expected = count(spoiled), count(vectors, counted=there)
    np.testing.assert_array_equal(found.near, expected.near)
    np.testing.assert_array_equal(found.near_twice, expected.near_twice)
    assert np.all(found.near[~there] == 0)
    assert np.all(found.near[there] >= 1)


@pytest.mark.parametrize("radius", [0.0, -1.0, np.nan, 1e-45])
def test_a_senseless_radius_finds_nobody_or_everybody(rng, radius):
    vectors = rng.standard_normal((5, 3)).astype(np.float32)
    found = jax.jit(count)(vectors, radius)
    if radius == -1.0:
        np.testing.assert_array_equal(found.near, count(vectors, 1.0).near)
    else:
        np.testing.assert_array_equal(found.near, 0)


def test_the_norm_is_over_all_leaves_and_the_anchor_is_subtracted(rng):
    flat = rng.standard_normal((30, 14)).astype(np.float32)
    anchor = (1000.0 * rng.standard_normal(14)).astype(np.float32)
    moved = (flat + anchor).astype(np.float32)

    def split(x):
        return {"a": x[..., :8].reshape(*x.shape[:-1], 2, 4), "b": (x[..., 8], x[..., 9:])}

    whole = count(moved, 4.5, anchor)
    parts = count(split(moved), 4.5, split(anchor))
    np.testing.assert_array_equal(parts.near, whole.near)
    np.testing.assert_array_equal(parts.near_twice, whole.near_twice)
    assert len(np.unique(whole.near)) > 5
    # So far from the origin the vectors are out of reach of it.
    np.testing.assert_array_equal(count(moved, 4.5).near, 0)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float64])
def test_other_precisions(rng, dtype):
    with jax.enable_x64(dtype == jnp.float64):
        vectors = jnp.asarray(rng.integers(-3, 4, (50, 4)), dtype)
        found = count(vectors, 3.0)
        np.testing.assert_array_equal(found.near, np.sum(distances(vectors) <= 3.0, axis=1))


def test_margins_follow_the_precision():
    with jax.enable_x64(True):
        assert _pairwise.headroom(jax.ShapeDtypeStruct((50,), np.float64), REACH) < 1e-10
    narrow = jax.ShapeDtypeStruct((50,), np.float16)
    assert 1e-4 < _pairwise.headroom(narrow, REACH) < 5e-3


def test_margins_grow_slowly_with_the_dimension():
    def margin(dim):
        return _pairwise.headroom(jax.ShapeDtypeStruct((dim,), np.float32), REACH)

    assert margin(10) < margin(100) < margin(1024) < 0.012
    assert margin(10**6) < 0.5


def test_memory_does_not_grow_with_the_square_of_the_users():
    def temporaries(users, dim):
        rows = jax.ShapeDtypeStruct((users, dim), jnp.float32)
        compiled = jax.jit(lambda v: count(v, block_size=512)).lower(rows).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(8192, 1024) < 20e6
    # Two counters and a norm a user, and blocks.
    assert temporaries(131_072, 100) < 20e6


_SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from tests.devices.table import spread

USERS, DIM = 48, 7
rng = np.random.default_rng(0)
vectors = {"a": rng.normal(size=(USERS, DIM)).astype(np.float32)}
vectors["a"][5] = np.nan
there = rng.random(USERS) < 0.9
# Exactly the distance of two users, on devices half a round apart.
radius = np.linalg.norm(vectors["a"][0] - vectors["a"][30])

@jax.jit
def run(vectors, there):
    found = concentrated_mean.concentration(vectors, radius, user_mask=there, block_size=5)
    weights = concentrated_mean.inlier_weights(found.degrees, USERS, 0.7)
    of_some = concentrated_mean.mean_deviation(vectors, weights, num_users=jnp.int32(29))
    means = concentrated_mean.weighted_mean(vectors, weights), of_some
    return found, weights, means

expected = run(vectors, there)
assert 0.0 < float(expected[1].min()) + float(expected[1].max()) < 2.0
good = np.arange(29)[np.arange(29) != 5]
of_some = np.average(vectors["a"][good].astype(float), 0, np.asarray(expected[1])[good])
np.testing.assert_allclose(expected[2][1]["a"], of_some, rtol=1e-5, atol=1e-6)
# Half-way meetings are shared out on an even number of devices, and there are none on an odd one.
for kind, devices in (("Explicit", 4), ("Auto", 4), ("Explicit", 3)):
    placed = spread((vectors, there), kind, devices)
    compiled = run.lower(*placed).compile()
    found, weights, mean = compiled(*placed)
    for a, b in zip((*found, weights), (*expected[0], expected[1]), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    # Sums of parts are rounded differently.
    for a, b in zip(mean, expected[2], strict=True):
        np.testing.assert_allclose(np.asarray(a["a"]), b["a"], rtol=1e-6, atol=1e-7)
    # A visitor's rows come by; nothing is gathered but sums in two parts.
    program = compiled.as_text()
    assert f"f32[{USERS // devices},{DIM}]" in program and "collective-permute" in program
    assert f"f32[{USERS},{DIM}]" not in program
    assert "s32[2,%d]" % USERS not in program

# Users on two axes, in another order than the mesh has them.
mesh = jax.make_mesh((2, 2), ("a", "b"), devices=jax.devices()[:4])
where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(("b", "a")))
for a, b in zip(run(*jax.device_put((vectors, there), where))[0], expected[0], strict=True):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

def temporaries(devices):
    rows = spread(np.zeros((1024, 1024), np.float32), "Explicit", devices)
    count = jax.jit(lambda x: concentrated_mean.concentration(x, 1.0, block_size=64))
    return count.lower(rows).compile().memory_analysis().temp_size_in_bytes

four, eight = temporaries(4), temporaries(8)
# Two visitors, one who leaves and one who comes, and blocks.
assert eight < 0.6 * four and four < 0.6 * 1024 * 1024 * 4, (four, eight)
print("same")
"""


@pytest.mark.slow
def test_users_on_several_devices_give_the_integers_of_one_and_keep_their_vectors():
    done = subprocess.run(
        [sys.executable, "-c", _SHARDED],
        env=environment(8),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("same\n"), done.stdout + done.stderr


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 4, 7, 8])
def test_every_pair_of_blocks_is_met_once(num_blocks):
    blocks = _blocks.Blocks([], jnp.ones(()), num_blocks * 3, 3, num_blocks * 3)
    met = []
    at = (jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
    while blocks.has(at):
        met.append(tuple(map(int, blocks.pair(at))))
        at = blocks.later(at)
    assert sorted(met) == [(i, j) for i in range(num_blocks) for j in range(i, num_blocks)]


def test_two_who_share_a_meeting_make_the_whole_of_it(rng):
    rows = rng.integers(-2, 3, (2, 17, 3)).astype(np.float32)
    between = np.linalg.norm(rows[0][:, None] - rows[1][None], axis=-1)
    wanted = [np.stack([np.sum(between <= r, axis) for r in (2, 4)]) for axis in (1, 0)]

    @jax.jit
    def meet(own, guest, part):
        both = tuple(
            _blocks.Blocks([_blocks.Leaf(x, jnp.zeros(3))], jnp.float32(0.5), 17, 4, 17)
            for x in (own, guest)
        )
        norms = tuple(blocks.squared_norms() for blocks in both)
        none = jnp.zeros((2, 17), jnp.int32)
        return _pairwise._count_between(none, none, both, norms, 0.0, part)

    whole = meet(*rows, 0)
    parts = meet(*rows, 1), meet(*rows[::-1], 2)
    for i in range(2):
        np.testing.assert_array_equal(whole[i], wanted[i])
        np.testing.assert_array_equal(parts[0][i] + parts[1][1 - i], wanted[i])
        # Neither does it all.
        assert np.sum(parts[0][i]) > 0
        assert np.sum(parts[1][i]) > 0


def test_a_batch_of_vectors_takes_the_memory_of_one():
    """Under vmap as well: batches go one after another, and no product has them as a dimension."""
    rows = jax.ShapeDtypeStruct((8, 600, 5), np.float32)

    def degrees(vectors):
        return concentrated_mean.concentration(vectors, 1.0, block_size=128).degrees

    def temporaries(function, *shapes):
        return jax.jit(function).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    one = temporaries(degrees, jax.ShapeDtypeStruct((600, 5), np.float32))
    many = temporaries(jax.vmap(degrees), rows)
    assert many < one + 8 * 4 * 600 * (5 + 4), (one, many)
    text = jax.jit(jax.vmap(degrees)).lower(rows).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products, "no products are found: the test is blind"
    assert not [line for line in products if "batching_dims" in line or "tensor<8x" in line]


def test_batches_are_those_that_run_alone(rng):
    vectors = rng.normal(size=(3, 40, 2)).astype(np.float32)
    radii = np.float32([0.5, 1.0, 2.0])

    @jax.jit
    def degrees(rows, radius):
        return concentrated_mean.concentration(rows, radius, block_size=16)

    for axes in ((0, 0), (None, 0)):
        given = [x if a == 0 else x[1] for x, a in zip((vectors, radii), axes, strict=True)]
        found = jax.vmap(degrees, axes)(*given)
        for i in range(3):
            alone = degrees(*(x[i] if a == 0 else x for x, a in zip(given, axes, strict=True)))
            np.testing.assert_array_equal(found.degrees[i], alone.degrees)
            np.testing.assert_array_equal(found.score[i], alone.score)
