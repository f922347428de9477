"""Localized clipped SGD: the hidden test, what one user moves, when it halts, what an edited plan costs."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry import domains
from dpsco_jax.geometry.norms import global_norm
from dpsco_jax.mechanisms import sparse_vector
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers.heavy_tailed import localized_clipped_sgd, onepass_clipped_sgd
from dpsco_jax.solvers.solution import Status

MOMENTS = Moments(4.0, 1.0)
FLAT = losses.huber(
    1.0, delta=1e3, domain=domains.ball(2.0)
)  # of slope |label| where labels are large


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def planned(users=40, objective=FLAT, dim=3, budget=(2.0, 1e-6), items=1, **given):
    problem = Problem(objective, num_users=users, dim=dim, items_per_user=items)
    given = {"moments": MOMENTS, "clip_norm": 8.0, "num_phases": 1} | given
    return localized_clipped_sgd.plan(problem, Budget(*budget), **given)


@functools.cache
def plan_of(users=40, phases=1, step_size=1e-5):
    return planned(users, num_phases=phases, step_size=step_size)


def table(rows, labels):
    rows, labels = np.asarray(rows, float), np.asarray(labels, float)
    return UserData(Example(rows[:, None], labels[:, None]))


def unit_rows(users, dim, seed=0):
    rows = np.random.default_rng(seed).standard_normal((users, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_light_tails_are_never_clipped():
    """Slopes of a quarter of the clip: phases of plain SGD, in NumPy, when noise is taken away."""
    plan = plan_of(40, 2)
    quiet = dataclasses.replace(
        plan,
        parts=tuple(dataclasses.replace(part, noise_multiplier=1e-12) for part in plan.parts),
    )
    rows, labels = unit_rows(40, 3), np.where(np.arange(40) % 2, 2.0, -1.0)
    found = localized_clipped_sgd.solve(
        jax.random.key(0), quiet, FLAT, table(rows, labels), jnp.zeros(3)
    )
    point, first = np.zeros(3), 0
    for part in plan.parts:
        seen = []
        for row, label in zip(
            rows[first : first + part.num_users],
            labels[first : first + part.num_users],
            strict=True,
        ):
            seen.append(point)
            point = point - part.step_size * (row @ point - label) * row
        point, first = np.mean(seen, axis=0), first + part.num_users
    np.testing.assert_allclose(found.params, point, rtol=1e-6, atol=1e-12)
    assert np.linalg.norm(point) > 1e-6
    assert int(found.status) == Status.OK
    assert plan.parts[1].step_size == plan.parts[0].step_size / 4


def test_heavy_users_halt_the_run_and_nothing_of_it_is_returned():
    plan = plan_of(400, 2)
    labels = np.full(400, 900.0)
    labels[: plan.parts[0].num_users] = 0.0
    rows, start = unit_rows(400, 3), jnp.array([0.3, 0.0, 0.0])
    assert plan.parts[1].num_users > plan.parts[1].max_answers
    run = jax.jit(
        lambda key, data, start: localized_clipped_sgd.solve(key, plan, FLAT, data, start)
    )
    found = run(jax.random.key(0), table(rows, labels), start)
    assert int(found.status) == Status.HALTED
    # The first phase has ended well, and what it released is returned.
    assert not np.array_equal(found.params, start)
    again = run(jax.random.key(0), table(rows, 0 * labels), start)
    assert int(again.status) == Status.OK
    assert not np.array_equal(found.params, again.params)
    halted = run(jax.random.key(1), table(rows, np.full(400, 900.0)), 100 * start)
    assert int(halted.status) == Status.HALTED
    # Where the start was projected to, and not where the pass had come to.
    np.testing.assert_allclose(halted.params, [2.0, 0.0, 0.0], rtol=1e-12)
    # A run takes as many gradients wherever it halts.
    assert int(halted.gradients) == int(again.gradients) == 400


def test_the_limit_has_the_stated_noise():
    """All users are clipped: a run halts if limit + Laplace noise is at most their number."""
    plan = plan_of(40)
    (part,) = plan.parts
    limit = 40.0 + 1.0 / part.limit_epsilon
    edited = dataclasses.replace(part, limit=limit, answers=part.max_answers)
    plan = dataclasses.replace(plan, parts=(edited,))
    data = table(unit_rows(40, 3), np.full(40, 900.0))
    run = jax.jit(
        jax.vmap(
            lambda key: localized_clipped_sgd.solve(key, plan, FLAT, data, jnp.zeros(3)).status
        )
    )
    found = np.asarray(run(jax.random.split(jax.random.key(0), 4000)))
    expected = scipy.stats.laplace.cdf(-1.0)
    spread = np.sqrt(expected * (1 - expected) / 4000)
    assert abs(np.mean(found == Status.HALTED) - expected) < 4 * spread


@functools.partial(jax.jit, static_argnames=("objective", "count"))
def _forced(objective, data, decisions, start, step_size, clip_norm, count):
    """The average of a pass whose decisions are given."""
    slope = onepass_clipped_sgd.user_slopes(objective, data)

    def step(state, user, point):
        level = clip_norm * jnp.where(decisions[user], 1.0, 11 / 8)
        gradient = slope(user, point)
        size = jnp.linalg.norm(gradient)
        return gradient * jnp.minimum(1.0, level / size), True, state

    return onepass_clipped_sgd.run(
        step, objective.domain.project, start, first=0, count=count, step_size=step_size
    )[0]


def test_neighbours_with_the_same_decisions_stay_within_the_sensitivity():
    """Decisions that fit the data (who is far above the clip is clipped), the replaced user's own free."""
    rng, users = np.random.default_rng(0), 40
    (part,) = plan_of(users).parts
    worst = 0.0
    for trial in range(60):
        rows, labels = unit_rows(users, 3, trial), 6.0 * rng.standard_normal(users)
        heavy = rng.random(users) < 0.3
        labels[heavy] *= 20.0
        decisions = (np.abs(labels) > 9.0) | (rng.random(users) < 0.2)
        at = 0 if trial % 2 else rng.integers(users)
        others = rows.copy(), labels.copy(), decisions.copy()
        labels[at], others[1][at] = 500.0, -500.0
        others[2][at] = not decisions[at]
        if trial % 3 == 0:
            others[0][at] = -rows[at]
        pair = [
            _forced(FLAT, table(r, y), d, np.zeros(3), part.step_size, part.clip_norm, users)
            for r, y, d in ((rows, labels, decisions), others)
        ]
        worst = max(worst, float(np.linalg.norm(pair[0] - pair[1])) / float(part.sensitivity))
    assert worst <= 1
    assert worst >= 0.7
    # 2·(11/8)·ηC, and what steps of at most c clipped users expand, which is little.
    bare = 2.75 * part.step_size * part.clip_norm
    assert bare <= part.sensitivity <= 1.01 * bare < 6 * part.step_size * part.clip_norm


def test_the_loss_is_the_sum_of_its_parts():
    """By other arithmetic: the tests, the limit, the average, and laws that are cut down to what is true."""
    (part,) = plan_of().parts
    low = privacy.ORDERS <= 64
    orders = privacy.ORDERS[low]
    first, each, last = part.threshold_epsilon, part.answer_epsilon, part.limit_epsilon

    def laplace(e):
        terms = orders * np.exp((orders - 1) * e) + (orders - 1) * np.exp(-orders * e)
        return np.log(terms / (2 * orders - 1)) / (orders - 1)

    answers = -np.log1p(-(1 - np.exp(-(orders - 1) * each)) * (1 - np.exp(-orders * each)))
    tests = laplace(first) + part.max_answers * answers / (orders - 1)
    far = part.smoothness * part.sensitivity
    missed = 0.5 * np.exp(-part.clip_norm / 8 * first / far)
    missed += 20.0 * np.exp(-(part.clip_norm / 4 - far) * each / (2 * far))
    missed += 0.5 * np.exp(-(part.max_answers - 1 - part.limit) * last)
    expected = tests + laplace(last) + orders / (2 * part.noise_multiplier**2)
    expected -= orders / (orders - 1) * np.log1p(-missed)
    found = part.loss()
    np.testing.assert_allclose(found.rdp[low], expected, rtol=1e-3)
    assert missed <= found.delta <= 1.001 * missed <= 1e-6 / 4
    assert privacy.epsilon(found, 1e-6) <= 2.0


@pytest.mark.parametrize("redraw", [False, True])
def test_decisions_and_halt_of_a_phase_by_enumeration(redraw):
    """All 2^5 decisions with a hidden user who is clipped on D and not on D', and whether the run has halted.

    By quadrature over the threshold's noise: one threshold and a noisy limit keep the Rényi bound in both
    directions, thresholds that are drawn anew do not. Queries are at the threshold, wherever they are seen.
    """
    first, each, last, limit = 0.05, 0.05, 0.1, 2.5
    z, width = np.linspace(-40.0, 40.0, 20_001, retstep=True)
    density = scipy.stats.laplace.pdf(z) * width

    def law(hidden, move):
        # Noise in units of the threshold's, Δ/ε₁; queries have 2Δ/a, and move by Δ.
        above = scipy.stats.laplace.sf((z - move * first) / (2 * first / each))
        found = {}
        for word in itertools.product((0, 1), repeat=5):
            parts, current = [], density
            for t, answer in enumerate(word):
                current = current * (above if answer else 1 - above)
                if redraw and (answer or (t == 3 and hidden)):
                    parts, current = [*parts, current.sum()], density
            chance = np.prod([*parts, current.sum()])
            halts = scipy.stats.laplace.cdf((sum(word) + hidden - limit) * last)
            found |= {(word, 1): chance * halts, (word, 0): chance * (1 - halts)}
        return np.array(list(found.values()))

    tests = sparse_vector.fixed_threshold_loss(first, each, 5)
    bound = privacy.compose(tests, privacy.laplace(1 / last)).rdp
    excess = []
    for move in (-1, 1):
        laws = law(1, 0), law(0, move)
        assert laws[0].sum() == pytest.approx(1, abs=1e-4)
        for p, q in (laws, laws[::-1]):
            for place in range(0, len(bound), 25):
                above = float(privacy.ORDERS[place]) - 1
                terms = np.log(p) + above * np.log(p / q)
                excess.append(scipy.special.logsumexp(terms) / above / bound[place])
    assert (max(excess) <= 1) == (not redraw)


def test_an_edited_plan_costs_what_its_numbers_do():
    plan = plan_of()
    (part,) = plan.parts

    def spent(**changes):
        edited = dataclasses.replace(part, **changes)
        return dataclasses.replace(plan, parts=(edited,)).certificate().epsilon

    assert 1.99 < spent() <= 2.0
    assert spent(noise_multiplier=part.noise_multiplier / 2) > 3.0
    # Longer steps move more queries: the tests miss more than δ.
    assert spent(step_size=2 * part.step_size) == np.inf
    assert spent(threshold_epsilon=part.threshold_epsilon / 2) == np.inf
    assert spent(answer_epsilon=part.answer_epsilon / 2) == np.inf
    assert spent(limit=part.max_answers - 2.0) == np.inf
    assert spent(limit_epsilon=10.0) > 5.0
    assert spent(answers=part.answers - 1.0) == np.inf
    assert spent(clip_norm=np.nan) == np.inf
    assert spent(step_size=3.0) == np.inf


def test_what_would_do_is_said():
    with pytest.raises(Infeasible, match=r"step_size must be at most") as refusal:
        planned(step_size=1.0)
    would = refusal.value.needed["step_size"]
    assert 0 < would < 1e-3
    plan = planned(step_size=would)
    assert plan.certificate().epsilon <= 2.0
    assert planned().parts[0].step_size in [would, would / 4, would / 16]


def test_what_has_no_proof_is_refused():
    cases = [
        ({"objective": losses.squared(1.0, 1.0, 1.0, ridge=0.1)}, "ridge"),
        ({"objective": losses.absolute(1.0, domains.ball(1.0))}, "smooth"),
        ({"objective": losses.logistic(1.0)}, "domain must be bounded"),
        ({"objective": FLAT._replace(smoothness=1e-3)}, "claim no more than is proven"),
        ({"num_phases": 7}, "num_phases"),
    ]
    for given, words in cases:
        with pytest.raises(ValueError, match=words):
            planned(**given)
    data = table(unit_rows(40, 3), np.zeros(40))
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        localized_clipped_sgd.solve(jax.random.key(0), plan_of(), FLAT, data, jnp.zeros(3))


def test_halting_is_as_rare_as_is_said():
    """Student's t of 4.5 degrees, with a fourth moment: no run of 300 halts, whose bound is below 1e-2."""
    rng = np.random.default_rng(1)
    labels = 0.4 * rng.standard_t(4.5, (300, 200))
    size = 1e-3 + 0.4 * np.abs(rng.standard_t(4.5, 10**6))
    moments = Moments(4.0, 1.05 * np.mean(size**4) ** 0.25)
    plan = planned(200, moments=moments, clip_norm=4.0)
    assert plan.halting < 1e-2
    rows = unit_rows(200, 3)
    run = jax.jit(
        jax.vmap(
            lambda key, labels: (
                localized_clipped_sgd.solve(
                    key, plan, FLAT, UserData(Example(rows[:, None], labels)), jnp.zeros(3)
                ).status
            )
        )
    )
    statuses = run(jax.random.split(jax.random.key(0), 300), labels[..., None])
    assert np.all(np.asarray(statuses) == Status.OK)


def test_one_program_for_all_numbers():
    data, traces = table(unit_rows(40, 3), np.zeros(40)), []

    @jax.jit
    def run(key, plan):
        traces.append(1)
        return localized_clipped_sgd.solve(key, plan, FLAT, data, jnp.zeros(3)).params

    plan = plan_of(40, 2)
    other = dataclasses.replace(
        plan,
        parts=tuple(
            dataclasses.replace(p, noise_multiplier=9.0, step_size=p.step_size / 2)
            for p in plan.parts
        ),
    )
    assert not np.array_equal(run(jax.random.key(0), plan), run(jax.random.key(0), other))
    assert len(traces) == 1


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [False, True])
def test_audit(hidden):
    """The first user pulls one way or the other; hidden: one of them is clipped, and the other is not."""
    users, runs = 4, 200_000
    plan = planned(users, dim=1, budget=(1.0, 1e-5), step_size=1e-5)
    labels = np.zeros(users)
    size = 900.0 if not hidden else 8.0
    scores = []
    for sign, seed in ((1.0, 0), (-1.0, 1)):
        labels[0] = sign * size if not hidden or sign > 0 else -10.9
        data = table(np.ones((users, 1)), labels)
        run = jax.jit(
            jax.vmap(
                lambda key, data=data: localized_clipped_sgd.solve(
                    key, plan, FLAT, data, jnp.zeros(1)
                ).params[0]
            )
        )
        scores.append(np.asarray(run(jax.random.split(jax.random.key(seed), runs))))
    claim = plan.certificate().epsilon
    found = privacy.audit_scores(scores[0], scores[1], delta=1e-5).epsilon
    assert 0.1 * claim < found <= claim


def test_queries_of_short_steps_move_by_no_more_than_is_charged():
    """Gradients near the clip are rounded by more than βS where steps are short."""
    objective = losses.squared(1e-2, 1e9, 1.0)
    phase = localized_clipped_sgd.TestedPhase(
        num_users=62, max_answers=20, dim=3, smoothness=1e-4, diameter=2.0, norm=1.0, steepest=0.0,
        count=62.0,
        answers=20.0, step_size=6e-14, clip_norm=64.0, limit=10.0, threshold_epsilon=0.1,
        answer_epsilon=0.1, limit_epsilon=0.1, noise_multiplier=1.0,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(2000, 1, 3)), 6400 * (1 + 0.1 * rng.random((2000, 1)))
    data = UserData(Example(jnp.asarray(rows), jnp.asarray(labels)))
    slope = onepass_clipped_sgd.user_slopes(objective, data)
    norm = jax.jit(jax.vmap(lambda u, x: global_norm(slope(u, x)), (0, None)))
    here = jnp.asarray([0.2, -0.1, 0.3])
    there = here + 0.99 * phase.sensitivity / math.sqrt(3.0)
    far = jnp.max(jnp.abs(norm(jnp.arange(2000), here) - norm(jnp.arange(2000), there)))
    assert phase.smoothness * phase.sensitivity < far <= phase.query_sensitivity


def test_gradients_of_items_that_cancel_are_rounded_by_no_more_than_is_charged():
    """Two items of slopes near 10^10 whose mean has 64; residuals are half way between two floats."""
    objective = losses.squared(1e-2, 1e15, 1.0)
    phase = localized_clipped_sgd.TestedPhase(
        num_users=62, max_answers=20, dim=3, smoothness=1e-4, diameter=2.0, norm=1.0, steepest=1e11,
        count=62.0, answers=20.0, step_size=6e-14, clip_norm=64.0, limit=10.0,
        threshold_epsilon=0.1, answer_epsilon=0.1, limit_epsilon=0.1, noise_multiplier=1.0,
    )  # fmt: skip
    here = np.array([0.2, -0.1, 0.3])
    there = here + 0.99 * float(phase.sensitivity) / math.sqrt(3.0)
    middle = (here + there) / 2
    row = 2.0**-11 * middle / (middle @ middle)  # of margin 2^-11: half of the last bit below 2^43
    labels = np.array([[2.0**43, 128 / np.linalg.norm(row) - 2.0**43]])
    data = UserData(Example(np.stack([row, row])[None], labels))
    slope = onepass_clipped_sgd.user_slopes(objective, data)
    norm = jax.jit(lambda x: global_norm(slope(0, x)))
    far = abs(float(norm(jnp.asarray(here)) - norm(jnp.asarray(there))))
    alone = dataclasses.replace(phase, steepest=0.0)
    assert alone.query_sensitivity < far <= phase.query_sensitivity


def test_a_long_gradient_that_the_test_misses_is_cut_to_the_guard(monkeypatch):
    """Whoever is never found long moves a point by 11/8 of a clipped step, and not by more."""
    plan = plan_of(1 + 3, 1)
    (phase,) = plan.parts
    stream = sparse_vector.fixed_threshold

    def blind(*given, **named):
        made = stream(*given, **named)

        def step(key, state, query):
            _, after = made.step(key, state, -1e9 + 0 * query)
            return jnp.zeros([], bool), after

        return made._replace(step=step)

    monkeypatch.setattr(sparse_vector, "fixed_threshold", blind)
    labels = np.zeros(4)
    labels[0] = 1e3
    data = table(np.tile([[1.0, 0.0, 0.0]], (4, 1)), labels)
    start = jnp.zeros(3)
    average, halted = localized_clipped_sgd._hidden_pass(
        jax.random.key(0), phase, FLAT, data, 0, start
    )
    # The first point of four is the start, the others are one guarded step from it, to rounding.
    longest = 11 / 8 * float(phase.clip_norm * phase.step_size)
    assert not bool(halted)
    assert float(average[0]) == pytest.approx(0.75 * longest, rel=1e-3)
