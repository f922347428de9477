"""Item-sampled DP-SGD: who is drawn, how far a user moves a step, what it costs; which sampling is better."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from scipy import stats

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import item_sampled_sgd, sampling_choice, sgd
from tests.support.planned import planned

USERS, ITEMS, DIM, STEPS, CLIP = 6, 4, 4, 5, 0.5
SIZES = {
    "num_users": USERS, "items_per_user": ITEMS, "dim": DIM, "epsilon": 2.0, "delta": 1e-3,
    "num_steps": STEPS, "batch_size": 8, "clip_norm": CLIP, "step_size": 0.3, "accountant": "rdp",
}  # fmt: skip
# Gradients are the items, whatever the point.
LINEAR = Objective(lambda w, z: jnp.vdot(z, w), 1.0, 1e-3, domains.whole_space())


@functools.cache
def _planned(**changes):
    return planned(item_sampled_sgd.plan, LINEAR, **(SIZES | changes))


def _data(seed=0, users=USERS, items=ITEMS):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(users, items, DIM)).astype(np.float32)
    return UserData(jnp.asarray(rows), jnp.asarray(rng.random((users, items)) < 0.8))


@functools.cache
def _sum_of(mean):
    """What a step sums, before noise: ``(key, data) -> Σ clip(g)`` over the items that are drawn."""

    def total(key, data):
        oracle, rows, _, _ = mean.open(jax.random.key(0), LINEAR, data, jnp.zeros(DIM))
        found = oracle(key, jnp.zeros(DIM), rows)
        return found.gradient + found.extra_args["remainder"]

    return jax.jit(total)


def _everybody():
    return _planned().replace(batch_size=USERS * ITEMS)


@pytest.mark.parametrize(
    ("kind", "times"), [("alike", 4.0), ("opposite", 0.0), ("orthogonal", 2.0)]
)
def test_a_user_moves_the_sum_by_as_many_clip_norms_as_items_at_most(kind, times):
    directions = {
        "alike": np.tile([1.0, 0, 0, 0], (4, 1)),
        "opposite": np.array([[1.0, 0, 0, 0], [-1, 0, 0, 0], [0, 1, 0, 0], [0, -1, 0, 0]]),
        "orthogonal": np.eye(4),
    }[kind]
    data = UserData(jnp.zeros((USERS, ITEMS, DIM)), jnp.ones((USERS, ITEMS), bool))
    with_user = data._replace(items=data.items.at[2].set(50.0 * directions))
    total = _sum_of(_everybody().mean)
    ends = [np.asarray(total(jax.random.key(1), each)) for each in (with_user, data)]
    moved = np.linalg.norm(ends[0] - ends[1])
    assert moved == pytest.approx(times * CLIP, rel=1e-4, abs=1e-6)
    assert moved <= ITEMS * CLIP


def test_the_items_of_a_user_are_drawn_one_by_one():
    """How many of them are in a step is binomial; drawing users whole would make it none or all."""
    plan = _planned().replace(batch_size=9)
    rows = np.zeros((USERS, ITEMS, DIM), np.float32)
    rows[3, :, 0] = 50.0
    runs = 4000
    data = UserData(jnp.asarray(rows), None)
    keys = jax.random.split(jax.random.key(9), runs)
    drawn = np.asarray(jax.vmap(lambda key: _sum_of(plan.mean)(key, data)[0])(keys)) / CLIP
    counts = np.bincount(np.rint(drawn).astype(int), minlength=ITEMS + 1)
    np.testing.assert_allclose(drawn, np.rint(drawn), atol=1e-3)
    expected = runs * stats.binom(ITEMS, 9 / (USERS * ITEMS)).pmf(np.arange(ITEMS + 1))
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def _of_all(data):
    """The clipped sum over all items, in float64 by NumPy."""
    rows, mask = np.asarray(data.items, np.float64), np.asarray(data.mask)
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    clipped = rows * np.minimum(1.0, CLIP / lengths) * mask[..., None]
    return clipped.sum((0, 1))


def test_with_every_item_and_next_to_no_noise_it_is_gradient_descent():
    """Linear losses: every step moves by the same clipped mean, over all slots, empty ones too."""
    plan = _everybody().replace(noise_multiplier=1e-6, averaging="last")
    data = _data()
    run = jax.jit(
        lambda data: item_sampled_sgd.solve(jax.random.key(1), plan, LINEAR, data, jnp.zeros(DIM))
    )
    solution = run(data)
    expected = -0.3 * STEPS * _of_all(data) / (USERS * ITEMS)
    np.testing.assert_allclose(solution.params, expected, rtol=1e-4, atol=1e-6)
    assert int(solution.gradients) == STEPS * USERS * ITEMS


def test_with_one_item_it_is_user_level_sgd_bit_for_bit():
    sizes = SIZES | {"items_per_user": 1, "batch_size": 3}
    ours, theirs = (planned(solver.plan, LINEAR, **sizes) for solver in (item_sampled_sgd, sgd))
    assert ours.noise_multiplier == theirs.noise_multiplier
    assert ours.releases.steps.composition(2.0) == theirs.releases.steps.composition(2.0)
    data = _data(items=1)
    points = [
        jax.jit(
            lambda data, s=solver, p=plan: s.solve(
                jax.random.key(4), p, LINEAR, data, jnp.zeros(DIM)
            )
        )(data).params
        for solver, plan in ((item_sampled_sgd, ours), (sgd, theirs))
    ]
    np.testing.assert_array_equal(*points)


def test_more_slots_than_were_accounted_for_are_refused():
    plan = _planned()
    for items in (ITEMS + 1, ITEMS - 1, 2 * ITEMS):
        with pytest.raises(ValueError, match="data"):
            item_sampled_sgd.solve(
                jax.random.key(0), plan, LINEAR, _data(items=items), jnp.zeros(DIM)
            )
        with pytest.raises(ValueError, match="data"):
            plan.mean.open(jax.random.key(0), LINEAR, _data(items=items), jnp.zeros(DIM))
    # As many rows in all, cut in another way: fewer users of more items.
    with pytest.raises(ValueError, match="data"):
        plan.mean.open(
            jax.random.key(0), LINEAR, _data(users=USERS // 2, items=2 * ITEMS), jnp.zeros(DIM)
        )
    with pytest.raises(ValueError, match="relation"):
        _planned(relation=NeighboringRelation.REPLACE_ONE)
    with pytest.raises(ValueError, match="batch_size"):
        _planned(batch_size=USERS * ITEMS + 1)


def test_a_user_is_charged_for_all_items():
    """Of whom all are drawn in every step: Gaussian releases whose sensitivity is that of a whole user."""
    plan = _everybody()
    whole = privacy.scale(privacy.gaussian(plan.noise_multiplier / ITEMS), STEPS)
    np.testing.assert_allclose(plan.loss().rdp, whole.rdp, rtol=1e-6)


def test_a_plan_is_not_edited_to_an_empty_batch():
    with pytest.raises(ValueError, match="batch_size"):
        _planned().replace(batch_size=0)


# ---- which sampling has less noise


@functools.cache
def _compared(epsilon, batch_size, correlation, clip="equal", kept=None):
    problem = Problem(LINEAR, num_users=1000, dim=1000, items_per_user=16)
    return sampling_choice.plan(
        problem, Budget(epsilon, 1e-6), num_steps=100, batch_size=batch_size, accountant="rdp",
        correlation=correlation, clip=clip, kept=kept,
    )  # fmt: skip


def test_of_one_item_a_user_both_samplings_are_the_same():
    items, users = _compared(2.0, 64, 0.3, kept=(1,)).choices
    assert (items.sampling, users.sampling) == ("items", "users")
    assert items._replace(sampling="users") == users


def test_the_variance_is_that_of_simulated_steps():
    """Both samplings with their noise, on gradients of length C that correlate as is said."""
    users, items, dim, batch, rng = 30, 4, 8, 24, np.random.default_rng(0)
    common = rng.normal(size=(users, 1, dim)) / math.sqrt(dim)
    own = rng.normal(size=(users, items, dim)) / math.sqrt(dim)
    gradients = math.sqrt(0.4) * common + math.sqrt(0.6) * own
    gradients -= gradients.mean((0, 1))
    length = np.square(gradients).sum(-1).mean()
    mean = np.square(gradients.mean(1)).sum(-1).mean() / length
    correlation = (mean - 1 / items) / (1 - 1 / items)
    gradients /= math.sqrt(length)
    problem = Problem(LINEAR, num_users=users, dim=dim, items_per_user=items)
    made = sampling_choice.plan(
        problem, Budget(4.0, 1e-3), num_steps=10, batch_size=batch, accountant="rdp",
        correlation=correlation, kept=(items,),
    )  # fmt: skip
    runs = 20_000
    for choice in made.choices:
        whole = choice.sampling == "users"
        rows = gradients.mean(1) if whole else gradients.reshape(-1, dim)
        divisor = batch / items if whole else batch
        drawn = rng.random((runs, len(rows))) < choice.rate
        noise = choice.noise_multiplier * rng.normal(size=(runs, dim))
        steps = (drawn @ rows + noise) / divisor
        assert np.square(steps).sum(1).mean() == pytest.approx(choice.variance, rel=0.03)
        assert drawn.sum(1).mean() * (items if whole else 1) == pytest.approx(batch, rel=0.02)
    assert [choice.left_out for choice in made.choices] == [0.0, 0.0]


def test_with_equal_clip_norms_items_have_no_more_noise_than_users_of_as_many():
    """Charles et al. 2024: the same number of items, the same cost; their Lipschitz comparison."""
    for epsilon in (0.5, 8.0):
        found = _compared(epsilon, 64, 1.0, kept=(4, 16)).choices
        for items, users in zip(found[::2], found[1::2], strict=True):
            assert items.noise < users.noise
            assert items.noise_multiplier < items.items_per_user * users.noise_multiplier


def test_users_win_where_items_differ_the_more_the_stronger_privacy_and_the_larger_the_cost():
    """The claims of Charles et al. 2024, qualitatively: ratios of the best variances, items over users."""

    def ratio(*where):
        made = _compared(*where, kept=(1, 4, 16))
        return made.items.variance / made.users.variance

    fitted = {(e, b): ratio(e, b, 0.1, "fitted") for e in (0.5, 8.0) for b in (64, 2000)}
    assert fitted[0.5, 2000] > fitted[0.5, 64] > 1.3
    assert fitted[0.5, 2000] > fitted[8.0, 2000] > fitted[8.0, 64] >= 1
    assert fitted[8.0, 64] == pytest.approx(1.0, abs=0.05)
    # Users all of whose items are alike, little privacy, many gradients: the other way round.
    assert ratio(32.0, 2000, 1.0, "fitted") < 0.97


def test_a_choice_prints_as_a_table_and_refuses_what_is_out_of_range():
    text = str(_compared(2.0, 64, 0.3, kept=(1,)))
    assert "1000 users of 16 items" in text
    assert len(text.splitlines()) == 4
    assert text.count("*") == 1
    problem = Problem(LINEAR, num_users=10, dim=3, items_per_user=4)
    good = {"num_steps": 2, "batch_size": 20, "accountant": "rdp"}
    for name, value in (
        ("kept", (5,)), ("kept", ()), ("kept", (1,)), ("kept", 3), ("correlation", 1.1),
        ("clip", "other"), ("batch_size", 41), ("num_steps", 0), ("accountant", "best"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=name):
            sampling_choice.plan(problem, Budget(1.0, 1e-3), **(good | {name: value}))
