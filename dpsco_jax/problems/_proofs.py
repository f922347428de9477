"""What is proven of losses: constants that are kept beside the objective, where nobody edits them.

An ``Objective`` is a tuple that anybody may build or ``_replace``: its fields are declarations. The
constructors of ``problems.losses`` enter the constants of each loss that they make, keyed by the function
itself. Where privacy rests on them and no clip stands in for them, ``require_proven`` passes only an
objective whose loss and linear model are those of a constructor, and whose constants claim no more than was
proven: no smaller Lipschitz constant or smoothness, no larger strong convexity, and the domain of the proof.
A function is one object: one that was copied by value, as ``cloudpickle`` does, is not known.
"""

import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from dpsco_jax.geometry import domains
from dpsco_jax.problems.labels import LabelRange
from dpsco_jax.problems.objective import LinearModel, Objective

_KNOWN = (
    "Use a loss that problems.losses makes, with its constants as they are, or a solver that clips."
)


class Proof(NamedTuple):
    """The constants of a loss, true for every item whatever.

    Attributes:
        lipschitz: bound on the ℓ2 norm of the gradient.
        smoothness: Lipschitz constant of the gradient; ``None`` if it is not smooth.
        loss_strong_convexity: strong convexity; negative for a loss that is not convex.
        linear_model: the same loss as a link of a margin; ``None`` if it is no linear model.
        everywhere: whether ``lipschitz`` holds on the whole space.
        domain: where it holds otherwise.
        gap: ``gap(radius)``: bound on the distance between the gradients of two items at one point of at most
            this norm; ``None`` if nothing better is proven than twice ``lipschitz``.
        label_range: the labels that the loss reads as they are: what an objective says of them may be another
            range, which is no proof; ``None`` for items without labels.
    """

    lipschitz: float
    smoothness: float | None
    loss_strong_convexity: float
    linear_model: LinearModel | None
    everywhere: bool
    domain: Any
    gap: Callable[[float], float] | None = None
    label_range: LabelRange | None = None

    def gradient_gap(self, radius: float) -> float:
        """How far apart the gradients of two items are at most, at points of at most this norm."""
        twice = 2.0 * self.lipschitz
        return twice if self.gap is None else min(twice, self.gap(radius))


_proofs: weakref.WeakKeyDictionary[Any, Proof] = weakref.WeakKeyDictionary()


def register(objective: Objective, gap: Callable[[float], float] | None = None) -> Objective:
    """Enters the constants of a loss that was made for this objective, and returns the objective.

    For constructors whose docstring derives the constants; there is no other proof. ``gap`` is that of
    ``Proof``.
    """
    everywhere = objective.globally_convex_lipschitz
    _proofs[objective.loss] = Proof(
        lipschitz=objective.lipschitz,
        smoothness=objective.smoothness,
        loss_strong_convexity=objective.loss_strong_convexity,
        linear_model=objective.linear_model,
        everywhere=everywhere,
        domain=None if everywhere else objective.domain,
        gap=gap,
        label_range=objective.label_range,
    )
    return objective


def require_proven(objective: Objective) -> Proof:
    """What is proven of the loss of an objective, if the objective claims no more.

    Args:
        objective: its ``linear_model`` may be left out (``None``), and its constants may be weaker than
            those of the constructor; the ridge and, for losses whose constants hold on the whole space,
            the domain are free.

    Raises:
        ValueError: the loss is not one that ``problems.losses`` made, the linear model is not that of the
            loss, or a constant claims more than is proven.
    """
    proof = _proofs.get(objective.loss)
    if proof is None or proof.loss_strong_convexity < 0.0:
        _refuse(objective, "problems.losses, which is convex and Lipschitz by construction,")
    found, model = objective.smoothness, proof.linear_model
    smooth = math.inf if proof.smoothness is None else proof.smoothness
    convexity = objective.loss_strong_convexity
    claims: list[tuple[bool, str, Any, Any]] = [
        (objective.linear_model in (None, model), "linear_model", objective.linear_model, model),
        (objective.lipschitz >= proof.lipschitz, "lipschitz", objective.lipschitz, proof.lipschitz),
        (found is None or found >= smooth, "smoothness", found, proof.smoothness),
        (
            0 <= convexity <= proof.loss_strong_convexity,
            "loss_strong_convexity",
            convexity,
            proof.loss_strong_convexity,
        ),
        (0 <= objective.ridge < math.inf, "ridge", objective.ridge, "at least 0"),
        (
            proof.everywhere or objective.domain is proof.domain,
            "domain",
            objective.domain,
            proof.domain,
        ),
    ]
    for holds, name, value, proven in claims:
        if not holds:
            raise ValueError(
                f"objective must claim no more than is proven of its loss: {name} is {proven!r}, got"
                f" {value!r}. {_KNOWN}"
            )
    return proof


def require_lipschitz(objective: Objective) -> float:
    """The Lipschitz constant that an objective claims, if no less is proven of every item, convex or not.

    Args:
        objective: of ``problems.losses`` or ``problems.nonconvex_losses``. The ridge is free, and for losses
            that are convex and Lipschitz on the whole space so is the domain.

    Raises:
        ValueError: nothing is proven of the loss, or less than the objective claims.
    """
    proof = _proofs.get(objective.loss)
    if proof is None:
        _refuse(
            objective, "problems.losses or problems.nonconvex_losses, Lipschitz by construction,"
        )
    claimed = float(objective.lipschitz)
    if not proof.lipschitz <= claimed < math.inf:
        raise ValueError(
            f"objective.lipschitz must be at least the {proof.lipschitz} of its loss, got {claimed}. {_KNOWN}"
        )
    if not (proof.everywhere or objective.domain is proof.domain):
        raise ValueError(
            f"objective.domain must be the one that its loss was made for, got {objective.domain}. {_KNOWN}"
        )
    return claimed


def _refuse(objective: Objective, of: str) -> NoReturn:
    raise ValueError(
        f"objective must have a loss of {of} made in this process, got {objective.loss!r}. {_KNOWN} A loss"
        " that was copied by value, as cloudpickle does, is not known: make the objective anew in the process"
        " that uses it."
    )


class Contracting(NamedTuple):
    """What is proven of an objective whose gradient steps contract.

    Attributes:
        lipschitz: L of every item's loss.
        smoothness: H of every item's loss.
        loss_strong_convexity: μ of every item's loss.
        ridge: of the regularizer.
        diameter: of the domain.
        gap: how far apart the gradients of two items are, at points within a radius of the origin; 2L for
            none.
    """

    lipschitz: float
    smoothness: float
    loss_strong_convexity: float
    ridge: float
    diameter: float
    gap: float


def require_contracting(objective: Objective, radius: float | None = None) -> Contracting:
    """The constants of an objective, if they are proven and smooth; on the whole space if a radius is given.

    Args:
        objective: of ``problems.losses``, on a domain of ``geometry.domains``.
        radius: how far from the origin points may be, where constants on the domain alone will not do.

    Raises:
        ValueError: nothing proves that the loss is convex, Lipschitz and smooth there with these constants,
            or that the domain is a convex set of that diameter.
    """
    if objective.smoothness is None:
        raise ValueError("objective must be smooth, for gradient steps to contract, got None")
    proof = require_proven(objective)
    lipschitz = float(objective.lipschitz)
    gap = 2.0 * lipschitz
    if radius is not None:
        if not (proof.everywhere and objective.globally_convex_lipschitz):
            raise ValueError(
                "objective must be globally_convex_lipschitz: convex and Lipschitz on the whole space by"
                f" construction, got {objective.globally_convex_lipschitz}"
            )
        gap = proof.gradient_gap(radius)
    return Contracting(
        lipschitz,
        float(objective.smoothness),
        float(objective.loss_strong_convexity),
        float(objective.ridge),
        domains.proven_diameter(objective.domain),
        gap,
    )
