"""What an aggregate is: an optax transformation that knows how far one user can move its result.

Formal guarantee: none by itself. That the sensitivity is one is proven where an aggregate is made.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax._checks import (
    require_callable,
    require_flag,
    require_positive,
    require_relation,
)


def _as_released(released: Any, state: Any) -> tuple[Any, Any]:
    return released, state


class Aggregate(optax.GradientTransformationExtraArgs):
    """A transformation that returns one statistic of all users, with its sensitivity.

    ``update`` returns leaves in at least float32, whatever the dtype of the contributions:
    rounding the statistic before the noise is on it would change how far one user can move it.

    A tuple of two functions, as every optax transformation; copies, pickles (where its functions can be
    pickled, with ``cloudpickle`` always) and ``jax.tree.map`` keep the rest with them. As a pytree it has
    four leaves, the three functions and the sensitivity.

    Attributes:
        sensitivity: how far the statistic can move in l2 norm, over all leaves together, between
            neighbouring data sets, whatever was released before; a scalar that may be traced.
        relation: which data sets are neighbours.
        finish: ``finish(released, state) -> (updates, state)``, what ``privatize`` calls once the
            noise is on: it turns the noised statistic into updates, and may remember releases. It
            is post-processing, so that ``state`` must hold nothing of the data. Where there is
            one, the statistic itself need not be an update.
        proven: whether the sensitivity is a bound. An analysis may release a statistic of which nothing is
            proven (a projection onto directions found in private data); ``privatize`` charges an unbounded
            loss for it.
    """

    sensitivity: jax.typing.ArrayLike
    relation: NeighboringRelation
    finish: Callable[[Any, Any], tuple[Any, Any]]
    proven: bool

    def __new__(
        cls,
        init: Callable[..., Any],
        update: Callable[..., Any],
        sensitivity: jax.typing.ArrayLike,
        relation: NeighboringRelation,
        finish: Callable[[Any, Any], tuple[Any, Any]] = _as_released,
        proven: bool = True,
    ) -> "Aggregate":
        """An aggregate of the two functions of an optax transformation and what goes with them.

        Raises:
            ValueError: ``init``, ``update`` or ``finish`` is no function, ``sensitivity`` is not positive,
                ``relation`` is no ``NeighboringRelation``, or ``proven`` no boolean.
        """
        for name, function in (("init", init), ("update", update), ("finish", finish)):
            require_callable(name, function)
        require_positive("sensitivity", sensitivity)
        require_relation("relation", relation)
        proven = require_flag("proven", proven)
        return _assembled(init, update, sensitivity, relation, finish, proven)

    def __reduce__(self) -> Any:
        # A tuple would be built again from its two entries alone.
        return _assembled, (*self, self.sensitivity, self.relation, self.finish, self.proven)

    def _replace(self, **kwargs: Any) -> "Aggregate":
        parts = {
            "init": self.init,
            "update": self.update,
            "sensitivity": self.sensitivity,
            "relation": self.relation,
            "finish": self.finish,
            "proven": self.proven,
        }
        return Aggregate(**{**parts, **kwargs})


def _assembled(
    init: Any, update: Any, sensitivity: Any, relation: Any, finish: Any, proven: bool
) -> Aggregate:
    """Without checks: what a tree is mapped to may be anything."""
    aggregate = optax.GradientTransformationExtraArgs.__new__(Aggregate, init, update)
    aggregate.sensitivity = sensitivity
    aggregate.relation = relation
    aggregate.finish = finish
    aggregate.proven = proven
    return aggregate


def _flatten(aggregate: Aggregate) -> tuple[tuple[Any, ...], tuple[NeighboringRelation, bool]]:
    static = (aggregate.relation, aggregate.proven)
    return (*aggregate, aggregate.sensitivity, aggregate.finish), static


def _unflatten(static: tuple[NeighboringRelation, bool], parts: Any) -> Aggregate:
    init, update, sensitivity, finish = parts
    relation, proven = static
    return _assembled(init, update, sensitivity, relation, finish, proven)


jax.tree_util.register_pytree_node(Aggregate, _flatten, _unflatten)
