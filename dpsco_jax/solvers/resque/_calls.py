"""One private call on a ball: localized SGD with reweighted gradients, and its strongly convex version.

What it computes: a point of the ball B(c, r) where f_ρ + (λ/2)·‖x - a‖² is small, for f_ρ the mean loss of
the users, smoothed by N(0, ρ²I). ``localized`` is a pass of SGD in phases: phase i makes T_i = T/2^i steps of
length η_i = η/4^i with gradients queried around the centre and reweighted to the iterate, averages its
iterates and adds Gaussian noise of deviation L·η_i/β. ``strongly_convex`` does so in growing levels.

All queries of a call are one parallel round before the first step (``_queries``).

Source: thesis, Algorithms 8 and 9 (``localized``) and 10 (``strongly_convex``), with these corrections: T is
a power of two not above the budget of queries, every phase starts inside of the ball, the result is projected
onto it, averages are over the points at which gradients were used.

Formal guarantee: REPLACE_ONE of a user, by ``privacy.resque``, whatever the centre, start, regularization and
reach. It needs each loss convex and L-Lipschitz on all of space, ρ/r as accounted, and everything but the
returned point secret: which users, which shifts, which weights. A user's step is a mean over items of terms
with shifts of their own; the moments of the weights carry over to it by Minkowski's inequality. Rounding is
outside of the guarantee, but kept small against the steps: iterates are held, and projected, relative to the
phase's start (docs/theory/resque.md, Rounding).

Cost: at most T user gradients, made at once; T steps of two products of length ``dim`` one after another.
Memory of the features of T users.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Key

from dpsco_jax import _keys
from dpsco_jax.geometry import _moves
from dpsco_jax.mechanisms import additive
from dpsco_jax.oracles import sampling
from dpsco_jax.solvers.resque._levels import Level, reaches
from dpsco_jax.solvers.resque._queries import Queries, Setting, gradient, query

# Pays for the rounding of the gradients' norms, weights and step sizes.
HEAD_ROOM = 1.0 + 2.0**-16

# Where a step is too small for float32 it vanishes; the noise that would cover it must not vanish with it.
LEAST_DEVIATION = 1e-25

# C of the reach of the levels: the one of the theorem, and the one that measures best.
PROVED_CONSTANT = 16.0
BEST_CONSTANT = 1.5


def localized(
    key: Key[Array, ""],
    setting: Setting,
    num_queries: int,
    center: Float[Array, "dim"],
    start: Float[Array, "dim"],
    beta: ArrayLike,
    reach: ArrayLike,
    regularization: ArrayLike = 0.0,
    anchor: Float[Array, "dim"] | None = None,
) -> Float[Array, "dim"]:
    """Localized SGD with reweighted gradients and output perturbation (thesis, Algorithms 8 and 9).

    Args:
        key: used once; users, shifts and noise have streams of their own.
        setting: what all calls share.
        num_queries: T, a power of two; T - 1 users are drawn. Static.
        center: of the ball and of the queries, ``[dim]``. Public or private already, as all below.
        start: first iterate, ``[dim]``.
        beta: the noise of a phase has standard deviation L·η_i/β.
        reach: r' in (0, 2r], bound on the distance from the start to the minimizer: sets the step size
            η = (r'/L)·min(1/√T, β/√dim).
        regularization: λ ≥ 0.
        anchor: a; the centre if left out.

    Returns:
        A point of the ball.
    """
    call = (Level(num_queries, 1.0),)
    return _run(key, setting, call, [reach], center, start, beta, regularization, anchor)


def strongly_convex(
    key: Key[Array, ""],
    setting: Setting,
    sizes: tuple[Level, ...],
    center: Float[Array, "dim"],
    beta: ArrayLike,
    regularization: ArrayLike,
    constant: float = BEST_CONSTANT,
    anchor: Float[Array, "dim"] | None = None,
) -> Float[Array, "dim"]:
    """Localized calls of growing size, each from where the one before has ended (thesis, Algorithm 10).

    The expected objective is within C_sc·(L²/λ)·(dim/(βT)² + 1/T) of the minimum over the ball, with C_sc
    proved at 8192 for ``constant=16`` and the thesis' levels; about 5 is observed.

    Args:
        key: used once.
        setting: what all calls share.
        sizes: of ``levels``. Static.
        center: of the ball, ``[dim]``.
        beta: of the call; level i has ``sizes[i].beta_factor`` times it.
        regularization: λ > 0.
        constant: C of the bound E_i that sets the reach of the levels. Privacy does not depend on it.
        anchor: of the quadratic term; the first level starts from its nearest point of the ball.

    Returns:
        A point of the ball.
    """
    dim = center.shape[0]
    far = reaches(sizes, dim, beta, setting.lipschitz, regularization, setting.radius, constant)
    start = center if anchor is None else anchor
    return _run(key, setting, sizes, far, center, start, beta, regularization, anchor)


def _run(
    key: Array,
    setting: Setting,
    calls: tuple[Level, ...],
    far: list[Any],
    center: Array,
    start: Array,
    beta: ArrayLike,
    regularization: ArrayLike,
    anchor: Array | None,
) -> Array:
    """Localized calls on one ball, one after another: one round of queries, one loop over all phases."""
    users_key, shifts_key, noise_key = jax.random.split(key, 3)
    queries = query(shifts_key, setting, _draw_users(users_key, setting, calls), center)
    dim = center.shape[0]
    counts, sizes, deviations = [], [], []
    for level, reach in zip(calls, far, strict=True):
        level_beta = beta * level.beta_factor
        step = (reach / setting.lipschitz) * jnp.minimum(
            1.0 / math.sqrt(level.num_queries), level_beta / math.sqrt(dim)
        )
        for i in range(1, level.num_queries.bit_length()):
            counts.append(level.num_queries >> i)
            sizes.append(step * 0.25**i)
            deviations.append(HEAD_ROOM * setting.lipschitz * sizes[-1] / level_beta)
    pull = 0.0 if anchor is None else regularization * (anchor - center)

    def phase(offset: Array, which: tuple[Array, ...]) -> tuple[Array, None]:
        moved = released(noise_key, setting, queries, center, offset, which, regularization, pull)
        return moved, None

    firsts = [sum(counts[:i]) for i in range(len(counts))]
    noises = jnp.maximum(jnp.asarray(deviations), LEAST_DEVIATION)
    phases = (jnp.arange(len(counts)), *map(jnp.asarray, (firsts, counts, sizes)), noises)
    end, _ = lax.scan(phase, start - center, phases)
    return center + inside(setting, center, end)


def released(
    noise_key: Array,
    setting: Setting,
    queries: Queries,
    center: Array,
    offset: Array,
    which: tuple[Array, ...],
    regularization: ArrayLike,
    pull: ArrayLike,
) -> Array:
    """Where a phase ends, from the centre, with its noise.

    Args:
        noise_key: of all phases.
        setting: of the call.
        queries: of the call.
        center: of the ball.
        offset: where the phase before has ended, from the centre.
        which: number of the phase, its first query, their number, step size, deviation of the noise.
        regularization: λ.
        pull: λ times the way from the centre to the anchor.
    """
    index, first, count, size, deviation = which
    begin = inside(setting, center, offset)
    mean = _mean_move(setting, queries, center, begin, first, count, size, regularization, pull)
    noise = jax.random.fold_in(noise_key, index)
    return begin + additive.gaussian(noise, mean, deviation)


def _mean_move(
    setting: Setting,
    queries: Queries,
    center: Array,
    begin: Array,
    first: ArrayLike,
    count: ArrayLike,
    size: ArrayLike,
    regularization: ArrayLike,
    pull: ArrayLike,
) -> Array:
    """What a phase releases, before the noise: from its begin to the mean of its iterates.

    Steps shrink by 4 from phase to phase. Next to the offset they would soon be lost in float32, and
    neighbours would differ by roundings that no noise covers: what is stepped, projected and averaged is how
    far the iterates are from where the phase begins.
    """
    shrink = 1.0 / (1.0 + size * regularization)
    excess = jnp.vdot(begin, begin) / setting.radius**2 - 1.0
    toward = pull - regularization * begin
    into = None
    if setting.domain is not None:
        assert setting.domain.moves is not None
        into = setting.domain.moves(center + begin)

    def row(j: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        moved, total = carry
        slope = gradient(setting, queries, j, begin + moved)
        stepped = jnp.asarray(shrink * (moved - size * (slope - toward)))
        stepped = stepped if into is None else into(stepped)
        stepped = _moves.drawn_back(begin, setting.radius**2, excess, stepped)
        return stepped, total + moved

    nothing = jnp.zeros_like(begin)
    _, total = lax.fori_loop(first, first + count, row, (nothing, nothing))
    return total / count


def _draw_users(key: Array, setting: Setting, calls: tuple[Level, ...]) -> Array:
    """The users of all calls, a fresh sample for each."""
    num_users = setting.data.labels.shape[0]
    needed = [level.num_queries - 1 for level in calls]
    if setting.replacement:
        return sampling.with_replacement(key, num_users, sum(needed)).indices
    keys = jax.random.split(key, len(calls))

    def sample(one_key: Array) -> Array:
        draw_key, order_key = jax.random.split(one_key)
        indices = sampling.without_replacement(draw_key, num_users, max(needed)).indices
        # The accountant averages over a user's position: beyond half of the users it is not random yet.
        few = 2 * max(needed) <= num_users
        return indices if few else jax.random.permutation(order_key, indices)

    # All in one program, at the size of the largest: a part of a sample in random order is a sample.
    samples = _keys.over(sample)(keys)
    return jnp.concatenate([drawn[:size] for drawn, size in zip(samples, needed, strict=True)])


def inside(setting: Setting, center: Array, offset: Array) -> Array:
    """The offset of a point of the ball: nearest in the domain first, then nearest in the ball.

    Both maps bring no two points further apart, nor any point further from one of the intersection, which
    is all that privacy and the regret of SGD ask of them. Here they round at the size of the point: for what
    was released already. The steps of a phase use the same two maps relative to its begin.
    """
    if setting.domain is not None:
        offset = setting.domain.project(center + offset) - center
    norm = jnp.sqrt(jnp.vdot(offset, offset))
    return offset * jnp.minimum(1.0, setting.radius / jnp.where(norm > 0, norm, 1.0))
