"""What follows a release that has halted stands still, the release goes on."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax.transforms import OutlierRemovedState

RELATION = NeighboringRelation.REPLACE_ONE
COST = privacy.pure_dp(0.5)


def _release(last_step):
    """Passes ones on, with the state of a release that halts after ``last_step`` updates."""

    def init(params):
        zeros = jnp.zeros_like(params)
        return OutlierRemovedState(
            jax.random.key(0),
            (),
            jnp.zeros([], bool),
            jnp.zeros([], jnp.int32),
            privacy.open_ledger(RELATION),
            zeros,
        )

    def update(updates, state, params=None):
        steps = state.steps + 1
        over = steps > last_step
        ledger = privacy.charge(state.ledger, COST)
        state = state._replace(steps=steps, halted=over, ledger=ledger)
        return jnp.where(over, 0.0, jnp.ones_like(updates)), state

    return optax.GradientTransformation(init, update)


@pytest.fixture(scope="module")
def path():
    """Six updates, of which the last two are asked for after the halt."""
    rest = optax.chain(
        optax.stateless(lambda u, p: u + 0.1 * p), optax.trace(0.5), transforms.average()
    )
    chain = transforms.until_halted(_release(4), rest)

    @jax.jit
    def run(params):
        def step(carry, _):
            params, state = carry
            moves, state = chain.update(jnp.zeros(2), state, params)
            params = params + moves
            average = transforms.average_eval_params(state, params)
            return (params, state), (params, average, transforms.halted(state))

        carry, seen = jax.lax.scan(step, (params, chain.init(params)), None, length=6)
        return carry[1], seen

    return run(jnp.ones(2))


def test_parameters_and_averages_stop_although_ridge_and_momentum_would_go_on(path):
    _, (params, averages, halted) = path
    np.testing.assert_array_equal(halted, np.arange(6) >= 4)
    assert np.all(np.diff(params[:4], axis=0) > 1.0)
    for values in (params, averages):
        np.testing.assert_array_equal(values[4:], np.stack([values[3]] * 2))
    np.testing.assert_allclose(averages[3], params[:4].mean(0), rtol=1e-6)


def test_the_release_goes_on(path):
    state, _ = path
    assert state.release.steps == 6
    assert state.rest[2].steps == 4
    spent = privacy.privacy_spent(state)
    np.testing.assert_allclose(spent.rdp, 6 * COST.rdp, rtol=1e-5)
