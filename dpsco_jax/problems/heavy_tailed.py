"""Means and linear models whose records have heavy tails, with minimizers, risks and moments that are known.

What it computes: ``Tail``, a law of vectors z with E‖z‖² = 1 of whose lengths the moments below the index ν
are finite and all others are not,

    student   z = c·g/√(χ²_ν/ν), g ~ N(0, I): Student's t, symmetric around 0;
    pareto    z = c·ξ·u, P(ξ > t) = t^(-ν), u uniform on the unit vectors without a negative coordinate, so
              that the mean of z is not 0, and a clip that cuts z off has a bias;

and two problems on a ball of radius R, from which any number of users with one record each is drawn:

    means           loss ½‖x - z‖²                  minimizer E z        L = R + ‖z‖
    linear_model    loss ½(⟨a, x⟩ - y)², ‖a‖ = 1    minimizer truth      L ≤ R + ‖truth‖ + |y - ⟨a, truth⟩|
                    y = ⟨a, truth⟩ + noise·(z - E z)

with L the largest slope of a record on the ball. ``Population.moments`` are bounds on the moments of L that
hold with equality for means: E L^k ≤ G_k^k.

Source: T, section 12.2, for what is wanted. E‖z‖^k of Student's t is that of √(d·F(d, ν)), and E u_1 =
Γ(d/2)/(√π·Γ((d + 1)/2)), since E g is E‖g‖·E u for the absolute values g of normal numbers.

Formal guarantee: none of privacy; moments are constants of the law, not of data.

Cost: n·d random numbers; a moment of a slope is an integral on the host.

Example:
    >>> import jax
    >>> from dpsco_jax.problems import heavy_tailed
    >>> made = heavy_tailed.means(heavy_tailed.Tail("pareto", 4.0, dim=5), radius=2.0)
    >>> data = made.draw(jax.random.key(0), 1000)
    >>> made.moments(3.0)
    Moments(order=3.0, highest=2.99, second=2.962, first=2.943)
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
from jaxtyping import Array, ArrayLike, Float, Key
from scipy.special import betaln, gammaln

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Count, Nonnegative, Positive, checked
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates.heavy_tailed import Moments

__all__ = ["FAMILIES", "Population", "Tail", "linear_model", "means"]

FAMILIES = STUDENT, PARETO = ("student", "pareto")
_UNBOUNDED = (
    1e9  # the bound on points and labels of the losses, which no draw in float32 comes near to
)


@dataclasses.dataclass(frozen=True)
class Tail:
    """A law of vectors z with E‖z‖² = 1 and P(‖z‖ > t) of the order of t^(-index).

    Attributes:
        family: ``"student"`` or ``"pareto"``; see the file's text.
        index: ν > 2.
        dim: d.
    """

    family: str
    index: float
    dim: int = 1

    def __post_init__(self) -> None:
        _checks.require_choice("family", self.family, FAMILIES)
        object.__setattr__(self, "index", _checks.require_real("index", self.index, 2.0))
        object.__setattr__(self, "dim", _checks.require_count("dim", self.dim))

    def norm_moment(self, order: float) -> float:
        """E‖z‖^k in closed form; infinite for k ≥ ν.

        Args:
            order: k > 0, any real number.
        """
        order = _checks.require_real("order", order, 0)
        return self._raw(order) * self._scale**order if order < self.index else math.inf

    def expectation(self, function: Callable[[float], float], kink: float = 1.0) -> float:
        """E function(‖z‖) by quadrature, of a function that grows like t^k at most, k ≤ 0.95·ν.

        Args:
            function: of a length.
            kink: where it is not smooth.
        """
        _checks.require_callable("function", function)
        kink = _checks.require_real("kink", kink, 0)

        def of_log(log: float) -> float:
            return function(math.exp(log) * self._scale) * self._density_of_log(log)

        # Raw lengths from e^-30 on, below which a share of 1e-13 is, or from the 1 where Pareto's begin, to
        # where a power t^k is e^680·(k/ν); beyond is e^(-680·(1 - k/ν)) of the integral.
        low, high = 0.0 if self.family == PARETO else -30.0, 680.0 / self.index
        cuts = [*np.arange(low, 20.0, 2.0), 40.0, 80.0, 160.0, high, math.log(kink / self._scale)]
        edges = sorted({min(max(float(cut), low), high) for cut in cuts})
        return math.fsum(
            scipy.integrate.quad(of_log, a, b, epsabs=0.0, epsrel=1e-11)[0]
            for a, b in itertools.pairwise(edges)
        )

    @property
    def mean(self) -> Float[np.ndarray, "dim"]:
        """E z, ``[dim]`` in float64 on the host."""
        if self.family == STUDENT:
            return np.zeros(self.dim)
        first = math.exp(gammaln(self.dim / 2) - gammaln((self.dim + 1) / 2)) / math.sqrt(math.pi)
        return np.full(self.dim, first * self.norm_moment(1.0))

    def draw(self, key: Key[Array, ""], count: int) -> Float[Array, "count dim"]:
        """Independent draws of z; works under ``jax.vmap``.

        Args:
            key: a typed key, used up.
            count: how many.
        """
        _checks.require_key(key)
        count = _checks.require_count("count", count)
        direction, length = jax.random.split(key)
        normal = jax.random.normal(direction, (count, self.dim))
        if self.family == STUDENT:
            squares = jax.random.chisquare(length, self.index, (count, 1))
            return self._scale * normal / jnp.sqrt(squares / self.index)
        unit = jnp.abs(normal) / jnp.linalg.norm(normal, axis=1, keepdims=True)
        # A uniform number in (0, 1] to the power -1/ν.
        chance = 1.0 - jax.random.uniform(length, (count, 1))
        return self._scale * chance ** (-1.0 / self.index) * unit

    @property
    def _scale(self) -> float:
        return self._raw(2.0) ** -0.5

    def _raw(self, order: float) -> float:
        """The moment of lengths before they are brought to E‖z‖² = 1."""
        if self.family == PARETO:
            return self.index / (self.index - order)
        d, nu = self.dim, self.index
        logs = gammaln((d + order) / 2) + gammaln((nu - order) / 2) - gammaln(d / 2)
        return math.exp(logs - gammaln(nu / 2) + 0.5 * order * math.log(nu))

    def _density_of_log(self, log: float) -> float:
        """That of the logarithm of a raw length."""
        nu = self.index
        if self.family == PARETO:
            return nu * math.exp(-nu * log)
        constant = math.log(2.0) - betaln(self.dim / 2, nu / 2) - 0.5 * self.dim * math.log(nu)
        # log(1 + e^(2 log)/ν), whatever is the larger of the two.
        grown = np.logaddexp(0.0, 2.0 * log - math.log(nu))
        return math.exp(constant + self.dim * log - 0.5 * (self.dim + nu) * grown)


class Population(NamedTuple):
    """A loss, a law of records, and what is known of them.

    Attributes:
        objective: the loss, on a ball around the origin.
        minimizer: of the expected loss; ``[dim]``, float64 on the host.
        draw: ``draw(key, num_users) -> UserData``, one record a user; works under ``jax.vmap``.
        excess: ``excess(params)``, exactly how far the expected loss is above its minimum.
        slope_moment: ``slope_moment(k)``, G_k with E L^k ≤ G_k^k, for 0 < k ≤ 0.95·ν.
    """

    objective: Objective
    minimizer: Float[np.ndarray, "dim"]
    draw: Callable[..., UserData]
    excess: Callable[[ArrayLike], Float[Array, ""]]
    slope_moment: Callable[[float], float]

    def moments(self, order: float) -> Moments:
        """G_k, G_2 and G_1, rounded up to three places, as plans take them.

        Args:
            order: k from 2 to 0.95·ν, ν the index of the tail.
        """
        order = _checks.require_real("order", order, 2.0, closed=True)
        highest, second, first = (
            math.ceil(1000.0 * self.slope_moment(k)) / 1000.0 for k in (order, 2.0, 1.0)
        )
        return Moments(order, highest, second, first)

    def problem(self, num_users: int, distance: float | None = None) -> Problem:
        """What a ``plan`` is asked.

        Args:
            num_users: n.
            distance: bound on the distance from the start to the minimizer.
        """
        return Problem(
            self.objective, num_users=num_users, dim=len(self.minimizer), distance=distance
        )


@checked
def means(tail: Tail, radius: Positive) -> Population:
    """The mean of z, by ½‖x - z‖² on a ball.

    Args:
        tail: the law of z.
        radius: R, at least the length of the mean, which is at most 1.
    """
    _checks.require_instance("tail", tail, Tail)
    minimizer = tail.mean
    least = float(np.linalg.norm(minimizer))
    _checks.require(radius >= least, "radius", radius, f"at least that of the mean, {least:.4g}")

    def draw(key: Key[Array, ""], num_users: int) -> UserData:
        return UserData(tail.draw(key, num_users)[:, None])

    def excess(params: ArrayLike) -> Float[Array, ""]:
        return 0.5 * jnp.sum(jnp.square(jnp.asarray(params) - minimizer))

    return Population(
        losses.squared_distance(_UNBOUNDED, radius),
        minimizer,
        draw,
        excess,
        functools.partial(_slope_moment, tail, radius, 1.0, 0.0),
    )


@checked
def linear_model(
    tail: Tail, dim: Count, radius: Positive, truth_norm: Nonnegative = 1.0, noise: Positive = 1.0
) -> Population:
    """Least squares with features that are uniform on the sphere and labels with a heavy tail.

    Args:
        tail: the law of labels' noise, of one dimension.
        dim: d, of the features.
        radius: R of the ball, at least ``truth_norm``.
        truth_norm: length of the truth, all of whose coordinates are the same.
        noise: its root mean square, before its mean is taken away.
    """
    _checks.require_instance("tail", tail, Tail)
    _checks.require(tail.dim == 1, "tail.dim", tail.dim, "1, that of a label")
    _checks.require(truth_norm <= radius, "truth_norm", truth_norm, f"at most radius = {radius}")
    truth, center = np.full(dim, truth_norm / math.sqrt(dim)), float(tail.mean[0])

    def draw(key: Key[Array, ""], num_users: int) -> UserData:
        rows, labels = jax.random.split(key)
        features = jax.random.normal(rows, (num_users, 1, dim))
        features = features / jnp.linalg.norm(features, axis=-1, keepdims=True)
        off = noise * (tail.draw(labels, num_users) - center)
        return UserData(Example(features, features @ jnp.asarray(truth, float) + off))

    def excess(params: ArrayLike) -> Float[Array, ""]:
        # E aaᵀ = I/d.
        return 0.5 * jnp.sum(jnp.square(jnp.asarray(params) - truth)) / dim

    return Population(
        losses.squared(feature_bound=1.0, label_bound=_UNBOUNDED, radius=radius),
        truth,
        draw,
        excess,
        functools.partial(_slope_moment, tail, radius + truth_norm, noise, center),
    )


def _slope_moment(tail: Tail, reach: float, noise: float, center: float, order: float) -> float:
    """The k-th root of E (reach + noise·|‖z‖ - center|)^k."""
    index = tail.index
    order = _checks.require_real("order", order, 0.0)
    _checks.require(
        order <= 0.95 * index, "order", order, f"at most 0.95·index = {0.95 * index:.4g}"
    )

    def power(length: float) -> float:
        return (reach + noise * abs(length - center)) ** order

    return tail.expectation(power, kink=center or 1.0) ** (1.0 / order)
