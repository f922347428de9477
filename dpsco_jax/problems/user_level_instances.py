"""Hard instances for users with many items: a finite class that hides signs, and users who are all alike.

What it computes: distributions over users with the numbers that lower bounds are made of: how far apart in
risk two of them are, and how near in law.

- ``sign_class``: d coordinates, K = 2^d candidates θ in {±1}^d. An item is ±e_j, j uniform, of the sign v_j
  with probability (1 + Δ)/2; the loss B·1{θ_j = z_j} has the population risk (B/d)·Σ(1 + θ_j·v_j·Δ)/2, so
  that each sign that is not that of -v costs BΔ/d.
- ``least_error_sum``: all items of all users are B, or all are -B. Even then, with items without end, nobody
  tells which privately unless n is large.

Source: L (Levy et al. 2021), Theorems 8 and 9. The rates of Theorem 8 follow by Assouad's lemma from what is
here; constants of the paper are not stated.

Formal guarantee: the numbers are exact, but for ``least_error_sum``, a lower bound for every (ε, δ)-DP test,
under REPLACE_ONE. Proof: by group privacy the laws of the test are (E, D)-close, so that 1 - β₁ ≤ e^E·β₀ + D
and 1 - β₀ ≤ e^E·β₁ + D; add. The squared error of an estimator of 0 or 1 is at least an eighth of it.

Cost: a draw is one random number for each item, and one for its sign.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from dpsco_jax._checks import require, require_count, require_number, require_real
from dpsco_jax.problems.users import UserData

__all__ = ["SignClass", "least_error_sum", "sign_class"]


class SignClass(NamedTuple):
    """A finite class whose best candidate is hidden in signs.

    Attributes:
        loss: ``loss(params [dim], item) -> []`` in [0, B]; an item is the integer 2j + (1 if it is e_j).
        draw: ``draw(key, num_users, items_per_user) -> UserData``, independent items.
        excess: ``excess(params [dim]) -> []``, (BΔ/d)·(signs in which params is not -v).
        separation: BΔ/d, the excess of one sign.
        total_variation: Δ/d, of one item under v and under v with one sign changed.
        divergence: (Δ/d)·log((1 + Δ)/(1 - Δ)), the Kullback-Leibler divergence of the same two.
    """

    loss: Callable[[Any, Any], Any]
    draw: Callable[[Any, int, int], UserData]
    excess: Callable[[Any], Any]
    separation: float
    total_variation: float
    divergence: float


def sign_class(
    signs: Int[np.ndarray, "dim"] | Float[np.ndarray, "dim"],
    gap: SupportsFloat,
    bound: SupportsFloat = 1.0,
) -> SignClass:
    """The instance of Theorem 8.

    Args:
        signs: v, ones and minus ones, ``[dim]``.
        gap: Δ in (0, 1).
        bound: B > 0.

    Example:
        >>> from dpsco_jax.problems import user_level_instances
        >>> made = user_level_instances.sign_class(np.array([1, -1, 1]), gap=0.3)
        >>> round(float(made.excess(np.array([-1, 1, 1]))), 3)
        0.1
    """
    require_number("signs", signs)
    hidden = np.asarray(signs, np.float64)
    good = hidden.ndim == 1 and len(hidden) > 0 and np.all(np.abs(hidden) == 1)
    require(good, "signs", signs, "ones and minus ones, [dim]")
    delta = require_real("gap", gap, 0.0, 1.0)
    scale, dim = require_real("bound", bound, 0.0), len(hidden)

    def loss(params: Any, item: Any) -> Any:
        sign = 2 * (item % 2) - 1
        return jnp.where(jnp.asarray(params)[item // 2] == sign, scale, 0.0)

    def draw(key: Key[Array, ""], num_users: int, items_per_user: int) -> UserData:
        columns, coins = jax.random.split(key)
        shape = (num_users, items_per_user)
        column = jax.random.randint(columns, shape, 0, dim)
        kept = jax.random.uniform(coins, shape) < (1 + delta) / 2
        positive = kept == jnp.asarray(hidden > 0)[column]
        return UserData(2 * column + positive)

    def excess(params: Any) -> Any:
        return scale * delta / dim * jnp.sum(jnp.asarray(params) != -hidden)

    near = delta / dim
    divergence = near * (math.log1p(delta) - math.log1p(-delta))
    return SignClass(loss, draw, excess, scale * near, near, divergence)


def least_error_sum(num_users: int, epsilon: SupportsFloat, delta: SupportsFloat = 0.0) -> float:
    """The least sum of both errors of an (ε, δ)-DP test of n users, all of the one kind or all of the other.

    2(1 - D)/(1 + e^E) with the guarantee (E, D) of a group of n, or 0 where D is one. The paper's D =
    nδe^{nε} is larger.

    Args:
        num_users: n.
        epsilon: ε ≥ 0 for one user, under REPLACE_ONE.
        delta: δ in [0, 1).
    """
    require_count("num_users", num_users)
    one = require_real("epsilon", epsilon, 0.0, closed=True)
    failure = require_real("delta", delta, 0.0, 1.0, closed=True)
    unlikely = math.exp(-num_users * one)
    # D = δ(1 + e^ε + ... + e^{(n-1)ε}), so that D·e^{-E} = δ(e^{-ε} + ... + e^{-nε}).
    spread = float(num_users)
    if one > 0.0:
        spread = math.exp(-one) * math.expm1(-num_users * one) / math.expm1(-one)
    return 2 * max(unlikely - failure * spread, 0.0) / (1 + unlikely)
