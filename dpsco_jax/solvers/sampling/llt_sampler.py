"""The proximal sampler of ℓp norms: an exponential family takes the place of Gaussian steps.

What it computes: with ψ(x) = log ∫ exp(⟨x, y⟩ - ‖y‖_q²) dy, 1/p + 1/q = 1, a draw from exp(-k·F(x) -
β·ψ(x)) on the ball X = {‖x‖_p ≤ r}, F the mean of f over n records. From a draw of exp(-β·ψ) on X, T times:

    y ← a draw from D_x ∝ exp(⟨x, ·⟩ - ‖·‖_q²)                           ``dual_draw``
    x ← a draw from exp(-k·F - (1 + β)·ψ + ⟨·, y⟩) on X                  by trials of ``oracle``

A trial of the second: x and z, independent, from γ_y ∝ exp(-(1 + β)·ψ + ⟨·, y⟩) on X (``primal_draw``); ρ, an
estimate of exp(k·F(z) - k·F(x)) from a few values; x counts if u < ρ/2 (``rejection_oracle``). A dual draw
first takes the λ of the mixture exp(-‖y‖_q²) = ∫ μ(λ)·exp(-λ·Σ|y_i|^q) dλ from its law GIVEN x, and then
each y_i. Lengths are in units in which ψ has this form: x = (point - start)/√a for exp(-a·‖y‖_q²). For p = 2
all of it is Gaussian, and the chain is that of ``alternating_sampler`` for N(0, ηI).

Source: T, Algorithms 15 and 16, Theorem 5.4.12, Proposition 5.4.7, section 5.5.3, (5.28), (5.29). Corrected
(docs/corrections.md): the number of steps, whose proof rests on a lemma that is false; the law of λ; the
law of the estimate's length; its constants. The draw from γ_y is ours.

Formal guarantee: docs/theory/llt_sampler.md. Exact steps leave ½·(1 + β)^{-T}·√χ² of total variation, χ²
at most exp(min(kG·diam X, (kG)²·h/β)) - 1 for the start above, G the Lipschitz constant of f in ℓp and h =
2/(p-1). The primal draw is exact for any y and the dual draw up to ``Transform.error``. How likely an
attempt and a trial succeed at least is known beforehand, so trials are capped. How many were made depends
on the data.

Cost: a step makes two trials, each of two draws from γ_y of some 1/acceptance values of ψ (3 for d = 1, 5 to
50 for d = 3; ``_self_concordant.acceptance`` is the bound), of some hundred λ each.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.solvers.sampling import llt_sampler
    >>> with jax.enable_x64(True):
    ...     psi = llt_sampler.transform(1.5, dim=2)
    ...     y = llt_sampler.dual_draw(jax.random.key(0), psi, jnp.array([3.0, 1.0]))
    ...     x = llt_sampler.primal_draw(jax.random.key(1), psi, y, power=1.1, radius=100.0)
    >>> y.shape, bool(x.counts)
    ((2,), True)
"""

import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax import _checks, _float64, _keys, _released
from dpsco_jax._argument_kinds import Count, Flag, Kind, Positive, checked, integer, real
from dpsco_jax.geometry import _powers, log_laplace
from dpsco_jax.geometry._power_laplace import log_power_laplace
from dpsco_jax.solvers.sampling import _self_concordant, alternating_sampler, rejection_oracle
from dpsco_jax.solvers.sampling._precision import float64_vector, require_x64
from dpsco_jax.solvers.sampling._self_concordant import Attempted, Prepared
from dpsco_jax.solvers.sampling.chain_lengths import MOST_TRIALS
from dpsco_jax.solvers.sampling.rejection_oracle import State
from dpsco_jax.solvers.sampling.restricted_gaussian import Restricted, until_one_counts

__all__ = [
    "Transform",
    "alternate",
    "dual_draw",
    "oracle",
    "primal_draw",
    "start_draw",
    "transform",
]

ATTEMPTS = 1000
NEWTON_STEPS = 10_000
_Attempts = Annotated[int, integer(1, 2**31 - 1)]
_Above = Annotated[ArrayLike, Kind(_checks.require_positive)]
REACH = 16.0
_UNIT = 2.0**-52  # of a sum of weights, for each of them, and of the uniform number


class Errors(NamedTuple):
    """Of a transform, at points with ‖x‖_p at most its reach."""

    value: float  # of values
    draw: float  # of draws, in total variation


class Transform(NamedTuple):
    """ψ and the laws D_x, for points x in float64.

    Attributes:
        exponent: p.
        gaussian: whether ψ is ‖x‖²/4 and a constant.
        value: ``value(x) -> ψ(x)``.
        local: ``local(x) -> (∇ψ(x), ∇²ψ(x))``, mean and covariance of D_x.
        draw: ``draw(key, x) -> y``.
        errors: of values and of draws.
    """

    exponent: float
    gaussian: bool
    value: Callable[[Any], Any]
    local: Callable[[Any], Any]
    draw: Callable[[Array, Any], Any]
    errors: Errors


@checked
def transform(
    p: Annotated[float, real(1.0, math.nextafter(2.0, 3.0))], dim: Count, reach: Positive = REACH
) -> Transform:
    """ψ for an exponent.

    Args:
        p: in [1.05, 1.95], or 2.
        dim: d, at least 1.
        reach: the largest ‖x‖_p at which it is needed, at most 4096.

    Raises:
        ValueError: an argument is out of range, or jax_enable_x64 is off.

    Example:
        >>> import jax
        >>> with jax.enable_x64(True):
        ...     transform(2.0, dim=3).gaussian
        True
    """
    return _transform(p, dim, reach)


def dual_draw(key: jax.Array, psi: Transform, point: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """A y from D_x ∝ exp(⟨x, y⟩ - ‖y‖_q²). Pure JAX.

    Args:
        key: a typed key.
        psi: by ``transform``.
        point: x, float64.

    Raises:
        ValueError: an argument is of another kind, or jax_enable_x64 is off.
    """
    _checks.require_key(key)
    key = _keys.alone(key)
    _checks.require_instance("psi", psi, Transform)
    require_x64("llt_sampler")
    return _released.without_derivatives(psi.draw(key, float64_vector("point", point)))


@checked
def primal_draw(
    key: jax.Array,
    psi: Transform,
    tilt: Float[Array, " dim"],
    *,
    power: ArrayLike,
    radius: ArrayLike,
    num_attempts: _Attempts = ATTEMPTS,
) -> Attempted:
    """An x from γ_y ∝ exp(-b·ψ(x) + ⟨x, y⟩) on the ball ‖x‖_p ≤ r, exactly, if an attempt counts. Pure JAX.

    Args:
        key: a typed key.
        psi: by ``transform``.
        tilt: y, float64.
        power: b, at least 1.
        radius: r, above 0.
        num_attempts: static, at least 1.

    Raises:
        ValueError: an argument is of another kind or out of its range, or jax_enable_x64 is off.
    """
    _checks.require_key(key)
    key = _keys.alone(key)
    tilt = float64_vector("tilt", tilt)
    family = _family(psi, power, radius, num_attempts, NEWTON_STEPS, False)
    found = family.attempts(key, family.prepare(tilt, jnp.zeros_like(tilt)))
    return _released.without_derivatives(found)


@checked
def start_draw(
    key: jax.Array,
    psi: Transform,
    dim: Count,
    *,
    drift: _Above,
    radius: _Above,
    num_attempts: _Attempts = ATTEMPTS,
    constant_time: Flag = False,
) -> Attempted:
    """An x from exp(-β·ψ(x)) on the ball: rejection from exp(-(m/2)·‖x‖_p²), m = β(p-1)/2. Looks at no data.

    Args:
        key: a typed key.
        psi: by ``transform``.
        dim: d.
        drift: β, above 0.
        radius: r, above 0.
        num_attempts: static, at least 1. If none counts, the point is zero.
        constant_time: static; whether all attempts are made.

    Raises:
        ValueError: an argument is of another kind or out of its range, or jax_enable_x64 is off.
    """
    _checks.require_key(key)
    key = _keys.alone(key)
    _checks.require_instance("psi", psi, Transform)
    require_x64("llt_sampler")
    convexity = 0.5 * drift * (psi.exponent - 1.0)
    origin = _float64.exact("llt_sampler", jnp.zeros(dim))
    lowest = psi.value(origin)

    def normal(at: Array) -> tuple[Array, Array]:
        return jax.random.normal(at, (dim,), jnp.float64) / jnp.sqrt(convexity), jnp.array(True)

    def rejected(at: Array) -> tuple[Array, Array]:
        keys = jax.random.split(at, 4)
        # Of density exp(-|g|^p): a function of ‖g‖_p, so that its direction is that of the proposal.
        sizes = jax.random.gamma(keys[0], 1.0 / psi.exponent, (dim,), jnp.float64)
        signs = jnp.where(jax.random.bits(keys[1], (dim,), jnp.uint64) & 1, 1.0, -1.0)
        free = signs * sizes ** (1.0 / psi.exponent)
        length = jnp.linalg.norm(jax.random.normal(keys[2], (dim,), jnp.float64))
        point = free * (length / jnp.sqrt(convexity) / _powers.norm(free, psi.exponent))
        above = drift * (psi.value(point) - lowest) - 0.5 * length * length
        return point, jax.random.uniform(keys[3], (), jnp.float64) < jnp.exp(-above)

    def once(index: Array) -> tuple[Array, Array]:
        point, counts = (normal if psi.gaussian else rejected)(jax.random.fold_in(key, index))
        return point, counts & (_powers.norm(point, psi.exponent) <= radius)

    point, counted, made = until_one_counts(once, origin, num_attempts, constant_time)
    return Attempted(jnp.where(counted, point, origin), counted, made)


@checked
def oracle(
    loss: Callable[[Any, Any], Any],
    data: Any,
    psi: Transform,
    *,
    drift: _Above,
    radius: ArrayLike,
    num_records: int,
    scale: ArrayLike,
    num_terms: int,
    num_attempts: _Attempts = ATTEMPTS,
    num_newton: Any = NEWTON_STEPS,
    constant_time: Flag = False,
) -> alternating_sampler.Oracle:
    """The two moves of the chain, for ``alternating_sampler.run`` (T Algorithm 16 is its trial).

    Args:
        loss: ``loss(x, record)``, a float64 scalar, convex and Lipschitz in x for every record.
        data: a pytree of arrays whose leading axis has n records.
        psi: by ``transform``.
        drift: β, above 0; may be traced, as the next ones.
        radius: r of X, above 0.
        num_records: n.
        scale: k, above 0.
        num_terms: A, static.
        num_attempts: J, static: at each of the two points of a trial.
        num_newton: steps of Newton's method for a y, at most; may be traced.
        constant_time: static; whether all attempts and steps are made.

    Raises:
        ValueError: an argument is out of range, or jax_enable_x64 is off.
    """
    _checks.require_whole("num_newton", num_newton, 1)
    family = _family(psi, 1.0 + drift, radius, num_attempts, num_newton, constant_time)

    def attempt(key: Array, prepared: Prepared) -> tuple[Array, Array]:
        found = family.attempts(key, prepared)
        return found.params, found.counts

    # The step size and the preparation of Gaussian moves are not used: y is drawn here.
    inner = rejection_oracle.oracle(
        loss,
        data,
        Restricted(1.0, lambda y: y, attempt),
        num_records=num_records,
        scale=scale,
        num_terms=num_terms,
        constant_time=constant_time,
    )

    def init(params: Any) -> State:
        start = float64_vector("params", params)
        blank = jax.eval_shape(family.prepare, start, start)
        return State(start, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), blank))

    def diffuse(key: Array, state: State) -> State:
        y = psi.draw(key, state.params)
        return State(state.params, family.prepare(y, state.params))

    return alternating_sampler.Oracle(init, diffuse, inner.trial, inner.point)


@checked
def alternate(
    key: jax.Array,
    moves: alternating_sampler.Oracle,
    psi: Transform,
    dim: Count,
    *,
    drift: _Above,
    radius: _Above,
    num_steps: Any,
    num_trials: Any,
    num_starts: _Attempts = ATTEMPTS,
    constant_time: Flag = False,
) -> alternating_sampler.Draw:
    """T Algorithm 15 from its start: a draw of exp(-β·ψ), then T steps. Pure JAX.

    Args:
        key: a typed key.
        moves: by ``oracle``, for the same β and r.
        psi: by ``transform``.
        dim: d.
        drift: β, above 0.
        radius: r of X.
        num_steps: T, at least 1; may be traced.
        num_trials: N, of all steps; may be traced.
        num_starts: static; attempts at the start.
        constant_time: static.

    Raises:
        ValueError: an argument is of another kind or out of its range, or jax_enable_x64 is off.
    """
    _checks.require_key(key)
    key = _keys.alone(key)
    _checks.require_instance("moves", moves, alternating_sampler.Oracle)
    _checks.require_instance("psi", psi, Transform)
    _checks.require_whole("num_steps", num_steps, 1)
    _checks.require_within("num_trials", num_trials, 1, MOST_TRIALS)
    first, rest = jax.random.split(key)
    settings: dict[str, Any] = {"num_attempts": num_starts, "constant_time": constant_time}
    begun = start_draw(first, psi, dim, drift=drift, radius=radius, **settings)
    return alternating_sampler.run(rest, moves, begun.params, num_steps, num_trials, constant_time)


class _Family(NamedTuple):
    """The laws γ_y ∝ exp(-b·ψ(x) + ⟨x, y⟩) on a ball, for one ψ and b."""

    prepare: Callable[[Array, Array], Any]  # ``prepare(y, start)``, what all attempts for a y share
    attempts: Callable[[Array, Any], Attempted]  # ``attempts(key, prepared)``


def _family(
    psi: Transform,
    power: ArrayLike,
    radius: ArrayLike,
    num_attempts: int,
    num_newton: Any,
    constant_time: bool,
) -> _Family:
    """The laws on the ball of a radius in ℓp: by self-concordance, or of normal numbers where p = 2."""
    _checks.require_instance("psi", psi, Transform)
    _checks.require_positive("power", power)
    _checks.require_positive("radius", radius)
    require_x64("llt_sampler")

    def contains(point: Array) -> Array:
        return _powers.norm(point, psi.exponent) <= radius

    def prepare(tilt: Array, start: Array) -> Prepared:
        return _self_concordant.prepare(
            psi.value, psi.local, power, tilt, start, num_newton, constant_time
        )

    def attempts(key: Array, prepared: Prepared) -> Attempted:
        return _self_concordant.attempts(
            *(key, prepared, psi.value, contains, power, 8.0 * psi.errors.value),
            *(num_attempts, constant_time),
        )

    def gaussian(key: Array, tilt: Array) -> Attempted:
        # ψ is ‖x‖²/4 and a constant: N(2y/b, 2/b).
        def once(index: Array) -> tuple[Array, Array]:
            free = jax.random.normal(jax.random.fold_in(key, index), tilt.shape, jnp.float64)
            point = 2.0 * tilt / power + jnp.sqrt(2.0 / power) * free
            return point, contains(point)

        return Attempted(*until_one_counts(once, tilt, num_attempts, constant_time))

    if psi.gaussian:
        return _Family(lambda tilt, start: tilt, gaussian)
    return _Family(prepare, attempts)


@functools.lru_cache(maxsize=32)
def _transform(p: float, dim: int, reach: float) -> Transform:
    psi = log_laplace.LpLogLaplace(p, scale=1.0, dim=dim, reach=reach)

    def flat(x: Array) -> tuple[Array, Array]:
        return 0.5 * x, 0.5 * jnp.eye(dim, dtype=jnp.float64)

    def moments(x: Array) -> tuple[Array, Array]:
        # Given λ the coordinates are independent: the law of total covariance.
        log_lambda, log_weights = psi.mixture(x)
        weights, shrink = jnp.exp(log_weights), jnp.exp(-log_lambda / psi.q)
        mean, variance = _log_derivatives(x[:, None] * shrink, psi.q)
        mean, variance = mean * shrink, variance * shrink * shrink
        center = mean @ weights
        apart = mean - center[:, None]
        return center, (apart * weights) @ apart.T + jnp.diag(variance @ weights)

    def gaussian(key: Array, x: Array) -> Array:
        return 0.5 * x + jax.random.normal(key, x.shape, jnp.float64) / 2.0**0.5

    def mixed(key: Array, x: Array) -> Array:
        place_key, coordinate_key = jax.random.split(key)
        log_lambda, log_weights = psi.mixture(x)
        sums = jnp.cumsum(jnp.exp(log_weights))
        aim = sums[-1] * jax.random.uniform(place_key, (), jnp.float64)
        place = jnp.minimum(jnp.sum(sums <= aim, dtype=jnp.int32), len(sums) - 1)
        shrink = jnp.exp(-log_lambda[place] / psi.q)
        return shrink * psi.coordinate_draw(coordinate_key, x * shrink)

    return Transform(
        exponent=p,
        gaussian=p == 2.0,
        value=psi.value,
        local=flat if p == 2.0 else moments,
        draw=gaussian if p == 2.0 else mixed,
        errors=Errors(
            float(psi.error), 0.0 if p == 2.0 else float(psi.draw_error) + psi.size * _UNIT
        ),
    )


def _log_derivatives(t: Array, q: float) -> tuple[Array, Array]:
    """The first two derivatives of log Z, elementwise: mean and variance of the density ∝ exp(tw - |w|^q)."""
    ones = jnp.ones_like(t)

    def first(at: Array) -> Array:
        return jax.jvp(lambda z: log_power_laplace(z, q), (at,), (ones,))[1]

    return jax.jvp(first, (t,), (ones,))
