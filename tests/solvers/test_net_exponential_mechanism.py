"""The exponential mechanism on a net: its law, its ε on worst pairs, its bounds, and what memory allows."""

import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms import selection
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.nonconvex import net_exponential_mechanism
from dpsco_jax.solvers.sampling import _cells, exponential_mechanism

pytestmark = pytest.mark.usefixtures("float64")

USERS, RADIUS = 5, 1.5
BALL = domains.ball(RADIUS)
BOX = domains.box(np.array([-1.0, 0.0, 0.5]), np.array([1.0, 1.0, 2.5]))
DOMAINS = (BALL, BOX)
MIDDLE = (np.zeros(3), np.array([0.0, 0.5, 1.5]))


def capped(params, item):
    """sign·min(‖x - place‖, 1.2), an item (place, sign): neither convex nor smooth, and 1-Lipschitz."""
    return item[1] * jnp.minimum(jnp.linalg.norm(params - item[0]), 1.2)


def linear(params, item):
    """⟨place, x⟩: along a diameter the worst pair there is."""
    return item[1] * jnp.vdot(params, item[0])


def distances(domain):
    return Objective(loss=capped, lipschitz=1.0, smoothness=None, domain=domain)


def rays(domain):
    return Objective(loss=linear, lipschitz=1.0, smoothness=None, domain=domain)


def users(places, signs):
    places = jnp.asarray(places, jnp.float64)[:, None]
    return UserData((places, jnp.asarray(signs, jnp.float64)[:, None]))


def some(seed=0, number=USERS, dim=3):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((number, dim)), rng.choice([-1.0, 1.0], number)


def planned(objective, dim=3, epsilon=1.0, number=USERS, **given):
    problem = Problem(objective, num_users=number, dim=dim)
    return net_exponential_mechanism.plan(problem, Budget(epsilon), **given)


@functools.cache
def _program(loss, domain):
    """A run that leaves its log-weights where the draw would be."""
    seen, objective = [], {capped: distances, linear: rays}[loss](DOMAINS[domain])

    def keep(key, scores, epsilon, sensitivity, monotone=False):
        numbers = jnp.append(scores, jnp.stack([epsilon, sensitivity]))
        # As bits: a callback of a compiled program gets no float64.
        bits = jax.lax.bitcast_convert_type(numbers, jnp.uint32)
        jax.debug.callback(lambda x: seen.append(np.array(x).view(np.float64)[:, 0]), bits)
        return jnp.zeros((), jnp.int32)

    @jax.jit
    def run(plan, data):
        with mock.patch.object(selection, "exponential_mechanism", keep):
            start = jnp.zeros(plan.dim)
            return net_exponential_mechanism.solve(jax.random.key(0), plan, objective, data, start)

    return run, seen


def log_pmf(plan, objective, data):
    run, seen = _program(objective.loss, DOMAINS.index(objective.domain))
    seen.clear()
    jax.block_until_ready(run(plan, data))
    jax.effects_barrier()
    logs = seen[0][:-2] * seen[0][-2] / (2 * seen[0][-1])
    return logs - logs.max() - math.log(np.sum(np.exp(logs - logs.max())))


def centers(plan):
    lower, upper = np.asarray(plan.lower), np.asarray(plan.upper)
    marks = (np.arange(plan.cells) + 0.5) / plan.cells
    axes = [low + (high - low) * marks for low, high in zip(lower, upper, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, plan.dim)


def risk(x, places, signs):
    far = np.linalg.norm(x[:, None] - places, axis=2)
    return np.mean(signs * np.minimum(far, 1.2), axis=1)


@pytest.mark.parametrize("domain", [BALL, BOX])
def test_the_law_is_that_of_the_formula_in_three_dimensions(domain):
    places, signs = some()
    plan = planned(distances(domain), epsilon=3.0, cells=5)
    x = centers(plan)
    inside = np.linalg.norm(x, axis=1) <= RADIUS if domain is BALL else np.ones(len(x), bool)
    far = RADIUS if domain is BALL else np.linalg.norm(x[0] - x[-1]) / 2
    k = 3.0 * USERS / (4 * far)
    weights = np.where(inside, np.exp(-k * risk(x, places, signs)), 0.0)
    found = np.exp(log_pmf(plan, distances(domain), users(places, signs)))
    np.testing.assert_allclose(found, weights / weights.sum(), rtol=1e-7)
    np.testing.assert_array_equal(found > 0, inside)


def largest_ratio(plan, objective, datasets):
    laws = [log_pmf(plan, objective, data) for data in datasets]
    kept = np.isfinite(laws[0])
    return max(float(np.max(np.abs(p[kept] - q[kept]))) for p in laws for q in laws)


def worst_pair(domain):
    """Everybody pulls to one end of a diameter, so that the other end is rare; one user changes sides."""
    way = np.eye(3)[0] if domain is BALL else np.array([2.0, 1.0, 2.0]) / 3
    place = np.tile(way, (2000, 1))
    one, other = -np.ones(2000), -np.ones(2000)
    other[0] = 1.0
    return users(place, one), users(place, other)


@pytest.mark.parametrize("domain", [BALL, BOX])
def test_no_ratio_exceeds_epsilon_and_the_printed_temperature_does(domain):
    epsilon = 0.8
    plan = planned(distances(domain), epsilon=epsilon, cells=6)
    rng = np.random.default_rng(3)
    places, signs = some(1)
    replaced = []
    for place, sign in (
        *((rng.standard_normal(3) * 0.5 + MIDDLE[domain is BOX], s) for s in (-1, 1)),
        (np.full(3, np.nan), 1),
    ):
        other, sides = places.copy(), signs.copy()
        other[0], sides[0] = place, sign
        replaced.append(users(other, sides))
    assert 0.01 < largest_ratio(plan, distances(domain), replaced) <= epsilon + 1e-10

    # The temperature of the theorem, and twice it, as its section has it.
    pair = worst_pair(domain)
    plan = planned(rays(domain), epsilon=epsilon, cells=7, number=2000)
    found = largest_ratio(plan, rays(domain), pair)
    assert 0.8 * epsilon < found <= epsilon + 1e-10
    printed = plan.replace(inverse_temperature=2.0 * plan.inverse_temperature)
    assert largest_ratio(printed, rays(domain), pair) > 1.6 * epsilon
    assert printed.certificate().epsilon > 1.99 * epsilon


def test_users_are_read_in_blocks_to_the_same_bits(monkeypatch):
    places, signs = some(5, 11)
    plan = planned(distances(BALL), number=11, cells=4)
    whole = log_pmf(plan, distances(BALL), users(places, signs))
    monkeypatch.setattr(_cells, "_USERS", 4)
    _program.cache_clear()
    np.testing.assert_array_equal(log_pmf(plan, distances(BALL), users(places, signs)), whole)
    _program.cache_clear()


@pytest.mark.parametrize(("domain", "seed"), [(BALL, 0), (BOX, 1)])
def test_the_mean_risk_of_the_law_is_below_the_bound(domain, seed):
    places, signs = some(seed, 40)
    plan = planned(distances(domain), epsilon=6.0, number=40, most_points=4000)
    x, law = centers(plan), np.exp(log_pmf(plan, distances(domain), users(places, signs)))
    dense = np.random.default_rng(9).uniform(
        np.asarray(plan.lower), np.asarray(plan.upper), (40_000, 3)
    )
    if domain is BALL:
        dense = dense[np.linalg.norm(dense, axis=1) <= RADIUS]
    # A point of the cell, at most half of its diagonal from the centre, is what is drawn.
    half = np.linalg.norm(np.asarray(plan.upper) - np.asarray(plan.lower)) / (2 * plan.cells)
    excess = law @ risk(x, places, signs) + half - risk(dense, places, signs).min()
    assert excess <= plan.excess_bound < 3.0


def test_a_point_of_the_set_is_drawn():
    plan = planned(distances(BALL), epsilon=0.01, cells=4)
    run = jax.jit(
        jax.vmap(
            lambda key: (
                net_exponential_mechanism.solve(
                    key, plan, distances(BALL), users(*some()), jnp.zeros(3)
                ).params
            )
        )
    )
    found = np.asarray(run(jax.random.split(jax.random.key(1), 1000)))
    assert np.max(np.linalg.norm(found, axis=1)) <= RADIUS * (1 + 1e-12)
    # Almost uniform on 32 cells, of which eight have a corner at the origin.
    inner = np.mean(np.max(np.abs(found), axis=1) < RADIUS / 2)
    assert abs(inner - 8 / 32) < 5 * math.sqrt(0.25 * 0.75 / 1000)


def test_the_plan_takes_the_best_net_that_fits():
    objective = distances(BALL)
    plan = planned(objective, dim=2, number=10_000, epsilon=1.0)
    others = [
        planned(objective, dim=2, number=10_000, cells=p).excess_bound for p in range(3, 1025, 7)
    ]
    assert plan.excess_bound <= min(others) * 1.001
    # The theorem's net, h = D·d/(εn), is as good as the best up to its constants.
    h = 2 * RADIUS * 2 / 10_000
    assert planned(objective, dim=2, number=10_000, cells=round(RADIUS * 2**0.5 / h), most_points=2**24
    ).excess_bound < 3.0 * plan.excess_bound  # fmt: skip
    # In one dimension and two it is the draw of ``exponential_mechanism``, at the same temperature.
    other = exponential_mechanism.plan(
        Problem(objective, num_users=10_000, dim=2), Budget(1.0), cells=plan.cells
    )
    one, other = plan.replace(excess_bound=0.0), other.replace(excess_bound=0.0)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
    # The rate: d·log(p)/(εn) falls as 1/n, and the population's as 1/√n at least.
    bounds = [planned(objective, dim=1, number=n).excess_bound for n in (10**4, 10**5)]
    assert 7.0 < bounds[0] / bounds[1] < 10.0
    wider = [
        planned(objective, dim=1, number=n, risk="population").excess_bound for n in (10**4, 10**6)
    ]
    assert 8.0 < wider[0] / wider[1] < 10.5
    # Where ε is small a law that knows little of its data cannot overfit them.
    tiny = planned(objective, dim=1, number=10**4, epsilon=1e-3, risk="population", cells=9)
    plain = planned(objective, dim=1, number=10**4, epsilon=1e-3, cells=9)
    assert tiny.excess_bound - plain.excess_bound == pytest.approx(2 * RADIUS * 2.5e-4, rel=1e-3)


def test_what_memory_does_not_allow_is_refused_with_the_number():
    with pytest.raises(Infeasible, match=r"at least 8000000 .* 305\.2 MiB, got 1048576") as refused:
        planned(distances(BALL), cells=200)
    assert refused.value.needed == {"most_points": 8_000_000}
    with pytest.raises(Infeasible, match=r"at least 10{24} for 10 cells"):
        planned(distances(domains.ball(1.0)), dim=24, most_points=2**24, epsilon=1.0)
    with pytest.raises(ValueError, match="cells"):
        planned(distances(BALL), cells=3)
    with pytest.raises(ValueError, match="most_points"):
        planned(distances(BALL), most_points=2**25)
    with pytest.raises(ValueError, match="ridge"):
        planned(distances(BALL)._replace(ridge=1.0))
