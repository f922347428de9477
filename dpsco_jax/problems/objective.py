"""What is optimized: a loss per item, with the constants that theory needs, known beforehand.

What it holds: ``Objective`` carries a loss, its Lipschitz and smoothness constants, its domain and, for
linear models, what a closed-form gradient needs. ``Example`` and ``OneHot`` are the forms of an item.

Source: the setting of stochastic convex optimization over users, e.g. thesis chapter 1, section 1.3.

Formal guarantee: the constants hold for every item, whatever it contains, because the bounds that they rest
on are enforced inside the loss (features are projected onto their bound, labels onto their range). They are
computed from public numbers only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from dpsco_jax._checks import (
    require_instance,
    require_integer,
    require_integers,
    require_positive,
    require_tree,
)
from dpsco_jax._given import inside
from dpsco_jax.geometry.domains import Domain
from dpsco_jax.geometry.norms import clip_to_norm
from dpsco_jax.problems.labels import LabelRange

CLIPPED_SUMS = ("auto", "ghost", "chunks")


class OneHot(NamedTuple):
    """Sparse features: the set of columns at which a row is not zero.

    All nonzero entries of a row have the same public value, ``feature_bound / sqrt(nnz)`` (see
    ``row_values``), so a row with ``nnz`` different columns has norm ``feature_bound``. A column
    outside [0, dim) is padding and a column that was named before in the row counts once, so no row
    has a larger norm, whatever the integers are.

    Attributes:
        columns: column indices, shape ``[..., nnz]``.
    """

    columns: Int[Array | np.ndarray, "*batch nnz"]


class Example(NamedTuple):
    """One labelled item.

    Attributes:
        features: a dense vector ``[dim]``, or ``OneHot``.
        label: a scalar; in {0, 1} or {-1, 1} for classification with two classes.
    """

    features: Any
    label: Any


class LinearModel(NamedTuple):
    """A loss of the form ``link(<params, x>, label)``, with params a vector ``[dim]`` or a matrix.

    Its gradient in params is ``derivative(<params, x>, label) * x``, where x is ``bounded_row`` of
    the item's features. With K ``outputs`` params is a matrix ``[dim, K]``, the margin is the K numbers
    paramsᵀx, and the gradient is the outer product of x with the K numbers of the derivative.

    Attributes:
        link: ``link(margin, label) -> loss``, elementwise on arrays; with K outputs the margin has one
            axis more, the last, of that length.
        derivative: ``derivative(margin, label)``, the derivative of the link in the margin, of the
            shape of the margin; elementwise.
        feature_bound: the ℓ2 norm onto which features are projected.
        outputs: K; ``None`` if the margin is one number and params is a vector.
        remainder: ``remainder(margin, label, change)``, elementwise: link(margin + change) - link(margin) -
            derivative(margin)·change, at least 0, in float64 as exact as ``_remainders`` says; ``None``
            where there is no such form.
        kink: ``kink(label) -> (place, low, high)``: the link is max(low·r, high·r), r = margin - place;
            ``None`` where it is not of this form.
    """

    link: Callable[[Any, Any], Any]
    derivative: Callable[[Any, Any], Any]
    feature_bound: float
    outputs: int | None = None
    remainder: Callable[[Any, Any, Any], Any] | None = None
    kink: Callable[[Any], tuple[Any, Any, Any]] | None = None

    def params_shape(self, dim: int) -> tuple[int, ...]:
        """The shape of params for rows of a length: ``[dim]``, or ``[dim, outputs]``."""
        require_integer("dim", dim, 1)
        return (dim,) if self.outputs is None else (dim, self.outputs)


class Objective(NamedTuple):
    """A loss, convex unless it says otherwise, and what is known of it before any data is seen.

    The objective is the mean over users of the mean over the user's items of ``loss``, plus
    ``regularizer``. ``loss``, ``lipschitz`` and ``smoothness`` speak of the data alone: the
    regularizer knows no data, so solvers add its exact gradient outside the clip and the noise.

    Attributes:
        loss: ``loss(params, item) -> scalar``, without the regularizer.
        lipschitz: bound on the ℓ2 norm of the (sub)gradient of ``loss``, for params in the domain
            and any item.
        smoothness: Lipschitz constant of the gradient of ``loss``; ``None`` if it is not smooth.
        domain: where params live.
        loss_strong_convexity: strong convexity of ``loss`` for every item (μ, with the factor ½); negative
            for a loss that is not convex, which becomes so with the term (-μ/2)·‖params‖² added.
        ridge: λ of the regularizer (λ/2)·‖params‖².
        linear_model: for losses of a linear predictor; ``None`` otherwise.
        globally_convex_lipschitz: whether, by construction, the loss of every possible item is convex
            and ``lipschitz``-Lipschitz on the whole space, not just on the domain. Some privacy proofs
            rest on it, and no clipping can stand in for it.
        label_range: the labels that ``loss`` reads as they are (``labels.check_labels``); ``None`` for items
            without labels.
        clipped_sums: how solvers form sums of clipped user gradients: ``"auto"`` (in closed form for a linear
            model, else by shapes), ``"ghost"`` (one backward pass for all users) or ``"chunks"`` (a gradient
            of each user). ``oracles.clipped_sums.choice`` says which is taken, and why.
        hessian_lipschitz: Lipschitz constant of the Hessian of ``loss`` in the operator norm, on the domain
            and for any item; ``None`` if there is none, or none is known.
        loss_range: largest minus least value that the loss of one item takes on the domain, for any item;
            ``None`` if there is no bound, or none is known.
    """

    loss: Callable[[PyTree, PyTree], Any]
    lipschitz: float
    smoothness: float | None
    domain: Domain
    loss_strong_convexity: float = 0.0
    ridge: float = 0.0
    linear_model: LinearModel | None = None
    globally_convex_lipschitz: bool = False
    label_range: LabelRange | None = None
    clipped_sums: str = "auto"
    hessian_lipschitz: float | None = None
    loss_range: float | None = None

    @property
    def vector_model(self) -> LinearModel | None:
        """``linear_model`` if its params is a vector; ``None`` if it is a matrix, or there is no model."""
        model = self.linear_model
        return None if model is None or model.outputs is not None else model

    @property
    def strong_convexity(self) -> float:
        """Strong convexity of the whole objective: loss and regularizer."""
        return self.loss_strong_convexity + self.ridge

    @property
    def slope(self) -> float:
        """Lipschitz constant on the domain of loss and regularizer together; ``inf`` where none is known.

        The regularizer is centred at the origin, which need not lie in the domain.
        """
        if not self.ridge:
            return float(self.lipschitz)
        reach = max(float(np.asarray(x)) for x in (self.domain.diameter, self.domain.norm))
        return float(self.lipschitz) + float(self.ridge) * reach

    def regularizer(self, params: PyTree) -> Float[Array, ""]:
        """(ridge/2)·‖params‖², over all leaves."""
        squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)]
        return jnp.asarray(0.5 * self.ridge * sum(squares))

    def regularizer_gradient(self, params: PyTree) -> PyTree:
        """ridge·params, with the structure of params."""
        return jax.tree.map(lambda leaf: self.ridge * leaf, params)


def row_values(features: OneHot, dim: int, feature_bound: float) -> Float[Array, "*batch nnz"]:
    """The value of each named column of a one-hot row: the public constant, or zero.

    Zero for padding (a column outside [0, dim)) and for a repetition of an earlier column of the
    row. Depends on features only: compute it once, outside of a training loop.

    Args:
        features: columns of shape ``[..., nnz]``.
        dim: number of columns of the model.
        feature_bound: the norm of a row all of whose columns count.

    Returns:
        Values of shape ``[..., nnz]``, float32; the norm of a row is ``sqrt(sum(values**2))``.
    """
    require_positive("feature_bound", feature_bound)
    columns = column_indices(features, dim)
    nnz = columns.shape[-1]
    return jnp.where(columns < dim, jnp.float32(feature_bound / max(nnz, 1) ** 0.5), 0.0)


def column_indices(features: OneHot, dim: int) -> Int[Array, "*batch nnz"]:
    """The columns of one-hot rows as int32, with ``dim`` for entries that do not count.

    Those are padding (a column outside [0, dim)) and repetitions of an earlier column of the row.

    Args:
        features: columns of shape ``[..., nnz]``, of any integer dtype.
        dim: number of columns of the model, below 2³¹.
    """
    require_instance("features", features, OneHot)
    require_integer("dim", dim, 1, 2**31 - 1)
    require_integers("features.columns", features.columns)
    columns = inside(features.columns, dim).astype(jnp.int32)
    earlier = jnp.tri(columns.shape[-1], k=-1, dtype=bool)
    same = (columns[..., :, None] == columns[..., None, :]) & (columns < dim)[..., None, :]
    repeated = jnp.any(same & jnp.broadcast_to(earlier, same.shape), axis=-1)
    return jnp.where(repeated, dim, columns)


def bounded_row(features: Any, feature_bound: float) -> Any:
    """Dense features of one item, projected onto the ball of radius ``feature_bound``.

    A row with a non-finite entry becomes zero. One-hot rows obey the bound by construction.
    """
    require_positive("feature_bound", feature_bound)
    return clip_to_norm(features, feature_bound)


def margin(
    params: Float[Array, "dim *outputs"], features: Any, feature_bound: float
) -> Float[Array, "*outputs"]:
    """<params, x> for one item, with x the features within their bound; paramsᵀx for a matrix.

    Args:
        params: shape ``[dim]`` or ``[dim, outputs]``.
        features: dense ``[dim]``, or ``OneHot`` with columns ``[nnz]``.
        feature_bound: the ℓ2 norm that x may have.
    """
    require_tree("params", params)
    require_positive("feature_bound", feature_bound)
    if isinstance(features, OneHot):
        dim = params.shape[0]
        values = row_values(features, dim, feature_bound)
        columns = jnp.minimum(column_indices(features, dim), dim - 1)
        if jnp.ndim(params) == 2:
            return values @ params[columns]
        return jnp.sum(values * params[columns])
    if jnp.ndim(params) == 2:
        return bounded_row(features, feature_bound) @ params
    return jnp.vdot(bounded_row(features, feature_bound), params)
