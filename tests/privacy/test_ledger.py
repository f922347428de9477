"""The ledger: nothing is lost over many entries, nor in any nesting of optax states."""

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


class _State(NamedTuple):
    ledger: Ledger


def _charging(loss: PrivacyLoss) -> optax.GradientTransformation:
    def update(updates, state, params=None):
        del params
        return updates, _State(privacy.charge(state.ledger, loss))

    return optax.GradientTransformation(lambda _: _State(privacy.open_ledger(RELATION)), update)


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
    spent = privacy.privacy_spent(state)
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
