"""Constants of losses that are not convex: never exceeded by an attacker, and attained where they say so."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import _proofs, losses, nonconvex_losses
from dpsco_jax.problems.nonconvex_losses import Network, Ratings
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import finite_class, output_perturbation, sgd
from tests.support.climbed import climb

DIM, THINGS, RANK, UNITS = 2, 3, 2, 2
LINEAR = {
    "welsch": nonconvex_losses.welsch(2.0, scale=0.7),
    "cauchy": nonconvex_losses.cauchy(2.0, 3.0, scale=0.7, domain=domains.ball(1.5)),
    "tukey": nonconvex_losses.tukey(2.0, scale=0.7),
    "phase_retrieval": nonconvex_losses.phase_retrieval(2.0, 1.5, 0.9, domain=domains.ball(1.4)),
    "phase_retrieval, large labels": nonconvex_losses.phase_retrieval(1.0, 2.9, 1.0),
    "logistic": losses.logistic(2.0, domain=domains.ball(1.5)),
    "squared": losses.squared(2.0, label_bound=3.0, radius=1.0),
}
OBJECTIVES = LINEAR | {
    "low_rank_completion": nonconvex_losses.low_rank_completion(1.3, 0.6),
    "tanh_network": nonconvex_losses.tanh_network(1.2, UNITS, 1.5),
    "squared_distance": losses.squared_distance(2.0, 1.5),
}
# What share of a constant is attained at least; all others are attained.
LOOSE = {
    ("tanh_network", "lipschitz"): 0.4,
    ("tanh_network", "smoothness"): 0.3,
    ("tanh_network", "least curvature"): 0.4,
    ("tanh_network", "hessian_lipschitz"): 0.1,
    ("tanh_network", "loss_range"): 0.45,
    ("low_rank_completion", "hessian_lipschitz"): 0.45,
    # On the whole space, and where the search does not end at the other maximum.
    ("logistic", "lipschitz"): 0.95,
    ("phase_retrieval, large labels", "smoothness"): 0.96,
}
SIZES = {"low_rank_completion": THINGS * RANK, "tanh_network": (DIM + 1) * UNITS}


def size_of(name):
    return SIZES.get(name, DIM)


def params_of(name, flat):
    flat = OBJECTIVES[name].domain.project(flat)
    if name == "low_rank_completion":
        return flat.reshape(THINGS, RANK)
    if name == "tanh_network":
        return Network(flat[UNITS:].reshape(DIM, UNITS), flat[:UNITS])
    return flat


def item_of(name, numbers):
    """An item of ``THINGS`` numbers: anything that an attacker may hand in."""
    if name == "low_rank_completion":
        return Ratings(numbers, numbers != 0.0)
    return numbers[:DIM] if name == "squared_distance" else Example(numbers[:DIM], numbers[DIM])


def along(name, numbers):
    """The loss as a function of the step along a unit vector, from a point: all from a flat vector."""
    size = size_of(name)
    item = item_of(name, numbers[2 * size :])
    start = OBJECTIVES[name].domain.project(numbers[:size])
    vector = numbers[size : 2 * size]
    unit = vector / jnp.maximum(jnp.linalg.norm(vector), 1e-30)
    inside = OBJECTIVES[name]._replace(domain=domains.whole_space())

    def value(step):
        flat = start + step * unit
        if name == "low_rank_completion":
            return inside.loss(flat.reshape(THINGS, RANK), item)
        if name == "tanh_network":
            return inside.loss(Network(flat[UNITS:].reshape(DIM, UNITS), flat[:UNITS]), item)
        return inside.loss(flat, item)

    return value


def derivative(order, sign):
    def scored(name, numbers):
        function = along(name, numbers)
        for _ in range(order):
            function = jax.grad(function)
        found = function(0.0)
        return jnp.abs(found) if sign is None else sign * found

    return scored


def drop(name, numbers):
    """How far apart the loss of an item is at two points of the domain."""
    size = size_of(name)
    item = item_of(name, numbers[2 * size :])
    first, second = (params_of(name, numbers[i * size : (i + 1) * size]) for i in (0, 1))
    return OBJECTIVES[name].loss(first, item) - OBJECTIVES[name].loss(second, item)


CLAIMS = {
    "lipschitz": (derivative(1, None), lambda o: o.lipschitz),
    "smoothness": (derivative(2, None), lambda o: o.smoothness),
    "least curvature": (derivative(2, -1.0), lambda o: -o.loss_strong_convexity),
    "hessian_lipschitz": (derivative(3, None), lambda o: o.hessian_lipschitz),
    "loss_range": (drop, lambda o: o.loss_range),
}
CASES = [
    (name, claim)
    for name, objective in OBJECTIVES.items()
    for claim, (_, constant) in CLAIMS.items()
    if constant(objective) is not None and (claim != "least curvature" or constant(objective) > 0)
]


@pytest.mark.parametrize(("name", "claim"), CASES)
def test_constants_are_never_exceeded_and_attained(name, claim):
    score, constant = CLAIMS[claim]
    known = constant(OBJECTIVES[name])
    with jax.enable_x64(True):
        scores = jax.jit(jax.vmap(functools.partial(score, name)))
        worst = climb(scores, 2 * size_of(name) + THINGS, seed=3, dtype=np.float64)
    least = LOOSE.get((name, claim), 0.98)
    assert least * known <= worst <= known * (1 + 1e-9) + 1e-9


def test_what_is_not_bounded_says_so():
    whole = nonconvex_losses.cauchy(1.0, 1.0), nonconvex_losses.phase_retrieval(1.0, 1.0, 1.0)
    assert [objective.loss_range for objective in whole] == [None, None]
    assert losses.logistic(1.0).loss_range is None
    assert losses.huber(1.0).hessian_lipschitz is None


@pytest.mark.parametrize("name", [n for n in LINEAR if n not in ("logistic", "squared")])
def test_closed_form_gradient_is_the_gradient(name):
    model = LINEAR[name].linear_model
    margins = jnp.linspace(-4.0, 4.0, 41) + 0.013
    for label in (0.0, 1.0, 0.3, -7.0, jnp.inf):
        slopes = jax.jit(jax.vmap(jax.grad(model.link), (0, None)))(margins, label)
        closed = model.derivative(margins, label)
        np.testing.assert_allclose(closed, slopes, rtol=1e-5, atol=2e-6)
        assert bool(jnp.any(closed != 0)) != bool(jnp.isinf(label)) or label == -7.0


def test_values_by_hand():
    x, params = jnp.asarray([1.0, 0.0]), jnp.asarray([0.5, 9.0])
    at = {n: LINEAR[n].loss(params, Example(x, jnp.float32(0.2))) for n in LINEAR}
    t = 0.3 / 0.7
    np.testing.assert_allclose(at["welsch"], 0.49 * (1 - math.exp(-(t**2) / 2)), rtol=1e-5)
    np.testing.assert_allclose(at["cauchy"], 0.245 * math.log1p(t**2), rtol=1e-5)
    np.testing.assert_allclose(at["tukey"], 0.49 / 6 * (1 - (1 - t**2) ** 3), rtol=1e-5)
    np.testing.assert_allclose(at["phase_retrieval"], 0.25 * 0.05**2, rtol=1e-4)


def test_near_the_label_robust_losses_are_half_the_square():
    for name in ("welsch", "cauchy", "tukey"):
        link = LINEAR[name].linear_model.link
        np.testing.assert_allclose(link(jnp.float32(1e-3), jnp.float32(0.0)), 5e-7, rtol=1e-5)


def test_a_quartic_is_continued_with_curvature_that_falls_to_zero():
    # By numerical integration of the second derivative from S on, S = 1.8.
    link = LINEAR["phase_retrieval"].linear_model.link
    edge, label = 1.8, 0.4
    grid = np.linspace(edge, 6.0, 200001)
    second = np.maximum(3 * edge**2 - label - 6 * edge * (grid - edge), 0.0)
    step = grid[1] - grid[0]
    first = edge * (edge**2 - label) + step * (np.cumsum(second) - 0.5 * (second + second[0]))
    value = 0.25 * (edge**2 - label) ** 2 + step * (np.cumsum(first) - 0.5 * (first + first[0]))
    for place in (0, 20000, 100000, 200000):
        found = link(jnp.float32(-grid[place]), jnp.float32(label))
        np.testing.assert_allclose(found, value[place], rtol=2e-5)


def test_completion_is_the_least_loss_over_the_users_factor():
    rng = np.random.default_rng(0)
    objective = OBJECTIVES["low_rank_completion"]
    matrix, values = rng.normal(size=(THINGS, RANK)), np.array([0.5, -0.4, 9.9])
    observed = np.array([True, True, False])
    rows, ratings = matrix * observed[:, None], values * observed
    kernel = np.eye(THINGS) + rows @ rows.T / 0.6
    expected = 0.5 * ratings @ np.linalg.solve(kernel, ratings)
    item = Ratings(jnp.asarray(values, jnp.float32), jnp.asarray(observed))
    found = objective.loss(jnp.asarray(matrix, jnp.float32), item)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    # What was not observed may be anything.
    hidden = item._replace(values=item.values.at[2].set(jnp.nan))
    gradient = jax.grad(objective.loss)(jnp.asarray(matrix, jnp.float32), hidden)
    assert bool(jnp.all(jnp.isfinite(gradient)))
    np.testing.assert_array_equal(gradient[2], 0.0)
    # What was observed and is no number takes the whole user away.
    gone = item._replace(values=item.values.at[0].set(jnp.inf))
    assert float(objective.loss(jnp.asarray(matrix, jnp.float32), gone)) == 0.0


def test_nothing_takes_them_for_convex():
    for name, objective in OBJECTIVES.items():
        if name in ("logistic", "squared", "squared_distance"):
            continue
        assert not objective.globally_convex_lipschitz
        assert objective.loss_strong_convexity < 0
        with pytest.raises(ValueError, match="convex and Lipschitz by construction"):
            _proofs.require_proven(objective)
        with pytest.raises(ValueError, match=r"problems\.losses"):
            output_perturbation.plan(
                Problem(objective, num_users=100, dim=2, distance=1.0), Budget(1.0, 1e-5)
            )


def test_no_bound_on_the_risk_is_stated_that_is_proven_for_convex_losses_only():
    bounded = [
        sgd.plan(
            Problem(make(2.0, domain=domains.ball(1.0)), num_users=100, dim=2),
            Budget(1.0, 1e-5),
            num_steps=4,
            sampling="full",
        ).excess_bound
        for make in (losses.logistic, nonconvex_losses.welsch)
    ]
    assert bounded[0] < math.inf
    assert bounded[1] == math.inf
    # The choice from a finite class needs no convexity.
    problem = Problem(nonconvex_losses.welsch(2.0), num_users=100, dim=2)
    kept = finite_class.plan(problem, Budget(1.0), num_candidates=3, loss_range=(0.0, 1.0))
    assert kept.excess_bound <= 1.0


def test_a_user_of_a_network_or_of_ratings_is_data_as_any_other():
    network = OBJECTIVES["tanh_network"]
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 2, DIM)).astype(np.float32)
    items = Example(rows, (rows[..., 0] > 0).astype(np.float32))
    start = Network(0.1 * jnp.ones((DIM, UNITS)), 0.1 * jnp.ones(UNITS))
    ratings = Ratings(
        rng.normal(size=(20, 1, THINGS)).astype(np.float32), np.ones((20, 1, THINGS), bool)
    )
    cases = (
        (network, UserData(items), start, 2),
        (OBJECTIVES["low_rank_completion"], UserData(ratings), 0.1 * jnp.ones((THINGS, RANK)), 1),
    )
    for objective, data, params, slots in cases:
        end = _descent(objective, data, params, slots)
        per_item = jax.vmap(jax.vmap(objective.loss, (None, 0)), (None, 0))
        assert float(jnp.mean(per_item(end, data.items))) < float(
            jnp.mean(per_item(params, data.items))
        )


def _descent(objective, data, params, slots):
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    problem = Problem(objective, num_users=20, dim=size, items_per_user=slots, distance=1.0)
    plan = sgd.plan(problem, Budget(1e6, 1e-5), num_steps=20, sampling="full", step_size=0.5)
    return jax.jit(lambda key: sgd.solve(key, plan, objective, data, params))(
        jax.random.key(0)
    ).params


def test_lipschitz_constants_are_proven_and_no_smaller_one_is_claimed():
    for objective in OBJECTIVES.values():
        assert _proofs.require_lipschitz(objective) == objective.lipschitz
        wider = objective._replace(lipschitz=2.0 * objective.lipschitz, ridge=1.0)
        assert _proofs.require_lipschitz(wider) == 2.0 * objective.lipschitz
        for wrong in (
            objective._replace(lipschitz=0.9 * objective.lipschitz),
            objective._replace(lipschitz=math.nan),
            objective._replace(lipschitz=math.inf),
            *(
                []
                if objective.globally_convex_lipschitz
                else [objective._replace(domain=domains.ball(0.3))]
            ),
            objective._replace(loss=lambda *given, objective=objective: objective.loss(*given)),
        ):
            with pytest.raises(ValueError, match="objective"):
                _proofs.require_lipschitz(wrong)
    # What is convex on the whole space may be used on any part of it.
    convex = losses.logistic(1.0)._replace(domain=domains.ball(0.3))
    assert _proofs.require_lipschitz(convex) == 1.0
