"""From a link to an objective: a function of the margin and the label, with its constants.

The loss is φ(⟨w, x⟩, y), of the link φ. With ‖x‖ ≤ B it has Lipschitz constant sup|φ'|·B, smoothness
sup|φ''|·B² and Hessian-Lipschitz constant sup|φ'''|·B³, suprema over the margin: its derivative of order k
along unit vectors is that of φ times at most ‖x‖ᵏ. Features are projected onto their ball, and items whose
label is no number have loss and gradient zero. What is proven of them is registered.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from dpsco_jax import _checks
from dpsco_jax.geometry.domains import Domain, whole_space
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.labels import ANY_NUMBER, LabelRange, for_any_label
from dpsco_jax.problems.objective import Example, LinearModel, Objective, margin


def objective(
    link: Callable[[Any, Any], Any],
    derivative: Callable[[Any, Any], Any],
    slope: float,
    curvature: float | None,
    feature_bound: float,
    domain: Domain | None,
    ridge: float,
    everywhere: bool = True,
    label_range: LabelRange = ANY_NUMBER,
    remainder: Callable[[Any, Any, Any], Any] | None = None,
    kink: Callable[[Any], tuple[Any, Any, Any]] | None = None,
    gap: Callable[[float], float] | None = None,
    third: float | None = None,
    loss_range: float | None = None,
    least_curvature: float = 0.0,
) -> Objective:
    """The objective of a link, from the suprema of the sizes of its derivatives.

    ``everywhere`` says whether the first is one over all margins, or over those of the domain alone.
    ``gap(radius)`` bounds how far apart two gradients are for features of norm 1 (``_proofs.Proof``).
    ``third`` is the supremum of the third derivative, ``least_curvature`` the infimum of the second where
    that is negative: the loss is not convex then, and is registered as such.
    """
    domain = or_whole_space(domain)
    _checks.require_positive("feature_bound", feature_bound)
    _checks.require_nonnegative("ridge", ridge)
    link, derivative = for_any_label(link), for_any_label(derivative)
    remainder = None if remainder is None else for_any_label(remainder)

    def loss(params: Float[Array, "dim"], item: Example) -> Any:
        require_one_label(item.label)
        return link(margin(params, item.features, feature_bound), item.label)

    made = Objective(
        loss=loss,
        lipschitz=slope * feature_bound,
        smoothness=None if curvature is None else curvature * feature_bound**2,
        domain=domain,
        loss_strong_convexity=least_curvature * feature_bound**2,
        ridge=ridge,
        linear_model=LinearModel(link, derivative, feature_bound, remainder=remainder, kink=kink),
        globally_convex_lipschitz=everywhere and least_curvature == 0.0,
        label_range=label_range,
        hessian_lipschitz=None if third is None else third * feature_bound**3,
        loss_range=loss_range,
    )
    return _proofs.register(
        made, None if gap is None else lambda radius: feature_bound * gap(radius * feature_bound)
    )


def reach(domain: Domain | None, feature_bound: float) -> float:
    """The largest margin of a point of the domain; ``inf`` where it has no end, or none is known."""
    _checks.require_positive("feature_bound", feature_bound)
    return feature_bound * float(np.asarray(or_whole_space(domain).norm))


def known(value: float) -> float | None:
    """The value, or ``None`` where it is infinite."""
    return value if math.isfinite(value) else None


def require_one_label(label: Any) -> None:
    """``ValueError`` unless an item has one label: several are as many losses."""
    _checks.require(jnp.ndim(label) == 0, "label of an item", jnp.shape(label), "one number")


def require_like_params(params: PyTree, item: PyTree) -> None:
    """``ValueError`` unless a point has the shapes of the parameters: broadcasting would repeat it."""
    shapes = [[jnp.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (item, params)]
    _checks.require(
        shapes[0] == shapes[1], "item", shapes[0], f"of the shapes of params, {shapes[1]}"
    )


def or_whole_space(domain: Domain | None) -> Domain:
    """The domain; ``ValueError`` if it is none."""
    if domain is None:
        return whole_space()
    _checks.require_instance("domain", domain, Domain)
    return domain
