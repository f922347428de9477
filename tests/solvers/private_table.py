"""One row for every private solver: what ``test_recorded_releases`` runs and checks.

A new solver gets all properties by one row: its module, the arguments of its ``plan``, and what is special:

- ``groups``: how many sets of releases are claimed to see disjoint users (blocks, phases);
- ``float64``: whether the solver asks for ``jax_enable_x64``;
- ``kind``: ``"gaussian"``, where all sensitivities are declared and everything is counted (privatized and
  winsorized releases); ``"tested"``, where a mean is bounded only once a test has passed; ``"pure"``, for
  selections; ``"resque"``, where a user counts with a random weight; ``"drawn"``, where a draw is released,
  as private as its potential's slope with Gaussian noise, and a little less;
  ``"selected"``, where points are tested, or compared, and one of them is named;
  ``"chosen"``, where an exponential mechanism is drawn from, over cells, a coordinate at a time, or points;
  ``"last"``, where of all noisy points only the last leaves, so that it costs less than all of them;
- ``above``: how far the certificate's ε may be above the one that is counted independently. What is tight
  says 1.02, so that a charge made twice is seen; every larger number says why;
- ``share``: how near some pair of neighbours must come to the declared sensitivity;
- ``seams``: the first users of later blocks, where users are sampled or more than 24;
- ``removed``: the neighbours are those of ADD_OR_REMOVE_ONE;
- ``seed``: of the key, where by the usual one no neighbour is seen to move some release;
- ``elements``: how many records are drawn together, where users are drawn with all their units;
- ``spread``: of the users around one direction, where a mean of users who disagree is not released.

All rows share one problem: Huber regression on unit vectors with labels of ±10, so that every gradient has
exactly the norm to which it is clipped, and a user with the opposite label is the worst neighbour there is.
"""

import dataclasses
import functools
import math
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem
from dpsco_jax._numerics import float32_above
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses, nonconvex_losses
from dpsco_jax.problems.objective import Example, LinearModel, Objective, bounded_row
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers.element_level import federated
from dpsco_jax.solvers.element_level import sgd as element_sgd
from dpsco_jax.solvers.heavy_tailed import (
    aggregate_erm,
    clipped_gd,
    known_lipschitz,
    localized_clipped_sgd,
    localized_erm,
    phased_clipped_glm,
    population_localize,
)
from dpsco_jax.solvers.heavy_tailed import auto as heavy_auto
from dpsco_jax.solvers.item_level import (
    erm,
    langevin,
    private_ac_sa,
    regularized_sgd,
    sco,
    staged_ac_sa,
)
from dpsco_jax.solvers.means import Clipped
from dpsco_jax.solvers.nonconvex import (
    adaptive_spider,
    certify,
    drift_spider,
    find_sosp,
    gibbs,
    hessian_escape,
    net_exponential_mechanism,
    noisy_descent,
    o2nc_multi_pass,
    o2nc_single_pass,
    optimal_smoothing,
    select_sosp,
    spider,
)
from dpsco_jax.solvers.resque import (
    ball_accelerated_erm,
    ball_accelerated_regularized_erm,
    ball_accelerated_sco,
    resque_erm,
    resque_erm_high_probability,
    resque_prox,
)
from dpsco_jax.solvers.sampling import (
    exponential_mechanism,
    regularized,
    value_queries,
    zeroth_order,
)
from dpsco_jax.solvers.user_level import (
    accelerated_phased_erm,
    accelerated_sgd,
    accelerated_strongly_convex,
    auto,
    finite_class,
    item_group_privacy,
    item_sampled_sgd,
    localized_sgd,
    metric_entropy,
    momentum_sgd,
    multipass_sgd,
    output_perturbation,
    phased_erm,
    phased_sgd,
    preconditioned_sgd,
    sgd,
    whitened_sgd,
    winsorized_erm,
)
from tests.support import classified
from tests.support.planned import planned

ITEMS, DIM, DELTA = 2, 3, 1e-3
OBJECTIVE = losses.huber(1.0, domain=domains.ball(2.0))
WHOLE = losses.huber(1.0)
# A user with the opposite label turns differences of gradients round, too.
_BENT = LinearModel(
    link=lambda margin, label: label / 10 * jnp.sqrt(1 + (margin - 1) ** 2),
    derivative=lambda margin, label: label / 10 * (margin - 1) / jnp.sqrt(1 + (margin - 1) ** 2),
    feature_bound=1.0,
)
BENT = Objective(
    lambda w, item: _BENT.link(jnp.vdot(bounded_row(item.features, 1.0), w), item.label),
    lipschitz=1.0,
    smoothness=1.0,
    domain=domains.whole_space(),
    linear_model=_BENT,
)
BOXED = losses.huber(1.0, domain=domains.box(-np.ones(DIM), np.ones(DIM)))
RIDGED = losses.huber(1.0, domain=domains.ball(2.0), ridge=0.2)


class Row(NamedTuple):
    """A solver with settings; see the file's docstring."""

    name: str
    solver: Any
    num_users: int
    settings: dict[str, Any]
    kind: str = "gaussian"
    groups: int = 1
    above: float = 1.02
    share: float | None = 0.95
    removed: bool = False
    objective: Any = OBJECTIVE
    params: Any = None
    items: int = ITEMS
    seams: tuple[int, ...] = ()
    spread: float = math.inf
    elements: int = 1
    float64: bool = False
    seed: int = 7

    def plan(self) -> Any:
        """The plan of the row; those of the table itself are made once, for all tests of a process."""
        return _made(self.name) if any(self is row for row in ROWS) else self.new_plan()

    def new_plan(self) -> Any:
        """The plan, made now."""
        given = {
            "num_users": self.num_users,
            "items_per_user": self.items,
            "dim": DIM,
            "epsilon": 2.0,
            "delta": DELTA,
        }
        return planned(self.solver.plan, self.objective, **given | self.settings)

    @property
    def watched(self) -> list[int]:
        """Users who are changed, one at a time: everybody, or the ends of all blocks and some more."""
        last = self.num_users - 1
        if last < 24:
            return list(range(last + 1))
        ends = [user for seam in self.seams for user in (seam - 1, seam)]
        return sorted({0, last // 3, 2 * last // 3, last, *ends})

    @property
    def start(self) -> Any:
        """The origin, or the candidates."""
        return jnp.zeros(DIM) if self.params is None else jnp.asarray(self.params)

    def solve(self, key: Any, plan: Any, data: UserData, start: Any = None) -> Any:
        """The solution, from ``start`` where that is given."""
        params = self.start if start is None else start
        return self.solver.solve(key, plan, self.objective, data, params)

    def data(self) -> UserData:
        """Unit vectors in all directions, labels of ±10, all items of a user alike; or users who agree."""
        rng = np.random.default_rng(self.num_users)
        rows = rng.standard_normal((self.num_users, 1, DIM))
        labels = 10.0 * rng.choice([-1.0, 1.0], (self.num_users, 1))
        if self.spread < math.inf:
            rows, labels = np.eye(DIM)[0] + self.spread * rows, np.full_like(labels, 10.0)
        rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
        shape = (self.num_users, self.items)
        items = Example(
            np.broadcast_to(rows, (*shape, DIM)).astype(np.float32),
            np.broadcast_to(labels, shape).astype(np.float32),
        )
        return UserData(items, np.ones(shape, bool))


@functools.cache
def _made(name: str) -> Any:
    return next(row for row in ROWS if row.name == name).new_plan()


# Of so few users that a test of them passes only at a δ above 1/N.
CONCENTRATED = {"radius": 2.0, "epsilon": 40.0, "delta": 1e-2, "allow_large_delta": True}
SMALL_BALL = {"ball_radius": 0.1, "num_queries": 8}
# So that several candidates are drawn.
FINITE = {"num_candidates": 4, "loss_range": (0.0, 9.0), "stopping_probability": 0.02}
CANDIDATES = jnp.asarray(np.random.default_rng(1).uniform(-0.5, 0.5, (4, DIM)), jnp.float32)
BALLS = {
    "delta": 1e-3,
    "distance": 1.0,
    "smoothing_radius": 0.2,
    "largest_error": np.inf,
}
# Users who agree, with gradients that are clipped and curvatures that are as low as they can be.
WELSCH = nonconvex_losses.welsch(1.0, scale=6.0, domain=domains.ball(2.0))
LOOKS: dict[str, Any] = {
    "most_steps": 3,
    "initial_gap": 1.0,
    "gradient_clip": 0.5,
    "hessian_clip": 0.1,
}
LOOKS |= {"objective": nonconvex_losses.welsch(1.0, scale=6.0)}
NET: dict[str, Any] = {"objective": WHOLE, "initial_gap": 1.0, "smoothing_radius": 1.0}
NET |= {"most_points": 64, "kind": "selected", "float64": True, "share": 0.6}
POINTS = {"objective": WELSCH, "clip_norm": 2.0, "float64": True, "spread": 0.05}
SELECT = {"params": CANDIDATES, "num_candidates": 4, "kind": "selected"} | POINTS
SGD_ONLY = tuple(c for c in auto.CANDIDATES if c.name == "sgd")


def _two_phases(problem: Problem, budget: Budget, **given: Any) -> Any:
    """Phases of two thirds and of one third of the users: few users would get a single one."""
    users = problem.num_users
    first, second = (
        phased_erm.plan(dataclasses.replace(problem, num_users=size), budget, **given)
        for size in (users - users // 3, users // 3)
    )
    phases = (*first.parts, *second.parts)
    return first.replace(num_users=users, parts=phases)


def _plain_means(problem: Problem, budget: Budget, **given: Any) -> Any:
    """Where every bound is the range of the losses, a plan takes winsorized means."""
    return dataclasses.replace(finite_class.plan(problem, budget, **given), winsorized=False)


def _in_three_steps(problem: Problem, budget: Budget, **given: Any) -> Any:
    """A plan of so few users asks all of them at once: here the estimate is kept up once, and begins anew."""
    plan = adaptive_spider.plan(problem, budget, **given)
    sizes = {"num_steps": 3, "longest": 2, "first_batch": problem.num_users // 3}
    releases = dataclasses.replace(plan.mean.releases, **sizes)
    numbers = {"share_norm": 0.1, "drift": 1e3, "accuracy": 1e3}
    mean = dataclasses.replace(plan.mean, releases=releases, **numbers)
    return dataclasses.replace(plan, mean=mean)


def _three_looks(problem: Problem, budget: Budget, **given: Any) -> Any:
    """A plan that looks at a Hessian in each of three steps, and jumps: one gradient and two differences."""
    plan = hessian_escape.plan(problem, budget, **given)
    one_pass = plan.sampling == "one_pass"
    batch = problem.num_users // 6 if one_pass else problem.num_users
    sizes: dict[str, Any] = {"num_steps": 3, "most_refreshes": 1, "most_differences": 2}
    sizes |= {"population_size": 3 * batch if one_pass else batch, "batch_sizes": (batch, batch)}
    releases = dataclasses.replace(plan.mean.releases, **sizes)
    # Six releases of everybody, of one multiplier; in one pass each user is in one of them.
    each = float32_above(float(plan.joint_multiplier) * (1.0 if one_pass else math.sqrt(6)))
    releases = dataclasses.replace(releases, refresh_multiplier=each, difference_multiplier=each)
    numbers: dict[str, Any] = {"hessian_multiplier": each, "threshold": 1e3, "floor": -1e3}
    numbers |= {"gradient_error": 0.0, "hessian_error": -1.0}
    mean = dataclasses.replace(plan.mean, releases=releases, every=1e3)
    return dataclasses.replace(plan, mean=mean, most_looks=3, hessian_batch=batch, **numbers)


def _on_a_plane(problem: Problem, budget: Budget, **given: Any) -> Any:
    return optimal_smoothing.plan(dataclasses.replace(problem, dim=2), budget, **given)


def _solve_on_a_plane(key: Any, plan: Any, objective: Any, data: UserData, params: Any) -> Any:
    """Of the first two parameters; the others stay as they are."""
    rest = params[2:]
    flat = objective._replace(
        loss=lambda w, item: objective.loss(jnp.concatenate([w, rest.astype(w.dtype)]), item),
        linear_model=None,
    )
    found = optimal_smoothing.solve(key, plan, flat, data, params[:2])
    return found._replace(params=jnp.concatenate([found.params, rest]))


def _of_two_items(problem: Problem, budget: Budget, **given: Any) -> Any:
    """A plan for users of two items each: the records of a row are items, whose gradients are clipped."""
    sizes: Any = {"num_users": problem.num_users // 2, "items_per_user": 2}
    return item_sampled_sgd.plan(dataclasses.replace(problem, **sizes), budget, **given)


def _solve_two_items(
    key: Any, plan: Any, objective: Any, data: UserData, params: Any, **given: Any
) -> Any:
    return item_sampled_sgd.solve(key, plan, objective, paired(data), params, **given)


def paired(data: UserData) -> UserData:
    """Records 2u and 2u + 1, of one row each, as the items of user u."""

    def pair(leaf: Any) -> Any:
        return leaf[:, 0].reshape(-1, 2, *leaf.shape[2:]) if len(leaf) % 2 == 0 else leaf

    return jax.tree.map(pair, data)


def _solve_by_lengths(
    key: Any, plan: Any, objective: Any, data: UserData, params: Any, **given: Any
) -> Any:
    """Slopes are bounded by what the users hold: nobody is a dummy but who holds numbers that are none."""
    held = data.items.features if isinstance(data, UserData) else jnp.zeros(())
    bounds = 0.99 * jnp.linalg.norm(held, axis=-1).max(axis=-1) if jnp.ndim(held) == 3 else held
    return known_lipschitz.solve(key, plan, objective, data, params, bounds, **given)


def _of_units(solver: Any, problem: Problem, budget: Budget, **given: Any) -> Any:
    """A plan for data whose records are the units of users of two elements each."""
    users = dataclasses.replace(problem, num_users=problem.num_users // 2)
    return solver.plan(users, budget, elements_per_user=2, **given)


# The private solvers as modules are, with another ``plan`` or fewer candidates.
TWO_PHASES = types.SimpleNamespace(
    __name__=phased_erm.__name__, plan=_two_phases, solve=phased_erm.solve
)
KNOWN_LIPSCHITZ = types.SimpleNamespace(
    __name__=known_lipschitz.__name__, plan=known_lipschitz.plan, solve=_solve_by_lengths
)
PLAIN_MEANS = types.SimpleNamespace(
    __name__=finite_class.__name__, plan=_plain_means, solve=finite_class.solve
)
ELEMENT_SGD, FEDERATED = (
    types.SimpleNamespace(
        __name__=solver.__name__, plan=functools.partial(_of_units, solver), solve=solver.solve
    )
    for solver in (element_sgd, federated)
)
ADAPTIVE = types.SimpleNamespace(
    __name__=adaptive_spider.__name__, plan=_in_three_steps, solve=adaptive_spider.solve
)
ESCAPE = types.SimpleNamespace(
    __name__=hessian_escape.__name__, plan=_three_looks, solve=hessian_escape.solve
)
PLANE = types.SimpleNamespace(
    __name__=optimal_smoothing.__name__, plan=_on_a_plane, solve=_solve_on_a_plane
)
ITEM_SAMPLED = types.SimpleNamespace(
    __name__=item_sampled_sgd.__name__, plan=_of_two_items, solve=_solve_two_items
)
AUTO = types.SimpleNamespace(
    __name__=auto.__name__,
    plan=functools.partial(auto.plan, candidates=SGD_ONLY),
    solve=functools.partial(auto.solve, candidates=SGD_ONLY),
)


def _row(name: str, solver: Any, num_users: int, **settings: Any) -> Row:
    """A row whose fields and arguments of ``plan`` are given alike."""
    fields = {key: settings.pop(key) for key in Row._fields if key in settings}
    return Row(name, solver, num_users, settings, **fields)


REPLACE_ONE = NeighboringRelation.REPLACE_ONE
# Every gradient of the table is as long as this clip.
HEAVY = {"moments": Moments(4.0, 1.0), "clip_norm": 1.0}
SAMPLED = {"batch_size": 4}
TESTED = {"kind": "tested", "share": None, "above": 4.0} | CONCENTRATED
RESQUE = {"kind": "resque", "share": None, "epsilon": 4.0}
STREAMS = {
    "initial_gap": 10.0,
    "smoothing_radius": 0.1,
    "draws": 1,
    "period": 3,
    "objective": BENT,
    "share": 0.8,
}
BOXES = {"num_steps": 1, "radius": 0.01, "epsilon": 20.0, "above": 1.15}

ROWS: tuple[Row, ...] = (
    _row("sgd, poisson", sgd, 8, num_steps=3, sampling="poisson", removed=True, **SAMPLED),
    _row("sgd, poisson replaced", sgd, 8, num_steps=3, sampling="poisson", relation=REPLACE_ONE, **SAMPLED),
    _row("sgd, fixed", sgd, 8, num_steps=3, sampling="fixed", clip_norm=0.5, **SAMPLED),
    _row("sgd, full", sgd, 8, num_steps=3, sampling="full"),
    _row("noisy_descent", noisy_descent, 8, initial_gap=1.0, most_steps=3),
    _row("clipped_gd", clipped_gd, 8, num_steps=3, regularization=0.5, **HEAVY),
    _row("clipped_gd, quantile", clipped_gd, 8, num_steps=3, regularization=0.5, clip_norm=0.5, quantile=0.5),
    _row("auto, heavy tails", heavy_auto, 8, gradient_budget=8 * ITEMS * 3, distance=1.0,
        moments=Moments(4.0, 1.0)),
    # The first user of a phase of nine moves eight of its points.
    _row("phased_clipped_glm", phased_clipped_glm, 14, num_phases=2, groups=2, step_size=0.1, items=1,
        share=0.85, float64=True, **HEAVY),
    # What tests cost, and what steps clipped to 11/8 of the clip could move, is not seen of a single user.
    _row("localized_clipped_sgd", localized_clipped_sgd, 14, num_phases=2, groups=2, step_size=1e-5,
        kind="drawn", share=0.6, above=1.5, float64=True, **HEAVY),
    _row("aggregate_erm", aggregate_erm, 9, num_steps=3, num_copies=3, regularization=0.5, groups=3, **HEAVY),
    # Copies of 8 and of 4 users; alone, phases of 16 and of 8.
    _row("population_localize", population_localize, 24, num_steps=3, num_copies=2, num_phases=2, groups=4,
        share=None, moments=HEAVY["moments"]),
    _row("localized_erm", localized_erm, 24, num_steps=3, num_phases=2, groups=2),
    _row("known_lipschitz", KNOWN_LIPSCHITZ, 24, num_steps=3, num_phases=2, groups=2, clip_norm=1.0,
        moments=Moments(4.0, 1.0)),
    _row("population_localize, alone", population_localize, 24, num_steps=3, num_phases=2, groups=2,
        moments=Moments(math.inf, 1.0)),
    # Rounds of 12 and of 24 users; of each, phases of two thirds and of a third.
    _row("population_localize, rounds", population_localize, 36, num_steps=3, num_rounds=2, num_phases=2,
        groups=4, objective=RIDGED, moments=Moments(math.inf, 1.0), seams=(8, 12, 28)),
    # The losses are straight at the start: a user replaced by one in the bend moves a difference by one.
    # Three periods of three steps, each step of users of its own.
    _row("o2nc_single_pass, buffers", o2nc_single_pass, 20, groups=9, **STREAMS),
    _row("o2nc_single_pass, tree", o2nc_single_pass, 20, groups=9, constants="paper", **STREAMS),
    _row("o2nc_multi_pass", o2nc_multi_pass, 8, num_steps=4, **STREAMS | {"period": 2}),
    _row("spider, periodic", spider, 8, num_steps=3, period=2, initial_gap=1.0, share=0.4),
    _row("adaptive_spider, buffers", ADAPTIVE, 18, num_steps=3, initial_gap=1.0, groups=3, objective=WELSCH),
    _row("adaptive_spider, tree", ADAPTIVE, 18, most_steps=3, initial_gap=1.0, constants="paper", groups=3,
        objective=WELSCH),
    _row("drift_spider, full", drift_spider, 8, num_steps=3, drift=1e-3, initial_gap=1.0, share=0.4,
        above=1.1),
    _row("drift_spider, one pass", drift_spider, 30, num_steps=3, drift=1e-3, initial_gap=1.0,
        sampling="one_pass", groups=3),
    _row("hessian_escape, full", ESCAPE, 8, **LOOKS),
    _row("hessian_escape, one pass", ESCAPE, 24, sampling="one_pass", groups=6, **LOOKS),
    _row("element_sgd, poisson", ELEMENT_SGD, 8, num_steps=3, batch_size=2),
    _row("element_sgd, poisson zero_out", ELEMENT_SGD, 8, num_steps=3, relation="zero_out", batch_size=2,
        removed=True),
    # One orientation of the pair in all steps costs less than what is composed of both.
    _row("element_sgd, poisson users", ELEMENT_SGD, 8, num_steps=3, sampling="user", batch_size=2,
        elements=2, above=1.5),
    _row("element_sgd, poisson users capped", ELEMENT_SGD, 8, num_steps=3, sampling="user", cap=1.5,
        batch_size=2, elements=2, above=1.5, share=0.6),
    _row("element_sgd, fixed", ELEMENT_SGD, 8, num_steps=3, sampling="fixed", batch_size=2,
        step_decay="sqrt"),
    _row("element_sgd, full", ELEMENT_SGD, 8, num_steps=3, sampling="full"),
    _row("federated, poisson", FEDERATED, 8, num_steps=2, batch_size=2, local_steps=2, local_step_size=0.01,
        step_size=0.1),
    _row(
        "preconditioned_sgd", preconditioned_sgd, 8, num_steps=3,
        second_moments=np.full(DIM, 1 / 3), share=0.6,
    ),
    _row(
        "whitened_sgd", whitened_sgd, 8, num_steps=3, start_steps=2, radius_steps=2, matrix=True, intercept=0,
        entry_bound=1.0, covariance=True, epsilon=20.0, seed=8,
    ),
    _row("whitened_sgd, matrix", whitened_sgd, 12, **classified.SETTINGS),
    _row("momentum_sgd, full", momentum_sgd, 8, num_steps=3, sampling="full"),
    _row("momentum_sgd, poisson", momentum_sgd, 8, num_steps=3, step_decay="none", removed=True, **SAMPLED),
    _row("staged_ac_sa, full", staged_ac_sa, 8, num_steps=3, num_stages=2),
    _row("staged_ac_sa, sampled", staged_ac_sa, 8, num_steps=3, num_stages=2, **SAMPLED),
    _row(
        "langevin", langevin, 8, num_steps=6, objective=RIDGED, regularization=0.3, step_size=0.7,
        kind="last",
    ),
    _row("output_perturbation", output_perturbation, 8, distance=1.0, share=0.5),
    _row("item_group_privacy, full", item_group_privacy, 8, num_steps=3),
    _row("item_group_privacy, sampled", item_group_privacy, 8, num_steps=3, batch_size=8, above=2.5),
    _row("item_sampled_sgd, poisson", ITEM_SAMPLED, 8, num_steps=3, removed=True, accountant="rdp",
        **SAMPLED),
    _row("private_ac_sa, full", private_ac_sa, 8, num_steps=3, batch_size=8),
    _row("private_ac_sa, sampled", private_ac_sa, 8, num_steps=3, clip_norm=0.5, **SAMPLED),
    _row(
        "regularized_sgd, full", regularized_sgd, 8, num_steps=3, objective=WHOLE, distance=1.0,
        coefficients=(1.0, 0.5, 0.1, 0.0),
    ),
    _row(
        # Few users and several steps, or a Rényi curve is far above the certificate, which lets every step
        # choose its worse direction, while the count takes one for all of them.
        "regularized_sgd, single", regularized_sgd, 4, num_steps=8, sampling="single", objective=WHOLE,
        distance=1.0, regularization=0.4, clip_norm=0.5, above=1.05,
    ),
    _row(
        # Of the usual budget the second stage would be left out.
        "erm, restarts", erm, 8, method="restarts", num_stages=2, objective=RIDGED, epsilon=40.0,
        above=1.1,
    ),
    _row("sco, localization", sco, 80, num_phases=2, num_stages=1, method="localization", groups=2, above=1.1,
        seams=(54,)),
    _row("winsorized_erm, clipped", winsorized_erm, 8, num_steps=2, form="clipped"),
    _row("winsorized_erm, winsorized", winsorized_erm, 40, form="winsorized", **BOXES),
    _row("winsorized_erm, refined", winsorized_erm, 40, form="refined", **BOXES),
    _row("winsorized_erm, recentred", winsorized_erm, 40, form="recentred", **BOXES | {"above": 1.02}),
    _row("phased_erm", TWO_PHASES, 12, form="clipped", most_steps=2, groups=2),
    _row(
        "phased_sgd, clipped", phased_sgd, 90, num_groups=30, num_phases=2, step_size=0.1,
        epsilon=40.0, delta=1e-2, allow_large_delta=True, groups=2, seams=(60,),
    ),
    _row(
        "phased_sgd, tested", phased_sgd, 120, num_groups=40, num_phases=2, step_size=0.1, groups=2,
        seams=(80,), **TESTED | {"radius": 0.01, "spread": 0.02},
    ),
    _row("multipass_sgd, clipped", multipass_sgd, 8, num_steps=2),
    _row("multipass_sgd, tested", multipass_sgd, 60, num_steps=2, **TESTED | {"radius": 0.5, "spread": 0.1}),
    _row("localized_sgd", localized_sgd, 12, num_blocks=2, num_steps=2, objective=RIDGED, groups=2),
    _row(
        "accelerated_sgd, clipped", accelerated_sgd, 8, mean=Clipped, stage_length=2,
        num_stages=1, **SAMPLED,
    ),
    _row(
        "accelerated_sgd, tested", accelerated_sgd, 60, stage_length=2, num_stages=1, spread=0.1,
        **TESTED | {"radius": 0.5},
    ),
    _row(
        "accelerated_sgd, tested batches", accelerated_sgd, 90, stage_length=2, num_stages=1,
        batch_size=60, spread=0.1, **TESTED | {"radius": 0.5},
    ),
    _row(
        "accelerated_phased_erm", accelerated_phased_erm, 24, mean=Clipped, num_phases=2,
        groups=2,
    ),
    _row(
        "accelerated_phased_erm, tested", accelerated_phased_erm, 180, num_phases=2, groups=2, spread=0.1,
        seams=(120,), **TESTED | {"radius": 0.5},
    ),
    _row(
        "accelerated_strongly_convex", accelerated_strongly_convex, 24, mean=Clipped,
        num_blocks=2, objective=RIDGED, groups=2,
    ),
    _row(
        "finite_class, plain", PLAIN_MEANS, 8, kind="pure", params=CANDIDATES,
        **FINITE,
    ),
    _row(
        "finite_class, winsorized", finite_class, 8, kind="pure",
        params=CANDIDATES, **FINITE,
    ),
    _row(
        "metric_entropy", metric_entropy, 8, kind="pure", loss_range=(0.0, 9.0),
        lower=-1.0, upper=1.0, points_per_axis=2, failure=0.9,
    ),
    _row("auto", AUTO, 8),
    _row("select_sosp", select_sosp, 8, stationarity=0.3, **SELECT),
    _row("select_sosp, two tests", select_sosp, 8, stationarity=0.3, constants="paper", **SELECT),
    _row("select_sosp, least", select_sosp, 8, **SELECT),
    _row("certify", certify, 8, **POINTS),
    _row("optimal_smoothing, ball", optimal_smoothing, 8, draws=2, **NET),
    _row("optimal_smoothing, lasry_lions", PLANE, 8, smoothing="lasry_lions", **NET),
    _row("find_sosp, empirical", find_sosp, 8, num_steps=3, drift=1e-3, initial_gap=1.0, kind="found",
        objective=WELSCH, float64=True, share=None, above=1.4),
    _row(
        "regularized", regularized, 8, kind="drawn", float64=True, objective=WHOLE, distance=1.0,
        regularization=1.0, above=1.1,
    ),
    _row(
        # All coordinates are paid for together, and none moves by more than its share.
        "exponential_mechanism", exponential_mechanism, 8, kind="chosen", float64=True, objective=BOXED,
        route="linear", cells=16, share=0.8, above=2.2,
    ),
    _row(
        "net_exponential_mechanism", net_exponential_mechanism, 8, kind="chosen", float64=True, cells=4,
        objective=BOXED, share=0.7, above=1.5,
    ),
    # What a proposal moves is bounded by its distance from the centre, and few are far out in its direction.
    _row("gibbs", gibbs, 8, kind="chosen", float64=True, share=0.7, above=1.5),
    _row(
        "value_queries", value_queries, 2, kind="drawn", float64=True, objective=WHOLE, distance=1.0,
        epsilon=0.15, above=1.1,
    ),
    _row(
        "value_queries, on a ball", value_queries, 2, kind="drawn", float64=True,
        objective=OBJECTIVE, distance=1.0, epsilon=0.15, above=1.1,
    ),
    _row(
        "zeroth_order", zeroth_order, 2, kind="drawn", float64=True, objective=WHOLE, distance=1.0,
        norm=2.0, epsilon=0.5, above=1.1,
    ),
    _row("resque_erm", resque_erm, 40, **SMALL_BALL, **RESQUE),
    _row(
        "resque_erm_high_probability", resque_erm_high_probability, 40, num_runs=2,
        regularization=1.0, **SMALL_BALL, **RESQUE,
    ),
    _row(
        "resque_prox", resque_prox, 80, levels_seed=1, ball_radius=0.1, num_queries=4,
        regularization=1.0, **RESQUE,
    ),
    _row(
        "ball_accelerated_erm", ball_accelerated_erm, 64, num_iterations=2, num_queries=16, **BALLS,
        **RESQUE,
    ),
    _row(
        "ball_accelerated_regularized_erm", ball_accelerated_regularized_erm, 64, num_rounds=1,
        num_queries=16, num_iterations=2, regularization=0.5, largest_error=np.inf, **RESQUE,
    ),
    _row(
        "ball_accelerated_sco", ball_accelerated_sco, 64, num_iterations=2, num_queries=16, num_blocks=2,
        groups=2, seams=(32, 48), **BALLS, **RESQUE,
    ),
)  # fmt: skip

LATER = {
    *("sgd, poisson replaced", "element_sgd, poisson zero_out", "element_sgd, poisson users capped"),
    *("element_sgd, fixed", "momentum_sgd, full", "staged_ac_sa, full", "private_ac_sa, full"),
    *("winsorized_erm, clipped", "winsorized_erm, refined", "multipass_sgd, clipped"),
    *("accelerated_sgd, tested", "value_queries, on a ball", "whitened_sgd, matrix"),
    *("momentum_sgd, poisson", "noisy_descent"),
}  # fmt: skip
"""Rows of solvers that have another, and whose releases are those of other rows: for ``make test-slow``.

The faults in ``tests.mutation`` are found without them, but for those that name one of these rows.
"""
