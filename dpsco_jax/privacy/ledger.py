"""The ledger: a running privacy loss that an optimizer state carries.

A ``Ledger`` is where a transformation writes what each of its steps has cost. Steps are added with
compensated (Kahan) summation, so that a million float32 additions lose no more than one does.
``privacy_spent`` finds every ledger in any nesting of optax states and composes them.

Formal guarantee: the loss returned bounds everything that the transformations of the state have released
so far, under the neighbouring relation of those transformations, which must be the same for all.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpsco_jax.privacy._numerics import Array, array_namespace, round_up
from dpsco_jax.privacy.loss import PrivacyLoss, compose, zero
from dpsco_jax.privacy.orders import ORDERS

_ROUNDING_ULPS = 8.0


class Ledger(NamedTuple):
    """A privacy loss under accumulation.

    Attributes:
        total: the sum so far, as rounded.
        residue: what rounding has left out of ``total``, to be added at the next entry.
    """

    total: PrivacyLoss
    residue: PrivacyLoss


def open_ledger() -> Ledger:
    """A ledger with no entry, in the default floating dtype of JAX."""
    empty = PrivacyLoss(jnp.zeros(len(ORDERS)), jnp.zeros(()))
    return Ledger(total=empty, residue=jax.tree.map(jnp.copy, empty))


def charge(ledger: Ledger, loss: PrivacyLoss) -> Ledger:
    """The ledger with one more entry: ``loss``, the cost of one release. Jit-safe, dtype-preserving."""

    def add(total: Array, residue: Array, entry: Array) -> tuple[Array, Array]:
        term = jnp.asarray(entry, total.dtype) + residue
        new = total + term
        # An infinite entry must stay infinite: its residue would be inf - inf.
        left = jnp.where(jnp.isfinite(new), term - (new - total), 0.0)
        return new, left.astype(total.dtype)

    pairs = [add(*leaves) for leaves in zip(ledger.total, ledger.residue, loss, strict=True)]
    return Ledger(
        total=PrivacyLoss(*(new for new, _ in pairs)),
        residue=PrivacyLoss(*(left for _, left in pairs)),
    )


def privacy_spent(opt_state: Any) -> PrivacyLoss:
    """The privacy loss of everything released so far by the transformations in an optimizer state.

    Args:
        opt_state: any pytree that holds ledgers: the state of ``optax.chain``, ``masked``,
            ``multi_transform``, ``inject_hyperparams``, or of a batch of optimizers under ``vmap``.

    Returns:
        The composition of all ledgers found, rounded up; ``zero()`` if there is none.
    """
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, Ledger))
    spent = [leaf for leaf in leaves if isinstance(leaf, Ledger)]
    if not spent:
        return zero()
    total = compose(*(compose(ledger.total, ledger.residue) for ledger in spent))
    xp = array_namespace(total)
    return PrivacyLoss(*(round_up(xp.maximum(x, 0.0), _ROUNDING_ULPS) for x in total))
