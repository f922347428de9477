"""DP-SGD pulled to its start: in few dimensions' worth of gradients, the excess risk of few dimensions.

What it computes: T steps, each with one user drawn at random or with all of them,

    x ← x - η·(mean of clipped gradients + noise + α·(x - x_0)),

and the average of the points. The pull is exact and outside of clip and noise. Where gradients are short
outside of some k dimensions (``problems.restricted_lipschitz``), the noise in all others does not count,
however many there are.

Source: thesis, Algorithm 35; Theorems 11.3.3 (mean loss) and 11.3.5 (population), Lemma 11.3.10, Remark
11.3.8 (full batches). With the corrections of section G: the noise is the accountant's, not that of constants
which only exist; every gradient is clipped; the terms of (11.11) that do not shrink with T have the factor 1
+ 1/T.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, at every point of the run. Nothing is
assumed of the loss: a replaced user moves the sum of a step by 2·clip_norm, where it is drawn; a step is a
sample without replacement of size 1, or everybody. Assumed: the key and the samples stay secret. The
coefficients are public: taken from the data they void the guarantee. Utility, for a convex loss on the whole
space without ridge, clip_norm at least its Lipschitz constant, coefficients that hold for the mean loss, and
a minimizer within D of the start: ``excess_bound``, of ``rates.dimension_free``; of the population with the
stability of the steps besides.

Cost: T user gradients, or T·n; the theorem's T, n² + d·log₂²d, is for n up to some thousands. Memory of one
chunk of them.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget, Problem
    >>> from dpsco_jax.problems import losses, synthetic
    >>> from dpsco_jax.solvers.item_level import regularized_sgd
    >>> made = synthetic.geometric_median(jax.random.key(0), num_users=100, items_per_user=1, dim=4)
    >>> problem = Problem(losses.geometric_median(), num_users=100, dim=4, distance=1.0)
    >>> known = [1, 0.5, 0.1, 0, 0]
    >>> plan = regularized_sgd.plan(problem, Budget(1.0, 1e-5), num_steps=50, coefficients=known)
    >>> objective, data, start = problem.objective, made.data, jax.numpy.zeros(4)
    >>> run = jax.jit(lambda key: regularized_sgd.solve(key, plan, objective, data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((4,), 0, True)
"""

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Constants, Count, Nonnegative, Positive, one_of
from dpsco_jax.problems.problem import Problem
from dpsco_jax.rates import dimension_free, stability
from dpsco_jax.solvers import _plan_base, _planning, means, methods
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.plans import Remarks

__all__ = ["plan", "solve"]

_SAMPLING = ("single", "full")
_RISKS = ("empirical", "population")
_FULL_STEPS = 200
_MOST_STEPS = 2**31 - 1
_GRID = 33
_ROUNDS = 6


@_plan_base.remembers(least_users=1)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    sampling: Annotated[str, one_of(*_SAMPLING)] = "full",
    num_steps: int | None = None,
    coefficients: Any = None,
    rank: int | None = None,
    regularization: Nonnegative | None = None,
    step_size: Positive | None = None,
    clip_norm: Positive | None = None,
    risk: Annotated[str, one_of(*_RISKS)] = "empirical",
    constants: Constants = "tight",
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
) -> FirstOrder:
    """Checks all arguments, calibrates the noise and chooses the numbers. All of them are public.

    Args:
        problem: for the Lipschitz constant G, n, the number of parameters d, and the distance D, which must
            be finite.
        budget: (ε, δ) of the run, δ > 0.
        sampling: ``"full"`` or ``"single"``.
        num_steps: T ≥ 1; if left out 200 full batches, or the theorem's n² + ⌈d·log₂²d⌉ single draws.
        coefficients: G_0, ..., G_d of the mean loss, public: falling, the last of them 0. Those of a loss of
            which nothing is known, G at every rank below d, if left out: then k = d and there is no pull.
        rank: k in [1, d], in place of the best.
        regularization: α ≥ 0, in place of what follows from the coefficients.
        step_size: η, in place of what follows from noise and rank.
        clip_norm: the objective's Lipschitz constant if left out.
        risk: what the numbers are chosen for, ``"empirical"`` or ``"population"``.
        constants: ``"tight"``: η, α and k of the least proven bound. ``"paper"``: those of the theorem, of
            which η·α ≤ 1/2 is asked; with the noise of the accountant.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, D is not finite, or η·α > 1/2.
    """
    users, dim = problem.num_users, problem.dim
    if num_steps is None:
        theirs = users**2 + math.ceil(dim * math.log2(dim) ** 2)
        num_steps = _FULL_STEPS if sampling == "full" else theirs
    num_steps = _checks.require_integer("num_steps", num_steps, 1, _MOST_STEPS)
    if coefficients is None:
        known = np.append(np.full(dim, problem.lipschitz), 0.0)
    else:
        known = dimension_free.require_coefficients("coefficients", coefficients)
    _checks.require(
        len(known) == dim + 1, "coefficients", len(known), f"{dim + 1} numbers, dim + 1"
    )
    if rank is not None:
        rank = _checks.require_integer("rank", rank, 1, dim)

    mean = means.clipped(
        problem,
        budget,
        num_steps=num_steps,
        batch_size=users if sampling == "full" else 1,
        sampling="fixed",
        clip_norm=clip_norm,
        accountant=accountant,
        chunk_size=chunk_size,
    )
    setting = _Setting(problem, budget, mean, known, risk)
    choose = _paper if constants == "paper" else _tight
    numbers = choose(setting, rank, step_size, regularization)
    objective = problem.objective
    # A gradient that is clipped is one of another function, and the proof knows no projection and no ridge.
    covered = (
        mean.clip_norm >= problem.lipschitz and not objective.ridge and math.isinf(problem.diameter)
    )
    return FirstOrder(
        title="DP-SGD pulled to its start",
        dim=dim,
        mean=mean,
        method=methods.ProjectedSgd(numbers.step_size),
        pull=numbers.regularization,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=numbers.excess_bound if covered else math.inf,
        details={"rank": float(numbers.rank)},
        remarks=Remarks([("bounds the risk", risk)]),
        promised_relation=_planning.REPLACE_ONE,
    )


class _Setting(NamedTuple):
    """What the choice of rank, step size and pull depends on; ``known`` are the coefficients."""

    problem: Problem
    budget: privacy.Budget
    mean: means.Clipped
    known: np.ndarray
    risk: str

    @property
    def stddev(self) -> float:
        """ν of the noise on each coordinate of a gradient."""
        return float(self.mean.noise_stddev(self.problem.dim))


class _Numbers(NamedTuple):
    """What is chosen, and what is proven for it."""

    rank: int
    step_size: float
    regularization: float
    excess_bound: float = 0.0


def _paper(
    s: _Setting, rank: int | None, step_size: float | None, regularization: float | None
) -> _Numbers:
    """The theorem's numbers, with the noise that there is; ``ValueError`` for η·α > 1/2.

    α = A_k/D; η = D/(ν√(Tk)), for the population D/√(T(G²T/n + kν²)); k as ``optimal_rank`` says.
    """
    users, steps = s.problem.num_users, s.mean.releases.num_steps
    distance = s.problem.require_distance()
    if rank is None:
        rank = dimension_free.optimal_rank(s.known, users, s.budget.epsilon, s.budget.delta)
    if step_size is None:
        variance = rank * s.stddev**2
        if s.risk == "population":
            variance += s.mean.clip_norm**2 * steps / users
        step_size = distance / math.sqrt(steps * variance)
    if regularization is None:
        regularization = dimension_free.regularization(s.known, rank, distance)
    _require_short(step_size, regularization)
    numbers = _Numbers(rank, step_size, regularization)
    bound = _bound(s, numbers, dimension_free.printed_excess_bound)
    return numbers._replace(excess_bound=float(bound))


def _tight(
    s: _Setting, rank: int | None, step_size: float | None, regularization: float | None
) -> _Numbers:
    """Of all ranks the numbers of the least proven bound, what is given kept; refuses as ``_paper`` does."""
    if step_size is not None and regularization is not None:
        _require_short(step_size, regularization)
    ranks = dimension_free.ranks(s.problem.dim) if rank is None else [rank]
    found = [_least(s, k, step_size, regularization) for k in ranks]
    return min(found, key=lambda numbers: numbers.excess_bound)


def _least(
    s: _Setting, rank: int, step_size: float | None, regularization: float | None
) -> _Numbers:
    """Those of a rank, by a grid on logarithms that is refined."""
    steps, distance = s.mean.releases.num_steps, s.problem.require_distance()
    strength = dimension_free.regularization(s.known, rank, distance)
    if strength == 0 and regularization is None:
        regularization = 0.0  # nothing to pull against
    shortest = distance / (math.sqrt(steps) * math.hypot(s.mean.clip_norm, s.stddev))
    middle = np.array([math.log(step_size or shortest), math.log(regularization or strength or 1)])
    free = np.array([step_size is None, regularization is None])
    width = np.where(free, 12.0, 0.0)
    if not free.any():
        numbers = _Numbers(rank, step_size, regularization)  # type: ignore[arg-type]
        return numbers._replace(excess_bound=float(_bound(s, numbers, dimension_free.excess_bound)))
    best = _Numbers(rank, math.nan, math.nan, math.inf)
    for _ in range(_ROUNDS):
        log_eta, log_alpha = (
            np.linspace(m - w, m + w, _GRID if w else 1) for m, w in zip(middle, width, strict=True)
        )
        eta = np.full(1, step_size) if step_size is not None else np.exp(log_eta)
        alpha = np.full(1, regularization) if regularization is not None else np.exp(log_alpha)
        # Where the pull binds, the longest step that is proven is a candidate too.
        etas = np.broadcast_to(eta[:, None], (len(eta), len(alpha)))
        if step_size is None:
            with np.errstate(divide="ignore"):
                etas = np.minimum(etas, (0.5 - 1e-12) / alpha)
        bounds = _bound(s, _Numbers(rank, etas, alpha), dimension_free.excess_bound)  # type: ignore[arg-type]
        at = np.unravel_index(np.argmin(bounds), bounds.shape)
        if bounds[at] < best.excess_bound:
            chosen = float(etas[at]), float(alpha[at[1]])
            best = _Numbers(rank, *chosen, float(bounds[at]))
            middle = np.array([math.log(chosen[0]), math.log(chosen[1] or 1)])
        width = width / 6
    return best


def _bound(s: _Setting, numbers: _Numbers, of: Any) -> Any:
    """The bound of these numbers, and for the population how far its loss may be from the mean's."""
    lipschitz, steps = s.mean.clip_norm, s.mean.releases.num_steps
    found = of(
        s.known,
        numbers.rank,
        lipschitz=lipschitz,
        distance=s.problem.require_distance(),
        stddev=s.stddev,
        num_steps=steps,
        step_size=numbers.step_size,
        regularization=numbers.regularization,
    )
    if s.risk == "population":
        # Linear in η; a pull to a point that both runs share only brings them closer.
        each = stability.generalization_gap(lipschitz, 1.0, steps, s.problem.num_users, False)
        found = found + each * numbers.step_size
    return found


def _require_short(step_size: float, regularization: float) -> None:
    longest = 0.5 / regularization if regularization else math.inf
    _checks.require(
        step_size * regularization <= 0.5,
        "step_size",
        step_size,
        f"at most 1/(2 * regularization) = {longest:.6g}; more steps (num_steps) make planned ones shorter",
    )
