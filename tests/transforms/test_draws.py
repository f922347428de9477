"""Several looks at one secret draw of users, as chains of real transformations make them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from tests.support.tested import phase
from tests.transforms import table

REPLACE = NeighboringRelation.REPLACE_ONE
ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
POISSON, FULL = privacy.Poisson(0.1), privacy.FullBatch()
PARAMS = {"a": jnp.zeros(3), "b": jnp.zeros(2)}
UPDATES = {"a": jnp.ones((4, 3)), "b": jnp.ones((4, 2))}


def release(sampling, relation, seed=0, multiplier=1.0):
    aggregate = transforms.clipped_sum(1.0, relation)
    return transforms.privatize(aggregate, jax.random.key(seed), multiplier, sampling)


def fixed_size(relation):
    return release(privacy.WithoutReplacement(40, 4), relation)


def _tested(batch_size):
    releases = phase(6, 4, 4.0, batch_size=batch_size, core=4.0)
    return transforms.outlier_removed_mean(releases, 1.0, jax.random.key(0))


@pytest.mark.parametrize(
    ("sampling", "relation", "adds"),
    [
        (FULL, REPLACE, True),
        (FULL, ADD_REMOVE, True),
        (POISSON, ADD_REMOVE, False),
        (privacy.WithoutReplacement(40, 4), REPLACE, False),
        (privacy.WithoutReplacement(40, 4), ADD_REMOVE, False),
        (privacy.WithReplacement(40, 4), REPLACE, False),
    ],
)
def test_groups_of_a_partition_on_one_draw(sampling, relation, adds):
    """Clipping per layer by ``optax.partition``: two releases, of which only the first is amplified."""
    groups = {name: release(sampling, relation, i) for i, name in enumerate("ab")}
    chain = optax.partition(groups, {"a": "a", "b": "b"})
    _, state = jax.jit(chain.update)(UPDATES, chain.init(PARAMS))
    spent = privacy.privacy_spent(state)
    once = sampling.gaussian_loss(1.0, relation)
    if adds:
        np.testing.assert_allclose(spent.rdp, 2 * once.rdp, rtol=1e-5)
    else:
        assert np.all(np.isinf(spent.rdp))
    vouched = privacy.privacy_spent(state, independent_draws=True)
    np.testing.assert_allclose(vouched.rdp, 2 * once.rdp, rtol=1e-4, atol=1e-9)


def spent_at_start(*parts, **options):
    """Of states that have released nothing: whether losses compose is known beforehand."""
    states = [part.init(PARAMS) for part in parts]
    return bool(np.all(np.isfinite(privacy.privacy_spent(states, **options).rdp)))


def test_what_may_stand_beside_a_sampled_release():
    test = transforms.account(privacy.pure_dp(0.1), ADD_REMOVE)
    assert spent_at_start(test, release(POISSON, ADD_REMOVE))
    assert spent_at_start(release(POISSON, ADD_REMOVE), test, release(FULL, ADD_REMOVE, seed=1))
    amplified = transforms.account(privacy.pure_dp(0.1), ADD_REMOVE, sampled=True)
    assert spent_at_start(amplified)
    assert not spent_at_start(amplified, release(POISSON, ADD_REMOVE))
    assert not spent_at_start(amplified, test)
    assert not spent_at_start(fixed_size(ADD_REMOVE), test)
    exact = transforms.account(privacy.pure_dp(0.1), REPLACE)
    assert spent_at_start(exact, release(FULL, REPLACE, seed=1), _tested(6))
    assert not spent_at_start(fixed_size(REPLACE), exact)
    assert not spent_at_start(_tested(3), exact)
    with pytest.raises(ValueError, match="ADD_OR_REMOVE_ONE and REPLACE_ONE"):
        spent_at_start(release(POISSON, ADD_REMOVE), exact)


def test_a_halted_chain_keeps_what_its_ledger_knows():
    chain = transforms.halt_when(
        optax.chain(release(POISSON, ADD_REMOVE), release(POISSON, ADD_REMOVE, seed=1)),
        lambda state, updates: True,
    )
    assert not spent_at_start(chain)
    assert spent_at_start(transforms.halt_when(release(POISSON, ADD_REMOVE), lambda *_: True))


def test_multi_steps_around_a_sampled_release():
    around = optax.MultiSteps(release(POISSON, ADD_REMOVE), 2)
    assert not spent_at_start(around)
    assert not spent_at_start(around, trust=optax.MultiStepsState)
    full = optax.MultiSteps(release(FULL, ADD_REMOVE), 2)
    assert not spent_at_start(full)
    assert spent_at_start(full, trust=optax.MultiStepsState)


def test_nothing_that_releases_stands_behind_a_halt():
    rest = optax.chain(release(FULL, REPLACE), optax.sgd(0.1))
    for held in (rest, transforms.account(privacy.pure_dp(0.1), REPLACE)):
        with pytest.raises(ValueError, match="rest must be without both"):
            transforms.until_halted(_tested(6), held).init(PARAMS)


@pytest.mark.parametrize("row", [r for r in table.ROWS if r.private], ids=lambda row: row.name)
def test_every_private_transformation_states_its_relation(row):
    """Beside a ledger of another relation it is refused, so it has one."""
    made, params = row.make(**row.numbers[0]), table.PARAMS["vector"]()
    found = {
        node.relation
        for node in jax.tree.leaves(
            made.init(params), is_leaf=lambda x: isinstance(x, privacy.Ledger)
        )
        if isinstance(node, privacy.Ledger)
    }
    assert len(found) == 1
    (other,) = {REPLACE, ADD_REMOVE} - found
    with pytest.raises(ValueError, match="and"):
        privacy.privacy_spent((made.init(params), privacy.open_ledger(other)))


def test_a_traced_sensitivity_out_of_its_range_is_charged_in_full():
    @jax.jit
    def spent(clip_norm, num_users):
        aggregate = transforms.clipped_mean(clip_norm, num_users)
        chain = transforms.privatize(aggregate, jax.random.key(0), 1.0)
        return privacy.privacy_spent(chain.update(jnp.ones((2, 3)), chain.init(jnp.zeros(3)))[1])

    assert np.all(np.isfinite(spent(1.0, 2.0).rdp))
    for bad in [(-1.0, 2.0), (0.0, 2.0), (np.nan, 2.0), (1.0, -2.0), (1.0, np.nan), (np.inf, 2.0)]:
        assert np.all(np.isinf(spent(*bad).rdp)), bad
