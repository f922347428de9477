"""How long plans take for a million users: every public solver, for a smooth loss and for one with a kink.

What it computes: processor seconds of one ``plan``, each in a new process that has imported the package and
made nothing yet, so that no table or cache of another plan helps. A plan that is refused counts until it is
refused, and its note says why.

Source: none.

Formal guarantee: none; a plan never sees data.

Cost: processor seconds of all plans together, about a minute and a half.

Example:
    python -m experiments.benchmarks plan_times
"""

import concurrent.futures
import multiprocessing
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from experiments.benchmarks.timing import Row

USERS, ITEMS, DIM, DISTANCE = 1_000_000, 4, 100, 5.0
BUDGET = Budget(1.0, 1e-6)
MOST_SECONDS = 2.0
LOSSES = ("logistic", "hinge")


class Case(NamedTuple):
    """A solver with settings.

    Attributes:
        solver: module below ``dpsco_jax.solvers``.
        settings: arguments of its ``plan``.
        ridge: of the loss, for solvers that want strong convexity.
        domain: the ball of the radius ``DISTANCE``, or the ``"whole"`` space.
        items: items of a user, each value a row.
        dim: number of parameters.
        float64: whether the solver asks for ``jax_enable_x64``.
        inner: module whose plan a combinator is given.
    """

    solver: str
    settings: Mapping[str, Any] = MappingProxyType({})
    ridge: float = 0.0
    domain: str = "ball"
    items: tuple[int, ...] = (1, ITEMS)
    dim: int = DIM
    float64: bool = False
    inner: str | None = None

    @property
    def name(self) -> str:
        """Of the solver, with what was set."""
        shown = [f"{name}={value}" for name, value in self.settings.items()]
        return ", ".join([self.solver.split(".")[-1], *shown])


_SAMPLED = {"num_steps": 1000, "batch_size": 1000}
_FEDERATED = _SAMPLED | {"elements_per_user": 4, "local_step_size": 0.1, "step_size": 0.1}
_RANGE = {"loss_range": (0.0, 6.0)}
_WHOLE: dict[str, Any] = {"domain": "whole"}
_POOL = {"ball_radius": 0.1}

CASES = (
    Case("user_level.auto", items=(1, ITEMS, 10_000)),
    Case("user_level.auto", {"rank_by": "bound"}),
    Case("user_level.sgd", _SAMPLED),
    Case("user_level.sgd", _SAMPLED | {"sampling": "fixed"}),
    Case("user_level.momentum_sgd", _SAMPLED),
    Case("user_level.preconditioned_sgd", {"num_steps": 200}),
    Case("user_level.whitened_sgd", {"num_steps": 200}),
    Case("user_level.accelerated_sgd"),
    Case("user_level.accelerated_sgd", {"mean": None}),
    Case("user_level.accelerated_phased_erm"),
    Case("user_level.accelerated_phased_erm", {"mean": None}),
    Case("user_level.accelerated_strongly_convex", {"mean": None}, ridge=0.01),
    Case("user_level.localized_sgd", ridge=0.01),
    Case("user_level.multipass_sgd"),
    Case("user_level.phased_sgd"),
    Case("user_level.phased_erm"),
    Case("user_level.winsorized_erm"),
    Case("user_level.output_perturbation"),
    Case("user_level.item_group_privacy", {"num_steps": 1000, "batch_size": 1000}),
    Case("user_level.finite_class", _RANGE | {"num_candidates": 1000}),
    Case("user_level.metric_entropy", _RANGE | {"lower": -1.0, "upper": 1.0}, dim=3),
    Case("item_level.private_ac_sa"),
    Case("item_level.staged_ac_sa", {"num_steps": 100}),
    Case("item_level.erm"),
    Case("item_level.erm", {"method": "restarts"}, ridge=0.01),
    Case("item_level.sco"),
    Case("item_level.sco", ridge=0.01),
    Case("item_level.regularized_sgd", **_WHOLE),
    Case("item_level.langevin", ridge=0.01),
    Case("resque.resque_erm", _POOL),
    Case("resque.resque_erm_high_probability", _POOL),
    Case("resque.resque_prox", _POOL),
    Case("resque.ball_accelerated_erm"),
    Case("resque.ball_accelerated_regularized_erm"),
    Case("resque.ball_accelerated_sco"),
    Case("element_level.sgd", _SAMPLED | {"elements_per_user": 4}),
    Case("element_level.federated", _FEDERATED),
    Case("sampling.exponential_mechanism", dim=2, float64=True),
    Case("sampling.exponential_mechanism", {"route": "chain"}, items=(1,), float64=True),
    Case("sampling.regularized", float64=True, **_WHOLE),
    Case("sampling.value_queries", float64=True, **_WHOLE),
    Case("sampling.zeroth_order", dim=4, float64=True, **_WHOLE),
    Case("combinators.localization", ridge=0.0, inner="item_level.private_ac_sa"),
    Case("combinators.restarts", ridge=0.01, inner="item_level.private_ac_sa"),
    Case("convex.ac_sa", {"num_steps": 100}),
)  # fmt: skip


def seconds_to_plan(case: Case, loss: str, items: int) -> tuple[float, str]:
    """Processor seconds of one plan in this process, and the refusal, if it was refused."""
    solver = import_module(f"dpsco_jax.solvers.{case.solver}")
    domain = domains.ball(DISTANCE) if case.domain == "ball" else domains.whole_space()
    objective = getattr(losses, loss)(1.0, domain, case.ridge)
    problem = Problem(
        objective, num_users=USERS, dim=case.dim, items_per_user=items, distance=DISTANCE
    )
    if case.solver == "convex.ac_sa":
        given: tuple[Any, ...] = (problem,)
    else:
        given = (problem, BUDGET)
    if case.inner is not None:
        given = (import_module(f"dpsco_jax.solvers.{case.inner}").plan, *given)
    jax.devices()
    with jax.enable_x64(case.float64):
        start = time.process_time()
        try:
            solver.plan(*given, **case.settings)
            refused = ""
        except ValueError as error:
            refused = f"refused: {error}"
        return time.process_time() - start, refused


def _of_case(index: int, loss: str, items: int) -> tuple[float, str]:
    """A case by its place: settings that cannot be written to are not sent to other processes."""
    return seconds_to_plan(CASES[index], loss, items)


def rows() -> Iterator[Row]:
    """One row for every case, loss and number of items."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "experiments.benchmarks.plan_times",
            *{f"dpsco_jax.solvers.{case.solver}" for case in CASES},
        ]
    )
    for index, case in enumerate(CASES):
        for loss in LOSSES:
            for items in case.items:
                with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
                    seconds, refused = pool.submit(_of_case, index, loss, items).result()
                work = f"{case.name}, {loss}, {items} items"
                yield Row(work, "plan", seconds, "the most", MOST_SECONDS, 1.0, refused)
