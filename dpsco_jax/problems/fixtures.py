"""Small functions on which a claim about non-convex problems is checked, and two on which claims fail.

What it computes:

- ``two_wells``: points around ±a·e₁ with the loss -exp(-‖w - z‖²/2): a strict saddle between two minima;
- ``capped_distance``, ``max_affine_difference``, ``relu_network``, ``saw_tooth``: losses that are Lipschitz,
  neither smooth nor convex, nor convex with any quadratic added;
- ``escape_counterexample``: a quadratic saddle with an oracle whose error is never longer than γ and that
  leaves no step at all near the saddle;
- ``clip_noncontraction``: two gradients of a smooth convex loss; a step with them keeps a distance, and a
  clipped step makes it longer;
- ``saw_tooth`` with random signs: its mean has slope ½ everywhere, and the mean over a sample has stationary
  points in every neighbourhood once that holds enough teeth.

Source: thesis, Lemmas 6.3.4 and 7.3.3 (the claim that the escape fixture refutes), Proposition 8.5.1 (the one
that teeth refute), Assumption 8.2.2.

Formal guarantee: constants hold for every item, on the whole space; bounds are enforced inside the loss, and
an item that is not finite has loss and gradient zero.

Cost: that of an evaluation.

Example:
    >>> import jax
    >>> from dpsco_jax.problems import fixtures
    >>> made = fixtures.two_wells(jax.random.key(0), num_users=100, items_per_user=1, dim=3, jitter=0.0)
    >>> float(made.minimizer[0].round(3)), round(made.objective.lipschitz, 4)
    (1.463, 0.6065)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from dpsco_jax import _checks
from dpsco_jax.geometry.domains import Domain
from dpsco_jax.geometry.norms import all_finite, clip_to_norm, global_norm
from dpsco_jax.problems import _links
from dpsco_jax.problems.nonconvex_losses import welsch
from dpsco_jax.problems.objective import Example, Objective, bounded_row
from dpsco_jax.problems.synthetic import Instance
from dpsco_jax.problems.users import UserData

__all__ = [
    "AffinePieces",
    "Escape",
    "capped_distance",
    "clip_noncontraction",
    "escape_counterexample",
    "max_affine_difference",
    "relu_network",
    "saw_tooth",
    "two_wells",
    "well",
]


class AffinePieces(NamedTuple):
    """An item of ``max_affine_difference``.

    Attributes:
        slopes: ``[2, pieces, dim]``, of the maximum that is added and of the one that is subtracted.
        offsets: ``[2, pieces]``.
    """

    slopes: Any
    offsets: Any


class Escape(NamedTuple):
    """A quadratic saddle at the origin of the plane.

    Attributes:
        value: ``value(point [2]) -> []``: ½x₀² - (c/2)x₁², 1-smooth, with a Hessian that does not vary.
        gradient: ``gradient(point) -> [2]``, exact.
        oracle: ``oracle(point) -> [2]``, off by at most γ: 0 where the gradient is not longer than γ, else
            the gradient.
        curvature: c.
        error: γ.
    """

    value: Callable[[Any], Any]
    gradient: Callable[[Any], Any]
    oracle: Callable[[Any], Any]
    curvature: float
    error: float


def well(domain: Domain | None = None) -> Objective:
    """-exp(-‖params - z‖²/2): items are points with the structure of params; no bound is needed.

    With t the component of params - z along a unit vector and s² the rest of its square, the derivatives
    along it are those of -e^(-t²/2) times e^(-s²/2): the constants are those of one variable.
    """
    robust = welsch(1.0)

    def loss(params: PyTree, item: PyTree) -> Any:
        there, offsets = _offsets(params, item)
        squares = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(offsets))
        return jnp.where(there, -jnp.exp(-0.5 * squares), 0.0)

    return Objective(
        loss=loss,
        lipschitz=robust.lipschitz,
        smoothness=robust.smoothness,
        domain=_links.or_whole_space(domain),
        loss_strong_convexity=robust.loss_strong_convexity,
        hessian_lipschitz=robust.hessian_lipschitz,
        loss_range=1.0,
    )


def two_wells(
    key: Key[Array, ""],
    num_users: int,
    items_per_user: int,
    dim: int,
    separation: float = 1.5,
    jitter: float = 0.05,
) -> Instance:
    """``well`` on points ±a·e₁, a the separation, of every second user the other sign.

    For a > 1 and without jitter the origin is a strict saddle: the Hessian has eigenvalue (1 - a²)e^(-a²/2)
    along e₁ and e^(-a²/2) in all other directions.

    Args:
        key: of the jitter.
        num_users: even, at least 2.
        items_per_user: at least 1.
        dim: at least 1.
        separation: a > 0.
        jitter: nonnegative, standard deviation of each coordinate around ±a·e₁.

    Returns:
        The instance with the minimizer near a·e₁, by gradient descent in float64; it is one of two.
    """
    _checks.require_key(key)
    _checks.require_each(
        _checks.require_count, num_users=num_users, items_per_user=items_per_user, dim=dim
    )
    _checks.require(num_users % 2 == 0, "num_users", num_users, "even")
    _checks.require_positive("separation", separation)
    _checks.require_nonnegative("jitter", jitter)
    signs = 1.0 - 2.0 * (np.arange(num_users) % 2)
    middles = np.zeros((num_users, items_per_user, dim), np.float32)
    middles[..., 0] = separation * signs[:, None]
    points = middles + jitter * jax.random.normal(key, middles.shape)
    rows = np.asarray(points, np.float64).reshape(-1, dim)
    place = rows[rows[:, 0] > 0].mean(axis=0)
    for _ in range(500):
        weights = np.exp(-0.5 * np.sum((place - rows) ** 2, axis=1)) / len(rows)
        place = place - weights @ (place - rows)
    return Instance(well(), UserData(points), place)


def capped_distance(cap: float, domain: Domain | None = None) -> Objective:
    """min(‖params - z‖, cap): items are points with the structure of params.

    Args:
        cap: positive; also the range of the loss.
        domain: of the parameters; ``None`` is the whole space.
    """
    _checks.require_positive("cap", cap)

    def loss(params: PyTree, item: PyTree) -> Any:
        there, offsets = _offsets(params, item)
        return jnp.where(there, jnp.minimum(global_norm(offsets), cap), 0.0)

    return _nonsmooth(loss, 1.0, domain, cap)


def max_affine_difference(lipschitz: float, domain: Domain | None = None) -> Objective:
    """max_k(⟨a_k, params⟩ + b_k) - max_k(⟨c_k, params⟩ + e_k): items are ``AffinePieces``.

    Args:
        lipschitz: L > 0; every slope is projected onto norm L/2.
        domain: of the parameters; ``None`` is the whole space.
    """
    _checks.require_positive("lipschitz", lipschitz)

    def loss(params: Float[Array, "dim"], item: AffinePieces) -> Any:
        there = all_finite(item)
        slopes, offsets = jax.tree.map(lambda leaf: jnp.where(there, leaf, 0.0), item)
        wanted = (2, *np.shape(offsets)[1:], *params.shape)
        _checks.require(slopes.shape == wanted, "slopes of an item", slopes.shape, f"{wanted}")
        rows = jax.vmap(jax.vmap(lambda row: clip_to_norm(row, lipschitz / 2.0)))(slopes)
        added, taken = jnp.max(rows @ params + offsets, axis=-1)
        return added - taken

    return _nonsmooth(loss, lipschitz, domain, None)


def relu_network(feature_bound: float, num_units: int, domain: Domain | None = None) -> Objective:
    """abs(Σ_k s_k·max(0, ⟨w_k, x⟩)/√h - label), params the inner weights ``[dim, h]``; any real label.

    The outer weights are fixed: s_k = 1 for even k, -1 for odd k. The gradient in w_k has norm at most
    ‖x‖/√h, so that the loss is feature_bound-Lipschitz.

    Args:
        feature_bound: positive ℓ2 norm onto which features are projected.
        num_units: h ≥ 1.
        domain: of the parameters; ``None`` is the whole space.
    """
    _checks.require_positive("feature_bound", feature_bound)
    num_units = _checks.require_count("num_units", num_units)
    outer = np.float32((1.0 - 2.0 * (np.arange(num_units) % 2)) / math.sqrt(num_units))

    def loss(params: Float[Array, "dim units"], item: Example) -> Any:
        units = jnp.shape(params)[1:]
        _checks.require(units == (num_units,), "columns of params", units, f"({num_units},)")
        label = jnp.asarray(item.label, params.dtype)
        there = jnp.isfinite(label)
        active = jax.nn.relu(bounded_row(item.features, feature_bound) @ params)
        left = jnp.vdot(active, outer) - jnp.where(there, label, 0.0)
        return jnp.where(there, jnp.abs(left), 0.0)

    return _nonsmooth(loss, feature_bound, domain, None)


def saw_tooth(width: float, num_teeth: int) -> Objective:
    """∫₀ʷ of a slope that an item gives for each cell of the line; params has one number, ``[1]``.

    Args:
        width: positive, of a cell; cell k is [k·width, (k + 1)·width], and beyond the last the loss is
            constant.
        num_teeth: at least 1, cells. An item is their slopes ``[num_teeth]``, which are clipped to [-1, 1].
    """
    _checks.require_positive("width", width)
    num_teeth = _checks.require_count("num_teeth", num_teeth)

    def loss(params: Float[Array, "1"], item: Float[Array, "teeth"]) -> Any:
        _checks.require(item.shape == (num_teeth,), "item", item.shape, f"({num_teeth},)")
        slopes = jnp.where(all_finite(item), jnp.clip(item, -1.0, 1.0), 0.0)
        inside = jnp.clip(params[0] - width * jnp.arange(num_teeth), 0.0, width)
        return jnp.sum(slopes * inside)

    return _nonsmooth(loss, 1.0, None, width * num_teeth)


def escape_counterexample(curvature: float = 0.1, error: float = 0.01) -> Escape:
    """A saddle that no method leaves whose gradients are merely near the true ones.

    Lemma 6.3.4 of the thesis says that one perturbation and steps along gradients that are off by at most γ
    leave a strict saddle. Here they do not: within γ/c of the saddle along e₁, whatever the perturbation, the
    oracle is 0. Errors of mean zero that are drawn anew, or none, would do.

    Args:
        curvature: c in (0, 1), along e₁.
        error: γ > 0.
    """
    curvature = _checks.require_real("curvature", curvature, 0, 1)
    _checks.require_positive("error", error)
    bends = np.asarray([1.0, -curvature], np.float32)

    def gradient(point: Float[Array, "2"]) -> Any:
        return bends * point

    def oracle(point: Float[Array, "2"]) -> Any:
        found = gradient(point)
        return jnp.where(jnp.linalg.norm(found) <= error, jnp.zeros_like(found), found)

    return Escape(
        lambda point: 0.5 * jnp.sum(bends * jnp.square(point)), gradient, oracle, curvature, error
    )


def clip_noncontraction(clip_norm: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A distance v and gradients g, h at its ends: ‖v - (g - h)‖ = ‖v‖, but clipped to 1 they make it longer.

    v = (-C, 0), g = (1, 0) and h = ((2C + 1)/(C + 1), C·√(2C + 1)/(C + 1)) have ‖g - h‖² = 2⟨g - h, v⟩: they
    are gradients of a convex loss of smoothness 2 at two points with the distance v. A step of length 1
    expands nothing, and one with clipped gradients leaves the points 1.2393, 2.3511, 3.4218, 10.6224 apart
    for C = 1, 2, 3, 10 (T, Lemma 12.10.2, which is false for C = 0: docs/corrections/heavy_tails.md, H17).

    Args:
        clip_norm: C > 0, how many clips the points are apart.

    Returns:
        v, g and h, each ``[2]``, for gradients that are clipped to 1.
    """
    size = _checks.require_real("clip_norm", clip_norm, 0)
    root = math.sqrt(2 * size + 1)
    second = np.array([(2 * size + 1) / (size + 1), size * root / (size + 1)])
    return np.array([-size, 0.0]), np.array([1.0, 0.0]), second


def _offsets(params: PyTree, item: PyTree) -> tuple[Any, Any]:
    """Whether the point is finite, and params minus the point, or zero."""
    _links.require_like_params(params, item)
    there = all_finite(item)
    return there, jax.tree.map(lambda w, z: jnp.where(there, w - z, 0.0), params, item)


def _nonsmooth(
    loss: Callable[[Any, Any], Any],
    lipschitz: float,
    domain: Domain | None,
    loss_range: float | None,
) -> Objective:
    """Lipschitz, with no bound on how its slope may jump down."""
    return Objective(
        loss=loss,
        lipschitz=lipschitz,
        smoothness=None,
        domain=_links.or_whole_space(domain),
        loss_strong_convexity=-math.inf,
        loss_range=loss_range,
    )
