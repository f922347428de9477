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
from collections.abc import Callable
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
    """

    model: LinearModel
    data: LinearData
    radius: ArrayLike
    smoothing_radius: ArrayLike
    lipschitz: ArrayLike
    replacement: bool = False
    domain: Domain | None = None


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


class Level(NamedTuple):
    """One localized call of a strongly convex one.

    Attributes:
        num_queries: its T.
        beta_factor: its β over that of the whole call; at least 1.
    """

    num_queries: int
    beta_factor: float


def levels(num_queries: int) -> tuple[Level, ...]:
    """The localized calls of a strongly convex one of T queries; their sizes add up to less than T.

    There are k = ⌈log2 log2 T⌉ of them, for i = 0, ..., k - 1, with T_i = 2^(i-k)·T queries and β_i =
    2^((k-i)/2)·β. The first have the largest β: an accountant must see every level.

    Raises:
        ValueError: if ``num_queries`` is not a power of two, at least 4.
    """
    if num_queries < 4 or num_queries & (num_queries - 1):
        raise ValueError(f"num_queries must be a power of two, at least 4, got {num_queries}")
    count = max(1, math.ceil(math.log2(math.log2(num_queries))))
    return tuple(Level(num_queries >> (count - i), 2.0 ** ((count - i) / 2)) for i in range(count))


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
    normal: Callable[..., Array] = _draws.normal,
) -> Queries:
    """One parallel round: the slopes of the drawn users' losses at the centre plus their shifts.

    Args:
        key: of the shifts.
        setting: of the call.
        users: positions of all drawn users.
        center: of the ball.
        normal: ``normal(key, shape, dtype)``, of standard Gaussian variables.
    """
    rows = jax.tree.map(lambda x: x.at[users].get(mode="promise_in_bounds"), setting.data)
    along_key, across_key = jax.random.split(key)
    along = normal(along_key, rows.labels.shape, center.dtype)
    across = normal(across_key, rows.labels.shape, center.dtype)
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
