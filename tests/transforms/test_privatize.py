"""Privatize: the noise, the ledger, the key, and what it refuses."""

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from dp_accounting import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from dpsco_jax import privacy, transforms

REPLACE = NeighboringRelation.REPLACE_ONE
ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE


def noise_of(aggregate, params, key, noise_multiplier, steps):
    """Released minus aggregated, for some steps on zero contributions of two users."""
    transformation = transforms.privatize(aggregate, key, noise_multiplier)
    updates = jax.tree.map(lambda p: jnp.zeros((2, *p.shape), p.dtype), params)
    state, released = transformation.init(params), []
    update = jax.jit(transformation.update)
    for _ in range(steps):
        moves, state = update(updates, state, params)
        released.append(np.concatenate([np.ravel(np.float64(m)) for m in jax.tree.leaves(moves)]))
    return np.stack(released), state


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
def test_noise_is_the_multiplier_times_the_sensitivity(relation):
    # C = 3 and 6 users: σ = 0.5 · (2C or C)/6, on every entry, fresh at every step.
    params = {"a": jnp.zeros((70, 100)), "b": jnp.zeros(7000)}
    aggregate = transforms.clipped_mean(3.0, 6, relation)
    noise, _ = noise_of(aggregate, params, jax.random.key(0), 0.5, 2)
    stddev = 0.5 if relation is REPLACE else 0.25
    for sample in noise:
        assert scipy.stats.kstest(sample / stddev, "norm").pvalue > 1e-3
        # 14,000 entries: the standard deviation is known to 0.6 %.
        assert np.std(sample) == pytest.approx(stddev, rel=0.03)
    parts = noise.reshape(4, 7000)
    assert np.max(np.abs(np.corrcoef(parts) - np.eye(4))) < 0.06


def test_same_key_same_noise_and_other_key_other_noise():
    aggregate, params = transforms.clipped_sum(1.0), jnp.zeros(50)
    first, second, other = (
        noise_of(aggregate, params, jax.random.key(seed), 1.0, 2)[0] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, second)
    assert not np.any(first == other)


@pytest.mark.filterwarnings("error::UserWarning")
def test_updates_of_numpy_are_taken_without_a_warning():
    release = transforms.privatize(transforms.clipped_mean(1.0, 4), jax.random.key(0), 1.0)
    updates, _ = release.update(np.ones((4, 3)), release.init(np.ones(3)))
    assert updates.dtype == jnp.zeros(()).dtype


def test_narrow_updates_are_rounded_after_the_noise():
    def released(dtype):
        aggregate = transforms.clipped_sum(1.0)
        transformation = transforms.privatize(aggregate, jax.random.key(0), 0.01)
        updates = jnp.full((300, 64), 0.125, dtype)
        state = transformation.init(jnp.zeros(64, dtype))
        return jax.jit(transformation.update)(updates, state, jnp.zeros(64, dtype))[0]

    narrow, wide = released(jnp.bfloat16), released(jnp.float32)
    np.testing.assert_array_equal(narrow, wide.astype(jnp.bfloat16))


SAMPLING = {
    "full": (privacy.FullBatch(), REPLACE, dp_accounting.GaussianDpEvent(1.3)),
    "Poisson": (
        privacy.Poisson(0.05),
        ADD_REMOVE,
        dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.3)),
    ),
}


@pytest.mark.parametrize("name", SAMPLING)
def test_ledger_agrees_with_an_independent_accountant(name):
    sampling, relation, event = SAMPLING[name]
    aggregate = transforms.clipped_sum(1.0, relation)
    transformation = transforms.privatize(aggregate, jax.random.key(0), 1.3, sampling)
    params = jnp.zeros(2)

    def step(state, _):
        return transformation.update(jnp.ones((3, 2)), state, params)[1], None

    state = jax.jit(lambda: jax.lax.scan(step, transformation.init(params), None, length=400)[0])()
    # Integer orders: fractional ones of dp_accounting are upper bounds by a series of their own.
    orders = [order for order in privacy.ORDERS if order == int(order) and order < 200]
    accountant = RdpAccountant(orders, ADD_REMOVE).compose(event, 400)
    expected = np.asarray(accountant._rdp)
    ours = privacy.privacy_spent(state).rdp[np.isin(privacy.ORDERS, orders)]
    np.testing.assert_allclose(ours, expected, rtol=2e-5)
    assert np.all(ours >= expected * (1 - 1e-6))


def test_scheduled_multiplier_is_charged_and_used_as_it_is():
    def make(noise_multiplier):
        aggregate = transforms.clipped_sum(0.5)
        return transforms.privatize(aggregate, jax.random.key(0), noise_multiplier)

    def schedule(count):
        return 1.0 + count

    transformation = optax.inject_hyperparams(make)(schedule)
    params, steps = jnp.zeros(5000), 4
    state, spreads = transformation.init(params), []
    update = jax.jit(transformation.update)
    for _ in range(steps):
        moves, state = update(jnp.zeros((2, 5000)), state, params)
        spreads.append(np.std(moves))
    multipliers = 1.0 + np.arange(steps)
    np.testing.assert_allclose(spreads, multipliers, rtol=0.04)
    expected = np.sum(1 / (2 * multipliers**2)) * privacy.ORDERS
    np.testing.assert_allclose(privacy.privacy_spent(state).rdp, expected, rtol=1e-5)


def test_bfloat16_schedule_is_charged_for_the_noise_that_it_gives():
    def make(noise_multiplier):
        return transforms.privatize(
            transforms.clipped_mean(0.3, 7), jax.random.key(0), noise_multiplier
        )

    transformation = optax.inject_hyperparams(make)(1.2345)
    params = jnp.zeros(20_000, jnp.bfloat16)
    state = transformation.init(params)
    used = np.float64(state.hyperparams["noise_multiplier"])
    assert used != np.float32(1.2345)
    moves, state = jax.jit(transformation.update)(
        jnp.zeros((2, 20_000), jnp.bfloat16), state, params
    )
    assert np.std(np.float64(moves)) == pytest.approx(used * 2 * 0.3 / 7, rel=0.02)
    spent = privacy.privacy_spent(state).rdp
    np.testing.assert_allclose(spent, privacy.ORDERS / (2 * used**2), rtol=1e-5)


def test_multi_steps():
    params = jnp.zeros(3)

    def private(aggregate):
        return transforms.privatize(aggregate, jax.random.key(0), 2.0)

    once = privacy.ORDERS / 8
    # Around an aggregate of sums: batches are averaged, one release for every two of them.
    outside = optax.MultiSteps(private(transforms.summed_contributions(1.0, 5)), 2)
    state = outside.init(params)
    # MultiSteps computes an update at every step and keeps the old state where it does not emit it:
    # that noise is seen by nobody, which the check of key use cannot know.
    with jax.debug_key_reuse(False):
        update = jax.jit(outside.update)
        for step in range(4):
            moves, state = update(jnp.ones(3), state, params, clipped_to=1.0)
            assert np.all(moves == 0) == (step % 2 == 0)
    # What is skipped may be decided by sums without noise: the caller says that nothing is.
    assert np.all(np.isinf(privacy.privacy_spent(state).rdp))
    spent = privacy.privacy_spent(state, trust=optax.MultiStepsState)
    np.testing.assert_allclose(spent.rdp, 2 * once, rtol=1e-5)
    # After the release: every batch is released, every second one moves the parameters.
    steps = optax.MultiSteps(optax.sgd(1.0), 2).gradient_transformation()
    inside = optax.chain(private(transforms.clipped_sum(1.0)), steps)
    state = inside.init(params)
    update = jax.jit(inside.update)
    for _ in range(4):
        moves, state = update(jnp.ones((5, 3)), state, params)
    np.testing.assert_allclose(privacy.privacy_spent(state).rdp, 4 * once, rtol=1e-5)


def test_traced_zero_is_not_private():
    @jax.jit
    def run(noise_multiplier):
        aggregate = transforms.clipped_sum(10.0)
        transformation = transforms.privatize(aggregate, jax.random.key(0), noise_multiplier)
        return transformation.update(jnp.ones((2, 3)), transformation.init(jnp.zeros(3)))

    moves, state = run(0.0)
    np.testing.assert_allclose(moves, 2.0, rtol=1e-5)
    assert privacy.epsilon(privacy.privacy_spent(state), 1e-5) == np.inf


def test_refuses():
    aggregate, key = transforms.clipped_sum(1.0), jax.random.key(0)
    with pytest.raises(ValueError, match="key"):
        transforms.privatize(aggregate, jax.random.split(key), 1.0)
    added = transforms.clipped_sum(1.0, ADD_REMOVE)
    with pytest.raises(ValueError, match="relation"):
        transforms.privatize(added, jax.random.key(1), 1.0, privacy.PoissonUsers(0.1, 2.0))


@pytest.mark.parametrize(
    ("aggregate", "reach"),
    [
        (transforms.summed_contributions(1.0, 1, nonnegative=True), 1.0),
        # Within 0.9 radii of the centre, with the bit of the quantile: √(0.9² + 4 - 1.9²).
        (transforms.centred_clip(1.0, 1, quantile=0.5), 1.2**0.5),
    ],
    ids=["nonnegative", "quantile"],
)
def test_poisson_under_replacement_needs_contributions_of_half_the_sensitivity(aggregate, reach):
    """A user replaced by one who adds nothing is a pair as well: longer vectors are told apart by it."""
    sigma = 1.0 * float(aggregate.sensitivity)
    vanishes = privacy.poisson_subsampled_gaussian(sigma / reach, 0.1).rdp
    claimed = privacy.poisson_replaced_gaussian(1.0, 0.1).rdp
    assert np.any(vanishes > 1.1 * claimed)
    for scheme in (privacy.Poisson(0.1), privacy.PoissonUsers(0.1, 2.0)):
        with pytest.raises(
            ValueError, match=r"aggregate\.(within_half must be True|clipped_to must be known)"
        ):
            transforms.privatize(aggregate, jax.random.key(0), 1.0, scheme)
    # What depends on the sensitivity alone is charged as before.
    for scheme in (privacy.WithoutReplacement(10, 1), privacy.PoissonUsers(0.1, np.inf)):
        transforms.privatize(aggregate, jax.random.key(0), 1.0, scheme)


def test_poisson_under_replacement_takes_what_is_clipped_and_no_promise_by_default():
    for good in (transforms.clipped_mean(1.0, 4), transforms.centred_clip(1.0, 4)):
        transforms.privatize(good, jax.random.key(0), 1.0, privacy.Poisson(0.1))
    inner = transforms.clipped_mean(1.0, 4)
    unknown = transforms.Aggregate(inner.init, inner.update, 0.5, REPLACE)
    with pytest.raises(ValueError, match="within_half"):
        transforms.privatize(unknown, jax.random.key(0), 1.0, privacy.Poisson(0.1))
    # Rows are units here, and nobody clips the sum of a user's units.
    with pytest.raises(ValueError, match="clipped_to"):
        transforms.privatize(inner, jax.random.key(0), 1.0, privacy.PoissonUsers(0.1, 2.0))
    summed = transforms.summed_contributions(1.0, 4)
    transforms.privatize(summed, jax.random.key(0), 1.0, privacy.PoissonUsers(0.1, 2.0))


def _two_privatizers(first, second, noise_multiplier=2.0):
    def one(key):
        return transforms.privatize(transforms.clipped_mean(1.0, 4), key, noise_multiplier)

    groups = {"a": one(first), "b": one(second)}
    return optax.multi_transform(groups, {"a": "a", "b": "b"})


@pytest.mark.parametrize("compiled", [False, True])
def test_two_transformations_with_one_key_spend_everything(compiled):
    """They draw the same noise: the difference of what they release has none."""
    updates = {"a": jnp.ones((4, 2)), "b": jnp.zeros((4, 2))}
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    read = jax.jit(privacy.privacy_spent) if compiled else privacy.privacy_spent
    for other, finite in ((0, False), (1, True)):
        both = _two_privatizers(jax.random.key(0), jax.random.key(other))
        state = both.init(params)
        with jax.debug_key_reuse(False):
            for _ in range(2):
                released, state = both.update(updates, state, params)
        assert np.all(np.isfinite(read(state).rdp)) == finite
        difference = released["a"] - released["b"]
        assert np.allclose(difference, 1 / np.sqrt(2), atol=1e-5) != finite


def test_equal_keys_are_told_in_each_lane_of_a_batch():
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}

    def start(first, second):
        return _two_privatizers(first, second).init(params)

    with jax.debug_key_reuse(False):
        keys = jax.random.split(jax.random.key(0), 3)
        states = jax.vmap(start)(keys, keys.at[1].set(jax.random.key(9)))
        spent = privacy.privacy_spent(states)
        assert list(np.isfinite(spent.rdp).all(axis=-1)) == [False, True, False]


def _finite(states, compiled=False):
    spent = (jax.jit(privacy.privacy_spent) if compiled else privacy.privacy_spent)(states)
    assert spent.rdp.shape[:-1] == spent.delta.shape
    return np.isfinite(spent.rdp).all(axis=-1).tolist()


def test_lanes_of_one_key_spend_everything_together():
    """Their difference has no noise; each of them alone is right."""
    release = transforms.privatize(transforms.clipped_sum(1.0), jax.random.key(0), 2.0)
    states = jax.vmap(release.init)(jnp.zeros((3, 2)))
    rows = jnp.arange(24.0).reshape(3, 4, 2) / 100
    with jax.debug_key_reuse(False):
        released, states = jax.vmap(release.update)(rows, states)
    between = np.asarray(rows.sum(axis=1))
    np.testing.assert_allclose(released[1] - released[0], between[1] - between[0], atol=1e-5)
    for compiled in (False, True):
        assert _finite(states, compiled) == [False] * 3
    assert _finite(_stored(states)) == [False] * 3
    assert _finite(jax.tree.map(lambda leaf: leaf[1], states))


def test_lanes_share_keys_with_whom_they_share_them():
    """Of 2 x 2 lanes of two transformations each: those of one key, of the same or of another lane."""
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}

    def start(first, second):
        return _two_privatizers(first, second).init(params)

    keys = jax.vmap(jax.random.key)(jnp.arange(8))

    def finite(*numbers):
        halves = keys[np.array(numbers)].reshape(2, 2, 2)
        with jax.debug_key_reuse(False):
            states = jax.vmap(jax.vmap(start))(halves[0], halves[1])
            assert _finite(states, compiled=True) == _finite(states)
            return _finite(states)

    assert finite(0, 1, 2, 3, 4, 5, 6, 7) == [[True, True], [True, True]]
    assert finite(0, 1, 2, 3, 4, 1, 6, 7) == [[True, False], [True, True]]
    assert finite(0, 1, 2, 3, 4, 5, 6, 0) == [[False, True], [True, False]]
    assert finite(0, 1, 1, 3, 4, 5, 6, 1) == [[True, False], [False, False]]
    with jax.debug_key_reuse(False):
        lanes = jax.vmap(start)(keys[:3], keys[3:6])
        alone = [start(*keys[np.array(pair)]) for pair in ((6, 7), (6, 2))]
    assert _finite((lanes, alone[0])) == [True] * 3
    assert _finite((lanes, alone[1])) == [False] * 3


def test_lanes_on_an_explicit_mesh_are_compared():
    mesh = jax.make_mesh((1,), ("lanes",), axis_types=(jax.sharding.AxisType.Explicit,))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("lanes"))
    keys = jax.vmap(jax.random.key)(jnp.asarray([0, 1, 0]))
    mean = transforms.clipped_sum(1.0)
    states = jax.vmap(lambda key: transforms.privatize(mean, key, 2.0).init(jnp.zeros(2)))(keys)
    spread = jax.tree.map(lambda leaf: jax.device_put(leaf, where), states)
    assert _finite(spread) == [False, True, False]


def _stored(state, impl=None):
    """As files keep it: keys by their words; by ``impl``, the words typed anew."""

    def words(leaf):
        if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return np.asarray(leaf)
        bits = np.asarray(jax.random.key_data(leaf))
        return bits if impl is None else jax.random.wrap_key_data(bits, impl=impl)

    return jax.tree.map(words, state)


@pytest.mark.parametrize("compiled", [False, True])
def test_equal_keys_are_told_by_their_words_too(compiled):
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    read = jax.jit(privacy.privacy_spent) if compiled else privacy.privacy_spent
    for impl in ("threefry2x32", "rbg"):
        for seed, finite in ((0, False), (1, True)):
            first, second = (jax.random.key(number, impl=impl) for number in (0, seed))
            with jax.debug_key_reuse(False):
                state = _two_privatizers(first, second).init(params)
                halves = state.inner_states
                one_typed = {"a": halves["a"], "b": _stored(halves["b"])}
                states = [state._replace(inner_states=one_typed), _stored(state)]
                if impl == "rbg":  # whose words unsafe_rbg draws the same by
                    other = {"a": halves["a"], "b": _stored(halves["b"], "unsafe_rbg")}
                    states.append(state._replace(inner_states=other))
                for each in states:
                    assert bool(np.isfinite(read(each).rdp).all()) == finite


@pytest.mark.parametrize(("relation", "shareable"), [(REPLACE, False), (ADD_REMOVE, True)])
def test_poisson_samples_are_shared_where_a_user_comes_or_goes_only(relation, shareable):
    aggregate = transforms.clipped_sum(1.0, relation)
    made = transforms.privatize(aggregate, jax.random.key(1), 1.0, privacy.Poisson(0.1))
    assert made.init(jnp.zeros(2)).ledger.shareable == shareable
