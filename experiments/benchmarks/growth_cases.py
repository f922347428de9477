"""What the growth of costs is measured of: solvers of every family, sampling, and mechanisms.

What it computes: for given sizes the plan of a solver, and the program that runs it with its arguments; for
sampling and for mechanisms a program alone.

Source: none.

Formal guarantee: none; the data are drawn at random.

Cost: that of the programs.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.mechanisms.winsorized import winsorized_calibration, winsorized_mean
from dpsco_jax.oracles import sampling
from dpsco_jax.problems import losses
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import means
from dpsco_jax.solvers.element_level import sgd as element_sgd
from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.resque import ball_accelerated_erm, resque_erm
from dpsco_jax.solvers.sampling import regularized
from dpsco_jax.solvers.user_level import (
    accelerated_phased_erm,
    auto,
    finite_class,
    multipass_sgd,
    phased_erm,
    phased_sgd,
    sgd,
    whitened_sgd,
    winsorized_erm,
)

LOSS = losses.logistic(feature_bound=1.0, domain=domains.ball(2.0))
WHOLE = losses.logistic(feature_bound=1.0)
ABSOLUTE = losses.absolute(1.0, domains.ball(2.0))
USUAL, PLENTY = Budget(2.0, 1e-6), Budget(200.0, 1e-2, allow_large_delta=True)
USERS, DIMS, STEPS, SEEDS = (1_024, 4_096, 16_384), (32, 64, 128), (16, 64, 256), (1, 4, 16)


class Sizes(NamedTuple):
    """Users, items of a user, parameters, steps, runs at once."""

    n: int = 1_024
    m: int = 2
    d: int = 32
    steps: int = 16
    seeds: int = 1


BASE = Sizes()


class Case(NamedTuple):
    """What is measured.

    Attributes:
        name: of the row.
        plan: from sizes to what the program needs.
        program: from that and sizes to a function and its arguments; ``None`` where plans alone are measured.
        axes: sizes that grow, with their values; users among them.
        limits: of exponents, by axis and column, that are not the usual ones: what theory says.
        base: the sizes that do not grow.
        plans: whether planning is a cost of it.
        float64: whether it needs float64.
    """

    name: str
    plan: Callable[[Sizes], Any]
    program: Callable[[Any, Sizes], tuple[Callable[..., Any], tuple[Any, ...]]] | None
    axes: Mapping[str, tuple[int, ...]]
    limits: Mapping[tuple[str, str], float] = {}
    base: Sizes = BASE
    plans: bool = True
    float64: bool = False


def solver_case(
    name: str,
    solver: Any,
    settings: Callable[[Sizes], dict[str, Any]],
    axes: Mapping[str, tuple[int, ...]],
    limits: Mapping[tuple[str, str], float] = {},
    loss: Objective = LOSS,
    budget: Budget = USUAL,
    base: Sizes = BASE,
    run: bool = True,
    float64: bool = False,
) -> Case:
    """A solver with the settings of its plan."""

    def plan(s: Sizes) -> Any:
        problem = Problem(loss, num_users=s.n, items_per_user=s.m, dim=s.d, distance=1.0)
        return solver.plan(problem, budget, **settings(s))

    def program(made: Any, s: Sizes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        def solve(key: jax.Array, data: Any, start: jax.Array) -> jax.Array:
            found: jax.Array = solver.solve(key, made, loss, data, start).params
            return found

        shape = (s.d,) if solver is not finite_class else (made.num_candidates, s.d)
        data = _elements(s) if solver is element_sgd else _users(s)
        return _over_seeds(solve, s.seeds, (data, jnp.zeros(shape)))

    return Case(name, plan, program if run else None, axes, limits, base, True, float64)


def _over_seeds(
    function: Callable[..., Any], seeds: int, arguments: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function at one key, or mapped over several."""
    if seeds == 1:
        return function, (jax.random.key(1), *arguments)
    axes = (0, *[None] * len(arguments))
    return jax.vmap(function, in_axes=axes), (
        jax.random.split(jax.random.key(1), seeds),
        *arguments,
    )


@functools.lru_cache(maxsize=2)
def _users(s: Sizes) -> UserData:
    keys = jax.random.split(jax.random.key(0), 2)
    rows = jax.random.normal(keys[0], (s.n, s.m, s.d), jnp.float32) / s.d**0.5
    labels = (jax.random.uniform(keys[1], (s.n, s.m)) < jax.nn.sigmoid(3 * rows[..., 0])) + 0.0
    return UserData(Example(rows, labels.astype(jnp.float32)), None)


def _elements(s: Sizes) -> ElementData:
    rows, labels = _users(s).items
    return ElementData(Example(rows[:, :, None], labels[:, :, None]))


def _mean_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """A mechanism on rows, one for each user."""

    def program(made: Any, s: Sizes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        rows = jax.random.normal(jax.random.key(0), (s.n, s.d)) / s.d**0.5
        if s.seeds > 1:
            rows = jnp.stack([rows] * s.seeds)
            keys = jax.random.split(jax.random.key(1), s.seeds)
            return jax.vmap(functools.partial(function, made)), (keys, rows)
        return functools.partial(function, made), (jax.random.key(1), rows)

    return program


def _drawn(draw: Callable[[jax.Array, Sizes], Any]) -> Callable[..., Any]:
    def program(made: Any, s: Sizes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        del made
        return _over_seeds(lambda key: draw(key, s), s.seeds, ())

    return program


def _outliers_removed(made: Any, key: jax.Array, rows: jax.Array) -> jax.Array:
    del made, key
    found = concentrated_mean.concentration(rows, 1.5)
    weights = concentrated_mean.inlier_weights(found.degrees, len(rows), 2 / 3)
    mean: jax.Array = concentrated_mean.weighted_mean(rows, weights)
    return mean


def _winsorized(made: Any, key: jax.Array, rows: jax.Array) -> jax.Array:
    mean: jax.Array = winsorized_mean.winsorized_mean(key, rows, made)
    return mean


def _winsorized_releases(s: Sizes) -> Any:
    return winsorized_calibration.calibrate_winsorized(
        s.n, s.d, 1, 50.0, 1e-2, radius=0.1, bound=1.0, form="winsorized"
    )


_SQUARE = {("n", "run"): 2.3}
CASES = (
    solver_case(
        "sgd, all users",
        sgd,
        lambda s: {"num_steps": s.steps, "sampling": "full", "chunk_size": 256},
        {"n": USERS, "d": DIMS, "steps": STEPS, "seeds": SEEDS},
    ),
    solver_case(
        "sgd, Poisson",
        sgd,
        lambda s: {"num_steps": s.steps, "batch_size": 128},
        {"n": (4_096, 32_768, 262_144)},
        base=Sizes(n=4_096, d=16),
    ),
    solver_case(
        "private_ac_sa",
        private_ac_sa,
        lambda s: {"num_steps": s.steps, "batch_size": s.n, "chunk_size": 256},
        {"n": USERS},
    ),
    solver_case(
        "multipass_sgd, outliers removed",
        multipass_sgd,
        lambda s: {"num_steps": s.steps, "radius": 0.05},
        {"n": USERS, "d": DIMS, "steps": (4, 16, 64), "seeds": SEEDS},
        # All pairs of users.
        _SQUARE,
        budget=PLENTY,
        base=Sizes(steps=4),
    ),
    solver_case(
        "winsorized_erm",
        winsorized_erm,
        lambda s: {"num_steps": s.steps, "radius": 0.1, "form": "winsorized"},
        {"n": USERS, "d": (8, 16, 32), "seeds": SEEDS},
        budget=PLENTY,
        base=Sizes(d=8, steps=4),
    ),
    solver_case(
        "phased_sgd, outliers removed",
        phased_sgd,
        lambda s: {"radius": 0.05},
        {"n": USERS},
        # The steps of a group grow with n, phases with its logarithm.
        {("n", "run"): 1.6, ("n", "compile"): 0.6},
        budget=PLENTY,
    ),
    solver_case(
        "phased_erm",
        phased_erm,
        lambda s: {},
        {"n": (2_048, 8_192, 32_768)},
        # Steps and phases grow with n.
        {("n", "run"): 2.3, ("n", "compile"): 0.6},
        budget=PLENTY,
        base=Sizes(d=8),
    ),
    solver_case(
        "accelerated_phased_erm, clipped",
        accelerated_phased_erm,
        lambda s: {"mean": means.Clipped},
        {"n": (2_048, 16_384, 131_072)},
        # Steps grow with a root of n, phases with its logarithm.
        {("n", "run"): 1.8, ("n", "compile"): 0.6, ("n", "plan"): 0.5},
        base=Sizes(d=8),
    ),
    solver_case(
        "whitened_sgd",
        whitened_sgd,
        lambda s: {"num_steps": s.steps},
        {"n": USERS, "d": (16, 32, 64)},
        # Matrices of second moments, and their eigenvectors.
        {("d", "run"): 3.0, ("d", "memory"): 2.1},
    ),
    solver_case(
        "element-level sgd",
        element_sgd,
        lambda s: {"num_steps": s.steps, "elements_per_user": s.m, "batch_size": s.n // 8},
        {"n": USERS},
        base=Sizes(steps=4),
    ),
    solver_case(
        "finite_class",
        finite_class,
        lambda s: {"num_candidates": 16, "loss_range": (0.0, 4.0), "stopping_probability": 0.02},
        {"n": USERS},
    ),
    solver_case(
        "resque_erm",
        resque_erm,
        lambda s: {"ball_radius": 0.1, "num_queries": s.steps},
        {"n": USERS, "steps": (256, 1_024, 4_096)},
        # Compiled by phases, of which there are log T; the pool of queries is kept.
        {("steps", "compile"): 0.6, ("steps", "memory"): 1.1, ("steps", "plan"): 0.6},
        loss=ABSOLUTE,
        base=Sizes(n=16_384, m=1, steps=256),
    ),
    solver_case(
        "ball_accelerated_erm",
        ball_accelerated_erm,
        lambda s: {"smoothing_radius": 0.05},
        {"n": (2_000, 4_000, 8_000)},
        {("n", "run"): 1.8, ("n", "compile"): 0.6, ("n", "plan"): 0.6},
        loss=ABSOLUTE,
        base=Sizes(m=1, d=16),
    ),
    solver_case(
        "regularized (proximal sampler)",
        regularized,
        lambda s: {},
        {"n": (256, 1_024, 4_096)},
        # Steps of the chain grow with n.
        {("n", "run"): 2.3, ("n", "plan"): 0.6},
        loss=WHOLE,
        base=Sizes(m=1, d=8),
        float64=True,
    ),
    solver_case(
        "auto",
        auto,
        lambda s: {},
        {"n": (10_000, 100_000, 1_000_000), "d": (16, 64, 256)},
        {("n", "plan"): 0.5},
        base=Sizes(n=10_000, d=16),
        run=False,
    ),
    Case(
        "a draw, Poisson",
        lambda s: None,
        _drawn(lambda key, s: sampling.poisson(key, s.n, 256 / s.n)),
        {"n": (16_384, 131_072, 1_048_576), "seeds": SEEDS},
        # Neither draw knows a user who is not in it.
        {("n", "run"): 0.3, ("n", "memory"): 0.1},
        base=Sizes(n=131_072),
        plans=False,
    ),
    Case(
        "a draw, fixed size",
        lambda s: None,
        _drawn(lambda key, s: sampling.without_replacement(key, s.n, 256)),
        {"n": (16_384, 131_072, 1_048_576), "seeds": SEEDS},
        {("n", "run"): 0.3, ("n", "memory"): 0.1},
        base=Sizes(n=131_072),
        plans=False,
    ),
    Case(
        "outliers removed, one mean",
        lambda s: None,
        _mean_program(_outliers_removed),
        {"n": USERS, "d": (64, 128, 256), "seeds": SEEDS},
        _SQUARE,
        base=Sizes(d=64),
        plans=False,
    ),
    Case(
        "winsorized mean",
        _winsorized_releases,
        _mean_program(_winsorized),
        {"n": USERS, "d": (8, 16, 32), "seeds": SEEDS},
        base=Sizes(n=4_096, d=8),
    ),
)
SMALL = (
    solver_case(
        "sgd, all users",
        sgd,
        lambda s: {"num_steps": s.steps, "sampling": "full", "accountant": "rdp"},
        {"n": (32, 64)},
        base=Sizes(m=1, d=4, steps=2),
    ),
)
