"""A private call on a ball: users drawn, one round of queries, localized SGD on the reweighted gradients.

What it computes: a point of the ball B(c, r) where f_ρ + (λ/2)·‖x - a‖² is small, for f_ρ the mean loss of
the users, smoothed by N(0, ρ²I). ``localized`` is a pass of SGD in phases: phase i makes T_i = T/2^i steps of
length η_i = η/4^i with gradients queried around the centre and reweighted to the iterate, averages its
iterates and adds Gaussian noise of deviation L·η_i/β. ``strongly_convex`` does so in growing ``levels``.

All queries of a call are one parallel round before the first step. The loss of an item is link(⟨a, x⟩): its
slope at c + ξ needs ⟨a, ξ⟩ alone, and the weight exp(⟨v, ξ⟩/ρ² - ‖v‖²/(2ρ²)) needs ⟨v, ξ⟩, which given ⟨a, ξ⟩
is normal with mean ⟨v, a⟩·⟨a, ξ⟩/‖a‖² and variance ρ²·(‖v‖² - ⟨v, a⟩²/‖a‖²). So two normal numbers stand for
the ``dim`` of a shift, and gradients and weights have the same joint law. Every item has its own shift.

Source: thesis, Definition 2.2.2 (the reweighting; the two numbers for a shift are our own), Algorithms 8 and
9 (``localized``) and 10 (``strongly_convex``), with these corrections: T is a power of two not above the
budget of queries, every phase starts inside of the ball, the result is projected onto it, averages are over
the points at which gradients were used. Of the levels of Algorithm 10 and Lemma 2.4.13, D_i =
4·E_i·(D_0/(4·E_0))^(2^-i) has the 2^i-th root without which (2.27) does not satisfy D_{i+1} = √(D_i·E_i), and
D_0 = L²/(2λ) is a quarter of the printed one. Equal noise in all levels costs less privacy where the Rényi
curve decides, and measures the same or worse where the privacy loss distribution does.

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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Key

from dpsco_jax import _checks, _keys
from dpsco_jax.geometry import _moves, domains
from dpsco_jax.geometry.domains import Domain
from dpsco_jax.mechanisms import _draws, additive
from dpsco_jax.oracles import _linear_rows, linear, sampling
from dpsco_jax.oracles.linear import LinearData
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.resque._sizes import Level, Sizes, levels, sizes_of

# Pays for the rounding of the gradients' norms, weights and step sizes.
HEAD_ROOM = 1.0 + 2.0**-16

# Where a step is too small for float32 it vanishes; the noise that would cover it must not vanish with it.
LEAST_DEVIATION = 1e-25

# C of the reach of the levels: the one of the theorem, and the one that measures best.
PROVED_CONSTANT = 16.0
BEST_CONSTANT = 1.5

# Of the users, in one call, where nothing else is asked for.
_SHARES = {"without_replacement": 0.2, "with_replacement": 0.05}
SAMPLINGS = tuple(_SHARES)


class Setting(NamedTuple):
    """What all calls of a run have in common.

    Attributes:
        model: the linear model of the loss; static.
        data: of ``oracles.linear.prepare``.
        radius: r, of the balls.
        smoothing_radius: ρ, standard deviation of a shift in each coordinate.
        lipschitz: L, of every user's loss on all of space.
        replacement: whether a user may be drawn several times in a call; static.
        domain: with ``moves``; ``None`` for all of space. Static.
        first: position in the data of the first user, where a run is on some of them.
    """

    model: LinearModel
    data: LinearData
    radius: ArrayLike
    smoothing_radius: ArrayLike
    lipschitz: ArrayLike
    replacement: bool = False
    domain: Domain | None = None
    first: ArrayLike = 0


def make_setting(objective: Objective, data: UserData, plan: Any) -> Setting:
    """What the calls of a run share, from a plan with the fields that are named as in ``Plan``.

    Raises:
        ValueError: if the objective is one for which privacy has no proof, whatever the plan was made for,
            or its domain cannot project the small moves of late phases.
    """
    require_linear(objective)
    _checks.require_nonnegative("objective.ridge", objective.ridge)
    unbounded = math.isinf(float(np.asarray(objective.domain.diameter)))
    if not unbounded:
        domains.require_proven_moves("objective.domain", objective.domain)
    assert objective.linear_model is not None
    return Setting(
        model=objective.linear_model,
        data=jax.tree.map(jnp.asarray, linear.prepare(objective.linear_model, data, plan.dim)),
        radius=plan.ball_radius,
        smoothing_radius=plan.smoothing_radius,
        # Nothing is clipped: the noise must fit the loss that is run, should the plan be of another.
        lipschitz=jnp.maximum(plan.lipschitz, objective.lipschitz),
        replacement=plan.sampling == "with_replacement",
        domain=None if unbounded else objective.domain,
    )


def require_linear(objective: Objective) -> None:
    """Refuses losses that the privacy proof does not cover.

    Raises:
        ValueError: unless the loss is a linear model, convex and Lipschitz on the whole space with the
            constants that ``problems.losses`` gave it: no declaration of the caller's is taken for a proof.
    """
    _checks.require_instance("objective", objective, Objective)
    known = objective.globally_convex_lipschitz
    if known and objective.vector_model is not None:
        known = _proofs.require_proven(objective).everywhere
        if known:
            return
    what = (
        "not known to be convex and Lipschitz on the whole space"
        if not known
        else "not a linear model with a vector of parameters"
    )
    raise ValueError(
        "objective must be a linear model whose loss is convex and Lipschitz on the whole space, by"
        f" construction, got one that is {what}. Gradients are queried at Gaussian shifts, which are"
        " unbounded, and privacy rests on convexity at every one of them: clipping gradients would break"
        " it. Use losses.absolute, hinge, quantile, huber or logistic, or a solver that clips."
    )


def num_drawn(num_queries: int, strongly_convex: bool = True) -> int:
    """Users drawn by one call of T queries, strongly convex or localized."""
    if not strongly_convex:
        return num_queries - 1
    return sum(level.num_queries - 1 for level in levels(num_queries))


def power_of_two(
    num_users: int, num_queries: int | None, sampling: str, least: int, most: int
) -> int:
    """T as given, or by the default share of the users, rounded down to a power of two.

    Raises:
        ValueError: if it is below ``least``, or above ``most`` without replacement.
    """
    if num_queries is None:
        num_queries = max(least, int(_SHARES[sampling] * num_users))
    different = sampling == "without_replacement"
    given = _checks.require_integer("num_queries", num_queries, least, most if different else None)
    return 1 << (given.bit_length() - 1)


def level_errors(
    sizes: tuple[Level, ...],
    dim: int,
    beta: ArrayLike,
    lipschitz: ArrayLike,
    regularization: ArrayLike,
    constant: float,
) -> list[tuple[Any, Any]]:
    """(E_i, D_i) of the levels: what a level adds to the gap, and the gap that it starts from at most.

    With the constant at which a localized call is proved all gaps are as said, and E_{i+1} = E_i/2.

    Args:
        sizes: of ``levels``.
        dim: number of parameters.
        beta: of the whole call.
        lipschitz: L.
        regularization: λ > 0.
        constant: C in E_i = (2C²L²/λ)·(√dim/(β_i·T_i) + 1/√T_i)².
    """
    scale = lipschitz**2 / regularization
    gap = 0.5 * scale
    pairs = []
    for level in sizes:
        noise = math.sqrt(dim) / (beta * level.beta_factor * level.num_queries)
        error = 2 * constant**2 * scale * (noise + level.num_queries**-0.5) ** 2
        pairs.append((error, gap))
        gap = (error * gap) ** 0.5
    return pairs


def reaches(
    sizes: tuple[Level, ...],
    dim: int,
    beta: ArrayLike,
    lipschitz: ArrayLike,
    regularization: ArrayLike,
    radius: ArrayLike,
    constant: float,
) -> list[Any]:
    """Of every level the distance from its start to the minimizer, as its gap allows.

    It is √(2·D_i/λ), but never above twice the radius of the ball, nor above the radius in the first level,
    which starts at the center. The other arguments are those of ``level_errors``.
    """
    pairs = level_errors(sizes, dim, beta, lipschitz, regularization, constant)
    first = jnp.minimum(radius, lipschitz / regularization)
    later = [jnp.minimum(2 * radius, jnp.sqrt(2 * gap / regularization)) for _, gap in pairs[1:]]
    return [first, *later]


class Queries(NamedTuple):
    """A round of queries: for each of the T - 1 steps a user's rows and how the loss slopes along them."""

    rows: LinearData
    slopes: Array  # [steps, items]: derivative over the number of items, at the shifted point
    inverse_norms: Array  # [steps, items]
    along: Array  # [steps, items]: the shift along the row, over ρ
    across: (
        Array  # [steps, items]: the shift along the rest of whatever it is multiplied with, over ρ
    )


def query(
    key: Array,
    setting: Setting,
    users: Array,
    center: Array,
    num_drawn: Any = None,
) -> Queries:
    """One parallel round: the slopes of the drawn users' losses at the centre plus their shifts.

    Args:
        key: of the shifts.
        setting: of the call.
        users: positions of all drawn users.
        center: of the ball.
        num_drawn: how many of these users are looked at, the first ones; all if ``None``.
    """
    rows = jax.tree.map(lambda x: x.at[users].get(mode="promise_in_bounds"), setting.data)
    along_key, across_key = jax.random.split(key)
    along = _normal(num_drawn, along_key, rows.labels.shape, center.dtype)
    across = _normal(num_drawn, across_key, rows.labels.shape, center.dtype)
    entry = _linear_rows.entry(setting.model, rows)
    if _linear_rows.is_sparse(rows):
        present = jnp.sum(rows.features < center.shape[0], axis=-1, dtype=center.dtype)
        norms = entry * jnp.sqrt(present)
    else:
        norms = jnp.linalg.norm(rows.features, axis=-1)
    everyone = jnp.ones(len(users), bool)
    offsets = jnp.asarray(setting.smoothing_radius * norms * along)
    relative, unit = _linear_rows.slopes(setting.model, center, rows, everyone, offsets)
    inverse = jnp.where(norms > 0, 1.0 / jnp.where(norms > 0, norms, 1.0), 0.0)
    return Queries(rows, relative * unit[:, None], inverse, along, across)


def _normal(rows: Any, key: Array, shape: tuple[int, int], dtype: Any) -> Array:
    """Standard Gaussian variables, for so many rows those that a run of this size draws by itself.

    Further rows are not looked at.
    """
    if rows is None or isinstance(rows, int):
        return _draws.normal(key, shape, dtype)
    most = math.prod(shape)
    room = (most + 1) // 2
    half = (rows * shape[1] + 1) // 2
    flat = jax.random.bits(_keys.alone(key), (3 * room,), jnp.uint32)
    high, low, turn = (lax.dynamic_slice_in_dim(flat, i * half, room) for i in range(3))
    radius, angle = _draws.polar_of_words(high, low, turn, dtype)
    place = jnp.arange(most, dtype=jnp.int32)
    second = place >= half
    pair = jnp.minimum(jnp.where(second, place - half, place), room - 1)
    turned = jnp.where(second, jnp.sin(angle)[pair], jnp.cos(angle)[pair])
    return (radius[pair] * turned).reshape(shape)


def gradient(setting: Setting, queries: Queries, j: Array, v: Array) -> Array:
    """The mean over the items of user j of weight times gradient, at the centre plus v."""
    rows = jax.tree.map(lambda x: x[j][None], queries.rows)
    dots = _linear_rows.dots(setting.model, v, rows)[0]
    towards = dots * queries.inverse_norms[j] / setting.smoothing_radius
    square = jnp.vdot(v, v) / setting.smoothing_radius**2
    rest = jnp.sqrt(jnp.maximum(square - towards**2, 0.0))
    log_weight = towards * queries.along[j] + rest * queries.across[j] - 0.5 * square
    coefficients = queries.slopes[j] * jnp.exp(log_weight)
    sums = _linear_rows.row_sums(coefficients[None], rows, v.shape[0])[0, : v.shape[0]]
    return _linear_rows.entry(setting.model, rows) * sums


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
    num_users = setting.data.labels.shape[0]
    call = sizes_of(num_users, [Level(num_queries, 1.0)], setting.replacement)
    return _run(key, setting, call, [reach], center, start, beta, regularization, anchor)


def strongly_convex(
    key: Key[Array, ""],
    setting: Setting,
    sizes: tuple[Level, ...] | Sizes,
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
        sizes: of ``levels``, on all users; or ``Sizes``, of which numbers may be traced.
        center: of the ball, ``[dim]``.
        beta: of the call; level i has its ``beta_factor`` times it.
        regularization: λ > 0.
        constant: C of the bound E_i that sets the reach of the levels. Privacy does not depend on it.
        anchor: of the quadratic term; the first level starts from its nearest point of the ball.

    Returns:
        A point of the ball.
    """
    dim = center.shape[0]
    if not isinstance(sizes, Sizes):
        sizes = sizes_of(setting.data.labels.shape[0], sizes, setting.replacement)
    lipschitz, radius = setting.lipschitz, setting.radius
    far = reaches(sizes.levels, dim, beta, lipschitz, regularization, radius, constant)
    start = center if anchor is None else anchor
    return _run(key, setting, sizes, far, center, start, beta, regularization, anchor)


def _run(
    key: Array,
    setting: Setting,
    sizes: Sizes,
    far: list[Any],
    center: Array,
    start: Array,
    beta: ArrayLike,
    regularization: ArrayLike,
    anchor: Array | None,
) -> Array:
    """Localized calls on one ball, one after another: one round of queries, one loop over all phases."""
    users_key, shifts_key, noise_key = jax.random.split(key, 3)
    users = jnp.asarray(setting.first) + _draw_users(users_key, setting, sizes)
    queries = query(shifts_key, setting, users, center, sizes.num_drawn)
    betas = beta * sizes.beta_factor
    longest = jnp.minimum(jnp.asarray(sizes.inverse_root), betas / math.sqrt(center.shape[0]))
    steps = (jnp.stack([jnp.asarray(reach) for reach in far]) / setting.lipschitz) * longest
    levels = jnp.asarray(sizes.phase_level)
    lengths = steps[levels] * jnp.asarray(sizes.phase_scale)
    noises = HEAD_ROOM * setting.lipschitz * lengths / jnp.asarray(betas)[levels]
    noises = jnp.maximum(noises, LEAST_DEVIATION)
    counts = jnp.asarray(sizes.phase_count)
    firsts = jnp.cumsum(counts) - counts
    pull = 0.0 if anchor is None else regularization * (anchor - center)

    def phase(i: Array, offset: Array) -> Array:
        which = i, firsts[i], counts[i], lengths[i], noises[i]
        return released(noise_key, setting, queries, center, offset, which, regularization, pull)

    end = lax.fori_loop(0, sizes.num_phases, phase, start - center)
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


def _draw_users(key: Array, setting: Setting, sizes: Sizes) -> Array:
    """The users of all levels, a fresh sample for each, by position among those of the run."""
    del setting
    most = sizes.most_drawn
    if sizes.replacement:
        return sampling.with_replacement(key, sizes.num_users, most).indices

    def sample(one_key: Array) -> Array:
        draw_key, order_key = jax.random.split(one_key)
        if sizes.batch is None:
            indices = jnp.arange(sizes.num_users, dtype=jnp.int32)
        else:
            indices = sampling.draw_batch(draw_key, sizes.batch).indices
        # The accountant averages over a user's position: beyond half of the users it is not random yet.
        return jax.random.permutation(order_key, indices) if sizes.shuffled else indices

    drawn = jnp.asarray(sizes.drawn)
    # All at the size of the largest: a part of a sample in random order is a sample.
    samples = _keys.over(sample)(jax.random.split(key, len(drawn)))
    starts = jnp.cumsum(drawn) - drawn
    places = jnp.arange(most, dtype=jnp.int32)
    # Levels beyond those of a run start where there is no place that is looked at.
    level = jnp.sum(places[:, None] >= starts[None, :], axis=1) - 1
    return samples[level, jnp.minimum(places - starts[level], samples.shape[1] - 1)]


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
