"""The log-Laplace transform of a‖y‖_q²: for ℓp geometries in place of a squared distance.

What it computes: for p in (1, 2], 1/p + 1/q = 1, a > 0 and d dimensions

    ψ(x) = log ∫ exp(<x, y> - a‖y‖_q²) dy,

its gradient and Hessian, which are mean and covariance of D_x, the law of y with that integrand, and what a
draw from D_x needs. For p = 2 this is ‖x‖²/(4a) + (d/2)·log(π/a). Else, with c = 2/q and λ of the one-sided
stable law of index c (``_stable_density``), exp(-a‖y‖_q²) = E exp(-λ·a^(q/2)·Σ|y_i|^q), so that

    exp ψ(x) = a^(-d/2)·E Π_i λ^(-1/q)·Z(u_i·λ^(-1/q)),    u = x/√a,    Z(t) = ∫ exp(tw - |w|^q) dw:

one integral over λ of products of one function of one variable (``_power_laplace``). Under D_x the law of λ
is tilted by the product; given λ the coordinates are independent.

Source: T (5.25), (5.29), Lemmas 5.3.1 to 5.3.4, 5.5.2. Corrections X26 to X28 apply. T section 5.5.3
draws λ from the stable law itself, which is the law of λ under no D_x.

Formal guarantee: the integral over λ is a sum over a grid that depends on ‖u‖_p; it is wrong by at most 3e-17
of itself, also as the law of λ under which y is drawn: proven in ``_mixture_grid``. The tables under it were
measured and the measurement doubled; ``error`` adds both and the rounding. Facts about ψ that others rest on:
convex and even; self-concordant, |∇³ψ[h, h, h]| <= 2·(∇²ψ[h, h])^(3/2); (p-1)/(2a)-strongly convex in ℓp, as
a‖y‖_q² is (2a/(p-1))-smooth in ℓq; KL(D_x‖D_z) = ψ(z) - ψ(x) - <∇ψ(x), z - x>.

Cost: a value takes some hundred λ times d lookups; see ``size``. Tables are made once for each (p, d, reach).

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.geometry import log_laplace
    >>> with jax.enable_x64(True):
    ...     psi = log_laplace.LpLogLaplace(1.5, scale=0.5, dim=2)
    ...     print(round(float(psi.value(jnp.array([1.0, 0.5]))), 6))
    2.668041
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax import _checks, _float64, _keys
from dpsco_jax.geometry import _powers, _radial_range
from dpsco_jax.geometry._mixture_grid import MixtureTables, mixture_tables
from dpsco_jax.geometry._power_laplace import log_power_laplace
from dpsco_jax.geometry._stable_density import log_density

__all__ = ["LpLogLaplace", "Mixture", "at_zero", "rise_at_one"]

_LEAST, _LARGEST = 1.05, 1.95
_TRIALS = 256
_FAILURE = 0.75**_TRIALS


class Mixture(NamedTuple):
    """The law of λ under D_x, on a grid.

    Attributes:
        log_lambda: ``[size]``, log λ, increasing.
        log_weights: ``[size]``; their exponentials add up to 1.
    """

    log_lambda: Float[Array, " size"]
    log_weights: Float[Array, " size"]


@dataclasses.dataclass(frozen=True)
class LpLogLaplace:
    """ψ for one p, a and d. Hashable and static; its methods are pure JAX in float64.

    Attributes:
        p: in [1.05, 1.95], or 2.
        scale: a, above 0.
        dim: d, at least 1.
        reach: the largest ‖x‖_p at which values are certified; beyond it they are NaN. 16·√a if left out.

    Raises:
        ValueError: an argument is out of its range, or jax_enable_x64 is off.
    """

    p: float
    scale: float
    dim: int
    reach: float | None = None

    def __post_init__(self) -> None:
        _require_x64()
        dim = _checks.require_count("dim", self.dim)
        p = _require_exponent(self.p, dim)
        scale = _checks.require_real("scale", self.scale, 0.0)
        reach = 16.0 * math.sqrt(scale) if self.reach is None else self.reach
        reach = _checks.require_real("reach", reach, 0.0)
        for name, value in (("p", p), ("scale", scale), ("dim", dim), ("reach", reach)):
            object.__setattr__(self, name, value)
        if p < 2.0:
            _checks.require_within("reach / √scale", self._furthest, 0.0, 4096.0)

    @property
    def q(self) -> float:
        """The dual exponent."""
        return self.p / (self.p - 1.0)

    @property
    def strong_convexity(self) -> float:
        """(p-1)/(2a), in ℓp."""
        return (self.p - 1.0) / (2.0 * self.scale)

    @property
    def size(self) -> int:
        """How many λ a value takes."""
        return 1 if self.p == 2.0 else self._tables.size

    @property
    def error(self) -> float:
        """A bound on |computed ψ - ψ| over ‖x‖_p <= ``reach``: a sum's is proven, the tables' measured."""
        if self.p == 2.0:
            return 8.0 * 2.0**-53 * (1.0 + self._furthest**2 / 4.0 + self.dim * self._log_scale)
        return self._tables.error + 2.0**-50 * self.dim * self._log_scale

    @property
    def draw_error(self) -> float:
        """A bound on the total variation between D_x and a y drawn by ``mixture`` and ``coordinate_draw``."""
        if self.p == 2.0:
            return 0.0
        return 2.0 * self._tables.error + self.dim * _FAILURE

    def value(self, x: Float[Array, " dim"]) -> Float[Array, ""]:
        """ψ(x)."""
        point = self._point(x)
        if self.p == 2.0:
            constant = 0.5 * self.dim * math.log(math.pi / self.scale)
            return jnp.sum(point * point) / (4.0 * self.scale) + constant
        _, log_terms = self._terms(point / math.sqrt(self.scale))
        return jax.nn.logsumexp(log_terms) - 0.5 * self.dim * math.log(self.scale)

    def gradient(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """∇ψ(x), the mean of D_x."""
        return jax.grad(self.value)(self._point(x))

    def hessian(self, x: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
        """∇²ψ(x), the covariance of D_x."""
        return jax.hessian(self.value)(self._point(x))

    def divergence(self, x: Float[Array, " dim"], z: Float[Array, " dim"]) -> Float[Array, ""]:
        """KL(D_x‖D_z) = ψ(z) - ψ(x) - <∇ψ(x), z - x>; at most 1/4: laws within 1/2."""
        start, end = self._point(x), self._point(z)
        return self.value(end) - self.value(start) - jnp.dot(self.gradient(start), end - start)

    def mixture(self, x: Float[Array, " dim"]) -> Mixture:
        """The law of λ under D_x: y ~ D_x is λ from it, then y_i ∝ exp(x_i·y_i - λ·a^(q/2)·|y_i|^q).

        λ is one of the grid's, not between them: with these weights the law of y is that of D_x up to
        ``draw_error``. For p = 2 there is one λ, which is 1.
        """
        point = self._point(x)
        if self.p == 2.0:
            return Mixture(jnp.zeros(1), 0.0 * point[:1])
        log_lambda, log_terms = self._terms(point / math.sqrt(self.scale))
        return Mixture(log_lambda, log_terms - jax.nn.logsumexp(log_terms))

    def coordinate_draw(self, key: Array, t: ArrayLike) -> Float[Array, "*shape"]:
        """W of density ∝ exp(tw - |w|^q), for each t: exact but for a probability of 1e-32 each.

        With κ = λ·a^(q/2), y_i = κ^(-1/q)·w for t = x_i·κ^(-1/q).
        """
        _checks.require_key(key)
        _checks.require_number("t", t)
        return _power_draw(_keys.alone(key), jnp.asarray(t, jnp.float64), self.q)

    def range(self, radius: float) -> float:
        """An upper bound on ψ(x) - ψ(0) over ‖x‖_p <= radius, log E exp(radius·r), 2a·r² of a χ²_d law.

        Raises:
            ValueError: the radius is not positive and finite.
        """
        radius = _checks.require_real("radius", radius, 0.0)
        return _radial_range.rounded_up(radius / math.sqrt(self.scale), self.dim)

    @property
    def _furthest(self) -> float:
        assert self.reach is not None
        return self.reach / math.sqrt(self.scale)

    @property
    def _log_scale(self) -> float:
        return 1.0 + abs(math.log(self.scale))

    @property
    def _tables(self) -> MixtureTables:
        return mixture_tables(self.p, self.dim, math.floor(self._furthest * (1.0 + 1e-12)) + 1)

    def _point(self, x: Any) -> Array:
        _require_x64()
        _checks.require_number("x", x)
        kind = jnp.result_type(x)
        _checks.require(kind == jnp.float64, "x", kind, "of float64")
        _checks.require(jnp.shape(x) == (self.dim,), "x", jnp.shape(x), f"of shape ({self.dim},)")
        return _float64.exact("log_laplace", jnp.asarray(x))

    def _terms(self, u: Array) -> tuple[Array, Array]:
        """Log λ, and the logarithms of the terms of the sum for a = 1."""
        tables, c = self._tables, 2.0 / self.q
        norm = jax.lax.stop_gradient(_powers.norm(u, self.p))
        shells = len(tables.low)
        shell = jnp.clip(jnp.floor(norm), 0, shells - 1).astype(jnp.int32)
        low, step = jnp.asarray(tables.low)[shell], jnp.asarray(tables.step)[shell]
        low = jnp.where(norm < shells, low, jnp.nan)
        log_lambda = low + step * jnp.arange(tables.size)
        density = log_density(log_lambda, c, tables.first, tables.last)
        shrink = jnp.exp(-log_lambda / self.q)
        products = jnp.sum(log_power_laplace(u[:, None] * shrink, self.q), axis=0)
        return log_lambda, jnp.log(step) + density + products - self.dim / self.q * log_lambda


def at_zero(p: float, scale: float, dim: int) -> float:
    """ψ(0) = d·log(2Γ(1+1/q)) - log Γ(1+d/q) + log Γ(1+d/2) - (d/2)·log a.

    Args:
        p: in [1, 2]; q is infinite at 1.
        scale: a, above 0.
        dim: d, at least 1.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> from dpsco_jax.geometry import log_laplace
        >>> round(log_laplace.at_zero(4 / 3, 0.5, 2), 5)
        2.00368
    """
    dim = _checks.require_count("dim", dim)
    scale = _checks.require_real("scale", scale, 0.0)
    _checks.require_within("p", p, 1.0, 2.0)
    inverse = (float(p) - 1.0) / float(p)
    side = math.log(2.0) + math.lgamma(1.0 + inverse)
    volume = dim * side - math.lgamma(1.0 + dim * inverse) + math.lgamma(1.0 + 0.5 * dim)
    return volume - 0.5 * dim * math.log(scale)


def rise_at_one(dim: int, radius: float = 1.0, scale: float = 1.0) -> float:
    """ψ(t·e₁) - ψ(0) for p = 1, in closed form: how the range grows with d, like √(d/2).

    Under D_0 the largest |y_i| is r, r² of a Gamma law with shape d/2 over a; y₁ is ±r with probability
    1/d, else uniform between. So it is the logarithm of E[cosh(tr)/d + (1 - 1/d)·sinh(tr)/(tr)], which are
    two series in t²/(4a).

    Args:
        dim: d, at least 1.
        radius: t, at least 0.
        scale: a, above 0.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> from dpsco_jax.geometry import log_laplace
        >>> [round(log_laplace.rise_at_one(d), 6) for d in (1, 2, 100)]
        [0.25, 0.328184, 4.563266]
    """
    dim = _checks.require_count("dim", dim)
    radius = _checks.require_real("radius", radius, 0.0, closed=True)
    scale = _checks.require_real("scale", scale, 0.0)
    height = radius * radius / (4.0 * scale)
    furthest = math.sqrt(2000.0 * scale)
    _checks.require(height <= 500.0, "radius", radius, f"at most {furthest:.4g} for this scale")
    edge = float(scipy.special.hyp1f1(0.5 * dim, 0.5, height))
    middle = float(scipy.special.hyp1f1(0.5 * dim, 1.5, height))
    return math.log(edge / dim + (1.0 - 1.0 / dim) * middle)


def _power_draw(key: Array, t: Float[Array, "*shape"], q: float) -> Float[Array, "*shape"]:
    """One w of density ∝ exp(tw - |w|^q), q ≥ 2, for each t, by rejection.

    With m = sign(t)·(|t|/q)^(1/(q-1)), the mode, and M the density there, every log-concave density lies
    below M·min(1, exp(1 - M|w - m|)) (Devroye 1986, section VII.2.3): half of the proposals are uniform
    within 1/M of m, the others exponential beyond. A trial is accepted with probability 1/4. It is exact in
    real
    arithmetic: an M that is too small leaves the envelope one, and M is taken 1e-9 below its table. All of
    256 trials fail with probability (3/4)^256 < 1.1e-32; the last proposal is returned then.
    """
    size = jnp.abs(t)
    mode = (size / q) ** (1.0 / (q - 1.0))
    height = (1.0 - 1e-9) * jnp.exp((q - 1.0) * mode**q - log_power_laplace(t, q))

    def pending(carry: tuple[Array, Array, Array]) -> Array:
        return ~jnp.all(carry[1]) & (carry[2] < _TRIALS)

    def trial(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        kept, done, count = carry
        place, coin = jax.random.split(jax.random.fold_in(key, count))
        flat, far = jax.random.uniform(place, (2, *t.shape), jnp.float64)
        signed = 2.0 * flat - 1.0
        # In units of 1/M: uniform in [-2, 2]; what is beyond 1 becomes an exponential tail there.
        inside = jnp.abs(signed) < 0.5
        tail = 1.0 - jnp.log1p(-far)
        offset = jnp.where(inside, 2.0 * signed, jnp.sign(signed) * tail)
        w = mode + offset / height
        lowered = jnp.where(inside, 0.0, 1.0 - tail)
        threshold = jnp.log1p(-jax.random.uniform(coin, t.shape, jnp.float64))
        accepted = threshold < _fall(w, mode, size, q) - lowered
        kept = jnp.where(done, kept, w)
        return kept, done | accepted, count + 1

    none = (jnp.zeros_like(t), jnp.zeros(t.shape, bool), jnp.zeros((), jnp.int32))
    found = jax.lax.while_loop(pending, trial, none)[0]
    return jnp.where(t < 0.0, -found, found)


def _fall(w: Array, mode: Array, size: Array, q: float) -> Array:
    """The logarithm of the density at w over that at the mode, without cancellation near it."""
    safe = jnp.where(mode > 0.0, mode, 1.0)
    ratio = (w - mode) / safe
    near = (mode > 0.0) & (jnp.abs(ratio) < 0.5)
    small = jnp.where(near, ratio, 0.0)
    close = mode**q * (q * small - jnp.expm1(q * jnp.log1p(small)))
    away = size * (w - mode) - jnp.abs(w) ** q + mode**q
    return jnp.where(near, close, away)


def _require_exponent(p: Any, dim: int) -> float:
    _checks.require_number("p", p)
    if not isinstance(p, jax.core.Tracer) and np.ndim(p) == 0 and float(p) == 1.0:
        instead = f"; take p' = 1 + 1/log(dim) = {1 + 1 / math.log(dim):.4g}" if dim >= 3 else ""
        raise ValueError(f"p must be above 1, got {p!r}{instead}")
    value = _checks.require_real("p", p, _LEAST, math.nextafter(2.0, 3.0), closed=True)
    known = value <= _LARGEST or value == 2.0
    _checks.require(known, "p", value, f"in [{_LEAST}, {_LARGEST}], or 2")
    return value


def _require_x64() -> None:
    if jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise ValueError(
            "jax_enable_x64 must be True for log_laplace, whose tables are exact up to roundings of float64, "
            "got False. Call jax.config.update('jax_enable_x64', True), or run under jax.enable_x64(True)"
        )
