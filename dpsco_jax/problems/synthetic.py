"""Synthetic problems over users, with a known minimizer and a dial for how different users are.

What it computes: data drawn from a key, the objective, and the exact minimizer of that objective on
that data (not of the population): in closed form, by symmetry, or by Newton's method in float64.

Source: standard test problems of user-level learning; heterogeneity is that of user means around a
common center.

Formal guarantee: none; the minimizer is a function of the data. Bounds are constants of the
generator and enforced by the losses.

Cost: users × items × dim random numbers; for regression one dense solve on the host.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from dpsco_jax import _checks
from dpsco_jax.geometry.domains import ball
from dpsco_jax.geometry.norms import clip_to_norm
from dpsco_jax.geometry.smoothing import uniform_ball
from dpsco_jax.problems import losses, reference
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData


class Instance(NamedTuple):
    """An objective on data, and where its minimum is.

    Attributes:
        objective: the loss, with its constants.
        data: users × items.
        minimizer: of the mean user loss plus regularizer on ``data``; ``[dim]``, float64 on the host.
    """

    objective: Objective
    data: UserData
    minimizer: Float[np.ndarray, "dim"]

    def problem(self, distance: float | None = None) -> Problem:
        """What a ``plan`` is asked: the objective, and the sizes of the data.

        Args:
            distance: public bound R on the distance from the start to a minimizer, where it is needed.
        """
        users, items = jax.tree.leaves(self.data.items)[0].shape[:2]
        return Problem(
            self.objective,
            num_users=users,
            items_per_user=items,
            dim=len(self.minimizer),
            distance=distance,
        )


def mean_estimation(
    key: Key[Array, ""], num_users: int, items_per_user: int, dim: int, heterogeneity: float = 0.5
) -> Instance:
    """Mean of points around a center of norm ½, in the unit ball: squared distance.

    Args:
        key: used once.
        num_users: at least 1.
        items_per_user: at least 1.
        dim: at least 1.
        heterogeneity: in [0, 1]; share of a point's standard deviation that all items of a user
            have in common. 0: items are independent; 1: all items of a user are equal.
    """
    _checks.require_probability("heterogeneity", heterogeneity)
    _check(key, num_users, items_per_user, dim)
    center, offsets = _cloud(key, (num_users, items_per_user, dim), heterogeneity)
    points = 0.5 * center + 0.5 * offsets
    minimizer = np.asarray(_project(points), np.float64).mean(axis=(0, 1))
    return Instance(losses.squared_distance(1.0, 1.0), UserData(points), minimizer)


def geometric_median(
    key: Key[Array, ""], num_users: int, items_per_user: int, dim: int, heterogeneity: float = 0.5
) -> Instance:
    """Geometric median of points that are symmetric around a center of norm about ½.

    Users come in mirrored pairs, so the objective is symmetric around the center, which therefore
    minimizes it. Coordinates are multiples of 2^-10, so the symmetry is exact in float32.

    Args:
        key: used once.
        num_users: even, at least 2.
        items_per_user: at least 1.
        dim: at least 1; the minimizer is unique from 2 on.
        heterogeneity: in [0, 1]; share of a point's standard deviation that a user's items have in common.
    """
    _checks.require_probability("heterogeneity", heterogeneity)
    _check(key, num_users, items_per_user, dim, even=True)
    center, offsets = _cloud(key, (num_users // 2, items_per_user, dim), heterogeneity)
    center, offsets = (np.round(1024 * np.asarray(part)) / 1024 for part in (0.5 * center, offsets))
    points = jnp.asarray(np.concatenate([center + offsets, center - offsets]))
    return Instance(losses.geometric_median(), UserData(points), np.asarray(center, np.float64))


def linear_regression(
    key: Key[Array, ""],
    num_users: int,
    items_per_user: int,
    dim: int,
    heterogeneity: float = 0.5,
    noise: float = 0.1,
    ridge: float = 0.0,
) -> Instance:
    """Least squares, features uniform in the unit ball, each user with a slope of their own.

    Labels are <slope of the user, x> + noise·N(0, 1), clipped to [-2, 2]; slopes are a common unit
    vector plus heterogeneity·N(0, I/dim). The domain is the ball of radius 2.

    Args:
        key: used once.
        num_users: at least 1.
        items_per_user: at least 1; items in all must be at least ``dim`` unless ``ridge > 0``.
        dim: at least 1.
        heterogeneity: nonnegative; distance of a user's slope from the common one (root mean square).
        noise: nonnegative; standard deviation of a label's noise.
        ridge: λ of the regularizer (λ/2)·‖params‖².

    Raises:
        ValueError: the minimizer lies outside the domain.
    """
    _checks.require_nonnegative("noise", noise)
    _check(key, num_users, items_per_user, dim)
    _checks.require_nonnegative("heterogeneity", heterogeneity)
    features, margins, noise_key, _ = _regression(
        key, num_users, items_per_user, dim, heterogeneity, slope_norm=1.0
    )
    labels = margins + noise * jax.random.normal(noise_key, margins.shape)
    objective = losses.squared(feature_bound=1.0, label_bound=2.0, radius=2.0, ridge=ridge)
    data = UserData(Example(features, labels))
    rows, targets, weights = reference.sparse_rows(objective, data, dim)
    # Least squares with one more row per coordinate for the ridge: no squared condition number.
    scale = np.sqrt(weights)
    stacked = np.concatenate([rows.toarray() * scale[:, None], np.sqrt(ridge) * np.eye(dim)])
    wanted = np.concatenate([np.clip(targets, -2.0, 2.0) * scale, np.zeros(dim)])
    minimizer, _, rank, _ = np.linalg.lstsq(stacked, wanted)
    _checks.require(
        rank == dim, "num_users * items_per_user", rows.shape[0], f"enough for dim = {dim}"
    )
    norm = np.linalg.norm(minimizer)
    _checks.require(
        norm <= 2.0, "heterogeneity, noise", (heterogeneity, noise), "such that the norm is <= 2"
    )
    return Instance(objective, data, minimizer)


def absolute_regression(
    key: Key[Array, ""],
    num_users: int,
    dim: int,
    slope_norm: float = 1.0,
    noise: float = 0.1,
    decay: float = 0.0,
) -> Instance:
    """Least absolute deviations with one item for each user, the slope as its known minimizer.

    Users come in pairs with equal features and labels <slope, x> ± e, e = noise·N(0, 1). The loss of a pair
    is symmetric around the slope, which therefore minimizes the objective (up to the rounding of labels to
    float32), in the population as well. Excess risk is the mean over pairs of max(0, |<w - slope, x>| - |e|),
    see ``absolute_excess``. The domain is the ball of radius 2·slope_norm.

    Args:
        key: used once.
        num_users: even, at least 2.
        dim: at least 1.
        slope_norm: positive; distance from the origin to the minimizer.
        noise: nonnegative; standard deviation of a label's noise.
        decay: nonnegative; the k-th coordinate of a feature has a variance that falls as k^(-decay). Zero:
            features are uniform in the unit ball.
    """
    _checks.require_positive("slope_norm", slope_norm)
    _check(key, num_users, 1, dim, even=True)
    _checks.require_nonnegative("noise", noise)
    _checks.require_nonnegative("decay", decay)
    features, margins, noise_key, slope = _regression(
        key, num_users // 2, 1, dim, 0.0, slope_norm, decay
    )
    offsets = noise * jax.random.normal(noise_key, margins.shape)
    twice = jnp.concatenate([features, features])
    labels = jnp.concatenate([margins + offsets, margins - offsets])
    objective = losses.absolute(feature_bound=1.0, domain=ball(2.0 * slope_norm))
    return Instance(objective, UserData(Example(twice, labels)), np.asarray(slope, np.float64))


def absolute_excess(
    params: Float[Array, "dim"], minimizer: Float[Array | np.ndarray, "dim"], data: UserData
) -> Float[Array, ""]:
    """Excess risk on the data of ``absolute_regression``, without a difference of nearly equal numbers.

    Args:
        params: shape ``[dim]``.
        minimizer: of the problem, or of one from the same key: features may be other draws.
        data: pairs, the second half after the first.
    """
    _checks.require_instance("data", data, UserData)
    _checks.require_tree("params", params)
    _checks.require_number("minimizer", minimizer)
    features, labels = data.items
    half = labels.shape[0] // 2
    noise = 0.5 * jnp.abs(labels[:half] - labels[half:])
    off = features[:half] @ (params - jnp.asarray(minimizer, params.dtype))
    return jnp.mean(jnp.maximum(0.0, jnp.abs(off) - noise))


def logistic_regression(
    key: Key[Array, ""],
    num_users: int,
    items_per_user: int,
    dim: int,
    heterogeneity: float = 0.5,
    slope_norm: float = 5.0,
    ridge: float = 1e-2,
    decay: float = 0.0,
) -> Instance:
    """Logistic regression, features uniform in the unit ball, each user with a slope of their own.

    P(label = 1) = sigmoid(<slope of the user, x>); slopes are slope_norm·(a common unit vector plus
    heterogeneity·N(0, I/dim)). The domain is the whole space.

    Args:
        key: used once.
        num_users: at least 1.
        items_per_user: at least 1.
        dim: at least 1.
        heterogeneity: nonnegative; relative distance of a user's slope from the common one.
        slope_norm: norm of the common slope: how predictable labels are.
        ridge: λ > 0 of the regularizer (λ/2)·‖params‖².
        decay: nonnegative; the k-th coordinate of a feature has a variance that falls as k^(-decay).
    """
    _checks.require_nonnegative("slope_norm", slope_norm)
    _check(key, num_users, items_per_user, dim)
    _checks.require_nonnegative("heterogeneity", heterogeneity)
    _checks.require_nonnegative("decay", decay)
    features, margins, label_key, _ = _regression(
        key, num_users, items_per_user, dim, heterogeneity, slope_norm, decay
    )
    labels = jax.random.bernoulli(label_key, jax.nn.sigmoid(margins)).astype(jnp.float32)
    objective = losses.logistic(feature_bound=1.0, ridge=ridge)
    data = UserData(Example(features, labels))
    return Instance(objective, data, reference.solve(objective, data, dim, tol=1e-14).params)


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 6))
def _regression(
    key: Any,
    num_users: int,
    items_per_user: int,
    dim: int,
    heterogeneity: Any,
    slope_norm: Any,
    decay: float = 0.0,
) -> tuple[Array, Array, Array, Array]:
    """Features ``[users, items, dim]``, margins ``[users, items]``, a key for labels, the common slope."""
    slope_key, users_key, features_key, label_key = jax.random.split(key, 4)
    own = jax.random.normal(users_key, (num_users, dim)) / np.sqrt(dim)
    common = _direction(slope_key, dim)
    slopes = slope_norm * (common + heterogeneity * own)
    keys = jax.random.split(features_key, (num_users, items_per_user))
    draw = jax.vmap(jax.vmap(lambda k: uniform_ball(k, jnp.zeros(dim), 1.0)))
    features = draw(keys)
    if decay:
        variances = np.arange(1, dim + 1) ** -float(decay)
        features = _project(features * np.sqrt(variances / variances.mean()).astype(np.float32))
    margins = jnp.einsum("uid,ud->ui", features, slopes)
    return features, margins, label_key, slope_norm * common


def _check(key: Any, num_users: int, items_per_user: int, dim: int, *, even: bool = False) -> None:
    _checks.require_key(key)
    for name, size in [("num_users", num_users), ("items_per_user", items_per_user), ("dim", dim)]:
        _checks.require_count(name, size)
    _checks.require(not even or num_users % 2 == 0, "num_users", num_users, "even")


def _direction(key: Any, dim: int) -> Array:
    normal = jax.random.normal(key, (dim,))
    return normal / jnp.linalg.norm(normal)


@functools.partial(jax.jit, static_argnums=1)
def _cloud(key: Any, shape: tuple[int, int, int], heterogeneity: Any) -> tuple[Array, Array]:
    """A unit vector, and offsets of mean square norm 1 of which users have a share in common."""
    center_key, user_key, item_key = jax.random.split(key, 3)
    users, _, dim = shape
    common = jax.random.normal(user_key, (users, 1, dim))
    own = jax.random.normal(item_key, shape)
    offsets = heterogeneity * common + jnp.sqrt(1.0 - heterogeneity**2) * own
    return _direction(center_key, dim), offsets / np.sqrt(dim)


@jax.jit
def _project(points: Array) -> Array:
    return jax.vmap(jax.vmap(lambda point: clip_to_norm(point, 1.0)))(points)
