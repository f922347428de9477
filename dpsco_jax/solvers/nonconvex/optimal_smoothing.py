"""A Goldstein-stationary point of a rough loss, by selection among all points of a net; for few parameters.

What it computes: of P points x on a grid around the start the one that a noisy comparison finds to have the
shortest ‖g(x)‖, g(x) the mean over users of a vector that stands for the user's loss around x:

- ``smoothing="ball"``: the mean of its gradients at x + α·y_1, ..., x + α·y_m, y uniform in the unit ball,
  public, and the same for all points and users. So g(x) is a convex combination of gradients of F at points
  within α of x, and ‖g(x)‖ bounds the Goldstein norm ‖∂_αF(x)‖ itself;
- ``"lasry_lions"``, in one and two dimensions: the gradient at x of the user's loss after the smoothing of
  Lasry and Lions from the other side, -LL(-f), on the grid. It is a convex combination of gradients of f
  within α of x which every user chooses: ‖g(x)‖ bounds the component-wise norm of Definition 8.10.1.

Source: T, section 8.10: Definition 8.10.1, Lemma 8.10.3, Theorem 8.10.5, with docs/corrections/nonconvex.md,
C8-9 and C8-10: the theorem starts private Spider at a draw of the exponential mechanism, and needs
n = Õ(R^(1/3)·L·d^(2/3)/(ε·α^(1/3)·β)). In exponential time selection alone does, with n = Õ(L·d/(ε·β)), α and
R in the logarithm, pure ε, and, for balls, the stationarity of Definition 8.2.1. Goldstein 1977; Lasry and
Lions 1986; Ekeland 1974; McKenna and Sheldon 2020.

Formal guarantee: pure ε-DP for a user's whole data under REPLACE_ONE, for any losses: a user's vector is
clipped to L, so that no ‖g(x)‖ moves by more than 2L/n, and permute-and-flip takes the least. Utility, for
L-Lipschitz losses and F(x_0) - inf F ≤ B on the whole space, on cells of width w = 2R/p, with probability
1 - ω: for balls, H = c_d·L/α ≤ √d·L/α,

    ‖∂_αF(x)‖ ≤ (B + Lα)/R + H·√d·w/2 + L·(1 + √(2·log(2/ω)))/√m + 4L·log(2P/ω)/(nε);

in one dimension after Lasry and Lions, λ = (α - 3w)/(3L),

    (B + Lw/2 + L²λ)/(R - w) + 2w/λ + 4L·log(P/ω)/(nε)

(docs/theory/goldstein.md, section 6). In two dimensions what the grid adds to that is not bounded.

Cost: n·P·m user gradients; or n·P values, and P·p operations of each user. Float64.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget, Problem
    >>> from dpsco_jax.problems import fixtures
    >>> from dpsco_jax.problems.users import UserData
    >>> from dpsco_jax.solvers.nonconvex import optimal_smoothing
    >>> loss = fixtures.capped_distance(1.0)
    >>> data = UserData(jax.random.normal(jax.random.key(0), (500, 1, 1)) / 10)
    >>> with jax.enable_x64(True):
    ...     plan = optimal_smoothing.plan(
    ...         Problem(loss, num_users=500, dim=1), Budget(4.0), initial_gap=1.0, smoothing_radius=0.5,
    ...         smoothing="lasry_lions", most_points=400
    ...     )
    ...     start = jax.numpy.asarray([1.0])
    ...     run = jax.jit(lambda key: optimal_smoothing.solve(key, plan, loss, data, start))
    ...     solution = run(jax.random.key(1))
    >>> solution.params.shape, plan.certificate().epsilon, plan.certificate().delta
    ((1,), 4.0, 0.0)
"""

import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpsco_jax import _checks, _counts, _float64, _record_keys, _sharding, privacy
from dpsco_jax._argument_kinds import Count, Inside, Positive, integer, one_of
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import lasry_lions, norms
from dpsco_jax.geometry import smoothing as shapes
from dpsco_jax.mechanisms import selection
from dpsco_jax.oracles.chunks import sum_over_users
from dpsco_jax.oracles.second_order import rounding
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData, user_loss
from dpsco_jax.solvers import _arguments, _costs, _plan_base, plans
from dpsco_jax.solvers.nonconvex import _stationary
from dpsco_jax.solvers.solution import Solution, Status
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "plan", "solve"]

_MOST_POINTS = 2**24
_NUMBERS, _TERMS = 2**20, 2**12  # of a chunk
_SMOOTHINGS = ("ball", "lasry_lions")
Smoothing = Annotated[str, one_of(*_SMOOTHINGS)]


@pytree
class Plan(_plan_base.MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        dim: d.
        smoothing: ``"ball"`` or ``"lasry_lions"``.
        cells: p, of each coordinate.
        margin: cells beyond them on which losses are smoothed; 0 for balls.
        draws: m, of the points of a ball; 1 for Lasry and Lions.
        half_width: R: how far the grid reaches from the start.
        smoothing_radius: α.
        lipschitz: L, to which a user's vector is clipped.
        stationarity_bound: β, proven with probability 1 - ω; infinite where nothing is.
        failure: ω.
        epsilon: ε, what the selection costs.
    """

    num_users: int = static()
    dim: int = static()
    smoothing: str = static(choices=_SMOOTHINGS)
    cells: int = static(least=2)
    margin: int = static(least=0)
    draws: int = static()
    half_width: Number
    smoothing_radius: Number
    lipschitz: Number
    stationarity_bound: Number
    failure: Number
    epsilon: Number

    @property
    def num_candidates(self) -> int:
        """P."""
        return int(self.cells**self.dim)

    @property
    def sensitivity(self) -> Any:
        """How far one user moves ‖g(x)‖: 2L/n, and what float64 adds."""
        return 2.0 * self.lipschitz * (1.0 + rounding(self.num_users, self.dim)) / self.num_users

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return NeighboringRelation.REPLACE_ONE

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bound assumes; privacy assumes none of it."""
        return ("losses are L-Lipschitz on the whole space, and F(start) - inf F ≤ initial_gap",)

    @property
    def user_gradients(self) -> int:
        """Of balls n·P·m; none of Lasry and Lions, who take values."""
        return self.num_users * self.num_candidates * self.draws if self.smoothing == "ball" else 0

    @property
    def num_values(self) -> int:
        """Values of users' losses."""
        lines = self.cells + 2 * self.margin
        return 0 if self.smoothing == "ball" else int(self.num_users * lines**self.dim)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs: gradients, or values."""
        values = _costs.values(self.num_values, item)
        return _costs.gradients(self.user_gradients, item) + values

    @property
    def accounted(self) -> Any:
        """Whether the guarantee covers a run with these numbers; a bool, may be traced."""
        _, (epsilon, moves) = as_floats(self.epsilon, self.sensitivity)
        # Below, scores would be rounded beside their noise.
        good = (epsilon >= 1e-6) & (moves >= 1e-200)
        return good & positive_and_finite(self.epsilon, self.lipschitz, self.sensitivity)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where one is out of its range; may be traced."""
        xp, (epsilon,) = as_floats(self.epsilon)
        good = self.accounted
        return privacy.unbounded_unless(good, privacy.pure_dp(xp.where(good, epsilon, 1.0)))

    def certificate(self) -> privacy.Certificate:
        """(ε, 0), pure differential privacy; infinite as ``loss`` is."""
        epsilon = float(self.epsilon) if bool(self.accounted) else math.inf
        kept = ("the key stays secret",)
        return privacy.Certificate(epsilon, 0.0, self.relation, "permute and flip", kept)

    def __str__(self) -> str:
        of = "of F" if self.smoothing == "ball" else "of components"
        remarks = (
            ("points", str(self.num_candidates)),
            ("stationarity bound is", f"{of}, with probability {1 - float(self.failure):.4g}"),
        )
        return plans.describe("private selection of a Goldstein-stationary point", self, remarks)


@_plan_base.remembers(least_users=2, pure=True, convex=False)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    smoothing_radius: Positive,
    initial_gap: Positive | None = None,
    smoothing: Smoothing = "ball",
    draws: Count = 256,
    clip_norm: Positive | None = None,
    failure_probability: Inside = 0.05,
    most_points: Annotated[int, integer(2, _MOST_POINTS)] = 2**14,
) -> Plan:
    """Chooses the grid for which the bound is least. All arguments are public.

    Args:
        problem: for n and d, and a loss on the whole space without a ridge.
        budget: ε; δ may be zero, and nothing is spent of it.
        smoothing_radius: α, within which gradients may be combined.
        initial_gap: B ≥ F(x_0) - inf F; the range of the loss, if it has one, if left out.
        smoothing: ``"ball"``, in any dimension, or ``"lasry_lions"``, in one and two.
        draws: m, for balls.
        clip_norm: L; the Lipschitz constant of the loss if left out.
        failure_probability: ω.
        most_points: P is at most this.

    Raises:
        ValueError: an argument is out of range, or ``jax_enable_x64`` is off.
        Infeasible: a grid of so few points has no three an axis.
    """
    _float64.require_x64("optimal_smoothing")
    users, dim, objective = problem.num_users, problem.dim, problem.objective
    whole = math.isinf(problem.diameter)
    _checks.require(whole, "problem.objective.domain", objective.domain, "the whole space")
    _checks.require(objective.ridge == 0.0, "problem.objective.ridge", objective.ridge, "0")
    slope = problem.lipschitz if clip_norm is None else clip_norm
    slope = _checks.require_real("problem.objective.lipschitz", slope, 0)
    balls = smoothing == "ball"
    fits = balls or dim <= 2
    _checks.require(fits, "problem.dim", dim, 'at most 2, for smoothing="lasry_lions"')
    most = math.floor(most_points ** (1.0 / dim) * (1.0 + 1e-12))
    if most < 3:
        raise Infeasible(f"most_points must be at least 3^{dim}, three an axis, got {most_points}")
    gap = _stationary.gap_of(problem, initial_gap)
    given = gap, slope, smoothing_radius, dim, users, budget.epsilon, failure_probability
    tried = [
        _made(cells, draws, balls, *given) for cells in _stationary.grid(most, 200) if cells > 2
    ]
    bound, cells, half = min(tried)
    width = 2.0 * half / cells
    return Plan(
        num_users=users,
        dim=dim,
        smoothing=smoothing,
        cells=cells,
        # Beyond 2α a user's loss does not count.
        margin=0 if balls else math.ceil(2.0 * smoothing_radius / width) + 1,
        draws=draws if balls else 1,
        half_width=half,
        smoothing_radius=smoothing_radius,
        lipschitz=slope,
        # Of the grids of Lasry and Lions in two dimensions nothing is proven.
        stationarity_bound=bound if balls or dim == 1 else math.inf,
        failure=failure_probability,
        epsilon=budget.epsilon,
    )


def _made(
    cells: int,
    draws: int,
    balls: bool,
    gap: float,
    slope: float,
    radius: float,
    dim: int,
    users: int,
    epsilon: float,
    failure: float,
) -> tuple[float, int, float]:
    """The least bound for so many cells, with them and with R."""
    log = dim * math.log(cells) + math.log((2.0 if balls else 1.0) / failure)
    noise = 4.0 * slope * (1.0 + rounding(users, dim)) * log / (users * epsilon)
    if balls:
        bend = shapes.ball_smoothness(slope, radius, dim) * math.sqrt(dim) / cells
        raised = gap + slope * radius * dim / (dim + 1)
        half = math.sqrt(raised / bend)
        drawn = slope * (1.0 + math.sqrt(2.0 * math.log(2.0 / failure))) / math.sqrt(draws)
        return raised / half + bend * half + drawn + noise, cells, half
    # λ shrinks with the width of a cell.
    halves = np.geomspace(radius / 4.0, 0.999 * cells * radius / 6.0, 400)
    widths = 2.0 * halves / cells
    scale = np.maximum(radius - 3.0 * widths, 1e-300) / (3.0 * slope)
    above = gap + 0.5 * slope * widths + slope**2 * scale
    bounds = above / (halves - widths) + 2.0 * widths / scale + noise
    best = int(np.argmin(bounds))
    return float(bounds[best]), cells, float(halves[best])


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and start.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: the start, at the centre of the grid. Must not depend on the data.

    Returns:
        The point that was selected; ``released`` holds its ``index`` on the grid.

    Raises:
        ValueError: the number of users or of parameters is not the planned one, or ``jax_enable_x64`` is off.
    """
    _float64.require_x64("optimal_smoothing")
    _arguments.require_run(Plan, key, plan, objective, data, params)
    shapes_key, choice_key = jax.random.split(key)
    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
    start, restored = ravel_pytree(_float64.exact("optimal_smoothing", wide))
    width = 2.0 * jnp.asarray(plan.half_width, jnp.float64) / plan.cells

    def place(numbers: Any) -> Any:
        """Of cells by their numbers, ``[..., dim]``."""
        return start + width * (numbers - 0.5 * (plan.cells - 1))

    axes = [jnp.arange(plan.cells)] * plan.dim
    numbers = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, plan.dim)
    loss = user_loss(objective)

    def value(point: Any, row: UserData) -> Any:
        return loss(restored(point), row.items, row.mask).astype(jnp.float64)

    lengths = _of_balls if plan.smoothing == "ball" else _of_lasry_lions
    found = lengths(shapes_key, plan, value, data, place, numbers)
    index = selection.permute_and_flip(choice_key, -found, plan.epsilon, plan.sensitivity)
    point = restored(place(numbers[index]))
    made = _counts.count(plan.gradients(jax.tree.leaves(data.items)[0].shape[1]))
    return Solution(
        params=jax.tree.map(lambda x, p: x.astype(p.dtype), point, params),
        privacy=plan.loss(),
        status=jnp.where(norms.all_finite(point), int(Status.OK), int(Status.DIVERGED)).astype(
            jnp.int32
        ),
        gradients=made,
        unprivate={"gradients": made, "trace": None},
        released={"index": index},
    )


def _of_balls(key: Any, plan: Plan, value: Any, data: UserData, place: Any, numbers: Any) -> Any:
    """‖g‖ of all points, ``[points]``: of mean gradients at random places around them."""
    like = jnp.zeros(plan.dim, jnp.float64)
    drawn = jax.vmap(lambda k: shapes.uniform_ball(k, like, 1.0))(jax.random.split(key, plan.draws))
    chunk = max(1, min(plan.num_users, _TERMS, _NUMBERS // (plan.draws * plan.dim)))

    def at(cell: Any) -> Any:
        around = place(cell) + plan.smoothing_radius * drawn

        def one_user(row: UserData) -> Any:
            slopes = jax.vmap(jax.grad(value), (0, None))(around, row)
            return norms.clip_to_norm(jnp.mean(slopes, axis=0), plan.lipschitz)

        def chunk_sum(rows: UserData, counted: Any, position: Any) -> Any:
            del position
            each = _record_keys.over_users(one_user)(rows)
            return jnp.sum(jnp.where(counted[:, None], each, 0.0), axis=0)

        return jnp.linalg.norm(sum_over_users(chunk_sum, data, None, chunk)) / plan.num_users

    return jax.lax.map(at, numbers)


def _of_lasry_lions(
    key: Any, plan: Plan, value: Any, data: UserData, place: Any, numbers: Any
) -> Any:
    """‖g‖ of all points: of mean gradients of losses that are smoothed from above, then from below."""
    del key, numbers
    line = jnp.arange(-plan.margin, plan.cells + plan.margin)
    grid = place(jnp.stack(jnp.meshgrid(*[line] * plan.dim, indexing="ij"), axis=-1))
    width = 2.0 * plan.half_width / plan.cells
    scale = (plan.smoothing_radius - 3.0 * width) / (3.0 * plan.lipschitz)
    inner = (slice(plan.margin, plan.margin + plan.cells),) * plan.dim
    chunk = max(1, min(plan.num_users, _TERMS, _NUMBERS // len(line) ** plan.dim))

    def one_user(row: UserData) -> Any:
        values = jax.lax.map(lambda x: value(x, row), grid.reshape(-1, plan.dim), batch_size=1024)
        turned = lasry_lions.lasry_lions(-values.reshape(grid.shape[:-1]), width, scale)
        own = -turned.gradient[inner].reshape(-1, plan.dim)
        return jax.vmap(lambda g: norms.clip_to_norm(g, plan.lipschitz))(own)

    def chunk_sum(rows: UserData, counted: Any, position: Any) -> Any:
        del position
        each = _record_keys.over_users(one_user)(rows)
        return jnp.sum(jnp.where(counted[:, None, None], each, 0.0), axis=0)

    total = sum_over_users(chunk_sum, data, None, chunk)
    return jnp.linalg.norm(total, axis=-1) / plan.num_users
