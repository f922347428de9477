"""Account: any loss, once per update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms

RELATION = NeighboringRelation.REPLACE_ONE


def test_account_passes_updates_and_charges_the_loss():
    loss = privacy.compose(privacy.pure_dp(0.3), privacy.approximate_dp(0.1, 1e-7))
    transformation = transforms.account(loss, RELATION)
    updates = {"w": jnp.array([1.0, jnp.nan])}
    state = transformation.init(updates)
    for _ in range(3):
        moves, state = transformation.update(updates, state)
    assert moves is updates
    spent = privacy.privacy_spent(state)
    np.testing.assert_allclose(spent.rdp, 3 * loss.rdp, rtol=1e-5)
    assert spent.delta == pytest.approx(3e-7, rel=1e-5)


def test_account_does_not_lose_small_charges():
    """A million charges in float32, next to one that is a million times larger."""
    small = privacy.gaussian(1e3)
    transformation = transforms.account(small, RELATION)

    @jax.jit
    def run():
        return jax.lax.fori_loop(
            0, 10**6, lambda _, s: transformation.update(0.0, s)[1], transformation.init(0.0)
        )

    spent = privacy.privacy_spent(run())
    np.testing.assert_allclose(spent.rdp, privacy.ORDERS / 2, rtol=3e-6)
    assert np.all(np.float64(spent.rdp) >= privacy.ORDERS / 2 * (1 - 1e-6))


def test_what_is_no_loss_is_refused():
    owed = privacy.pure_dp(1.0)
    transformation = transforms.account(owed._replace(rdp=-owed.rdp), RELATION)
    with pytest.raises(ValueError, match="loss must be nonnegative"):
        transformation.update(jnp.zeros(2), transformation.init(None))
