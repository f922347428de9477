"""The quantile of whitened SGD where a class is rare: by hand, and what it is for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.oracles import linear
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import (
    _first_intercept,
    whitened_sgd,
)
from dpsco_jax.solvers.user_level._linear_models import Bends

LOGISTIC = losses.logistic(2.0)


def _logit(share):
    return jnp.asarray(np.log(share / (1 - share)), jnp.float32)


def _quantile(objective, intercept, items=1, least=0.001, planned=0.9, stddev=0.0, found=None):
    found = intercept if found is None else found
    return float(
        _first_intercept.quantile_with_room(
            planned, least, objective, intercept, items, found, stddev
        )
    )


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize(
    ("share", "items", "expected"),
    [
        (0.02, 1, 0.99),
        (0.02, 5, 1 - (1 - 0.98**5) / 2),
        (0.15, 1, 0.925),
        (0.21, 1, 0.9),  # at 0.9 half of them are inside
        (0.3, 1, 0.9),
        (0.5, 1, 0.9),
        (0.08, 4, 0.9),  # with a planned quantile that is above 1 - (1 - 0.92⁴)/2
    ],
)
def test_the_midst_of_the_rarer_class_is_inside(share, items, expected, other):
    found = _quantile(LOGISTIC, _logit(1 - share if other else share), items)
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_class_that_noise_hides_has_no_room():
    """0.02·0.98 = 0.0196."""
    assert _quantile(LOGISTIC, _logit(0.02), least=0.0195) == pytest.approx(0.99, abs=1e-5)
    assert _quantile(LOGISTIC, _logit(0.02), least=0.0197) == pytest.approx(0.9, abs=1e-6)
    assert _quantile(LOGISTIC, _logit(0.02), stddev=0.039) == pytest.approx(0.99, abs=1e-5)
    assert _quantile(LOGISTIC, _logit(0.02), stddev=0.041) == pytest.approx(0.9, abs=1e-6)
    # What was found counts, not what it was bounded to.
    hidden = {"found": _logit(0.001), "stddev": 0.02}
    assert _quantile(LOGISTIC, _logit(0.02), **hidden) == pytest.approx(0.9, abs=1e-6)
    assert _quantile(LOGISTIC, jnp.asarray(-200.0)) == pytest.approx(0.9, abs=1e-6)
    # A quantile of one would be out of range.
    assert 0.999 < _quantile(LOGISTIC, jnp.asarray(-17.0), least=0.0) < 1.0
    assert _quantile(LOGISTIC, jnp.asarray(jnp.nan)) == pytest.approx(0.9, abs=1e-6)


def test_a_class_that_is_not_steep_needs_no_room():
    """At 0.3 the slopes of the rarer class are 0.7, and 0.42 in the mean."""
    assert _quantile(LOGISTIC, _logit(0.3), planned=0.6) == pytest.approx(0.6, abs=1e-6)
    assert _quantile(LOGISTIC, _logit(0.2), planned=0.6) == pytest.approx(0.9, abs=1e-5)


@pytest.mark.parametrize("least", [0.001, 0.02])
def test_of_many_classes_the_rarest_that_is_seen_has_room(least):
    """Shares 0.96, 0.03, 0.01: the rarer the class, the longer its slope, softmax - e_k."""
    objective = losses.softmax(2.0, 3)
    found = _quantile(objective, jnp.log(jnp.asarray([0.96, 0.03, 0.01])), least=least)
    # Outside a quantile below 0.96 are both of the others; 0.01·0.99 is below 0.02.
    assert found == pytest.approx(0.995 if least == 0.001 else 0.98, abs=1e-5)
    assert _quantile(objective, jnp.zeros(3), planned=0.6) == pytest.approx(0.6, abs=1e-6)


def test_numbers_are_no_classes():
    for objective in (losses.huber(2.0), losses.squared(2.0, 1.0, 1.0)):
        assert _quantile(objective, jnp.asarray(-3.9)) == pytest.approx(0.9, abs=1e-6)


def _smooth_hinge():
    """Two classes, curvature 1 between margins of 0 and 1 of each label and 0 elsewhere."""

    def derivative(m, y):
        sign = 2.0 * jnp.clip(y, 0.0, 1.0) - 1.0
        return -sign * jnp.clip(1.0 - sign * m, 0.0, 1.0)

    model = LOGISTIC.linear_model._replace(derivative=derivative)
    return LOGISTIC._replace(linear_model=model, smoothness=4.0)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.02])
def test_curvatures_are_those_at_the_intercept(share):
    def found(objective, intercept, largest):
        return float(_first_intercept.curvature(largest, objective, intercept))

    assert found(LOGISTIC, _logit(share), 0.25) == pytest.approx(share * (1 - share), rel=1e-4)
    # Of diag(p) - ppᵀ: rows' absolute values sum to 2p(1 - p), at least the largest eigenvalue.
    logits = jnp.log(jnp.asarray([share, (1 - share) / 2, (1 - share) / 2]))
    worst = max(2 * p * (1 - p) for p in (share, (1 - share) / 2))
    assert found(losses.softmax(2.0, 3), logits, 0.5) == pytest.approx(worst, rel=1e-4)
    shares = np.exp(np.asarray(logits, float))
    assert worst >= np.linalg.eigvalsh(np.diag(shares) - np.outer(shares, shares))[-1]
    assert found(losses.huber(2.0), _logit(share), 1.0) == 1.0


@pytest.mark.parametrize("intercept", [-4.0, -0.3, 0.5])
def test_other_losses_of_two_classes_are_left_alone(intercept):
    """Of a hinge an intercept is no share, and the curvature at -4 says nothing of that at 0."""
    hinge = _smooth_hinge()
    assert not _first_intercept.of_classes(hinge)
    assert _first_intercept.curvature(1.0, hinge, jnp.asarray(intercept)) == 1.0
    assert _quantile(hinge, jnp.asarray(intercept)) == pytest.approx(0.9)


def test_what_is_a_loss_of_classes_is_seen_inside_jit_too():
    many = losses.softmax(2.0, 5)
    straight = many.linear_model._replace(derivative=lambda m, y: m - y[..., None])

    @jax.jit
    def seen(x):
        cases = LOGISTIC, many, many._replace(linear_model=straight), losses.huber(1.0)
        return x, [jnp.asarray(_first_intercept.of_classes(case)) for case in cases]

    assert [bool(each) for each in seen(1.0)[1]] == [True, True, False, False]


def test_many_classes_cost_no_matrix_of_them():
    objective, classes = losses.softmax(2.0, 2000), 2000
    lowered = jax.jit(lambda b: _first_intercept.curvature(0.5, objective, b)).lower(
        jnp.zeros(classes)
    )
    memory = lowered.compile().memory_analysis()
    assert memory.temp_size_in_bytes < 100 * classes


@pytest.mark.parametrize(
    ("share", "stddev", "mean"),
    [
        (0.5, 0.0, 0.25),
        (0.03, 0.0, 4 * 0.03 * 0.97),
        (0.03, 0.003, 4 * (0.03 * 0.97 + 0.009)),
        (0.03, 0.02, 0.25),
        (0.001, 0.0, 0.0625),
    ],
)
def test_steps_are_longer_where_the_class_is_known_to_be_rare(share, stddev, mean):
    known = Bends(0.25, 1.0, 0.25)
    found = _first_intercept.flatter(known, LOGISTIC, _logit(share), stddev)
    assert (found.largest, found.flatness) == (0.25, 1.0)
    assert float(found.mean) == pytest.approx(mean, rel=1e-4)


def test_an_intercept_is_no_farther_than_noise_could_make_it():
    def found(intercept, start=0.0, objective=LOGISTIC):
        return float(
            _first_intercept.within_noise(
                objective, jnp.asarray(intercept), jnp.asarray(start), 0.02
            )
        )

    furthest = float(_logit(0.98))
    assert found(-9.0) == pytest.approx(-furthest, rel=1e-5)
    assert found(9.0) == pytest.approx(furthest, rel=1e-5)
    assert found(-3.0) == -3.0
    # What was known beforehand is not taken back.
    assert found(-9.0, start=-6.0) == -6.0
    assert found(-9.0, objective=losses.huber(2.0)) == -9.0


def _fitted(share, start, multiplier):
    """The intercept of 1,000 labels of which a share are ones."""
    users = 1000
    problem = Problem(LOGISTIC, num_users=users, items_per_user=1, dim=1)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), intercept=0)
    plan = dataclasses.replace(plan, start_multiplier=multiplier)
    labels = (np.arange(users) < share * users).astype(np.float32)[:, None]
    return float(_released_of(plan, labels, np.full(1, start, np.float32)))


@jax.jit
def _released_of(plan, labels, start):
    rows = UserData(Example(jnp.ones((*labels.shape, 1)), labels), None)
    data = linear.prepare(LOGISTIC.linear_model, rows, 1)
    given = (jnp.asarray(1.0), Bends(0.25, 1.0, 0.25), data, start, True)
    return _first_intercept.released(jax.random.key(0), plan, LOGISTIC, *given)[0][0]


@pytest.mark.parametrize("share", [pytest.param(0.003, marks=pytest.mark.slow), 0.05, 0.5])
def test_sixty_steps_find_the_intercept_of_a_rare_class(share):
    assert _fitted(share, 0.0, 1e-6) == pytest.approx(float(_logit(share)), abs=0.05)


def test_noise_of_a_step_on_the_intercept_moves_no_margin_by_more_than_a_half():
    """From -6, where the link bends by 0.0025: one step of noise s over a curvature of at least 2s."""
    users, runs = 1000, 200
    problem = Problem(LOGISTIC, num_users=users, items_per_user=1, dim=1)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), intercept=0, start_steps=1)
    plan = dataclasses.replace(plan, start_multiplier=20.0, margin_scale=100.0)

    @jax.jit
    def moves(keys):
        labels = (jax.random.uniform(jax.random.key(1), (users, 1)) < jax.nn.sigmoid(-6.0)) + 0.0
        rows = UserData(Example(jnp.ones((users, 1, 1)), labels), None)
        data = linear.prepare(LOGISTIC.linear_model, rows, 1)
        given = (jnp.asarray(1.0), Bends(0.25, 1.0, 0.25), data, jnp.full(1, -6.0), True)

        def one(key):
            return _first_intercept.released(key, plan, LOGISTIC, *given)[0][0]

        return jax.lax.map(one, keys) + 6.0

    moved = np.asarray(moves(jax.random.split(jax.random.key(2), runs)))
    assert 0.4 < np.sqrt(np.mean(np.square(moved))) < 0.6


def test_noise_does_not_make_a_class_rarer_than_it_could_show():
    users = 1000
    problem = Problem(LOGISTIC, num_users=users, items_per_user=1, dim=1)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), intercept=0, start_steps=400)
    plan = dataclasses.replace(plan, start_multiplier=30.0, margin_scale=100.0)
    bends = Bends(0.25, 1.0, 0.25)
    # Of the average of 400 steps, each of which has 2·30/1000.
    stddev = 0.06 * (1.8 / 400) ** 0.5
    assert float(_first_intercept.prior(plan, 1.0, bends).slope_stddev) == pytest.approx(stddev)

    @jax.jit
    def run(labels):
        rows = UserData(Example(jnp.ones((users, 1, 1)), labels), None)
        data = linear.prepare(LOGISTIC.linear_model, rows, 1)
        given = (jnp.asarray(1.0), bends, data, jnp.zeros(1), True)
        found = _first_intercept.released(jax.random.key(0), plan, LOGISTIC, *given)[0]
        none = jnp.zeros((), jnp.int32)
        given = (plan, LOGISTIC, bends, found[0], none, 1, stddev)
        informed = (
            _first_intercept.informed(*given, jnp.asarray(constant))[0]
            for constant in (True, False)
        )
        return found, *informed

    found, bounded, unbounded = run(jnp.zeros((users, 1)))
    assert float(found[0]) < float(_logit(stddev)) - 0.5
    assert float(bounded) == pytest.approx(float(_logit(stddev)), rel=1e-4)
    assert unbounded == found[0]


@pytest.mark.parametrize("start", [-4.0, -3.0, 3.0, 5.0])
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_a_start_that_is_far_out_is_found_back_from(start, share):
    """Where the link is flat a Newton step is far too long, and its end as far out on the other side."""
    assert _fitted(share, start, 1e-3) == pytest.approx(float(_logit(share)), abs=0.1)


def _received(monkeypatch, labels, constant=1.0, **edits):
    """What the stages of a run are given, where the first one releases the intercept -4."""
    users, items, seen = 40, 3, {}
    problem = Problem(LOGISTIC, num_users=users, items_per_user=items, dim=2)
    plan = whitened_sgd.plan(
        problem, Budget(1.0, 1e-5), intercept=0, num_steps=4, radius_steps=2, start_steps=2
    )
    tiny = {f"{name}_multiplier": 1e-6 for name in ("means", "squares", "matrix", "check")}
    plan = dataclasses.replace(plan, **({"least_class": 0.001} | tiny | edits))
    rows = np.full((users, items, 2), constant, np.float32)
    rows[..., 1] = np.random.default_rng(0).normal(size=(users, items)) * 0.1
    data = UserData(Example(jnp.asarray(rows), jnp.asarray(labels(users, items))), None)

    def first(key, plan, objective, slope, bends, data, params, constant):
        return params.at[0].set(-4.0), privacy.zero(), jnp.zeros((), jnp.int32)

    def spied(module, name):
        inner = getattr(module, name)

        def outer(*args):
            seen.setdefault(name, []).append(args)
            return inner(*args)

        monkeypatch.setattr(module, name, outer)

    monkeypatch.setattr(_first_intercept, "released", first)
    spied(_first_intercept, "quantile_with_room")
    spied(whitened_sgd, "_opening_radius")
    spied(whitened_sgd, "_descent")
    # The arrays among what was given leave one compiled program, the rest is as it was when traced.
    kept = {}

    @jax.jit
    def arrays(plan, data):
        whitened_sgd.solve(jax.random.key(0), plan, LOGISTIC, data, jnp.zeros(2))
        leaves, kept["tree"] = jax.tree.flatten(dict(seen))
        kept["rest"] = [None if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        return [leaf if isinstance(leaf, jax.Array) else None for leaf in leaves]

    given = arrays(plan, data)
    leaves = [a if rest is None else rest for a, rest in zip(given, kept["rest"], strict=True)]
    return plan, jax.tree.unflatten(kept["tree"], leaves)


def _labels(ones):
    return lambda users, items: jnp.zeros((users, items)).at[: int(ones * users)].set(1.0)


@pytest.mark.slow
def test_stages_are_given_what_the_released_intercept_says(monkeypatch):
    plan, seen = _received(monkeypatch, _labels(0.0), start_multiplier=1e-3, radius_multiplier=1e-3)
    share = float(jax.nn.sigmoid(-4.0))
    asked = seen["quantile_with_room"][0]
    assert float(asked[3]) == -4.0
    assert asked[4] == 3
    expected = 1 - (1 - (1 - share) ** 3) / 2
    for stage, place in (("_opening_radius", 2), ("_descent", 2)):
        assert len(seen[stage]) == 2
        for args in seen[stage]:
            assert float(args[place]) == pytest.approx(expected, abs=1e-5)
    for args in seen["_descent"]:
        assert float(args[4].mean) == pytest.approx(4 * share * (1 - share), rel=1e-2)
    # Noise of the share that hides a part of it takes as much of the longer steps.
    _, part = _received(monkeypatch, _labels(0.0), start_multiplier=0.15, radius_multiplier=1e-3)
    stddev = float(part["quantile_with_room"][0][6])
    assert 0.2 * share < stddev < 0.6 * share
    expected_mean = 4 * (share * (1 - share) + 3 * stddev)
    assert float(part["_descent"][0][4].mean) == pytest.approx(expected_mean, rel=1e-3)
    # With the radius hidden by noise steps are not longer; with the share hidden nothing is done.
    _, hidden = _received(monkeypatch, _labels(0.0), start_multiplier=1e-3, radius_multiplier=40.0)
    assert float(hidden["_descent"][0][4].mean) == 0.25
    _, noisy = _received(monkeypatch, _labels(0.0), start_multiplier=10.0, radius_multiplier=1e-3)
    assert float(noisy["_descent"][0][2]) == pytest.approx(plan.quantile)
    assert float(noisy["_descent"][0][4].mean) == 0.25


def test_the_radius_holds_the_share_that_it_is_searched_for():
    """Noise that hardly moves the share; the share of the plan has no part in it."""
    users, rng = 200, np.random.default_rng(1)
    problem = Problem(LOGISTIC, num_users=users, items_per_user=1, dim=2)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), intercept=0, quantile=0.5)
    plan = dataclasses.replace(plan, radius_multiplier=1e-3)
    lengths = rng.uniform(0.1, 1.0, (users, 1))
    rows = np.stack([lengths, np.zeros_like(lengths)], -1)
    data = UserData(Example(jnp.float32(rows), jnp.zeros((users, 1))), None)

    @jax.jit
    def radius(quantile):
        model = LOGISTIC.linear_model
        prepared = linear.prepare(model, data, 2)
        start = whitened_sgd.TunedPoint(jnp.zeros(2), jnp.asarray(0.0))
        key = jax.random.key(0)
        return jnp.exp(whitened_sgd._opening_radius(key, plan, quantile, model, prepared, start)[0])

    norms = 0.5 * lengths * plan.radius_multiple
    for quantile in (0.3, 0.9):
        assert np.mean(norms < float(radius(quantile))) == pytest.approx(quantile, abs=0.1)


def test_the_labels_have_no_part_in_it_but_by_the_released_intercept(monkeypatch):
    quiet = {"start_multiplier": 1e-3, "radius_multiplier": 1e-3}
    one = _received(monkeypatch, _labels(0.0), **quiet)[1]
    other = _received(monkeypatch, _labels(0.9), **quiet)[1]
    # Spies are nested: the first run's have seen the second one too.
    for mine, theirs in zip(one["_descent"][:2], other["_descent"], strict=True):
        assert float(mine[2]) == float(theirs[2]) > 0.9
        assert float(mine[4].mean) == float(theirs[4].mean) < 0.25


@pytest.mark.slow
def test_a_column_that_is_not_the_constant_one_says_nothing_of_classes(monkeypatch):
    """Rows that were longer than their bound are made shorter, and the constant with them."""
    quiet = {"start_multiplier": 1e-3, "radius_multiplier": 1e-3}
    plan, seen = _received(monkeypatch, _labels(0.0), constant=0.3, **quiet)
    for args in seen["_descent"]:
        assert float(args[2]) == pytest.approx(plan.quantile)
        assert float(args[4].mean) == 0.25


@pytest.mark.parametrize("name", ["start_multiplier", "means_multiplier"])
def test_an_intercept_without_noise_for_it_is_refused_by_name(name):
    problem = Problem(LOGISTIC, num_users=4, items_per_user=1, dim=2)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), intercept=0)
    edited = dataclasses.replace(plan, **{name: None})
    data = UserData(Example(jnp.ones((4, 1, 2)), jnp.zeros((4, 1))), None)
    with pytest.raises(ValueError, match=rf"plan\.{name} must be a number where"):
        whitened_sgd.solve(jax.random.key(0), edited, LOGISTIC, data, jnp.zeros(2))


def test_the_bound_follows_noise_and_a_given_quantile_stays():
    problem = Problem(LOGISTIC, num_users=1000, items_per_user=1, dim=9)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), intercept=0)
    less = whitened_sgd.plan(problem, Budget(4.0, 1e-5), intercept=0)
    # 1 - quantile = 12 s/(1 + 12 s), and s·√columns is what hides.
    noise = (1 / plan.quantile - 1) / 12
    assert plan.least_class == pytest.approx(noise * 3 / 1.5, rel=1e-6)
    assert less.least_class < plan.least_class / 2
    given = whitened_sgd.plan(problem, Budget(1.0, 1e-5), intercept=0, quantile=0.8)
    assert given.least_class == 1.0
