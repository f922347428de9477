"""The ledger: nothing is lost over many entries, nor in any nesting of optax states."""

import dataclasses
import math
import pickle
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax.privacy import Ledger, PrivacyLoss

RELATION = NeighboringRelation.REPLACE_ONE
ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE


class _State(NamedTuple):
    ledger: Ledger


def _charging(
    loss: PrivacyLoss, relation=RELATION, sampled=False, shareable=False
) -> optax.GradientTransformation:
    def init(_):
        return _State(privacy.open_ledger(relation, sampled, shareable))

    def update(updates, state, params=None):
        del params
        return updates, _State(privacy.charge(state.ledger, loss))

    return optax.GradientTransformation(init, update)


def _state_after_one_update(*transformations):
    chain = optax.chain(*transformations)
    return chain.update(jnp.zeros(2), chain.init(jnp.zeros(2)), jnp.zeros(2))[1]


FULL = _charging(privacy.gaussian(2.0), ADD_REMOVE)
POISSON = _charging(privacy.poisson_subsampled_gaussian(1.0, 0.1), ADD_REMOVE, True, True)
CLOSED = _charging(privacy.gaussian(5.0), ADD_REMOVE, True)


def test_a_million_entries_lose_nothing():
    loss = privacy.poisson_subsampled_gaussian(1.1, 0.001)
    single = jax.tree.map(jnp.float32, loss)

    @jax.jit
    def run(ledger):
        return jax.lax.fori_loop(0, 1_000_000, lambda _, x: privacy.charge(x, single), ledger)

    spent = privacy.privacy_spent(run(privacy.open_ledger(RELATION)))
    entry = PrivacyLoss(*(np.float64(x) for x in single))
    expected = privacy.scale(entry, 1_000_000)
    assert np.all(spent.rdp >= expected.rdp)
    np.testing.assert_allclose(spent.rdp, expected.rdp, rtol=2e-6)


def test_finds_every_ledger_of_a_chain():
    params = {"a": jnp.zeros(3), "b": {"c": jnp.zeros(2)}}
    labels = {"a": "first", "b": {"c": "second"}}
    optimizer = optax.chain(
        optax.masked(_charging(privacy.gaussian(1.0)), {"a": True, "b": False}),
        optax.multi_transform(
            {"first": _charging(privacy.gaussian(2.0)), "second": _charging(privacy.pure_dp(0.1))},
            labels,
        ),
        optax.sgd(0.1),
        _charging(privacy.approximate_dp(0.2, 1e-7)),
    )
    state = optimizer.init(params)
    for _ in range(3):
        _, state = optimizer.update(params, state, params)
    expected = privacy.scale(
        privacy.compose(
            privacy.gaussian(1.0),
            privacy.gaussian(2.0),
            privacy.pure_dp(0.1),
            privacy.approximate_dp(0.2, 1e-7),
        ),
        3,
    )
    # What the mask keeps from its release goes on without noise: the caller says what becomes of it.
    assert np.all(np.isinf(privacy.privacy_spent(state).rdp))
    spent = privacy.privacy_spent(state, trust=optax.MaskedState)
    np.testing.assert_allclose(spent.rdp, expected.rdp, rtol=1e-5)
    assert np.all(np.float64(spent.rdp) >= expected.rdp * (1 - 1e-7))
    assert spent.delta == pytest.approx(3e-7, rel=1e-5)


def test_infinite_entries_stay_infinite():
    ledger = privacy.charge(privacy.open_ledger(RELATION), privacy.gaussian(0.0))
    ledger = privacy.charge(ledger, privacy.gaussian(1.0))
    spent = privacy.privacy_spent(ledger)
    assert np.all(np.isinf(spent.rdp))
    assert spent.delta == 0


def test_vmapped_over_noise_and_restored_from_leaves():
    @jax.vmap
    def run(sigma):
        ledger = privacy.open_ledger(RELATION)
        return jax.lax.fori_loop(
            0, 5, lambda _, x: privacy.charge(x, privacy.gaussian(sigma)), ledger
        )

    sigma = jnp.asarray([0.5, 1.0, 2.0])
    ledger = run(sigma)
    leaves, treedef = jax.tree.flatten(ledger)
    restored = jax.tree.unflatten(treedef, [np.asarray(leaf) for leaf in leaves])
    spent = privacy.privacy_spent({"state": restored})
    assert spent.rdp.shape == (3, len(privacy.ORDERS))
    expected = privacy.scale(privacy.gaussian(np.float64(sigma)), 5)
    np.testing.assert_allclose(spent.rdp, expected.rdp, rtol=1e-5)
    assert np.all(np.diff(privacy.epsilon(spent, 1e-5)) < 0)


@pytest.mark.parametrize(
    "nothing",
    [
        {"w": jnp.zeros(3)},
        optax.adam(0.1).init(jnp.zeros(3)),
        (),
        None,
        privacy.gaussian(1.0),
    ],
    ids=["params", "Adam", "empty", "None", "a loss"],
)
def test_a_tree_without_a_ledger_is_refused(nothing):
    """It says nothing of what was released: zero would be a claim."""
    with pytest.raises(ValueError, match="opt_state must be a tree that holds a ledger"):
        privacy.privacy_spent(nothing)


def test_ledgers_of_different_relations_do_not_compose():
    state = _state_after_one_update(FULL, _charging(privacy.gaussian(1.0), RELATION))
    with pytest.raises(ValueError, match="ADD_OR_REMOVE_ONE and REPLACE_ONE"):
        privacy.privacy_spent(state)


def _finite(state, **options):
    return bool(np.all(np.isfinite(privacy.privacy_spent(state, **options).rdp)))


@pytest.mark.parametrize(
    ("parts", "adds"),
    [
        ((FULL,), True),
        ((POISSON,), True),
        ((CLOSED,), True),
        ((FULL, FULL), True),
        ((FULL, POISSON, FULL), True),
        ((POISSON, POISSON), False),
        ((CLOSED, FULL), False),
        ((CLOSED, POISSON), False),
        ((CLOSED, CLOSED), False),
    ],
    ids=lambda part: str(len(part)) if isinstance(part, tuple) else None,
)
def test_amplified_charges_compose_where_it_is_proven(parts, adds):
    """The cases of docs/theory/ledger.md; whoever vouches for independent draws gets the sum."""
    state = _state_after_one_update(*parts)
    assert _finite(state) == adds
    alone = [privacy.privacy_spent(_state_after_one_update(part)).rdp for part in parts]
    vouched = privacy.privacy_spent(state, independent_draws=True)
    np.testing.assert_allclose(vouched.rdp, np.sum(alone, axis=0), rtol=1e-5)
    if not adds:
        assert privacy.epsilon(privacy.privacy_spent(state), 1e-5) == np.inf
        # One call on several states is one question about one set of users.
        states = tuple(_state_after_one_update(part) for part in parts)
        assert not _finite(states)


def test_wrappers_that_join_draws_or_skip_updates_are_unbounded():
    params = jnp.zeros(2)

    def around(wrap, part):
        return wrap(part).init(params)

    def multi_steps(part):
        return optax.MultiSteps(part, 2)

    def if_finite(part):
        return optax.apply_if_finite(part, 3)

    def sometimes(part):
        return optax.conditionally_transform(part, lambda step: step > 1)

    assert _finite(around(multi_steps, FULL), trust=optax.MultiStepsState)
    refused = [(multi_steps, POISSON), (multi_steps, CLOSED)]
    for _, part in refused:
        assert not _finite(around(multi_steps, part), trust=optax.MultiStepsState)
    refused += [(wrap, part) for wrap in (if_finite, sometimes) for part in (FULL, POISSON)]
    for wrap, part in refused:
        for state in (around(wrap, part), (FULL.init(params), {"a": around(wrap, part)})):
            assert not _finite(state)
            assert not _finite(state, independent_draws=True)
    # Inside of the chain, after the release, they are harmless.
    assert _finite(optax.chain(POISSON, if_finite(optax.sgd(0.1))).init(params))


def test_no_entry_lowers_the_sum():
    ledger = privacy.charge(privacy.open_ledger(RELATION), privacy.gaussian(1.0))
    once = privacy.gaussian(1.0)
    negative, nothing = once._replace(rdp=-once.rdp), once._replace(rdp=np.nan * once.rdp)
    for bad in (negative, nothing, once._replace(delta=np.float64(-1e-6))):
        with pytest.raises(ValueError, match="loss"):
            privacy.charge(ledger, bad)
        traced = jax.jit(lambda loss: privacy.privacy_spent(privacy.charge(ledger, loss)))(bad)
        assert np.all(np.isinf(traced.rdp))


def _charged(times):
    ledger = privacy.open_ledger(RELATION)
    for _ in range(times):
        ledger = privacy.charge(ledger, privacy.approximate_dp(0.3, 1e-7))
    return ledger


def _without_total(ledger):
    # The residue takes away what the total holds.
    return dataclasses.replace(ledger, residue=jax.tree.map(jnp.negative, ledger.total))


def _one_delta(value):
    def changed(ledger):
        return dataclasses.replace(ledger, total=ledger.total._replace(delta=jnp.float32(value)))

    return changed


def _one_order(value):
    def changed(ledger):
        rdp = ledger.total.rdp.at[7].set(value)
        return dataclasses.replace(ledger, total=ledger.total._replace(rdp=rdp))

    return changed


@pytest.mark.parametrize(
    "spoil",
    [
        lambda ledger: jax.tree.map(lambda x: -x, ledger),
        lambda ledger: jax.tree.map(lambda x: -1e-3 * x, ledger),
        lambda ledger: jax.tree.map(lambda x: jnp.nan * x, ledger),
        _without_total,
        _one_delta(-1e-9),
        _one_delta(jnp.nan),
        _one_order(-1e-9),
        _one_order(jnp.nan),
    ],
    ids=["negated", "scaled", "NaN", "residue", "delta", "NaN delta", "order", "NaN order"],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_ledger_that_is_no_sum_spends_an_unbounded_loss(spoil, compiled):
    """Also beside a good one, in a batch, and when something is charged to it afterwards."""
    run = jax.jit if compiled else lambda function: function
    good, bad = _charged(3), spoil(_charged(3))
    later = jax.tree.map(lambda *x: jnp.stack(x), good, bad)

    def epsilons(bad, good, later):
        after = privacy.charge(bad, privacy.gaussian(0.1))
        spent = [privacy.privacy_spent(x) for x in (bad, after, (good, bad), good, later)]
        return [privacy.epsilon(x, 1e-5) for x in spent]

    alone, after, beside, sound, batch = run(epsilons)(bad, good, later)
    assert alone == after == beside == np.inf
    assert np.isfinite(sound)
    assert np.isfinite(batch[0])
    assert batch[1] == np.inf


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_good_ledger_stays_good_whatever_is_added_and_however_it_is_cast(kind):
    """Residues of every size: entries of 40 orders of magnitude, in rising, falling and mixed order."""
    rng = np.random.default_rng(0)
    sizes = 10.0 ** np.concatenate(
        [np.arange(-20, 20), np.arange(20, -20, -1), rng.normal(0, 9, 80)]
    )
    ledger, entry = privacy.open_ledger(RELATION), privacy.gaussian(1.0)
    add = jax.jit(privacy.charge)
    for size in sizes:
        delta = np.float64(min(size, 1.0) * 1e-30)
        ledger = add(ledger, privacy.PrivacyLoss(entry.rdp * size, delta))
        with jax.enable_x64(kind is np.float64):
            spent = privacy.privacy_spent(jax.tree.map(kind, ledger))
            assert np.all(np.isfinite(spent.rdp)), size
    expected = math.fsum(sizes) * np.float64(entry.rdp)
    np.testing.assert_allclose(np.float64(spent.rdp), expected, rtol=2e-6)


def test_metadata_survive_whatever_moves_a_state():
    ledger = privacy.open_ledger(ADD_REMOVE, sampled=True, shareable=True)
    entry = privacy.gaussian(1.0)

    @jax.jit
    def scanned(ledger):
        return jax.lax.scan(lambda x, _: (privacy.charge(x, entry), None), ledger, length=3)[0]

    leaves, treedef = jax.tree.flatten(ledger)
    moved = [
        scanned(ledger),
        jax.jit(lambda x: privacy.charge(x, entry), donate_argnums=0)(scanned(ledger)),
        jax.tree.unflatten(treedef, leaves),
        pickle.loads(pickle.dumps(ledger)),
        jax.vmap(lambda scale: privacy.charge(ledger, privacy.gaussian(scale)))(jnp.ones(2)),
    ]
    for found in moved:
        assert (found.relation, found.sampled, found.shareable) == (ADD_REMOVE, True, True)
    assert jax.tree.structure(ledger) != jax.tree.structure(privacy.open_ledger(ADD_REMOVE))
