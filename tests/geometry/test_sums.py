"""Sums in two parts against exact rationals; adversarial users, who move plain sums by too much."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import _compensated, transforms
from dpsco_jax.geometry import clipping
from dpsco_jax.mechanisms import additive, correlated_noise
from dpsco_jax.oracles import chunks, gradients, linear, sampling
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData
from tests.support.adversarial_sums import drifting, exact_move, rounded_by_place

USERS = 8192
EVERYBODY = jnp.ones(USERS, bool)


def _exact(leaf, at=()):
    return Fraction(float(leaf.high[at])) + Fraction(float(leaf.low[at]))


def _moves(total, block):
    """By how much more than one user may move it, in units of that."""
    first, second = (total(rows) for rows in drifting(USERS, block))
    return float(abs(_exact(first, 0) - _exact(second, 0))) / 2


@pytest.fixture(scope="module")
def plain():
    def total(rows):
        return jax.lax.fori_loop(0, USERS, lambda i, s: s + rows[i], jnp.zeros(()))

    return jax.jit(total)


def test_the_neighbours_move_a_plain_sum_by_more_than_one_user_may(plain):
    first, second = drifting(USERS, 1)
    assert exact_move(first, second) == 2
    assert float(plain(first) - plain(second)) > 2 * 1.3


@pytest.mark.parametrize("block", [1, 16, 64])
def test_no_user_moves_a_sum_of_clipped_rows_by_more(block):
    room = _compensated.room(USERS)
    run = jax.jit(lambda rows: clipping.split_sum_of_clipped(rows[:, None], room, EVERYBODY))
    assert 0.999 < _moves(run, block) <= 1


@pytest.mark.parametrize("block", [8, 64])
def test_no_user_moves_the_sum_of_an_oracle_by_more(block):
    oracle = gradients.clipped_gradient_sum(lambda _, w, items, mask: items[0], 1.0)

    def total(rows):
        data = UserData(rows[:, None, None], None)
        found = oracle(jax.random.key(0), jnp.zeros(1), data)
        return _compensated.Split(found.gradient, found.extra_args["remainder"])

    assert 0.999 < _moves(jax.jit(total), block) <= 1


def test_chunks_are_added_without_error_and_counts_as_they_are():
    def chunk_sum(rows, counted, position):
        return jnp.sum(jnp.where(counted, rows, 0)), jnp.sum(counted, dtype=jnp.int32)

    def moved(rows):
        total, count = chunks.split_sum_over_users(chunk_sum, rows, None, 64)
        return jax.tree.map(lambda x: x[None], total), count

    run = jax.jit(moved)
    (first, count), (second, _) = (run(rows) for rows in drifting(USERS, 64))
    assert count == USERS
    assert abs(_exact(first, 0) - _exact(second, 0)) == 2
    rounded, _ = jax.jit(lambda rows: chunks.sum_over_users(chunk_sum, rows, None, 64))(
        drifting(USERS, 64)[0]
    )
    assert rounded == first.high[0]


def test_no_user_moves_a_weighted_sum_by_more():
    """As the linear oracle adds: at 64 columns at once, the order of a matrix product."""
    run = jax.jit(lambda rows: _compensated.weighted(jnp.ones(USERS), rows[:, None] * jnp.ones(64)))
    for block in (1, 8, 64):
        assert _moves(run, block) <= 1 / _compensated.room(USERS)


def _linear_sum(features, dim):
    model = losses.logistic(2.0).linear_model
    users = jax.tree.leaves(features)[0].shape[0]
    data = UserData(Example(features, jnp.zeros((users, 1))), None)
    oracle = linear.clipped_gradient_sum(model, 0.25)
    found = jax.jit(oracle)(jax.random.key(0), jnp.zeros(dim), linear.prepare(model, data, dim))
    return found.gradient, found.extra_args["remainder"]


def test_the_linear_oracle_bounds_the_move_of_dense_rows():
    """Slopes of one half, features twice what drifts, clipped or not."""
    run = jax.jit(
        lambda rows: _compensated.Split(*_linear_sum(rows[:, None, None] * jnp.ones(2), 2))
    )
    for block in (1, 8, 64):
        first, second = (run(rows) for rows in drifting(USERS, block))
        move = [float(_exact(first, j) - _exact(second, j)) for j in range(2)]
        assert 0.998 * 0.5 < np.hypot(*move) <= 0.5


def test_the_linear_oracle_pays_for_what_a_product_adds_up():
    """All users have the same row, with a gradient of four times the clip norm: the sum tells the room."""
    for users, product in ((1000, 64), (20, 20), (3, 8)):
        total, rest = _linear_sum(jnp.ones((users, 1, 2)), 2)
        sums = [float(total[j]) + float(rest[j]) for j in range(2)]
        room = 1 - (4 * product**2 + 17) * 2.0**-24
        assert np.hypot(*sums) / (0.25 * users) == pytest.approx(room, abs=2e-5)


def test_sums_of_one_hot_rows_do_not_depend_on_order_and_are_no_longer():
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 40, (5000, 1, 3)).astype(np.int32)
    run = jax.jit(lambda c: _linear_sum(OneHot(c), 40))
    first, lost = run(columns)
    again, lost_again = run(columns[rng.permutation(5000)])
    np.testing.assert_array_equal(np.float64(first) + lost, np.float64(again) + lost_again)


def test_scattered_values_are_cut_and_never_rounded_away_from_zero():
    rng = np.random.default_rng(1)
    values = rng.uniform(-2, 2, (4096, 2)).astype(np.float32)
    places = np.stack([np.arange(4096) % 7, 7 + np.arange(4096) % 5], 1).astype(np.int32)
    found = jax.jit(lambda v: _compensated.scattered(v, jnp.asarray(places), 12, 2.0))(values)
    for place in range(12):
        mine = values[places == place]
        expected = sum(Fraction(int(float(v) * 2**33), 2**33) for v in mine)  # int cuts
        assert abs(_exact(found, place) - expected) < Fraction(1, 2**44)
    with pytest.raises(ValueError, match="at most 4096 rows"):
        _compensated.scattered(jnp.ones((4097, 1)), jnp.zeros((4097, 1), int), 3, 1.0)


@pytest.mark.parametrize("operation", [_compensated.over, _compensated.times])
def test_quotients_and_products_have_no_error_of_one_float(operation):
    rng = np.random.default_rng(2)
    high = (1e3 * rng.standard_normal(200)).astype(np.float32)
    low = (high * rng.uniform(-1, 1, 200) * 2.0**-25).astype(np.float32)
    by = rng.uniform(1, 1e6, 200).astype(np.float32)
    found = jax.jit(lambda *x: operation(_compensated.Split(*x[:2]), x[2]))(high, low, by)
    for i in range(200):
        number, factor = Fraction(float(high[i])) + Fraction(float(low[i])), Fraction(float(by[i]))
        exact = number / factor if operation is _compensated.over else number * factor
        assert abs(_exact(found, i) - exact) <= abs(exact) * Fraction(1, 2**33)


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("operation", [_compensated.over, _compensated.times])
@pytest.mark.parametrize("by", [np.float32(1.1547), np.float32(1.6518123e-06)])
def test_products_with_a_constant_keep_their_rest_however_they_are_compiled(level, operation, by):
    """Fused multiplication took the product for its float, and the rest for nothing."""
    options = {
        "xla_backend_optimization_level": level,
        "xla_llvm_disable_expensive_passes": level == 0,
        "xla_cpu_use_fusion_emitters": level > 0,
    }
    rng = np.random.default_rng(3)
    high = rng.uniform(1, 1e6, 40).astype(np.float32)
    low = (high * rng.uniform(-1, 1, 40) * 2.0**-25).astype(np.float32)
    run = jax.jit(lambda *x: operation(_compensated.Split(*x), by), compiler_options=options)
    found = run(high, low)
    for i in range(40):
        number, factor = Fraction(float(high[i])) + Fraction(float(low[i])), Fraction(float(by))
        exact = number / factor if operation is _compensated.over else number * factor
        assert abs(_exact(found, i) - exact) <= abs(exact) * Fraction(1, 2**33)


def test_a_long_sum_keeps_its_rest_small_enough():
    """Of 2^17 terms: without moving the rest up it would itself be rounded like a plain sum."""
    rows = np.where(np.arange(2**17) % 2, 1.0, np.float32(1 / 3)).astype(np.float32)
    exact = sum(map(Fraction, (2**16, Fraction(float(rows[0])) * 2**16)))
    for total in (_compensated.over_rows, jax.vmap(_compensated.over_rows, in_axes=1)):
        shaped = rows[:, None] if total is not _compensated.over_rows else rows
        found = jax.jit(total)(shaped)
        at = (0,) if shaped.ndim > 1 else ()
        assert abs(_exact(found, at) - exact) < Fraction(1, 2**14)
        assert abs(found.low[at]) <= 2.0**-24 * abs(found.high[at])


@pytest.mark.parametrize("shape", [(1,), (1000,), (1000, 2)])
@pytest.mark.parametrize(
    ("platform", "add"),
    [
        ("cpu", _compensated.over_rows),
        ("default", _compensated.over_rows),
        ("cpu", _compensated.over_halves),
    ],
)
def test_sums_over_rows_lose_no_more_than_is_proven(platform, add, shape, monkeypatch):
    """4u² of both sums in each addition, in whatever order: at most 2u²n of the sum of all magnitudes."""

    def chosen(*given, **branches):
        return branches[platform](*given)

    monkeypatch.setattr(jax.lax, "platform_dependent", chosen)
    rng = np.random.default_rng(7)
    rows = (rng.normal(size=shape) * 2.0 ** rng.integers(0, 24, shape)).astype(np.float32)
    rows[shape[0] // 2 :] -= rows[
        : shape[0] - shape[0] // 2
    ]  # what is left is far below what is lost
    many = jnp.stack([rows, -2 * rows])
    for found in (jax.jit(jax.vmap(add))(many), jax.jit(lambda x: _sums_of_each(add, x))(many)):
        for i, some in enumerate(many):
            for at in np.ndindex(shape[1:]):
                terms = [Fraction(float(x)) for x in np.asarray(some)[(slice(None), *at)]]
                lost = abs(_exact(found, (i, *at)) - sum(terms))
                assert lost <= Fraction(2 * len(terms), 2**48) * sum(map(abs, terms))


@pytest.mark.parametrize(
    ("platform", "add"),
    [
        ("cpu", _compensated.over_rows),
        ("default", _compensated.over_rows),
        ("cpu", _compensated.over_halves),
    ],
)
def test_the_derivative_of_a_sum_over_rows_is_that_of_the_sum(platform, add, monkeypatch):
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *given, **branches: branches[platform](*given)
    )
    weights, rows = jnp.arange(3.0), jnp.arange(15.0).reshape(5, 3)
    slope = jax.jit(jax.grad(lambda x: weights @ _compensated.rounded(add(x))))
    np.testing.assert_array_equal(slope(rows), jnp.broadcast_to(weights, (5, 3)))


def _sums_of_each(add, many):
    return jax.tree.map(lambda *parts: jnp.stack(parts), *(add(rows) for rows in many))


def test_noise_meets_the_exact_sum_and_not_a_rounded_one():
    """At 2^24 floats are even: a rest of 0.75 is lost unless the noise is added to it first."""
    key, whole = jax.random.key(3), jnp.full(1000, 2.0**24)
    noise = additive.gaussian(jax.random.clone(key), jnp.zeros(1000), 4.0)
    found = additive.gaussian(key, _compensated.Split(whole, jnp.full(1000, 0.75)), 4.0)
    np.testing.assert_array_equal(found, whole + (jnp.full(1000, 0.75) + noise))
    assert np.mean(np.asarray(found - whole, np.float64)) > 0.6


@pytest.mark.parametrize(
    ("aggregate", "correlated"),
    [("clipped_mean", False), ("summed", True), ("summed", False), ("centred", False)],
)
def test_what_is_privatized_moves_by_at_most_its_sensitivity(aggregate, correlated):
    """The statistic as the noise gets it, in two parts."""
    seen = []
    made = {
        "clipped_mean": transforms.clipped_mean(1.0, USERS),
        "summed": transforms.summed_contributions(1.0, USERS),
        "centred": transforms.centred_clip(1.0, USERS, centre_rate=0.0),
    }[aggregate]
    inner = made.update

    def update(*args, **kwargs):
        found, state = inner(*args, **kwargs)
        seen.append(found)
        return found, state

    correlation = correlated_noise.banded_square_root(4, 1) if correlated else None

    @jax.jit
    def run(rows):
        release = transforms.privatize(
            made._replace(update=update), jax.random.key(0), 1.0, noise_correlation=correlation
        )
        total = clipping.split_sum_of_clipped(rows[:, None], _compensated.room(USERS), EVERYBODY)
        updates = total.high if aggregate == "summed" else rows[:, None]
        extra = {"remainder": total.low, "clipped_to": 1.0} if aggregate == "summed" else {}
        released, _ = release.update(updates, release.init(jnp.zeros(1)), jnp.zeros(1), **extra)
        return released, seen.pop(), total

    statistics = []
    for rows in drifting(USERS, 16):
        released, found, total = run(rows)
        assert released.shape == (1,)
        if aggregate == "summed":
            off = _exact(found, 0) * USERS - _exact(total, 0)
            assert abs(off) < Fraction(1, 2**30)
        statistics.append(_exact(getattr(found, "mean", found), 0))
    assert 0.999 < float(statistics[0] - statistics[1]) / float(made.sensitivity) <= 1


def _samples_sum(order, size):
    """The sum of users of norm 1 at most: number 0 is 1, and the others are chosen for their places."""
    rows = jnp.concatenate([jnp.ones(1), rounded_by_place(PLACES)])
    data = UserData(rows[:, None, None], None)
    sampler = lambda _: sampling.UserSample(order, size)  # noqa: E731
    oracle = gradients.clipped_gradient_sum(lambda _, w, items, mask: items[0], 1.0, sampler)
    found = jax.jit(oracle)(jax.random.key(0), jnp.zeros(1), data)
    return _compensated.Split(found.gradient, found.extra_args["remainder"])


PLACES = 2048
ROWS = np.append(1.0, rounded_by_place(PLACES).astype(float))


@pytest.fixture(scope="module")
def samples_sum():
    return jax.jit(_samples_sum)


def test_one_user_more_moves_a_sample_in_the_order_of_users_by_more(samples_sum):
    """The proof of amplification compares these two; everybody after the first moves by one place."""
    without = _exact(samples_sum(np.append(np.arange(1, PLACES + 1), 0), PLACES), 0)
    followed = _exact(samples_sum(np.arange(PLACES + 1), PLACES + 1), 0)
    assert abs(followed - without - 1) > 1e-4


def test_one_user_more_at_a_random_place_moves_a_sample_by_no_more(samples_sum):
    """The newcomer takes the place of another, who goes to the end: as orders of samples are coupled."""
    rng = np.random.default_rng(0)
    for trial in range(12):
        others = np.arange(1, PLACES + 1) if trial < 6 else rng.permutation(PLACES) + 1
        others = others[: PLACES - rng.integers(0, 40)]
        size, place = len(others), rng.integers(0, len(others) + 1)
        more = np.append(others, 0)
        more[place], more[size] = 0, more[place]
        orders = [np.resize(order, PLACES + 1) for order in (others, more)]
        without, followed = (
            _exact(samples_sum(order, size + bool(one)), 0) for one, order in enumerate(orders)
        )
        assert 0.999 < followed - without <= 1


@pytest.mark.parametrize("law", ["poisson", "fixed"])
def test_errors_of_users_chosen_for_their_places_do_not_add_up(samples_sum, law):
    """In the order of users samples are off by -6e-5 to 6e-5, by who is in them; random orders all alike."""

    def drawn(key, first):
        if law == "fixed":
            return sampling.without_replacement(key, PLACES + 1, PLACES).indices
        return sampling.poisson(key, PLACES + 1 - first, 1.0).indices + first

    draw, off = jax.jit(drawn, static_argnums=1), []
    for seed in range(12):
        order = np.asarray(draw(jax.random.key(seed), seed % 2))
        found = _exact(samples_sum(np.resize(order, PLACES + 1), len(order)), 0)
        off.append(float(found - Fraction(np.sum(ROWS[order]))))
    assert max(off) - min(off) < 3e-5


def test_draws_with_replacement_count_as_rows():
    """More draws than users: what is added up is long as the draws are many."""
    few = UserData(jnp.full((4, 1, 1), 5.0), None)
    draws = 100_000
    sampler = lambda key: sampling.with_replacement(key, 4, draws)  # noqa: E731
    user = lambda _, w, items, mask: items[0]  # noqa: E731
    oracle = gradients.clipped_gradient_sum(user, 1.0, sampler, chunk_size=1)
    found = jax.jit(oracle)(jax.random.key(0), jnp.zeros(1), few).gradient[0]
    assert found == pytest.approx(draws * _compensated.room(draws, 1), rel=1e-5)
    assert 1 - _compensated.room(draws, 1) > 10 * (1 - _compensated.room(4, 1))
    model = losses.logistic(2.0).linear_model
    data = UserData(Example(jnp.full((4, 1, 2), 2.0), jnp.zeros((4, 1))), None)
    linear_sum = linear.clipped_gradient_sum(model, 0.25, sampler, 1)
    rows = linear.prepare(model, data, 2)
    found = jax.jit(linear_sum)(jax.random.key(0), jnp.zeros(2), rows).gradient
    assert np.hypot(*found) == pytest.approx(0.25 * draws * _compensated.room(draws, 1), rel=1e-5)


def test_the_room_is_what_the_proof_says():
    unit = 2.0**-24
    for n, k in ((10, 64), (10**6, 64), (10**6, 1)):
        lost = 272 * unit + n * 2.0**-32 + 4 * n * unit * (n / min(k, 8) + 16) * unit
        np.testing.assert_allclose(1 - _compensated.room(n, k), lost + unit, rtol=1e-6)
    lost = 4 * 64**2 * unit + 17 * unit + 1e6 * 2.0**-32 + 4e6 * (1e6 / 64 + 16) * unit**2
    np.testing.assert_allclose(1 - _compensated.room(10**6, 64, group=64), lost, rtol=1e-6)
    lost = (4 * 100 + 16 + 1) * unit + 2 * 2.0**-32 + 4 * 2 * (2 + 16) * unit**2
    np.testing.assert_allclose(1 - _compensated.room(2, 1, group_rounding=100), lost, rtol=1e-6)
    with pytest.raises(ValueError, match="group_rounding must be"):
        _compensated.room(2, group_rounding=-1)
    assert _compensated.room(1000) > 1 - 2e-5
    assert _compensated.room(10**6) > 0.997
    assert (
        _compensated.room(8 * 10**4, roundings=1) > 0.99 > _compensated.room(2 * 10**5, roundings=1)
    )
    with pytest.raises(ValueError, match="num_rows must be so few"):
        _compensated.room(10**8)


def test_the_larger_of_two_numbers_may_come_second():
    """And nothing is lost where they cancel."""
    total = jax.jit(_one_by_one)(jnp.asarray([1.0, 2.0**30, 2.0**-9, -(2.0**30)]))
    assert _exact(total) == 1 + Fraction(1, 2**9)


def _one_by_one(terms):
    total = _compensated.zeros(terms[0])
    for term in terms:
        total = _compensated.add(total, term)
    return total


def test_narrow_floats_and_integers_are_added_as_they_are():
    like = {"half": jnp.ones(2, jnp.bfloat16), "count": jnp.int32(3), "wide": jnp.ones(2)}
    total = _compensated.add(_compensated.zeros(like), like)
    assert total["half"].dtype == jnp.bfloat16
    assert total["count"] == 3
    assert _compensated.is_split(total["wide"])
    assert jax.tree.structure(_compensated.remainder(total)) == jax.tree.structure(like)
    assert (
        jax.tree.structure(_compensated.over_groups(lambda x: x.sum(0), jnp.ones((17, 3))))
        is not None
    )
