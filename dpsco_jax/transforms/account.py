"""Account: charges any privacy loss to a ledger in a chain, once per update.

What it computes: updates pass through, and the ledger grows. Use it for what the rest of a chain does not
charge itself: a private test at every step, a mechanism of one's own, an oracle that releases something.

Source: composition of approximate Rényi differential privacy (``privacy.compose``).

Formal guarantee: the ledger holds the stated loss times the number of updates. That the loss is
that of what is released at each update, under the stated relation, is the caller's part of the proof.
Where the rest of the chain counts on a secret draw of users, a release that looks at the same draw is to
be charged what it costs when the draw is known (docs/theory/ledger.md).

Cost: one addition of a curve.
"""

from typing import Any, NamedTuple

import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._checks import require_flag, require_instance, require_relation
from dpsco_jax.transforms import _agreement


class AccountState(NamedTuple):
    """State of ``account``: the ledger."""

    ledger: privacy.Ledger

    @property
    def passes_updates_through(self) -> bool:
        """True: it releases nothing, so that what stands in front of it may remember raw numbers."""
        return True


def account(
    loss: privacy.PrivacyLoss, relation: NeighboringRelation, sampled: bool = False
) -> optax.GradientTransformationExtraArgs:
    """Passes updates through and charges ``loss`` for each to a ledger in its state.

    Args:
        loss: the cost of one update, any privacy loss; its arrays may be traced. A cost paid once
            for a whole run (a stream of threshold tests) is not a cost per update: compose it with
            ``privacy_spent(opt_state)`` instead.
        relation: the neighbouring relation under which the loss was established.
        sampled: whether the loss counts on a secret draw of users in each update (amplification by
            sampling). With any other ledger beside it, ``privacy_spent`` is unbounded then, unless the
            caller vouches for independent draws.

    Raises:
        ValueError: by the update, if there is an argument ``value``, ``grad``, ``value_fn`` or ``loss``,
            which stages behind a release would read.
    """
    require_instance("loss", loss, privacy.PrivacyLoss)
    require_relation("relation", relation)
    require_flag("sampled", sampled)

    def init(params: Any) -> AccountState:
        del params
        return AccountState(privacy.open_ledger(relation, sampled))

    def update(
        updates: Any, state: AccountState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, AccountState]:
        del params
        _agreement.require_no_raw(extra_args)
        return updates, AccountState(privacy.charge(state.ledger, loss))

    return optax.GradientTransformationExtraArgs(init, update)
