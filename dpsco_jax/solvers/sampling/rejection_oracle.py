"""Rejection by an estimated exponential: steps of the proximal sampler from a few loss values each.

What it computes: draws x from exp(-k·F(x) - ψ(x) - ‖x - y‖²/(2η)) on K, F the mean of f over n records. One
trial: x and z, independent, from exp(-ψ - ‖· - y‖²/(2η)) on K (``restricted_gaussian``); x counts if u < ρ/2,
u uniform, for an estimate ρ of exp(k·F(z) - k·F(x)). With a of law Pr[a ≥ b] = 1/b! up to b = A, and X the
difference k·f_j(z) - k·f_j(x) of a record j,

    ρ = 1 + Σ_{b=1..a} Π_{i=1..b} X,    of expectation Σ_{b≤A} (k·F(z) - k·F(x))^b/b! given x and z.

With ``"prefix"`` term b multiplies the first b of a records, e - 1 on average; with ``"fresh"``, as printed,
each term has records of its own, e on average. What ρ has below 0 or above 2 is clipped by the test; that,
and that sums end at term A, is the only error.

Source: T, Algorithm 14, Lemmas 3.5.3 to 3.5.5, (5.19); Algorithm 16 is the same in other norms, but prints
Pr[a ≥ b] = 1/b. Corrected: that law, and the constants (docs/corrections.md).

Formal guarantee: let every f(·; s) be G-Lipschitz, convex or not. For c = η(kG)² the law of x given that it
counts is within total variation ``inner_variation(c, A)`` of the target, for every y, and x counts with
probability at least (1 - that)/2 (docs/theory/rejection_oracle.md). How many steps a chain of such draws
needs is another matter: ``chain_lengths`` for convex losses, else ``log_sobolev``. Privacy rests on this
distance: a larger step size, or a loss that is not what was declared, voids it, and no test of a run can
tell. How many trials
were made, and how many records were read, depends on the data and is never to be released; ``constant_time``
reads the same number of records in every trial.

Cost: two trials a step on average, 2(e - 1) = 3.44 loss values each with ``"prefix"``, 2e = 5.44 with
``"fresh"``.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.solvers.sampling import alternating_sampler, rejection_oracle, restricted_gaussian
    >>> with jax.enable_x64(True):
    ...     data = jnp.linspace(-1.0, 1.0, 20)[:, None]
    ...     normal = restricted_gaussian.whole_space(1e-3, 1.0, jnp.zeros(1))
    ...     oracle = rejection_oracle.oracle(
    ...         lambda x, s: jnp.abs(x[0] - s[0]), data, normal, num_records=20, scale=4.0, num_terms=12)
    ...     end = alternating_sampler.run(jax.random.key(0), oracle, jnp.zeros(1), 50, 400)
    >>> end.params.shape, int(end.num_accepted)
    ((1,), 50)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from dpsco_jax import _checks
from dpsco_jax.solvers.sampling import alternating_sampler
from dpsco_jax.solvers.sampling._precision import float64_vector, require_x64
from dpsco_jax.solvers.sampling.restricted_gaussian import Restricted

__all__ = ["State", "oracle"]

INDICES = ("prefix", "fresh")


class State(NamedTuple):
    """x, and what was prepared for the y that was drawn from it."""

    params: Float[Array, " dim"]
    prepared: Any


def oracle(
    loss: Callable[[Any, Any], Any],
    data: Any,
    restricted: Restricted,
    *,
    num_records: int,
    scale: ArrayLike,
    num_terms: int,
    indices: str = "prefix",
    constant_time: bool = False,
) -> alternating_sampler.Oracle:
    """The oracle of ``alternating_sampler.run`` for one target.

    Args:
        loss: ``loss(params, record)``, a float64 scalar for params ``[dim]``: f, G-Lipschitz in params for
            every record. Privacy rests on it, and it cannot be seen from values.
        data: a pytree of arrays whose leading axis has n records.
        restricted: ψ, K and η.
        num_records: n.
        scale: k, above 0; may be traced.
        num_terms: A, static, at least 3.
        indices: ``"prefix"`` or ``"fresh"``.
        constant_time: static; whether the differences of all A terms are computed in every trial.

    Raises:
        ValueError: an argument is out of range, the data have other leading axes, or jax_enable_x64 is off.
            On use, losses are no float64 scalars.
    """
    require_x64("rejection_oracle")
    _checks.require_callable("loss", loss)
    _checks.require_tree("data", data)
    _checks.require_instance("restricted", restricted, Restricted)
    num_records = _checks.require_integer("num_records", num_records, 1, 2**31 - 1)
    for leaf in jax.tree.leaves(data):
        shape = jnp.shape(leaf)
        _checks.require(shape[:1] == (num_records,), "num_records", num_records, f"that of {shape}")
    _checks.require_positive("scale", scale)
    num_terms = _checks.require_integer("num_terms", num_terms, 3, 18)
    _checks.require_choice("indices", indices, INDICES)
    constant_time = _checks.require_flag("constant_time", constant_time)

    def diffuse(key: Array, state: State) -> State:
        noise = jax.random.normal(key, state.params.shape, jnp.float64)
        y = state.params + jnp.sqrt(restricted.step_size) * noise
        return State(state.params, restricted.prepare(y))

    def trial(key: Array, state: State) -> tuple[State, Array]:
        x_key, z_key, series_key, coin_key = jax.random.split(key, 4)
        x, x_counts = restricted.attempt(x_key, state.prepared)
        z, z_counts = restricted.attempt(z_key, state.prepared)

        def read(part: Array, j: Array) -> Array:
            record = jax.tree.map(lambda leaf: jnp.asarray(leaf)[j], data)
            return _scalar("loss", loss(jnp.where(part == 1, z, x), record))

        series = estimate(series_key, read, scale, num_records, num_terms, indices, constant_time)
        coin = unit_interval(jax.random.bits(coin_key, (), jnp.uint64))
        return State(x, state.prepared), x_counts & z_counts & (coin < 0.5 * series.value)

    def init(params: Any) -> State:
        start = float64_vector("params", params)
        return State(start, restricted.prepare(start))

    return alternating_sampler.Oracle(init, diffuse, trial, lambda state: state.params)


def _scalar(name: str, found: Any) -> Array:
    kind = (jnp.shape(found), jnp.result_type(found))
    _checks.require(kind == ((), jnp.float64), name, kind, "of a float64 scalar")
    return jnp.asarray(found)


class Estimate(NamedTuple):
    """One draw."""

    value: Float[Array, ""]  # ρ
    num_terms: Int[Array, ""]  # a
    num_differences: Int[Array, ""]  # those that ρ is made of


def estimate(
    key: jax.Array,
    read: Callable[[Array, Array], Any],
    scale: Any,
    num_records: int,
    num_terms: int,
    indices: str,
    constant_time: bool,
) -> Estimate:
    """Draws ρ, X = k·(read(1, j) - read(0, j)), 0 ≤ j < n, of a ``read`` that is traced once for both."""
    length_key, index_key = jax.random.split(key)
    # The term that each difference belongs to, and whether it is the last of that term.
    if indices == "prefix":
        last = np.ones(num_terms, bool)
    else:
        term = np.repeat(np.arange(num_terms), np.arange(1, num_terms + 1))
        last = np.append(term[1:] != term[:-1], True)
    length = draw_length(length_key, num_terms)
    needed = length if indices == "prefix" else length * (length + 1) // 2
    drawn = draw_indices(index_key, len(last), num_records)

    def add(trip: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        total, product, held = carry
        i, part = trip // 2, trip % 2
        found = read(part, drawn[i])
        whole = part == 1
        product = jnp.where(whole, product * (scale * (found - held)), product)
        ended = whole & jnp.asarray(last)[i]
        total = total + jnp.where(ended & (i < needed), product, 0.0)
        if indices == "fresh":
            product = jnp.where(ended, 1.0, product)
        return total, product, jnp.where(whole, 0.0, found)

    one, zero = jnp.ones((), jnp.float64), jnp.zeros((), jnp.float64)
    trips = 2 * (len(last) if constant_time else needed)
    value, _, _ = jax.lax.fori_loop(0, trips, add, (one, one, zero))
    return Estimate(value, length, needed)


def draw_length(key: jax.Array, num_terms: int) -> Int[Array, ""]:
    """a, with Pr[a ≥ b] = 1/b!, within 2^-53, for b up to A, where it is cut off."""
    chances = [1.0 / math.factorial(b) for b in range(1, num_terms + 1)]
    uniform = unit_interval(jax.random.bits(key, (), jnp.uint64))
    return jnp.sum(uniform < np.asarray(chances), dtype=jnp.int32)


def draw_indices(key: jax.Array, count: int, num_records: int) -> Int[Array, " count"]:
    """Uniform numbers in [0, n), from 64 random bits each: within total variation n·2^-65."""
    bits = jax.random.bits(key, (count,), jnp.uint64)
    return (bits % np.uint64(num_records)).astype(jnp.int32)


def unit_interval(bits: Array) -> Float[Array, "*shape"]:
    """Multiples of 2^-53 in [0, 1), from 64 random bits each."""
    return (bits >> np.uint64(11)).astype(jnp.float64) * 2.0**-53
