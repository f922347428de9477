"""Solvers whose losses are networks: ghost sums and chunks of gradients make the same run, at the same cost.

With one key for both, samples and noise are the same, so that the points differ by the rounding of sums.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.oracles import clipped_sums, ghost
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.element_level import sgd as element_sgd
from dpsco_jax.solvers.user_level import output_perturbation, sgd
from tests.solvers.private_table import ROWS

OF_SUMS = (
    "sgd, fixed",
    "momentum_sgd, full",
    "staged_ac_sa, full",
    "item_group_privacy, full",
    "multipass_sgd, clipped",
    "localized_sgd",
)
FURTHER = (
    "sgd, poisson",
    "item_group_privacy, sampled",
    "regularized_sgd, single",
    "erm, restarts",
    "sco, localization",
    "accelerated_sgd, clipped",
    "accelerated_phased_erm",
    "accelerated_strongly_convex",
    "auto",
)
CASES = [*OF_SUMS, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)]


def _bent(params, item):
    """Of one layer; its gradients are longer and shorter than the clip norms."""
    return 2.0 * jnp.log1p(jnp.exp(-0.2 * item.label * jnp.tanh(item.features @ params)))


@pytest.fixture
def ghosts(monkeypatch):
    """How often a ghost oracle was made."""
    made, real = [], ghost.clipped_gradient_sum

    def counted(*arguments):
        made.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(clipped_sums.ghost, "clipped_gradient_sum", counted)
    return made


def _same_run(solve, ghosts, first="ghost"):
    """The two solutions, which are the same but for rounding, and clip norms of 0.8 % less room for it."""
    found = {}
    for way in (first, "chunks"):
        before = len(ghosts)
        found[way] = jax.jit(lambda way=way: solve(way))()
        assert (len(ghosts) > before) == (way != "chunks")
    a, b = found.values()
    for x, y in zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-3)
    np.testing.assert_array_equal(a.privacy.rdp, b.privacy.rdp)
    np.testing.assert_array_equal(a.privacy.delta, b.privacy.delta)
    assert int(a.gradients) == int(b.gradients)
    assert int(a.unprivate["gradients"]) == int(b.unprivate["gradients"])
    return a, b


@pytest.mark.parametrize("name", CASES)
def test_every_solver_that_sums_clipped_gradients_can_take_ghosts(name, ghosts):
    row = next(row for row in ROWS if row.name == name)
    objective, plan, data = row.objective._replace(loss=_bent, linear_model=None), row.plan(), None
    data = row.data()

    def solve(way):
        asked = objective._replace(clipped_sums=way)
        return row.solver.solve(jax.random.key(3), plan, asked, data, row.start)

    a, _ = _same_run(solve, ghosts)
    assert float(jnp.max(jnp.abs(a.params))) > 0.01


RNG = np.random.default_rng(1)
USERS, SLOTS, DIM = 20, 3, 6


def _layers(params, item):
    hidden = jnp.tanh(item.features @ params["hidden"] + params["bias"])
    return jnp.square(hidden @ params["out"] - item.label)


NETWORK = Objective(_layers, np.inf, None, domains.whole_space())
START = {
    "hidden": jnp.asarray(0.4 * RNG.standard_normal((DIM, 5)), jnp.float32),
    "bias": jnp.zeros(5),
    "out": jnp.asarray(0.4 * RNG.standard_normal(5), jnp.float32),
}
DATA = UserData(
    Example(
        jnp.asarray(RNG.standard_normal((USERS, SLOTS, DIM)), jnp.float32),
        jnp.asarray(RNG.standard_normal((USERS, SLOTS)), jnp.float32),
    ),
    jnp.asarray(RNG.random((USERS, SLOTS)) < 0.7).at[0].set(False),
)
PROBLEM = Problem(NETWORK, num_users=USERS, items_per_user=SLOTS, dim=40)
SETTINGS = {"num_steps": 4, "batch_size": 8, "clip_norm": 0.5, "step_size": 0.5}


def test_a_network_of_users_with_masked_items(ghosts):
    # Little noise, which would hide what the gradients do.
    plan = sgd.plan(PROBLEM, Budget(50.0, 1e-3), averaging="last", chunk_size=3, **SETTINGS)

    def solve(way):
        asked = NETWORK._replace(clipped_sums=way)
        return sgd.solve(jax.random.key(0), plan, asked, DATA, START)

    a, _ = _same_run(solve, ghosts)
    assert jax.tree.structure(a.params) == jax.tree.structure(START)
    assert float(privacy.epsilon(a.privacy, 1e-3)) <= 1.25 * 50.0
    moved = jax.tree.map(lambda x, y: float(jnp.max(jnp.abs(x - y))), a.params, START)
    assert min(jax.tree.leaves(moved)) > 0.01


@pytest.mark.slow
def test_units_of_users_too(ghosts):
    plan = element_sgd.plan(
        PROBLEM, Budget(50.0, 1e-3), elements_per_user=1, num_steps=2, batch_size=8, clip_norm=0.5,
        step_size=0.5, sampling="element",
    )  # fmt: skip

    def solve(way):
        asked = NETWORK._replace(clipped_sums=way)
        return element_sgd.solve(jax.random.key(0), plan, asked, DATA, START)

    _same_run(solve, ghosts)


def test_a_linear_model_may_be_asked_for_them(ghosts):
    row = next(row for row in ROWS if row.name == "sgd, fixed")
    plan, data = row.plan(), row.data()

    def solve(way):
        asked = row.objective._replace(clipped_sums=way)
        return row.solver.solve(jax.random.key(3), plan, asked, data, row.start)

    _same_run(solve, ghosts, "ghost")


def test_proofs_about_gradients_refuse_them():
    objective = losses.logistic(1.0, domain=domains.ball(1.0), ridge=0.1)
    problem = Problem(objective, num_users=USERS, items_per_user=SLOTS, dim=DIM)
    plan = output_perturbation.plan(problem, Budget(1.0, 1e-3))
    asked = objective._replace(clipped_sums="ghost")
    with pytest.raises(ValueError, match="gradients must stay unaltered"):
        output_perturbation.solve(jax.random.key(0), plan, asked, DATA, jnp.zeros(DIM))
