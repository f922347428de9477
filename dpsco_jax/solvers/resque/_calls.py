"""A private call on a ball: users drawn, one round of queries, localized SGD on the reweighted gradients.

Steps, assumptions and the proof of what they cost are those of docs/theory/resque.md. All queries of a call
are one parallel round before the first step. The loss of an item is link(⟨a, x⟩): its slope at c + ξ needs
⟨a, ξ⟩ alone, and the weight exp(⟨v, ξ⟩/ρ² - ‖v‖²/(2ρ²)) needs ⟨v, ξ⟩, which given ⟨a, ξ⟩ is normal with mean
⟨v, a⟩·⟨a, ξ⟩/‖a‖² and variance ρ²·(‖v‖² - ⟨v, a⟩²/‖a‖²). So two normal numbers stand for the ``dim`` of a
shift, and gradients and weights have the same joint law. Every item has its own shift.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Key

from dpsco_jax import _checks, _keys
from dpsco_jax._pytrees import Number, padded, pytree, static
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
    """What all calls of a run have in common."""

    model: LinearModel  # static
    data: LinearData  # of ``oracles.linear.prepare``
    radius: ArrayLike  # r, of the balls
    smoothing_radius: ArrayLike  # ρ, standard deviation of a shift in each coordinate
    lipschitz: ArrayLike  # L, of every user's loss on all of space
    replacement: bool = False  # whether a user may be drawn several times in a call; static
    domain: Domain | None = None  # with ``moves``; ``None`` for all of space. Static
    first: ArrayLike = 0  # position of the first user in the data, where a run is on some of them


def make_setting(objective: Objective, data: UserData, plan: Any) -> Setting:
    """What the calls of a run share, from a plan with the fields that are named as in ``Plan``.

    ``ValueError`` if the objective is one for which privacy has no proof, whatever the plan was made for, or
    its domain cannot project the small moves of late phases.
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
    """``ValueError`` unless the loss is a linear model, convex and Lipschitz on the whole space.

    It is with the constants that ``problems.losses`` gave it: no declaration of the caller's is a proof.
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
    """One localized call of a strongly convex one: its T, and its β over that of the whole, at least 1."""

    num_queries: int
    beta_factor: float


def levels(num_queries: int) -> tuple[Level, ...]:
    """The localized calls of a strongly convex one of T queries; their sizes add up to less than T.

    There are k = ⌈log2 log2 T⌉ of them, for i = 0, ..., k - 1, with T_i = 2^(i-k)·T queries and β_i =
    2^((k-i)/2)·β. The first have the largest β: an accountant must see every level.
    """
    if num_queries < 4 or num_queries & (num_queries - 1):
        raise ValueError(f"num_queries must be a power of two, at least 4, got {num_queries}")
    count = max(1, math.ceil(math.log2(math.log2(num_queries))))
    return tuple(Level(num_queries >> (count - i), 2.0 ** ((count - i) / 2)) for i in range(count))


@pytree
class Sizes:
    """The localized calls of a call, one level after the other, with sizes that may be numbers.

    Of several runs in one program arrays have the room of the largest call; what lies beyond a run's own
    sizes is not looked at.
    """

    most_drawn: int = static(joined=max)  # users of the largest call
    replacement: bool = static()  # whether a user may be drawn several times in a call
    shuffled: bool = static()  # whether more than half of the users are drawn, so in an order too
    batch: sampling.Batch | None  # the draw of a level; none with replacement, or of everybody
    num_users: Number  # n
    num_phases: Number  # of all levels together
    drawn: Number = padded()  # users of each level, one less than its queries
    beta_factor: Number = padded()  # of each level
    inverse_root: Number = padded()  # 1/√T of each level
    phase_level: Number = padded()  # the level of each phase
    phase_count: Number = padded()  # how many queries it has
    phase_scale: Number = padded()  # its step size over that of its level

    @property
    def levels(self) -> tuple[Level, ...]:
        """The localized calls."""
        return tuple(map(Level, self.drawn + 1.0, self.beta_factor))


def sizes_of(num_users: int, calls: Sequence[Level], replacement: bool) -> Sizes:
    """The sizes of localized calls on so many users; ``ValueError`` if a level needs more than there are."""
    drawn = [level.num_queries - 1 for level in calls]
    most = max(drawn)
    if not replacement:
        _checks.require(most <= num_users, "num_queries", most + 1, f"at most {num_users + 1}")
    # Phase j = 1, 2, ... of a level has T/2^j queries, and steps 4^-j times as long.
    phases = [
        (i, level.num_queries >> j, 0.25**j)
        for i, level in enumerate(calls)
        for j in range(1, level.num_queries.bit_length())
    ]
    of_level, counts, scales = zip(*phases, strict=True)
    some = not replacement and most < num_users
    return Sizes(
        most_drawn=sum(drawn),
        replacement=replacement,
        shuffled=not replacement and 2 * most > num_users,
        batch=sampling.batch_of(num_users, most) if some else None,
        num_users=num_users,
        num_phases=len(phases),
        drawn=np.asarray(drawn, np.int32),
        beta_factor=np.asarray([level.beta_factor for level in calls]),
        inverse_root=np.asarray([1.0 / math.sqrt(level.num_queries) for level in calls]),
        phase_level=np.asarray(of_level, np.int32),
        phase_count=np.asarray(counts, np.int32),
        phase_scale=np.asarray(scales),
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

    ``ValueError`` if it is below ``least``, or above ``most`` without replacement.
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

    E_i = (2C²L²/λ)·(√dim/(β_i·T_i) + 1/√T_i)² with the ``constant`` C; at the proved one E_{i+1} = E_i/2, and
    D_i = 4·E_i·(D_0/(4·E_0))^(2^-i). Thesis, Lemma 2.4.13 lacks that root, without which (2.27) does not
    satisfy D_{i+1} = √(D_i·E_i), and has four times D_0 = L²/(2λ).
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


class Queries(NamedTuple):
    """A round of queries: for each of the T - 1 steps a user's rows and how the loss slopes along them."""

    rows: LinearData
    slopes: Array  # [steps, items]: derivative over the number of items, at the shifted point
    inverse_norms: Array  # [steps, items]
    along: Array  # [steps, items]: the shift along the row, over ρ
    across: Array  # [steps, items]: along the rest of what it is multiplied with, over ρ


def query(
    key: Array,
    setting: Setting,
    users: Array,
    center: Array,
) -> Queries:
    """One parallel round: the slopes of the drawn users' losses at the centre plus their shifts.

    The ``users`` are positions of all who were drawn, of whom those beyond a run of this size are not used.
    """
    rows = jax.tree.map(lambda x: x.at[users].get(mode="promise_in_bounds"), setting.data)
    along_key, across_key = jax.random.split(key)
    along = _draws.normal(along_key, rows.labels.shape, center.dtype)
    across = _draws.normal(across_key, rows.labels.shape, center.dtype)
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

    T - 1 users are drawn. ``reach`` r' in (0, 2r] bounds the distance from the start to the minimizer and
    sets the step size η = (r'/L)·min(1/√T, β/√dim); the noise of a phase has standard deviation L·η_i/β. The
    quadratic is (λ/2)·‖x - a‖² with λ ≥ 0, and a the ``anchor``, or the centre. All are public, or private
    points already.
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

    ``sizes`` are those of ``levels``, on all users, or ``Sizes``, of which numbers may be traced; level i has
    its ``beta_factor`` times β. λ > 0; the first level starts from the point of the ball nearest to the
    anchor. ``constant``, C of the bound E_i that sets the reaches, is no matter of privacy. The expected
    objective is within C_sc·(L²/λ)·(dim/(βT)² + 1/T) of the minimum over the ball, with C_sc proved at 8192
    for C = 16 and the thesis' levels; about 5 is observed.
    """
    dim = center.shape[0]
    if not isinstance(sizes, Sizes):
        sizes = sizes_of(setting.data.labels.shape[0], sizes, setting.replacement)
    lipschitz, radius = setting.lipschitz, setting.radius
    pairs = level_errors(sizes.levels, dim, beta, lipschitz, regularization, constant)
    # From the start of a level to the minimizer, as its gap allows; the first starts at the center.
    gaps = [jnp.sqrt(2 * gap / regularization) for _, gap in pairs[1:]]
    far = [jnp.minimum(radius, lipschitz / regularization)]
    far += [jnp.minimum(2 * radius, gap) for gap in gaps]
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
    users = jnp.asarray(setting.first) + _draw_users(users_key, sizes)
    queries = query(shifts_key, setting, users, center)
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
        begin = inside(setting, center, offset)
        steps = firsts[i], counts[i], lengths[i]
        mean = _mean_move(setting, queries, center, begin, *steps, regularization, pull)
        noise = jax.random.fold_in(noise_key, i)
        return begin + additive.gaussian(noise, mean, noises[i])

    end = lax.fori_loop(0, sizes.num_phases, phase, start - center)
    return center + inside(setting, center, end)


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

    What is stepped, projected and averaged is how far the iterates are from where the phase begins: next to
    the offset late steps would be lost in float32, and neighbours differ by roundings that no noise covers.
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


def _draw_users(key: Array, sizes: Sizes) -> Array:
    """The users of all levels, a fresh sample for each, by position among those of the run."""
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

    Here both maps round at the size of the point: for what was released already. The steps of a phase use
    the same two relative to its begin.
    """
    if setting.domain is not None:
        offset = setting.domain.project(center + offset) - center
    norm = jnp.sqrt(jnp.vdot(offset, offset))
    return offset * jnp.minimum(1.0, setting.radius / jnp.where(norm > 0, norm, 1.0))
