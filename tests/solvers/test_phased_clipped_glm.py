"""Phased clipped SGD for linear models: its points, its sensitivity, its bound, what it refuses."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import fixtures, losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates import heavy_tailed
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers.heavy_tailed import onepass_clipped_sgd, phased_clipped_glm

MOMENTS = Moments(4.0, 2.0, 1.0, 1.0)
SQUARED = losses.squared(1.0, label_bound=1e6, radius=1.0)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def planned(users=64, objective=SQUARED, dim=3, budget=(1.0, 1e-6), **given):
    problem = Problem(objective, num_users=users, dim=dim)
    return phased_clipped_glm.plan(problem, Budget(*budget), **{"moments": MOMENTS} | given)


def heavy(users, dim, seed=0):
    """Unit rows, labels of a line plus noise with Student's t of 4.5 degrees: slopes have a fourth moment."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((users, dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = 0.5 * rows[:, 0] + 0.3 * rng.standard_t(4.5, users)
    return UserData(Example(rows[:, None], labels[:, None]))


def walked(rows, labels, start, steps, clips, sizes, radius):
    """The algorithm without noise, in NumPy."""
    point, first = start, 0
    for size, step, clip in zip(sizes, steps, clips, strict=True):
        seen = []
        for row, label in zip(
            rows[first : first + size], labels[first : first + size], strict=True
        ):
            seen.append(point)
            slope = np.clip(row @ point - label, -clip, clip) * row
            point = point - step * slope
            point = point * min(1.0, radius / np.linalg.norm(point))
        point, first = np.mean(seen, axis=0), first + size
    return point


@pytest.mark.parametrize("users", [37, 64])
def test_without_noise_it_walks_as_is_said(users):
    data = heavy(users, 3)
    plan = planned(users, num_phases=3, step_size=0.4, clip_norm=0.25)
    assert sum(plan.phase_users) == users
    np.testing.assert_allclose(plan.step_sizes, [0.4, 0.4 / 16, 0.4 / 256])
    np.testing.assert_allclose(plan.clip_norms, [0.25, 0.5, 1.0])
    quiet = dataclasses.replace(plan, noise_multiplier=1e-9)
    start = np.array([0.1, 0.0, -0.2])
    found = phased_clipped_glm.solve(jax.random.key(0), quiet, SQUARED, data, start)
    rows, labels = np.asarray(data.items.features)[:, 0], np.asarray(data.items.label)[:, 0]
    numbers = plan.step_sizes, plan.clip_norms, plan.phase_users
    np.testing.assert_allclose(
        found.params, walked(rows, labels, start, *numbers, radius=1.0), atol=1e-8
    )
    assert int(found.gradients) == users


def _pair(rng, users, dim, kind):
    rows = rng.standard_normal((users, dim))
    if kind == "aligned":
        rows = rows[:1] + 1e-3 * rows
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = 3.0 * rng.standard_normal(users)
    other_rows, other_labels = rows.copy(), labels.copy()
    at = 0 if kind == "opposite" else rng.integers(users)
    labels[at] = 100.0
    other_labels[at] = -100.0
    if kind == "turned":
        other_rows[at] = rng.standard_normal(dim)
        other_rows[at] /= np.linalg.norm(other_rows[at])
    if kind == "opposite":
        # The others are across, and leave the distance as it is.
        rows[:, 0], other_rows[:, 0] = 0.0, 0.0
        rows[at], other_rows[at] = np.eye(dim)[0], np.eye(dim)[0]
    return [
        UserData(Example(jnp.asarray(r)[:, None], jnp.asarray(y)[:, None]))
        for r, y in ((rows, labels), (other_rows, other_labels))
    ]


@functools.partial(jax.jit, static_argnames=("objective", "count"))
def _average(objective, data, start, step_size, clip_norm, count):
    step = onepass_clipped_sgd.clipped_steps(objective, data, clip_norm)
    return onepass_clipped_sgd.run(
        step, objective.domain.project, start, first=0, count=count, step_size=step_size
    )[0]


WHOLE = {
    "logistic": losses.logistic(1.0, domains.whole_space()),
    "huber": losses.huber(1.0, delta=50.0, domain=domains.box(-5 * np.ones(3), 5 * np.ones(3))),
    "squared": losses.squared(1.0, label_bound=1e6, radius=5.0),
}


@pytest.mark.parametrize("name", WHOLE)
def test_no_neighbours_move_an_average_farther_than_its_sensitivity(name):
    """At the longest step that is allowed, 2/β, and at clips above and below the slopes."""
    rng, objective, users = np.random.default_rng(1), WHOLE[name], 24
    longest = 2 / objective.smoothness
    worst = 0.0
    for trial in range(60):
        kind = ("opposite", "aligned", "turned", "plain")[trial % 4]
        pair = _pair(rng, users, 3, kind)
        step, clip = longest * rng.choice([1.0, 0.3]), float(rng.choice([0.1, 0.4, 2.0]))
        start = np.zeros(3) if kind == "opposite" else 0.5 * rng.standard_normal(3)
        first, other = (_average(objective, d, start, step, clip, users) for d in pair)
        worst = max(worst, float(np.linalg.norm(first - other)) / (2 * step * clip))
    assert worst <= 1 + 1e-12
    assert worst >= 0.45  # labels of two classes move a slope by one at most


def test_the_sensitivity_is_attained():
    pair = _pair(np.random.default_rng(0), 200, 3, "opposite")
    first, other = (_average(WHOLE["squared"], d, np.zeros(3), 0.5, 0.1, 200) for d in pair)
    assert np.linalg.norm(first - other) >= 0.99 * 2 * 0.5 * 0.1
    plan = planned(200, step_size=0.5, clip_norm=0.1, num_phases=1)
    (change,), (stddev,) = plan.sensitivities, plan.noise_stddevs
    assert 0.1 <= change <= 0.1 * (1 + 1e-9)
    assert stddev == pytest.approx(plan.noise_multiplier * 0.1)


def test_a_longer_step_expands():
    """Why 2/β: just above it two users who alternate drive two runs apart."""
    rows, labels = np.tile(np.eye(3)[:1], (40, 1)), np.zeros(40)
    other = labels.copy()
    labels[0], other[0] = 1e-3, -1e-3
    data = [
        UserData(Example(jnp.asarray(rows)[:, None], jnp.asarray(y)[:, None]))
        for y in (labels, other)
    ]
    first, second = (_average(WHOLE["squared"], d, np.zeros(3), 2.2, 1.0, 40) for d in data)
    assert np.linalg.norm(first - second) > 2 * 2.2 * 2e-3


@pytest.mark.parametrize("clip", [1.0, 2.0, 3.0, 10.0])
def test_a_clipped_step_that_is_not_along_a_row_expands(clip):
    """B10: why the losses have to be linear models. Without the clip the same step is isometric."""
    apart, first, second = fixtures.clip_noncontraction(clip)
    kept = np.linalg.norm(apart - (first - second))
    assert kept == pytest.approx(np.linalg.norm(apart)) == clip
    # Of a convex loss of smoothness 2 these are gradients: ‖g - h‖² is at most 2⟨g - h, v⟩.
    gap = first - second
    assert gap @ gap <= 2 * gap @ apart * (1 + 1e-12)
    unit = second / max(1.0, np.linalg.norm(second))
    longer = np.linalg.norm(apart - (first - unit))
    expected = {1.0: 1.2393, 2.0: 2.3511, 3.0: 3.4218, 10.0: 10.6224}[clip]
    assert longer == pytest.approx(expected, abs=1e-4)
    assert longer > clip


@functools.cache
def _risk_of():
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((20_000, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def test_the_measured_risk_is_below_the_bound():
    """Rows uniform on the sphere: the excess risk is ‖w - w*‖²/(2d), whatever the tails of labels."""
    users, dim = 4096, 3
    # L_s ≤ 1.5 + 0.3·|t|, with Student's t of 4.5 degrees: moments as they are.
    size = 1.5 + 0.3 * np.abs(np.random.default_rng(5).standard_t(4.5, 10**6))
    second, fourth = (1.02 * np.mean(size**k) ** (1 / k) for k in (2, 4))
    plan = planned(users, moments=Moments(4.0, fourth, second), budget=(2.0, 1e-6))
    run = jax.jit(
        jax.vmap(
            lambda key, data: phased_clipped_glm.solve(key, plan, SQUARED, data, jnp.zeros(dim)),
        )
    )
    sets = [heavy(users, dim, seed) for seed in range(8)]
    found = run(jax.random.split(jax.random.key(0), 8), jax.tree.map(lambda *x: np.stack(x), *sets))
    excess = np.sum((found.params - np.array([0.5, 0, 0])) ** 2, axis=1) / (2 * dim)
    assert np.mean(excess) <= plan.excess_bound
    assert np.mean(excess) < 0.5**2 / (2 * dim)  # better than the start
    assert plan.excess_bound < 60 * np.mean(excess)


def test_the_bound_is_the_sum_of_the_theorem():
    """That of `rates.heavy_tailed.glm_bound`, with the least constant of the bias, for printed numbers."""
    users, dim = 2**14, 4
    plan = planned(users, dim=dim, constants="paper", budget=(1.0, 1e-6))
    rho = 1 / (2 * plan.noise_multiplier**2)
    step, clip = 16 * plan.step_sizes[0], plan.clip_norms[0] / 2
    theorem = heavy_tailed.glm_bound(
        MOMENTS, 2.0, num_users=users, dim=dim, rho=rho, step_size=step, clip_norm=clip
    )
    assert 0.5 * theorem < plan.excess_bound <= theorem
    # The printed numbers, by other arithmetic: what they balance is equal.
    noise = 32 * dim * step * clip**2 / (rho * users)
    bias = MOMENTS.highest**4 * 2.0 / clip**3
    assert bias == pytest.approx(noise, rel=1e-9)
    assert planned(users, dim=dim).excess_bound <= plan.excess_bound
    assert plan.phase_users == tuple(2**i for i in range(13, -1, -1))
    # σ_i is η_i·C_i·√(2/ρ): half of what is printed (B-o).
    expected = [
        eta * c * np.sqrt(2 / rho) for eta, c in zip(plan.step_sizes, plan.clip_norms, strict=True)
    ]
    np.testing.assert_allclose(plan.noise_stddevs[:6], expected[:6], rtol=1e-4)


def test_what_the_printed_rate_says_of_growing_samples():
    """Where noise rules the bound falls nearly as n^-(1-1/k), k = 4; what samples add falls as n^-1/2."""
    flat = losses.huber(1e-3, domain=domains.ball(1.0))  # so smooth that no step is too long
    few, many = (
        planned(n, flat, budget=(1e-3, 1e-8), moments=Moments(4.0, 1.0)).excess_bound
        for n in (2**20, 2**24)
    )
    slope = np.log2(few / many) / 4
    assert 0.64 < slope < 0.76


def test_one_program_for_all_numbers():
    data, traces = heavy(40, 3), []

    @jax.jit
    def run(key, plan):
        traces.append(1)
        return phased_clipped_glm.solve(key, plan, SQUARED, data, jnp.zeros(3)).params

    plan = planned(40, num_phases=2)
    one = run(jax.random.key(0), plan)
    other = run(jax.random.key(0), plan.replace(noise_multiplier=3.0, step_sizes=(0.1, 0.02)))
    assert len(traces) == 1
    assert not np.array_equal(one, other)
    keys = jax.random.split(jax.random.key(1), 3)
    together = jax.vmap(lambda key: run(key, plan))(keys)
    np.testing.assert_allclose(together[1], run(keys[1], plan), rtol=1e-12)


def test_an_edited_plan_that_expands_costs_infinity():
    plan = planned(40, num_phases=2)
    assert plan.certificate().epsilon == pytest.approx(1.0, rel=1e-4)
    longer = plan.replace(step_sizes=(2.001, 0.1))
    assert longer.certificate().epsilon == np.inf
    assert np.all(np.isinf(longer.loss().rdp))
    assert np.all(np.isfinite(plan.replace(step_sizes=(2.0, 0.1)).loss().rdp))
    assert np.all(np.isinf(plan.replace(clip_norms=(np.nan, 1.0)).loss().rdp))


def test_what_has_no_proof_is_refused():
    cases = [
        ({"objective": losses.squared(1.0, 1.0, 1.0, ridge=0.1)}, "ridge"),
        ({"objective": losses.softmax(1.0, 3, domains.ball(1.0))}, "a linear model of one output"),
        ({"objective": losses.squared_distance(1.0, 1.0)}, "a linear model of one output"),
        ({"objective": losses.absolute(1.0, domains.ball(1.0))}, "smooth"),
        ({"step_size": 2.001}, "step_size must be at most 2/β"),
        ({"objective": losses.logistic(1.0)}, "domain is unbounded"),
        ({"num_phases": 7}, "num_phases"),
    ]
    for given, words in cases:
        with pytest.raises(ValueError, match=words):
            planned(**given)
    problem = Problem(SQUARED, num_users=64, dim=3, items_per_user=2)
    with pytest.raises(ValueError, match="items_per_user must be 1"):
        phased_clipped_glm.plan(problem, Budget(1.0, 1e-6), moments=MOMENTS)
    forged = SQUARED._replace(smoothness=0.1)
    with pytest.raises(ValueError, match="claim no more than is proven"):
        planned(objective=forged)
    # Steps and clips that are given need no bounded domain.
    plan = planned(objective=losses.logistic(1.0), step_size=1.0, clip_norm=0.5, num_phases=2)
    assert plan.excess_bound == np.inf
    assert np.isfinite(plan.certificate().epsilon)


def test_float64_is_asked_for():
    plan = planned(40, num_phases=1)
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        phased_clipped_glm.solve(jax.random.key(0), plan, SQUARED, heavy(40, 3), jnp.zeros(3))


def test_the_bound_of_one_pass_holds():
    """Algorithm 40 on mean estimation, over 200 data sets; C below and above slopes."""
    rng, users = np.random.default_rng(3), 50
    objective = losses.squared_distance(1e6, 1.0)
    for clip in (0.5, 5.0):
        gaps = []
        points = 0.2 + 0.4 * rng.standard_t(4.5, (200, users, 1, 2))
        for rows in points:
            average = _average(
                objective, UserData(jnp.asarray(rows)), jnp.zeros(2), 0.1, clip, users
            )
            gaps.append(0.5 * np.sum((np.asarray(average) - 0.2) ** 2))
        reach = 1.0 + np.linalg.norm(0.2 + 0.4 * rng.standard_t(4.5, (10**6, 2)), axis=1)
        second, fourth = (np.mean(reach**k) ** (1 / k) for k in (2, 4))
        bound = onepass_clipped_sgd.bound(
            Moments(4.0, 1.05 * fourth, 1.05 * second),
            np.hypot(0.2, 0.2),
            2.0,
            num_users=users,
            step_size=0.1,
            clip_norm=clip,
        )
        assert np.mean(gaps) <= bound
    assert bound < 1.0


@pytest.mark.slow
def test_audit():
    """Its worst pair: the first of users on one line pulls one way or the other, beyond the clip."""
    users, runs = 24, 200_000
    plan = planned(
        users,
        WHOLE["squared"],
        dim=1,
        budget=(1.0, 1e-5),
        step_size=0.1,
        clip_norm=0.1,
        num_phases=2,
    )
    scores = []
    for sign in (1.0, -1.0):
        labels = np.array([sign, *[0.0] * (users - 1)]) * 1e3
        # The others' rows are short: they leave the distance as it is.
        rows = np.array([1.0, *[1e-6] * (users - 1)])
        data = UserData(Example(rows[:, None, None], labels[:, None]))
        run = jax.jit(
            jax.vmap(
                lambda key, data=data: phased_clipped_glm.solve(
                    key, plan, WHOLE["squared"], data, jnp.zeros(1)
                ).params[0]
            )
        )
        scores.append(np.asarray(run(jax.random.split(jax.random.key(int(sign) + 1), runs))))
    found = privacy.audit_scores(*scores, delta=1e-5).epsilon
    claim = plan.certificate().epsilon
    assert 0.4 * claim < found <= claim
