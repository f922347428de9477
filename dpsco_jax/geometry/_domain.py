"""What a convex set is, and of which sets it is proven: kept beside the tuple, where nobody edits them.

What it computes: nothing. A ``Domain`` is a tuple that anybody may build or ``_replace``; the functions of
``geometry.domains`` enter what they make, keyed by the projection itself, and ``proven_diameter`` and its
like pass only those.

Source: none.

Formal guarantee: what is entered was made from concrete numbers that are copied, so that a set does not
change after it was made.

Cost: one look-up.
"""

import functools
import inspect
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec

import jax
import numpy as np
from jaxtyping import ArrayLike, PyTree

from dpsco_jax._checks import require, require_instance

_Arguments = ParamSpec("_Arguments")


class Domain(NamedTuple):
    """A closed convex set.

    Attributes:
        project: the nearest point of the set; keeps structure, shapes and dtypes. NaN stays NaN, so
            that a diverged run is seen.
        diameter: the largest ℓ2 distance between two of its points, ``inf`` for the whole space.
        contains: ``contains(point, tol)`` is whether the point violates no constraint by more than
            ``tol`` (in the units of the point); false for NaN, except in the whole space.
        thresholds: whether the minimizer over the set of a multiple of ‖w‖₁ plus ‖w - z‖²/2 is z,
            soft-thresholded and then projected; see ``geometry.prox``.
        moves: for a point ``[dim]`` the function from a move ``[dim]`` to the move from the point to the
            nearest place of the set, which is widened to hold the point; as precise as the move itself where
            that is small, for solvers whose noise is far below the rounding of a point. ``None`` where no
            such form is known.
        norm: the largest ℓ2 norm of a point, which bounds the slope of a ridge; ``inf`` where not known.
        radius: of a ball around the origin; ``None`` for all other sets. Nothing that is proven rests on it.
    """

    project: Callable[[PyTree], PyTree]
    diameter: ArrayLike
    contains: Callable[[PyTree, ArrayLike], Any]
    thresholds: bool = False
    moves: Callable[[Any], Callable[[Any], Any]] | None = None
    norm: ArrayLike = math.inf
    radius: ArrayLike | None = None


_moves_of_sets: weakref.WeakSet[Any] = weakref.WeakSet()


def require_proven_moves(name: str, domain: Domain) -> None:
    """``ValueError`` unless the moves are those of a set of this package: they expand no distance."""
    require_instance("name", name, str)
    require_instance("domain", domain, Domain)
    known = domain.moves is not None and domain.moves in _moves_of_sets
    require(
        known,
        name,
        domain,
        "one that knows its moves, such as a ball, a box, a simplex or an l1 ball: projected points are"
        " rounded by more than late phases move them, and other moves may expand distances",
    )


def enter_moves(domain: Domain) -> Domain:
    """Enters the moves of a set for ``require_proven_moves``, and returns the domain.

    Raises:
        ValueError: ``domain`` is no ``Domain``.
    """
    require_instance("domain", domain, Domain)
    _moves_of_sets.add(domain.moves)
    return domain


_diameters: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
_makers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def proven_diameter(domain: Domain) -> float:
    """The diameter of a set of ``geometry.domains``, whose projection is one: it expands no distance.

    Raises:
        ValueError: ``domain`` is no ``Domain``, the projection is not one that a function of
            ``geometry.domains`` made from concrete numbers, or the domain claims another diameter than that
            of its set.
    """
    require_instance("domain", domain, Domain)
    found = _diameters.get(domain.project)
    require(found is not None, "domain", domain, "a set of geometry.domains")
    require(
        domain.diameter == found, "domain.diameter", domain.diameter, f"that of the set, {found}"
    )
    assert found is not None
    return found


def proven_maker(domain: Domain) -> tuple[str, dict[str, Any]]:
    """Which function of ``geometry.domains`` made a set, by name, and from which arguments.

    Raises:
        ValueError: as for ``proven_diameter``.
    """
    proven_diameter(domain)
    name, given = _makers[domain.project]
    return name, given


def entered(make: Callable[_Arguments, Domain]) -> Callable[_Arguments, Domain]:
    """Enters what the function makes for ``proven_diameter``, unless its diameter is traced."""

    @functools.wraps(make)
    def made(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Domain:
        args, kwargs = jax.tree.map(_own, (args, kwargs))
        domain = enter_moves(make(*args, **kwargs))
        if not isinstance(domain.diameter, jax.core.Tracer) and np.ndim(domain.diameter) == 0:
            _diameters[domain.project] = float(np.asarray(domain.diameter))
            given = inspect.signature(make).bind(*args, **kwargs).arguments
            _makers[domain.project] = (make.__name__, dict(given))
        return domain

    return made


def _own(leaf: Any) -> Any:
    """A copy of an array that its owner could write to: a set does not change after it was made."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    copy = np.array(leaf)
    copy.setflags(write=False)
    return copy
