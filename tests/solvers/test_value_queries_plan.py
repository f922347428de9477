"""The plan by value queries: known plans, what edits cost, printed constants, norms, rounding of links."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpsco_jax import Budget, Infeasible, Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.rates import norms, sampling
from dpsco_jax.solvers.sampling import _rejection_certificate as certificate
from dpsco_jax.solvers.sampling import _user_losses, value_queries
from dpsco_jax.solvers.sampling._value_queries_plan import setting_of
from tests.support.edited_plans import gaussian_curve

pytestmark = pytest.mark.usefixtures("float64")

HINGE = losses.hinge(1.0)
UNIT = 2.0**-53


def problem(objective=HINGE, num_users=3, dim=2, distance=1.0, **sizes):
    return Problem(objective, num_users=num_users, dim=dim, distance=distance, **sizes)


@functools.cache
def small(**settings):
    return value_queries.plan(problem(), Budget(1.0, 1e-2), **settings)


def spent(plan, epsilon, change=2.0):
    """δ at an ε from the numbers of a plan on the whole space, by the formulas of the proofs."""
    k, mu, eta = (float(x) for x in (plan.inverse_temperature, plan.regularization, plan.step_size))
    s = change / plan.num_users * math.sqrt(k / mu)
    far = 1.0 / mu + math.sqrt(plan.dim / (k * mu))
    mixing = far / (2 * math.sqrt(eta)) * (1 + eta * k * mu) ** -(float(plan.num_steps) - 1)
    assert float(plan.chain.mixing) == pytest.approx(mixing, rel=1e-4)
    return gaussian_curve(s, epsilon) + (1 + math.exp(epsilon)) * float(plan.chain.variation)


SHEET = [  # mode, n, d, ε, δ; s, k, μ, T, bound, as printed in section 6 of the sheet
    ({}, 100, 2, 1e-4, 0.311, 31.1, 0.129, 1.7e6, 0.128),
    ({}, 100, 10, 1e-4, 0.311, 69.6, 0.287, 1.7e6, 0.287),
    ({}, 300, 10, 1e-5, 0.266, 179.0, 0.112, 1.6e7, 0.112),
    ({"risk": "population", "thrifty": True}, 100, 2, 1e-4, 0.2, 28.3, 0.283, 6.6e5, 0.283),
]


@pytest.mark.parametrize("row", SHEET)
def test_plans_of_the_sheet(row):
    mode, n, d, delta, s, k, mu, steps, bound = row
    asked = Problem(losses.hinge(1.0, domains.ball(1.0)), num_users=n, dim=d)
    plan = value_queries.plan(asked, Budget(1.0, delta), **mode)
    found = (plan.gdp, plan.inverse_temperature, plan.regularization, plan.excess_bound)
    np.testing.assert_allclose([float(x) for x in found], [s, k, mu, bound], rtol=6e-3)
    # The sheet's T are of two digits, and the second row's says d = 2; ours has a smaller part for clipping.
    assert plan.num_steps == pytest.approx(steps, rel=0.055)
    assert float(plan.certificate().epsilon) <= 1.0
    assert 2.0 * plan.num_steps < plan.num_trials
    # In the middle of the ball two trials make a step; what is expected counts with its sphere.
    assert 6.8 * plan.num_steps < float(plan.expected_value_queries) < 31 * plan.num_steps


MODES = [
    {},
    {"risk": "population"},
    {"risk": "population", "thrifty": True},
    {"regularization": 0.7},
    {"max_steps": 300},
    {"constant_time": True},
]


@pytest.mark.parametrize("mode", MODES)
def test_plans_spend_at_most_the_budget(mode):
    plan = small(**mode)
    certificate = plan.certificate()
    assert certificate.epsilon <= 1.0
    assert spent(plan, certificate.epsilon) == pytest.approx(1e-2, rel=1e-4)
    assert (
        certificate.epsilon
        <= float(privacy.epsilon(plan.loss(), 1e-2))
        <= 1.3 * certificate.epsilon
    )
    if "max_steps" in mode:
        assert 240 <= plan.num_steps <= 300
        assert float(plan.gdp) < 0.9 * float(small().gdp)
        assert certificate.epsilon < 0.9
    elif "thrifty" not in mode:
        assert certificate.epsilon > 0.98
    assert "value queries, expected" in str(plan)


EDITS = {
    "twice as cold": ({"inverse_temperature": 2.0}, math.inf),
    "half of the regularization": ({"regularization": 0.5}, math.inf),
    "twice the step": ({"step_size": 2.0}, math.inf),
    "half of the steps": ({"num_steps": 0.5}, math.inf),
    "half of the trials": ({"num_trials": 0.5}, math.inf),
    "no step": ({"num_steps": 0.0}, math.inf),
    "negative": ({"regularization": -1.0}, math.inf),
    "nan": ({"step_size": math.nan}, math.inf),
    "certain escape": ({"escape": 1e9}, math.inf),
    "more trials": ({"num_trials": 2.0}, 1.0),
    "warmer, with more steps": (
        {"inverse_temperature": 0.8, "num_steps": 1.5, "num_trials": 1.5},
        0.95,
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_plans_are_accounted_as_they_are(name):
    factors, most = EDITS[name]
    plan = small()
    changes = {field: getattr(plan, field) * factor for field, factor in factors.items()}
    for field in {"num_steps", "num_trials"} & changes.keys():
        changes[field] = np.ceil(changes[field])
    edited = dataclasses.replace(plan, **changes)
    found = edited.certificate().epsilon
    traced = float(privacy.epsilon(_loss(edited), 1e-2))
    host = float(privacy.epsilon(edited.loss(), 1e-2))
    assert found <= most
    assert (found == math.inf) == (most == math.inf)
    assert traced == pytest.approx(host, rel=2e-3)
    assert found <= host
    if most < math.inf:
        assert spent(edited, found) == pytest.approx(1e-2, rel=1e-4)
    cut = dataclasses.replace(plan, num_terms=3)
    assert cut.certificate().epsilon == math.inf


_loss = jax.jit(lambda plan: plan.loss())


def test_numbers_in_single_precision_claim_nothing_where_there_is_no_other():
    narrow = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), small())
    assert float(privacy.epsilon(_loss(narrow), 1e-2)) < math.inf
    with jax.enable_x64(False):
        assert float(privacy.epsilon(_loss(narrow), 1e-2)) == math.inf


@pytest.mark.parametrize(
    ("asked", "mode", "epsilon"),
    [
        ({}, {}, 0.5),
        ({}, {"risk": "population"}, 0.5),
        ({}, {"regularization": 0.4}, 0.5),
        ({"dim": 8, "objective": losses.hinge(3.0)}, {"norm": 1.0, "row_bound": 1.0}, 0.2),
    ],
)
def test_printed_constants_are_refused_with_their_true_epsilon(asked, mode, epsilon):
    with pytest.raises(ValueError, match=r"constants must be 'tight'.*true epsilon = (.*)") as said:
        value_queries.plan(
            problem(num_users=4, **{"dim": 2} | asked),
            Budget(epsilon, 1e-4),
            constants="paper",
            **mode,
        )
    true = float(str(said.value).rpartition("= ")[2])
    # Twice the s that is claimed: about twice the ε, and τ besides.
    assert 1.45 * epsilon < true


def test_printed_constants_that_happen_to_be_private_are_taken():
    asked = problem(num_users=400, dim=1)
    budget = Budget(0.5, 1e-2, allow_large_delta=True)
    plan = value_queries.plan(asked, budget, constants="paper", risk="population")
    assert plan.certificate().epsilon <= 0.5
    # √(2d/n) of T Theorem 3.6.9, and G_Δ is twice what it takes it for.
    assert float(plan.gdp) == pytest.approx(2 * math.sqrt(2 / 400), rel=1e-6)
    budget = Budget(0.5, 0.6, allow_large_delta=True)
    with pytest.raises(ValueError, match="delta"):
        value_queries.plan(asked, budget, constants="paper", regularization=0.1)


def test_parameters_are_those_of_the_theorems():
    s = float(small().gdp)
    for mode, law in (
        ({}, sampling.erm(s, 3, 2, 2.0, 0.5)),
        ({"risk": "population"}, sampling.sco(s, 3, 2, 1.0, 2.0, 0.5)),
        ({"risk": "population", "thrifty": True}, sampling.thrifty_sco(s, 3, 2, 1.0, 2.0, 0.5)),
    ):
        plan = small(**mode)
        found = (plan.inverse_temperature, plan.regularization, plan.excess_bound, plan.gdp)
        expected = (law.inverse_temperature, law.regularization, law.risk, law.gdp)
        np.testing.assert_allclose([float(x) for x in found], expected, rtol=1e-6)
    tail = small().excess_within(0.05) - float(small().excess_bound)
    k, mu = float(small().inverse_temperature), float(small().regularization)
    assert tail == pytest.approx(math.sqrt(-2 * math.log(0.05) / (k * mu)))
    # A ridge that is enough needs no other, nor a distance; a smaller one is filled up.
    enough = Problem(losses.hinge(1.0, ridge=5.0), num_users=3, dim=2)
    plan = value_queries.plan(enough, Budget(1.0, 1e-2))
    law = sampling.strongly_convex(s, 3, 2, 2.0, 5.0)
    assert float(plan.regularization) == 0.0
    assert float(plan.inverse_temperature) == pytest.approx(law.inverse_temperature, rel=1e-6)
    assert float(plan.excess_bound) == pytest.approx(law.risk, rel=1e-6)
    with pytest.raises(ValueError, match="ridge"):
        plan.excess_within(0.05)
    least = small().regularization
    some = value_queries.plan(problem(losses.hinge(1.0, ridge=0.1)), Budget(1.0, 1e-2))
    assert float(some.regularization) == pytest.approx(float(least) - 0.1, rel=1e-6)


# -- norms


@pytest.mark.parametrize(("p", "dim"), [(1.0, 2), (1.0, 12), (1.5, 12), (1.8, 30), (4.0, 12)])
def test_slopes_in_the_norm_of_the_regularizer_are_those_of_the_worst_rows(p, dim):
    bound, feature_bound = 0.5, 0.5 * dim**0.5
    objective = losses.absolute(feature_bound)
    setting = setting_of(objective, 3, 1, dim, p, bound)
    q, dual_of_rows = setting.exponent, norms.dual_exponent(p)
    dual = norms.dual_exponent(q)
    rng = np.random.default_rng(dim)
    rows = [np.ones(dim), np.eye(dim)[0], *rng.normal(size=(200, dim))]
    largest = {"lipschitz": 0.0, "euclidean": 0.0}
    for row in rows:
        scaled = row * min(
            bound / np.linalg.norm(row, dual_of_rows), feature_bound / np.linalg.norm(row)
        )
        largest["lipschitz"] = max(largest["lipschitz"], np.linalg.norm(scaled, dual))
        largest["euclidean"] = max(largest["euclidean"], np.linalg.norm(scaled))
    for name, found in largest.items():
        assert found <= getattr(setting, name) * (1 + 1e-12)
        assert getattr(setting, name) == pytest.approx(found, rel=1e-9)
    assert setting.change == 2 * setting.lipschitz
    # The modulus, on random pairs and near the axes, where it is attained.
    for _ in range(300):
        x = rng.normal(size=dim) * (rng.uniform(size=dim) < 0.5)
        h = rng.normal(size=dim) * (rng.uniform(size=dim) < 0.3) * 0.1
        value = lambda v: 0.5 * setting.weight * np.linalg.norm(v, q) ** 2  # noqa: E731
        second = value(x + h) + value(x - h) - 2 * value(x)
        assert second >= setting.modulus * np.linalg.norm(h, q) ** 2 * (1 - 1e-6) - 1e-12


def test_two_is_two():
    plain, named = (
        value_queries.plan(problem(), Budget(1.0, 1e-2), **kw) for kw in ({}, {"norm": 2.0})
    )
    assert plain == named
    bounded = value_queries.plan(problem(), Budget(1.0, 1e-2), row_bound=1.0)
    assert bounded.inverse_temperature == plain.inverse_temperature


@pytest.mark.parametrize("q", [1.05, 1.3, 1.7, 1.95])
def test_no_tangent_is_farther_below_than_is_said(q):
    rng = np.random.default_rng(int(100 * q))
    power, worst = certificate.Power(q, 1.0), 0.0
    for trial in range(4000):
        dim = int(rng.integers(1, 9))
        y, h = rng.normal(size=(2, dim)) * (rng.uniform(size=(2, dim)) < 0.6)
        h *= 10.0 ** rng.uniform(-4, 2)
        if trial % 4 == 0:
            h = np.roll(np.abs(y), 1) * (y == 0) * 10.0 ** rng.uniform(-4, 1)
        size = np.linalg.norm(y, q)
        slope = size ** (2 - q) * np.sign(y) * np.abs(y) ** (q - 1) if size > 0 else 0 * y
        above = (np.linalg.norm(y + h, q) ** 2 - size**2) / 2 - slope @ h
        bound = certificate.bregman(power, size, np.linalg.norm(h, q))
        assert above <= bound * (1 + 1e-9) + 1e-12
        if bound > 1e-9:
            worst = max(worst, above / bound)
    assert worst > 0.15


# -- rounding of links

LOSSES = {
    "logistic": losses.logistic(1.0),
    "hinge": HINGE,
    "huber": losses.huber(1.0, delta=0.3),
    "absolute": losses.absolute(1.0),
    "quantile": losses.quantile(1.0, 0.15),
    "squared": losses.squared(1.0, 2.0, 3.0),
}


def _exact(name, m, y):
    m, y = mpmath.mpf(m), mpmath.mpf(y)
    clipped = min(max(y, mpmath.mpf(0)), mpmath.mpf(1))
    if name == "logistic":
        return mpmath.log1p(mpmath.exp(-abs(m))) + max(m, mpmath.mpf(0)) - clipped * m
    if name == "hinge":
        return max(mpmath.mpf(0), 1 - (2 * clipped - 1) * m)
    if name == "huber":
        delta, away = mpmath.mpf(0.3), abs(m - y)
        return away**2 / 2 if away <= delta else delta * (away - delta / 2)
    if name == "quantile":
        return max(mpmath.mpf(0.15) * (y - m), (mpmath.mpf(0.15) - 1) * (y - m))
    if name == "squared":
        return (m - min(max(y, mpmath.mpf(-2)), mpmath.mpf(2))) ** 2 / 2
    return abs(m - y)


@pytest.mark.parametrize("name", LOSSES)
def test_links_are_rounded_by_no_more_than_is_said(name):
    model = LOSSES[name].linear_model
    slope = LOSSES[name].lipschitz
    rng = np.random.default_rng(5)
    sizes = np.append(10.0 ** rng.uniform(-9, 2.5, 300), [1.0, 36.7, 37.0, 0.3, 1e-17])
    if name == "squared":
        sizes = np.minimum(sizes, 3.0)  # beyond the ball nothing is claimed
    margins = sizes * rng.choice([-1, 1], len(sizes))
    labels = rng.choice([0.0, 1.0, 0.1, -0.7, 40.0], len(sizes))
    labels[::3] = margins[::3] * (1 + 1e-15)
    found = np.asarray(jax.jit(model.link)(jnp.asarray(margins), jnp.asarray(labels)))
    with mpmath.workdps(60):
        for m, y, value in zip(margins, labels, found, strict=True):
            off = abs(mpmath.mpf(float(value)) - _exact(name, float(m), float(y)))
            assert off <= _user_losses.LINK_ULPS * UNIT * slope * (1 + abs(m) + abs(y))


def test_softmax_is_rounded_by_no_more_than_is_said():
    model, rng = losses.softmax(1.0, 4).linear_model, np.random.default_rng(6)
    logits = rng.normal(size=(200, 4)) * 10.0 ** rng.uniform(-3, 2, (200, 1))
    labels = rng.integers(0, 4, 200)
    found = np.asarray(jax.jit(model.link)(jnp.asarray(logits), jnp.asarray(labels, jnp.float64)))
    with mpmath.workdps(60):
        for row, label, value in zip(logits, labels, found, strict=True):
            exact = mpmath.log(sum(mpmath.exp(mpmath.mpf(float(z))) for z in row)) - float(
                row[label]
            )
            off = abs(mpmath.mpf(float(value)) - exact)
            assert off <= (_user_losses.LINK_ULPS + 20) * UNIT * (1 + 2 * np.abs(row).max())


# -- refusals


def test_bad_requests_are_refused_by_name():
    budget = Budget(1.0, 1e-2, allow_large_delta=True)
    ball = domains.ball(1.0)
    for match, asked, mode in (
        ("row_bound", problem(losses.geometric_median()), {"norm": 1.0}),
        ("thrifty", problem(), {"thrifty": True}),
        ("regularization", problem(), {"regularization": 0.0}),
        ("objective.domain", problem(losses.hinge(1.0, domains.simplex())), {}),
        ("objective.domain", problem(losses.hinge(1.0, ball), dim=9), {"norm": 1.0}),
        ("objective.ridge", problem(losses.hinge(1.0, ridge=1.0), dim=9), {"norm": 1.0}),
        ("box with sides", problem(losses.hinge(1.0, domains.box(np.zeros(2), np.array([1.0, 0.0])))), {}),
        (
            "ball with the origin",
            problem(losses.hinge(1.0, domains.ball(1.0, np.array([3.0, 0.0])), ridge=1.0)),
            {},
        ),
        ("claim no more", problem(HINGE._replace(lipschitz=0.5)), {}),
        ("max_steps", problem(), {"max_steps": 1}),
        ("num_users or budget.epsilon must be smaller", problem(num_users=10**6), {}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            value_queries.plan(asked, budget, **mode)
    with pytest.raises(Infeasible, match="rounding"):
        value_queries.plan(problem(), Budget(1.0, 1e-13))
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        value_queries.plan(problem(), budget)
    # A domain that says it is another one.
    forged = losses.hinge(1.0, ball._replace(diameter=0.5))
    with pytest.raises(ValueError, match=r"domain\.diameter"):
        value_queries.plan(problem(forged), budget)


def test_logistic_gradients_on_a_small_ball_are_nearer_than_twice_their_length():
    small_ball = losses.logistic(1.0, domains.ball(0.1))
    near = setting_of(small_ball, 3, 1, 2, 2.0, None)
    assert 1.0 < near.change < 1.1
    assert setting_of(losses.logistic(1.0), 3, 1, 2, 2.0, None).change == 2.0
    # Whatever a domain says of itself.
    wide = domains.ball(50.0)
    forged = losses.logistic(1.0, wide._replace(norm=0.1, radius=0.1))
    assert setting_of(forged, 3, 1, 2, 2.0, None) == setting_of(
        losses.logistic(1.0, wide), 3, 1, 2, 2.0, None
    )
    assert setting_of(forged, 3, 1, 2, 2.0, None).change > 1.9


def test_proposals_on_a_ball_are_no_wider_than_those_that_attempts_were_counted_with():
    on_ball = losses.hinge(1.0, domains.ball(1.0))
    plan = value_queries.plan(problem(on_ball), Budget(1.0, 1e-2))
    # Warmer and with longer steps: c is as it was, and there are enough steps and trials.
    warmer = dataclasses.replace(
        plan,
        inverse_temperature=plan.inverse_temperature / 4,
        step_size=plan.step_size * 16,
        num_trials=plan.num_trials * 4,
    )
    assert warmer.certificate().epsilon == math.inf
    wide = (4.1 * plan.ball_bounds[0], plan.ball_bounds[1])
    known = dataclasses.replace(warmer, ball_bounds=wide)
    assert known.certificate().epsilon < 1.0
    near = dataclasses.replace(plan, ball_bounds=(plan.ball_bounds[0], 3.0))
    assert near.certificate().epsilon == math.inf


def test_the_rounding_of_a_regularizer_that_is_no_quadratic_is_counted():
    sizes = certificate.Sizes(
        10, 9, 1.0, 1.0, 1.0, certificate.rounded_losses(1.0, 9, 1.0, 0.0, 1.0)
    )
    steep = sizes._replace(tangent=certificate.Power(1.5, 1.0))
    plain, bent = (certificate.certified(of, 1e-6, 8, 1, 9) for of in (sizes, steep))
    reach = certificate.farthest_point(9, 1e-6, 1.0, 1.0, 1, 1e-12)
    potential = certificate.tangent_attempts(steep.tangent, 9, 1e-6, reach).potential
    wide = 9 ** (1 / 1.5 - 0.5)
    # A proposal is farther out than y by the length of ηg, which is at most η·wide·‖y‖_q.
    length = wide * reach * (1 + 1e-6 * wide**2)
    assert potential / (UNIT * (4 * 9 + 128) * 0.5 * length**2) == pytest.approx(1.0, rel=1e-9)
    assert float(bent.rounding - plain.rounding) >= 0.99 * float(potential)
    assert float(bent.rounding) <= 1.2 * float(plain.rounding + potential)
    assert bent.acceptance < plain.acceptance
    with pytest.raises(ValueError, match="tangent"):
        certificate.certified(steep._replace(reach=1.0), 1e-6, 8, 1, 9)
    # Where a computed chance could exceed 1 nothing is claimed.
    flat = certificate.tangent_attempts(certificate.Power(1.5, 1e9), 9, 1e-12, 10.0)
    assert flat.acceptance == 0.0


def test_what_runs_has_the_step_that_was_certified():
    where = {
        "whole space": (HINGE, {}),
        "ball": (losses.hinge(1.0, domains.ball(1.0)), {}),
        "box": (losses.hinge(1.0, domains.box(-np.ones(2), np.ones(2))), {}),
        "tangent": (losses.hinge(3.0), {"norm": 1.0, "row_bound": 1.0}),
    }
    for objective, settings in where.values():
        dim = 9 if settings else 2
        plan = value_queries.plan(problem(objective, dim=dim), Budget(0.5, 1e-2), **settings)
        step, moves = _proposals(plan, objective, np.zeros(dim), 0 if settings else 4000)
        assert float(step) == float(plan.step_size)
        if not settings:
            # The variance of a proposal in the middle: 1/(1/η + kμ).
            eta, curved = plan.step_size, plan.inverse_temperature * plan.regularization
            assert np.var(moves) * (1 / eta + curved) == pytest.approx(
                1.0, abs=4 * (2 / 8000) ** 0.5
            )


def _proposals(plan, objective, start, number):
    @jax.jit
    def drawn(start):
        made = value_queries._restricted(plan, objective, start, start)
        if number == 0:
            return made.step_size, None
        keys, prepared = jax.random.split(jax.random.key(0), number), made.prepare(start)
        return made.step_size, jax.vmap(lambda key: made.attempt(key, prepared)[0])(keys)

    return drawn(start)
