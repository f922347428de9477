"""Account: charges any privacy loss to a ledger in a chain, once per update.

What it computes: nothing; updates pass through. Use it for what the rest of a chain does not charge
itself: a private test at every step, a mechanism of one's own, an oracle that releases something.

Source: composition of approximate Rényi differential privacy (``privacy.compose``).

Formal guarantee: the ledger holds the stated loss times the number of updates. That the loss is
that of what is released at each update is the caller's part of the proof.

Cost: one addition of a curve.
"""

from typing import Any, NamedTuple

import optax

from dpsco_jax import privacy


class AccountState(NamedTuple):
    """State of ``account``: the ledger."""

    ledger: privacy.Ledger


def account(loss: privacy.PrivacyLoss) -> optax.GradientTransformationExtraArgs:
    """Passes updates through and charges ``loss`` for each, under the relation of the loss.

    Args:
        loss: the cost of one update, any privacy loss; its arrays may be traced. A cost paid once
            for a whole run (a stream of threshold tests) is not a cost per update: compose it with
            ``privacy_spent(opt_state)`` instead.
    """

    def init(params: Any) -> AccountState:
        del params
        return AccountState(privacy.open_ledger())

    def update(
        updates: Any, state: AccountState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, AccountState]:
        del params, extra_args
        return updates, AccountState(privacy.charge(state.ledger, loss))

    return optax.GradientTransformationExtraArgs(init, update)
