"""Private training of any loss: what a run costs, what its steps release, and whose steps they are."""

import dataclasses

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant

from dpsco_jax import training, transforms
from dpsco_jax.problems.users import UserData

USERS, DIM = 40, 3
SIZES = {"num_users": USERS, "batch_size": 10, "num_steps": 6, "clip_norm": 0.7, "delta": 1e-3}
RNG = np.random.default_rng(0)
DATA = {
    "x": jnp.asarray(RNG.standard_normal((USERS, DIM)), jnp.float32),
    "y": jnp.asarray(RNG.standard_normal(USERS), jnp.float32),
}
PARAMS = {"body": jnp.full((DIM, 4), 0.1), "head": jnp.full((4,), 0.2)}


def loss(params, item):
    hidden = jnp.tanh(item["x"] @ params["body"])
    return jnp.square(hidden @ params["head"] - item["y"])


def planned(**changes):
    return training.plan(loss, **{**SIZES, "epsilon": 3.0, **changes})


def started(private, params=PARAMS, seed=1):
    return private.init(jax.random.key(seed), params, optax.adam(0.1))


def numbers(tree):
    return [
        np.asarray(jax.random.key_data(x) if training._is_key(x) else x)
        for x in jax.tree.leaves(tree)
    ]


def assert_same(tree, other):
    for one, two in zip(numbers(tree), numbers(other), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "full"])
def test_the_noise_is_the_least_that_keeps_the_budget(sampling):
    """By dp_accounting's own distributions, where they know the sampling."""
    private = planned(sampling=sampling, batch_size=USERS if sampling == "full" else 10)
    found = private.certificate()
    assert 0.99 * 3.0 < found.epsilon <= 3.0
    assert found.delta == 1e-3
    wanted = "ADD_OR_REMOVE_ONE" if sampling == "poisson" else "REPLACE_ONE"
    assert found.relation.name == wanted
    event = dp_accounting.GaussianDpEvent(private.noise_multiplier)
    if sampling == "poisson":
        event = dp_accounting.PoissonSampledDpEvent(10 / USERS, event)
    if sampling != "fixed":
        # Their sensitivity is that of a user who is added; ours is in the multiplier.
        accountant = PLDAccountant(
            NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-3
        )
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, 6))
        assert accountant.get_epsilon(1e-3) == pytest.approx(3.0, rel=0.01)
    given = planned(
        epsilon=None,
        noise_multiplier=private.noise_multiplier,
        sampling=sampling,
        batch_size=private.releases.batch_size,
    )
    assert given.certificate() == found


def test_a_step_is_that_of_the_chain_by_hand():
    """Of everybody: rows by autodiff, clipped and added; released by a chain with the same key."""
    private = planned(sampling="full", batch_size=USERS)
    state = started(private)
    noise_key, sample_key = jax.random.split(jax.random.key(1))
    mean = transforms.summed_contributions(0.7, USERS, NeighboringRelation.REPLACE_ONE)
    release = transforms.privatize(mean, noise_key, private.noise_multiplier)
    chain = optax.chain(release, optax.adam(0.1))
    params, own = PARAMS, chain.init(PARAMS)
    loop = optax.chain(private.transformation(jax.random.clone(noise_key)), optax.adam(0.1))
    looped, loop_state = PARAMS, loop.init(PARAMS)
    for _ in range(3):
        state, metrics = private.step(state, DATA)
        sample_key, drawn = jax.random.split(sample_key)
        sums = private.sums(drawn, looped, DATA)
        moves, loop_state = loop.update(sums.gradient, loop_state, looped, **sums.extra_args)
        looped = optax.apply_updates(looped, moves)
        rows = jax.vmap(jax.grad(loss), (None, 0))(params, DATA)
        flat = np.concatenate([np.reshape(leaf, (USERS, -1)) for leaf in jax.tree.leaves(rows)], 1)
        scale = np.minimum(1.0, 0.7 / np.linalg.norm(flat, axis=1))
        total = jax.tree.map(lambda leaf, by=scale: jnp.tensordot(by, leaf, axes=1), rows)
        moves, own = chain.update(total, own, params, clipped_to=0.7)
        params = optax.apply_updates(params, moves)
    for one, two, three in zip(*map(jax.tree.leaves, (state.params, looped, params)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)
        np.testing.assert_allclose(one, three, atol=5e-3)  # clips differ by 0.4 % at most
    assert int(metrics["steps"]) == 3


def test_a_run_is_its_steps_under_scan_seeds_and_storage():
    private = planned()
    state = first = started(private)
    for _ in range(6):
        state, _ = private.step(state, DATA)
    whole, seen = private.run(started(private), DATA, 6)
    assert_same(whole, state)
    assert list(seen["steps"]) == [1, 2, 3, 4, 5, 6]
    half, _ = private.run(started(private), DATA, 2)
    back = private.resume(training.stored(half), PARAMS, first.optimizer)
    assert_same(private.run(back, DATA, 4)[0], state)
    keys = jax.random.wrap_key_data(
        jnp.stack([jax.random.key_data(jax.random.key(seed)) for seed in (1, 2)])
    )
    seeds = jax.vmap(
        lambda key: private.run(private.init(key, PARAMS, optax.adam(0.1)), DATA, 6)[0]
    )(keys)
    for one, two in zip(numbers(seeds.params), numbers(state.params), strict=True):
        np.testing.assert_allclose(one[0], two, rtol=1e-5, atol=1e-6)
        assert np.any(np.abs(one[1] - two) > 1e-3)


def test_what_ran_is_paid_for_and_no_more_steps_than_planned_are_made():
    private = planned()
    state = started(private)
    assert private.spent(state) == 0.0
    spent = []
    for _ in range(6):
        state, _ = private.step(state, DATA)
        spent.append(private.spent(state))
    assert spent == sorted(spent)
    assert spent[-1] == private.certificate().epsilon
    short = planned(epsilon=None, noise_multiplier=private.noise_multiplier, num_steps=2)
    assert spent[1] == pytest.approx(short.certificate().epsilon)
    with pytest.raises(ValueError, match=r"state\.steps must be below the planned 6"):
        private.step(state, DATA)
    beyond, seen = private.run(
        state, DATA, 2
    )  # in a program nothing can be raised: nothing is done
    assert_same(beyond, state)
    assert list(seen["update_norm"]) == [0.0, 0.0]


def test_a_state_that_was_edited_is_charged_by_its_ledger():
    private = planned()
    state, _ = private.run(started(private), DATA, 6)
    younger = dataclasses.replace(state, steps=jnp.zeros((), jnp.int32))
    assert private.spent(younger) > 3.0
    again, _ = private.run(younger, DATA, 6)
    assert private.spent(again) > 3.5
    other = planned(epsilon=1.0)
    assert other.spent(state) > 3.0
    forgot = dataclasses.replace(state, chain=started(private).chain)
    assert private.spent(forgot) == private.spent(state)


def test_a_state_whose_steps_are_set_back_looks_at_no_sample_twice():
    """Curves of sampled releases add up where draws are independent."""
    private = planned()
    state, _ = private.run(started(private), DATA, 2)
    younger = dataclasses.replace(state, steps=jnp.zeros((), jnp.int32))
    assert np.any(jax.random.key_data(younger.key) != jax.random.key_data(started(private).key))


def test_a_state_of_another_relation_is_certified_under_its_own():
    """Everybody takes part in both: the same curve, of half the noise where users are replaced."""
    sizes = {"epsilon": None, "noise_multiplier": 3.0, "batch_size": USERS}
    added, replaced = planned(**sizes), planned(**sizes, sampling="full")
    state, _ = added.step(started(added), DATA)
    found = replaced.certificate(state)
    assert found.relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    assert found.epsilon >= added.spent(state)


def test_a_batch_of_states_has_no_cost_of_its_own():
    private = planned()
    states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), started(private))
    with pytest.raises(ValueError, match="state must be that of a single run"):
        private.spent(states)


def test_layers_of_linear_models_are_clipped_and_noised_apart():
    """Their gradients could be had one by one, by forms that know a single bound."""
    private = training.plan(
        lambda params, item: item * (params["a"].sum() + params["b"].sum()),
        **{**SIZES, "epsilon": 3.0, "clip_norm": {"a": 0.3, "b": 0.4}},
    )
    params = {"a": jnp.zeros(3000), "b": jnp.zeros(3000)}
    state = private.init(jax.random.key(3), params, optax.sgd(1.0))
    sums = private.sums(jax.random.key(0), params, jnp.full(USERS, 1e-9))
    assert 0 < np.linalg.norm(sums.gradient["a"]) < 0.3
    many = private.sums(jax.random.key(0), params, jnp.full(USERS, 1e9)).gradient
    assert np.linalg.norm(many["a"]) / np.linalg.norm(many["b"]) == pytest.approx(0.75, rel=0.02)
    end, _ = private.step(state, jnp.zeros(USERS))
    for leaf in jax.tree.leaves(end.params):
        assert np.std(leaf) == pytest.approx(private.noise_multiplier * 0.5 / 10, rel=0.05)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_who_is_in_a_sum_was_drawn_as_it_is_charged(sampling):
    """Every user has a parameter of its own, so that a sum shows who is in it."""
    private = training.plan(
        lambda params, item: 1e3 * params @ item, **{**SIZES, "epsilon": 3.0, "sampling": sampling}
    )
    keys = jax.random.split(jax.random.key(5), 400)
    found = jax.vmap(lambda key: private.sums(key, jnp.zeros(USERS), jnp.eye(USERS)).gradient)(keys)
    there = np.asarray(found) > 0.35
    np.testing.assert_allclose(found, np.where(there, 0.7, 0.0), atol=5e-3)
    sizes = there.sum(axis=1)
    deviation = np.sqrt(USERS * 0.25 * 0.75) if sampling == "poisson" else 0.0
    assert np.mean(sizes) == pytest.approx(10, abs=5 * deviation / 20)
    assert np.std(sizes) == pytest.approx(deviation, rel=0.2)
    np.testing.assert_allclose(there.mean(axis=0), 0.25, atol=5 * np.sqrt(0.25 * 0.75 / 400))


def test_narrow_parameters_are_trained_and_come_back_from_files(tmp_path):
    private = planned()
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    state, _ = private.run(started(private, narrow), DATA, 2)
    assert state.params["body"].dtype == jnp.bfloat16
    np.savez(tmp_path / "state.npz", **training.stored(state))
    back = private.resume(dict(np.load(tmp_path / "state.npz")), narrow, state.optimizer)
    assert_same(back, state)


def test_an_optimizer_may_have_plain_numbers_for_its_state():
    idle = optax.GradientTransformation(lambda _: 0, lambda moves, state, _=None: (moves, 0))
    private = planned()
    end, _ = private.step(private.init(jax.random.key(1), PARAMS, idle), DATA)
    assert int(end.chain.after) == 0


def test_keys_of_another_kind_are_refused_until_they_are_the_default():
    private = planned()
    state = private.init(jax.random.key(1, impl="rbg"), PARAMS, optax.adam(0.1))
    with pytest.raises(ValueError, match=r"saved must be .*key data of another implementation"):
        private.resume(training.stored(state), PARAMS, state.optimizer)
    with jax.default_prng_impl("rbg"):
        assert_same(private.resume(training.stored(state), PARAMS, state.optimizer), state)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"normalize": 0.01},
        {"clip_norm": {"body": 0.5, "head": 0.3}},
        {"normalize": 0.01, "clip_norm": {"body": 0.5, "head": 0.3}},
    ],
)
def test_no_user_moves_a_sum_by_more_than_is_accounted(changes):
    """Adding, removing and replacing users of all kinds, by the sums of everybody."""
    private = planned(sampling="full", batch_size=USERS, **changes)
    bound = 0.7 if "clip_norm" not in changes else np.hypot(0.5, 0.3)
    run = jax.jit(lambda data: private.sums(jax.random.key(0), PARAMS, data).gradient)
    base = jax.tree.map(lambda leaf: np.array(leaf), DATA)
    ends = [(0.0, 0.0), (50.0, 100.0), (-50.0, 100.0), (np.nan, 1.0), (np.inf, 0.0), (1e30, -1e30)]
    found = []
    for x, y in ends:
        rows = jax.tree.map(np.copy, base)
        rows["x"][0], rows["y"][0] = x, y
        found.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run(rows))]))
        assert np.all(np.isfinite(found[-1]))
    moved = max(np.linalg.norm(a - b) for a in found for b in found)
    assert bound < moved <= 2 * bound * (1 + 1e-6)  # replaced: twice


def test_noise_is_as_large_as_planned():
    private = training.plan(lambda w, item: 0.0 * jnp.sum(w) * item, **{**SIZES, "epsilon": 3.0})
    state = private.init(jax.random.key(3), jnp.zeros(20_000), optax.sgd(1.0))
    end, _ = private.step(state, jnp.ones(USERS))
    assert private.noise_stddev == pytest.approx(private.noise_multiplier * 0.7 / 10)
    assert np.std(end.params) == pytest.approx(private.noise_stddev, rel=0.02)


def test_parameters_that_are_not_trained_stay_and_take_no_room_in_the_clip():
    private = planned(trainable={"body": False, "head": True})
    state = started(private)
    end, _ = private.run(state, DATA, 3)
    np.testing.assert_array_equal(end.params["body"], PARAMS["body"])
    alone = training.plan(
        lambda head, item: loss({"body": PARAMS["body"], "head": head}, item),
        **{**SIZES, "epsilon": 3.0},
    )
    other, _ = alone.run(started(alone, PARAMS["head"]), DATA, 3)
    np.testing.assert_allclose(end.params["head"], other.params, rtol=1e-5)
    assert np.any(end.params["head"] != PARAMS["head"])


def test_users_with_several_items_count_once():
    items = UserData(
        jax.tree.map(lambda leaf: jnp.stack([leaf, 1e3 * leaf], axis=1), DATA),
        jnp.asarray([[True, False]] * USERS),
    )
    private = planned()
    one, _ = private.run(started(private), DATA, 2)
    masked, _ = private.run(started(private), items, 2)
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(masked.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_the_table_says_what_it_costs():
    text = str(planned())
    for part in (
        "private training",
        "10 users, poisson",
        "6, 1.5 passes",
        "6 steps: ",
        "under ADD_OR",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"noise_multiplier": 1.0}, "epsilon, noise_multiplier"),
        ({"epsilon": None}, "epsilon, noise_multiplier"),
        ({"delta": 0.1}, "delta"),
        ({"batch_size": 41}, "batch_size"),
        ({"sampling": "full"}, "batch_size"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"trainable": False}, "trainable"),
        ({"trainable": {"body": 1.0}}, "trainable"),
        ({"sampling": "fixed", "relation": NeighboringRelation.ADD_OR_REMOVE_ONE}, "relation"),
    ],
)
def test_what_does_not_fit_is_refused(changes, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        planned(**changes)


def test_data_of_another_number_of_users_and_states_of_another_model_are_refused():
    private = planned()
    state = started(private)
    with pytest.raises(ValueError, match="users"):
        private.step(state, jax.tree.map(lambda leaf: leaf[:7], DATA))
    with pytest.raises(ValueError, match="80 users"):
        private.step(state, jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), DATA))
    with pytest.raises(ValueError, match="data must be"):
        private.step(state, {**DATA, "y": 3.0})
    with pytest.raises(ValueError, match="saved must be"):
        private.resume(training.stored(state), PARAMS["head"], state.optimizer)
    with pytest.raises(ValueError, match="saved must be"):
        private.resume(training.stored(state), {**PARAMS, "head": jnp.zeros(5)}, state.optimizer)


@pytest.mark.parametrize("value", [lambda x: x, lambda x: (jnp.sum(x), x), lambda x: {"loss": 0.0}])
def test_a_loss_that_is_no_number_is_refused(value):
    private = training.plan(lambda w, item: value(w * item["x"]), **{**SIZES, "epsilon": 3.0})
    state = private.init(jax.random.key(3), jnp.ones(DIM), optax.sgd(1.0))
    with pytest.raises(ValueError, match=r"^loss must be a function whose value is one number"):
        private.step(state, DATA)
