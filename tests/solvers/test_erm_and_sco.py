"""Private empirical and population risk: schedules, budgets, whole runs on small problems."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.item_level import _stages, erm, private_ac_sa, sco
from tests.solvers.test_private_ac_sa import QUADRATIC, N, Z
from tests.support.planned import planned

ABSOLUTE = losses.absolute(feature_bound=1.0, domain=domains.ball(1.0))
RIDGED = ABSOLUTE._replace(ridge=0.5)
SMALL = {"num_users": 400, "dim": 3, "epsilon": 1.0, "delta": 1e-5, "distance": 1.0}
LARGE = {"num_users": 5000, "dim": 20, "epsilon": 1.0, "delta": 1e-5, "distance": 1.0}


@functools.cache
def small_plan(solver):
    """The plans of the small runs: calibrations take most of the time of this file."""
    if solver is sco:
        return planned(sco.plan, ABSOLUTE, num_phases=2, num_stages=1, **SMALL)
    return planned(erm.plan, RIDGED, method="restarts", num_stages=2, **(SMALL | {"epsilon": 4.0}))


@pytest.mark.slow
def test_the_direct_bound_on_a_known_problem():
    plan = planned(erm.plan, ABSOLUTE, **LARGE)
    (part,) = plan.parts
    assert ("policy", "direct") in part.remarks
    assert (part.num_steps, part.batch_size) == (5575, 41)
    # Nothing is lost: 1.64·G·R·(a·c + 1/√(BT)) plus the bias, for c between 2.3 and 2.7.
    a = math.sqrt(20 * math.log(1e5)) / 5000
    assert 1.64 * 2.3 * a < plan.excess_bound < 0.015
    assert plan.user_gradients == 5575 * 41


def test_stages_of_an_empirical_problem():
    first, last = small_plan(erm).parts
    assert small_plan(erm).composition == "sequential"
    assert 0.985 * 4.0 <= small_plan(erm).certificate().epsilon <= 4.0
    assert small_plan(erm).distances[1] == pytest.approx(math.sqrt(2 * first.excess_bound / 0.5))
    assert first.epsilon == pytest.approx(last.epsilon / 2)
    assert small_plan(erm).excess_bound == last.excess_bound
    assert small_plan(erm).user_gradients == sum(
        part.num_steps * part.batch_size for part in small_plan(erm).parts
    )
    # Less is proved of one stage with everything, as long as its distance term is not small.
    smooth = losses.logistic(feature_bound=1.0, domain=domains.ball(1.0), ridge=0.5)
    assert _sizes(smooth)[0] < _sizes(smooth._replace(smoothness=None))[0]
    for part in (_part(10.0), _part(1e-3)):
        share = 2 * part.smoothness * part.distance**2 / part.num_steps**2
        assert share < part.excess_bound


def _part(distance, population=False, objective=RIDGED):
    sizes = {"dim": 20, "constants": "tight", "population": population, "chunk_size": 64}
    request = {"num_users": 5000, "epsilon": 1.0, "delta": 1e-5, "distance": distance}
    return planned(_stages.plan, objective, **request, **sizes)


def _sizes(objective):
    part = _part(1.0, objective=objective)
    return part.num_steps, part.batch_size


def test_sizes_of_a_stage():
    """Steps follow the distance up to their limit; population risk needs one pass, no more."""
    near, far = _part(0.01), _part(100.0)
    a = math.sqrt(20 * math.log(1e5)) / 5000
    assert far.num_steps == math.ceil(8 * 20**0.25 / a)
    assert near.num_steps < far.num_steps / 10
    assert near.num_steps * near.batch_size >= 1 / a**2
    population = _part(100.0, population=True)
    assert population.num_steps == math.ceil(8 * min(20**0.25 / a, math.sqrt(5000) * 20**0.25))
    assert 5000 <= population.user_gradients < far.user_gradients
    assert _part(1e-9).num_steps == 20


def test_the_papers_sizes_of_a_stage():
    # Constants of Lemma 1.5.4: N, d, ε, δ, then T, B.
    for users, dim, delta, steps, batch in [
        (10**4, 100, 1e-6, 126_800, 20),
        (10**4, 10**4, 1e-6, 54_000, 31),
        (10**6, 10**6, 1e-8, 1_473_600, 584),
    ]:
        assert _stages.paper_population_sizes(users, dim, 0.5, delta) == (steps, batch)


@pytest.mark.slow
def test_the_paper_is_feasible_and_dearer():
    budget = {"num_users": 2000, "dim": 4, "epsilon": 0.5, "delta": 1e-5, "distance": 1.0}
    ridged = ABSOLUTE._replace(ridge=0.1)
    paper = planned(erm.plan, ridged, constants="paper", **budget)
    epsilons = [part.epsilon for part in paper.parts]
    assert sum(epsilons) < 0.5
    assert epsilons[-1] == 0.25
    losses_of = [
        part.releases.steps.ledger_epsilon(part.noise_multiplier, 1e-5) for part in paper.parts
    ]
    assert max(losses_of) < 0.25
    tight = planned(erm.plan, ridged, num_stages=2, **budget)
    assert tight.user_gradients < paper.user_gradients / 2
    assert tight.excess_bound < paper.excess_bound / 5
    population = planned(sco.plan, ABSOLUTE, constants="paper", **budget)
    assert population.composition == "sequential"
    shares = [phase.epsilon for phase in population.parts]
    assert shares == [0.5**i for i in range(2, len(shares) + 2)]
    assert [phase.num_users for phase in population.parts][:2] == [1000, 500]


def test_phases_of_a_population_problem():
    assert small_plan(sco).composition == "parallel"
    assert [phase.num_users for phase in small_plan(sco).parts] == [267, 133]
    for phase in small_plan(sco).parts:
        assert 0.985 <= phase.certificate().epsilon <= 1.0
        assert phase.composition == "sequential"
    worst = max(phase.certificate().epsilon for phase in small_plan(sco).parts)
    assert small_plan(sco).certificate().epsilon == worst
    gradients = [stage.user_gradients for phase in small_plan(sco).parts for stage in phase.parts]
    assert small_plan(sco).user_gradients == sum(gradients)
    near, users, *losses_of = small_plan(sco).assumes
    assert (near, users) == ("a minimizer lies within 1 of the start", "users are i.i.d.")
    assert all(line.startswith("losses are convex and 1-Lipschitz") for line in losses_of)
    # Where the ridge is centred is no assumption: its slope is bounded wherever the domain lies.
    assert not [line for line in small_plan(erm).assumes if "origin" in line]
    text = str(small_plan(sco))
    for part in ("private population risk, tight, localization", "267 | 133", "REPLACE_ONE"):
        assert part in text


@pytest.mark.slow
def test_strongly_convex_population_risk():
    ridged = ABSOLUTE._replace(ridge=1.0)
    sizes = SMALL | {"num_users": 4000, "epsilon": 8.0}
    plan = planned(
        sco.plan, ridged, method="restarts", num_blocks=2, num_phases=2, num_stages=1, **sizes
    )
    assert [block.num_users for block in plan.parts] == [1333, 2667]
    first = plan.parts[0]
    assert plan.distances == (1.0, pytest.approx(math.sqrt(2 * first.excess_bound)))
    assert plan.certificate().epsilon <= 8.0
    assert plan.excess_bound == plan.parts[1].excess_bound < first.excess_bound


def test_the_centre_of_private_ac_sa():
    """The term is centred where it was told to be, and not clipped: exact on a quadratic."""
    center = np.array([3.0, 4.0])
    plan = planned(
        private_ac_sa.plan,
        QUADRATIC,
        num_users=N,
        dim=2,
        epsilon=1.0,
        delta=1e-5,
        distance=1.0,
        num_steps=400,
        batch_size=N,
        regularization=1.5,
    )
    assert ("policy", "strongly_convex") in plan.remarks
    assert plan.strong_convexity == 2.0
    assert plan.smoothness == pytest.approx(1.5 + 1.5)
    quiet = plan.replace(noise_multiplier=1e-9)
    found = private_ac_sa.solve(
        jax.random.key(0),
        quiet,
        QUADRATIC,
        UserData(jnp.asarray(Z)[:, None], None),
        jnp.asarray([2.0, -1.0]),
        center=jnp.asarray(center),
    )
    # Slopes of the term are up to 10 here; they would be changed by a clip at G/2.
    np.testing.assert_allclose(found.params, (0.5 * Z.mean(0) + 1.5 * center) / 2.0, rtol=2e-3)
    with pytest.raises(ValueError, match="policy must be one of auto, strongly_convex"):
        planned(private_ac_sa.plan, ABSOLUTE, policy="direct", regularization=1.0, **SMALL)
    with pytest.raises(ValueError, match=r"regularization must be .*in \[0, inf\)"):
        planned(private_ac_sa.plan, ABSOLUTE, regularization=-1.0, **SMALL)


@pytest.mark.parametrize(
    ("solver", "changes", "message"),
    [
        (erm, {"method": "restarts"}, r"strong_convexity must be in \(0, inf\)"),
        (sco, {"constants": "paper", "epsilon": 9.0}, r"epsilon must be in \(0, 0.5\)"),
        (sco, {"method": "restarts"}, r"strong_convexity must be in \(0, inf\)"),
        (sco, {"num_users": 19}, "num_users must leave 20 for each of 1 phases"),
    ],
)
def test_bad_arguments_are_refused(solver, changes, message):
    with pytest.raises(ValueError, match=message):
        planned(solver.plan, ABSOLUTE, **(SMALL | changes))
