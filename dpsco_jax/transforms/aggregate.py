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
    require_given,
    require_positive,
    require_relation,
)
from dpsco_jax._numerics import wide_number


def _as_released(released: Any, state: Any) -> tuple[Any, Any]:
    return released, state


class Aggregate(optax.GradientTransformationExtraArgs):
    """A transformation that returns one statistic of all users, with its sensitivity.

    ``update`` returns leaves in at least float32, whatever the dtype of the contributions:
    rounding the statistic before the noise is on it would change how far one user can move it.

    A tuple of two functions, as every optax transformation; copies, pickles (where its functions can be
    pickled, with ``cloudpickle`` always) and ``jax.tree.map`` keep the rest with them. As a pytree it has
    the three functions and the one or two numbers as leaves.

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
        within_half: whether what one user adds is proven to be at most half of the sensitivity long. Where a
            user is replaced, Poisson sampling needs it: the user may not have been drawn, so that one user's
            contribution counts by its own length too. False of long vectors that are near each other.
        clipped_to: where users come added up already, the bound on the norm of each user's share that whoever
            made the sum has to have kept; may be traced. ``None`` where the aggregate bounds users itself.
    """

    sensitivity: jax.typing.ArrayLike
    relation: NeighboringRelation
    finish: Callable[[Any, Any], tuple[Any, Any]]
    proven: bool
    within_half: bool
    clipped_to: jax.typing.ArrayLike | None

    def __new__(
        cls,
        init: Callable[..., Any],
        update: Callable[..., Any],
        sensitivity: jax.typing.ArrayLike,
        relation: NeighboringRelation,
        finish: Callable[[Any, Any], tuple[Any, Any]] = _as_released,
        proven: bool = True,
        within_half: bool = False,
        clipped_to: jax.typing.ArrayLike | None = None,
    ) -> "Aggregate":
        """An aggregate of the two functions of an optax transformation and what goes with them."""
        for name, function in (("init", init), ("update", update), ("finish", finish)):
            require_callable(name, function)
        require_positive("sensitivity", sensitivity)
        require_relation("relation", relation)
        flags = {"proven": proven, "within_half": within_half}
        static = tuple(require_flag(name, flag) for name, flag in flags.items())
        require_given(require_positive, clipped_to=clipped_to)
        sensitivity = wide_number(sensitivity)
        return _assembled(init, update, sensitivity, finish, clipped_to, relation, static)

    def __reduce__(self) -> Any:
        # A tuple would be built again from its two entries alone.
        static = self.relation, (self.proven, self.within_half)
        return _assembled, (*self, self.sensitivity, self.finish, self.clipped_to, *static)

    def _replace(self, **kwargs: Any) -> "Aggregate":
        parts = {
            "init": self.init,
            "update": self.update,
            "sensitivity": self.sensitivity,
            "relation": self.relation,
            "finish": self.finish,
            "proven": self.proven,
            "within_half": self.within_half,
            "clipped_to": self.clipped_to,
        }
        return Aggregate(**{**parts, **kwargs})


def _assembled(
    init: Any,
    update: Any,
    sensitivity: Any,
    finish: Any,
    clipped_to: Any,
    relation: Any,
    flags: tuple[bool, ...],
) -> Aggregate:
    """Without checks: what a tree is mapped to may be anything."""
    aggregate = optax.GradientTransformationExtraArgs.__new__(Aggregate, init, update)
    aggregate.sensitivity = sensitivity
    aggregate.relation = relation
    aggregate.finish = finish
    aggregate.clipped_to = clipped_to
    aggregate.proven, aggregate.within_half = flags
    return aggregate


def _flatten(aggregate: Aggregate) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    static = aggregate.relation, (aggregate.proven, aggregate.within_half)
    return (*aggregate, aggregate.sensitivity, aggregate.finish, aggregate.clipped_to), static


def _unflatten(static: tuple[Any, ...], parts: Any) -> Aggregate:
    return _assembled(*parts, *static)


jax.tree_util.register_pytree_node(Aggregate, _flatten, _unflatten)
