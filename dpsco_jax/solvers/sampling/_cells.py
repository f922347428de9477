"""The exponential mechanism on the cells of a grid: an exact draw, private whatever the losses are.

With c the centre of the set, what a user adds to the score of a centre of a cell is clipped to L·‖centre -
c‖, and cut off to a grid of powers of two on which sums over users are exact. So replacing a user moves
log-weights by a function that ranges over (k/n)·4L·r at most, r the largest distance of a centre from c: the
cell has bounded range (docs/theory/exact_draws.md, section 2). ``clipped_sums`` are these scores at any
points: draws by rejection take them as they are. Users are read in blocks, and so are points.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpsco_jax import _checks, _keys, _record_keys
from dpsco_jax._numerics import array_namespace, as_floats
from dpsco_jax.geometry.domains import Domain, proven_maker
from dpsco_jax.mechanisms import selection
from dpsco_jax.oracles import _convolutions, chunks
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, user_loss
from dpsco_jax.solvers.sampling._rows import power_below

_ROUNDING = 2.0**-48  # for each user: of log-weights, over their range
_BITS = 51
_BLOCK = 64  # cells that are evaluated at once
_USERS = 4096  # whose losses are held at once for each of them
_DOWN = 1.0 - 2.0**-30


def farthest(lower: Any, upper: Any, cells: int, ball: bool = False) -> Any:
    """r: how far from the centre of the set a centre of a cell in it is at most; 0 for fewer than two cells.

    The set is the box, or the largest ball in it.
    """
    xp = array_namespace(lower, upper)
    sides = xp.asarray(upper) - xp.asarray(lower)
    corner = 0.5 * (1.0 - 1.0 / max(cells, 1)) * xp.sqrt(xp.sum(sides * sides, axis=-1))
    return xp.minimum(corner, 0.5 * xp.max(sides, axis=-1)) if ball else corner


def range_of(inverse_temperature: Any, lipschitz: float, offset: Any, num_users: int) -> Any:
    """ε: over what log-weights of neighbours' laws range at most, with what float64 adds; may be traced."""
    _, (k, r) = as_floats(inverse_temperature, offset)
    return (4.0 * lipschitz * k * r / num_users) * (1.0 + num_users * _ROUNDING + 2.0**-40)


def temperature(epsilon: float, lipschitz: float, offset: float, num_users: int) -> float:
    """The k with ``range_of`` at most ε, and hardly less."""
    return _DOWN * epsilon * num_users / (4.0 * lipschitz * offset) / (1.0 + num_users * 2.0**-47)


def clipped_sums(
    objective: Objective,
    data: UserData,
    center: Float[Array, "dim"],
    lipschitz: float,
    farthest: Any,
) -> Callable[[Any], Array]:
    """``sums(offsets [points, dim]) -> [points]``: Σ f(c + x) - f(c) over users, each clipped to L·‖x‖.

    Exact, whatever the order of users: a user moves it by 2L·‖x‖ at most, to the last digit.

    Args:
        objective: f of a user is the mean over items; what is not finite counts as zero.
        data: of the users.
        center: c, float64.
        lipschitz: L.
        farthest: the largest length of an offset.
    """
    users = jax.tree.leaves(data.items)[0].shape[0]
    unit = power_below(lipschitz * farthest) * _unit(users)
    one_user = _convolutions.kept_apart(user_loss(objective), user_loss(objective))
    axes = (None, 0, None if data.mask is None else 0)

    def values(point: Array, items: Any, mask: Any) -> Array:
        per_user = _record_keys.over_users(one_user, axes)
        return per_user(point, items, mask).astype(jnp.float64)

    at_center = values(center, data.items, data.mask)

    def total(given: tuple[Array, Array]) -> Array:
        offset, bound = given

        def block(rows: Any, counted: Any, _: Any) -> Array:
            items, mask, there = rows
            each = values(center + offset, items, mask) - there
            return _total(each if counted is None else jnp.where(counted, each, 0.0), bound, unit)

        rows = (data.items, data.mask, at_center)
        if users <= _USERS:
            return block(rows, None, None)
        return chunks.sum_over_users(block, rows, None, _USERS)

    def sums(offsets: Array) -> Array:
        bounds = lipschitz * jnp.sqrt(jnp.sum(offsets * offsets, axis=1))
        return jax.lax.map(total, (offsets, bounds), batch_size=min(_BLOCK, len(offsets)))

    return sums


def draw_cell(
    key: jax.Array,
    objective: Objective,
    data: UserData,
    lower: Float[Array, "dim"],
    upper: Float[Array, "dim"],
    *,
    inverse_temperature: Any,
    lipschitz: float,
    cells: int,
    radius: Any = None,
) -> Int[Array, "dim"]:
    """The cell drawn, by its place in each coordinate, with probability in proportion to exp(-k·F) there.

    Cells whose centres are farther than ``radius`` from that of the box are left out.
    """
    dim, users = lower.shape[0], jax.tree.leaves(data.items)[0].shape[0]
    center = 0.5 * (lower + upper)
    places = jnp.stack(jnp.meshgrid(*([jnp.arange(cells)] * dim), indexing="ij"), axis=-1)
    places = places.reshape(-1, dim)
    # From the centre, so that a box far away costs no digits.
    offsets = 0.5 * (upper - lower) * ((2 * places + 1 - cells) / cells)
    reach = farthest(lower, upper, cells)
    scores = -clipped_sums(objective, data, center, lipschitz, reach)(offsets)
    if radius is not None:
        inside = jnp.sum(offsets * offsets, axis=1) <= radius * radius
        scores = jnp.where(inside, scores, -jnp.inf)
    sensitivity = 2.0 * lipschitz * farthest(lower, upper, cells, radius is not None)
    chosen = selection.exponential_mechanism(
        key, scores, 2.0 * sensitivity * inverse_temperature / users, sensitivity
    )
    return places[chosen]


def draw_linear(
    key: jax.Array,
    objective: Objective,
    data: UserData,
    lower: Float[Array, "dim"],
    upper: Float[Array, "dim"],
    *,
    inverse_temperature: Any,
    lipschitz: float,
    cells: int,
) -> Int[Array, "dim"]:
    """``draw_cell`` for linear losses in any dimension; of others it takes the tangents at the centre.

    Of linear scores the mechanism on all p^d cells is a product of truncated exponential laws on p cells.
    """
    dim, users = lower.shape[0], jax.tree.leaves(data.items)[0].shape[0]
    center, half = 0.5 * (lower + upper), 0.5 * (upper - lower)
    axes = (None, 0, None if data.mask is None else 0)
    loss = user_loss(objective)
    slope = _convolutions.kept_apart(jax.grad(loss), loss)
    slopes = _record_keys.over_users(slope, axes)(center, data.items, data.mask)
    slopes = jnp.asarray(slopes, jnp.float64)
    there = jnp.all(jnp.isfinite(slopes), axis=1, keepdims=True)
    slopes = jnp.where(there, slopes, 0.0)
    largest = jnp.maximum(jnp.max(jnp.abs(slopes), axis=1, keepdims=True), 1e-300)
    norms = largest * jnp.linalg.norm(slopes / largest, axis=1, keepdims=True)
    # A little below the bound, so that what the clip rounds does not exceed it.
    slopes = slopes * jnp.minimum(1.0, lipschitz * (1.0 - 2.0**-40) / norms)
    unit = power_below(jnp.asarray(lipschitz, jnp.float64)) * _unit(users)
    total = _total(slopes, lipschitz, unit)
    marks = (2 * jnp.arange(cells) + 1 - cells) / cells
    sensitivity = 2.0 * lipschitz * half * (1.0 - 1.0 / cells)

    def one(given: tuple[Array, Array, Array, Array]) -> Array:
        own, slope, width, moves = given
        epsilon = 2.0 * moves * inverse_temperature / users
        return selection.exponential_mechanism(own, -slope * (width * marks), epsilon, moves)

    keys = jax.random.split(key, dim)
    drawn = _keys.over(lambda *each: one(each))(keys, total, half, sensitivity)
    return drawn.astype(jnp.int32)


def point_in(
    key: jax.Array,
    places: Int[Array, "dim"],
    lower: Float[Array, "dim"],
    upper: Float[Array, "dim"],
    cells: int,
) -> Float[Array, "dim"]:
    """A uniform point of the cell: a function of the cell and of fresh randomness."""
    within = jax.random.uniform(key, places.shape, jnp.float64)
    return jnp.clip(lower + (upper - lower) * ((places + within) / cells), lower, upper)


def _unit(users: int) -> float:
    """Over a bound: the grid on which the sum of so many numbers within it is exact."""
    return float(2.0 ** ((users - 1).bit_length() - _BITS))


def _total(each: Array, bound: Any, unit: Any) -> Array:
    """The sum over users of what they may add: clipped, cut off towards zero, and then exact."""
    kept = jnp.clip(jnp.where(jnp.isfinite(each), each, 0.0), -bound, bound)
    return jnp.sum(jnp.trunc(kept / unit) * unit, axis=0)


def box_around(domain: Domain, dim: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """The box, or the one around a ball; and whether it is a ball."""
    name, given = proven_maker(domain)
    if name == "ball" and given.get("center") is None:
        radius = _checks.require_real(
            "problem.objective.domain.radius", float(np.asarray(given["radius"])), 0.0
        )
        _require_size(np.array([2.0 * radius]))
        return np.full(dim, -radius), np.full(dim, radius), dim > 1
    where = "problem.objective.domain"
    _checks.require(name == "box", where, name, "a box, or a ball at the origin")
    ends = given["lower"], given["upper"]
    plain = jax.tree_util.all_leaves(ends)
    _checks.require(plain, where, ends, f"a box whose ends are vectors ({dim},) of problem.dim")
    lower, upper = (np.atleast_1d(np.asarray(end, np.float64)) for end in ends)
    fits = lower.shape == (dim,) == upper.shape
    _checks.require(fits, where, lower.shape, f"of shape ({dim},) of problem.dim")
    with np.errstate(over="ignore", invalid="ignore"):
        sides = upper - lower
    _checks.require(np.all(sides > 0), where, sides, "a box with an inside")
    _require_size(sides)
    return lower, upper, False


def _require_size(sides: np.ndarray) -> None:
    """``ValueError`` where squares of sides would leave float64, as of a box without an end."""
    longest = float(np.max(sides))
    what = "problem.objective.domain, by its longest side,"
    _checks.require(1e-100 <= longest <= 1e100, what, longest, "in [1e-100, 1e100]")
