"""Where private ReSQue could break: rounded losses, places in a sample, float32, the worst neighbours."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax.oracles import linear
from dpsco_jax.privacy.resque import ResqueCall
from dpsco_jax.privacy.resque._drift import drift_factor, shift_law
from dpsco_jax.privacy.resque.calls import _law, _uses
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.resque import _calls, _one_ball, resque_erm
from tests.support.planned import planned

ABSOLUTE = losses.absolute(1.0)


def setting(rows, labels, ratio, radius=1.0):
    items = Example(rows[:, None], labels[:, None])
    data = linear.prepare(ABSOLUTE.linear_model, UserData(items), rows.shape[-1])
    return _calls.Setting(ABSOLUTE.linear_model, data, radius, ratio * radius, 1.0)


# The law that composes.


def gaussian_profile(shift, log_alpha):
    near, far = 0.5 * shift - log_alpha / shift, -0.5 * shift - log_alpha / shift
    return stats.norm.cdf(near) - np.exp(log_alpha + stats.norm.logcdf(far))


def claimed_profile(call, failure, epsilon):
    """Failures, and by joint convexity the mean of the profiles over uses, positions and drifts."""
    if epsilon < 0:  # neighbours exchanged
        return 1.0 - math.exp(epsilon) * (1.0 - claimed_profile(call, failure, -epsilon))
    rate, uses, more = _uses(call, 0.5 * failure)
    drawn = (call.num_queries - 1) / call.population
    in_phase = min((0.99 * failure - more) / drawn, 0.5)
    inner, value = math.log1p(math.expm1(epsilon) / rate), 0.0
    for times, chance in enumerate(uses, 1):
        shifts, weights = shift_law(call.num_queries, call.radius_ratio, times, in_phase)
        value += chance * (weights @ gaussian_profile(2 * call.beta * shifts, inner))
    failed = more + drawn * in_phase
    return failed + (1 - failed) * rate * value


@pytest.mark.parametrize(
    ("call", "failure", "most"),
    [
        (ResqueCall(256, 0.05, 12.0, 5000), 1e-8, 1.002),
        (ResqueCall(64, 0.5, 4.0, 64), 1e-7, 1.002),
        (ResqueCall(256, 0.1, 4.0, 500, True), 1e-9, 1.2),
        (ResqueCall(1024, 0.02, 32.0, 1023), 1e-12, 1.005),
    ],
)
def test_the_rounded_loss_is_above_the_mean_of_the_profiles(call, failure, most):
    law = _law(call, failure)
    assert failure * 0.98 < law.infinite <= failure
    assert law.masses @ np.exp(-law.losses) + law.infinite == pytest.approx(1.0, abs=1e-12)
    for epsilon in (-2.0, -0.1, -1e-3, 1e-3, 0.01, 0.1, 0.5, 2.0):
        above = law.losses > epsilon
        found = law.infinite - law.masses[above] @ np.expm1(epsilon - law.losses[above])
        claimed = claimed_profile(call, failure, epsilon)
        assert claimed * (1 - 1e-7) <= found <= most * claimed


# The sample.


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def drawn_users(num_users, size, count):
    keys = jax.random.split(jax.random.key(2), count)
    call = _calls.sizes_of(num_users, [_calls.Level(size, 1.0)], False)
    return jax.vmap(lambda key: _calls._draw_users(key, call))(keys)


def test_a_user_is_equally_likely_at_every_place_of_a_call():
    """The accountant averages over places, in samples of more than half of the users too."""
    num_users = 9
    users = np.asarray(drawn_users(num_users, 8, 4000))
    assert all(len(set(call)) == 7 for call in users[:100].tolist())
    counts = np.stack([np.bincount(users[:, j], minlength=num_users) for j in range(7)])
    expected = 4000 / num_users
    square = np.sum((counts - expected) ** 2) / expected
    assert square < stats.chi2.ppf(1 - 1e-6, 7 * (num_users - 1))


# Precision.


@functools.partial(jax.jit, static_argnums=0)
def late_drifts(count, reach, norm, regularization):
    """‖x - x'‖ of noiseless neighbours over the most that one record at weight 1 moves a phase."""
    size, dim = 32, 2
    rows = jax.random.normal(jax.random.key(5), (size - 1, dim))
    rows /= jnp.linalg.norm(rows, axis=-1, keepdims=True)
    labels = 0.01 * jax.random.normal(jax.random.key(6), (size - 1,))

    def end(key, start, label):
        calls = setting(rows, labels.at[0].set(label), 12.0)
        center = jnp.zeros(dim)
        return _calls.localized(key, calls, size, center, start, 1.0, reach, regularization)

    def one(key):
        key, start_key = jax.random.split(key)
        start = jax.random.normal(start_key, (dim,))
        start *= norm / jnp.linalg.norm(start)
        ends = jax.vmap(end, (None, None, 0))(key, start, jnp.asarray([50.0, -50.0]))
        return jnp.linalg.norm(ends[0] - ends[1])

    drifts = jax.lax.map(one, jax.random.split(jax.random.key(7), count), batch_size=count)
    return drifts / (2 * reach / math.sqrt(size) / 4)


def test_steps_near_the_resolution_of_float32_drift_no_further():
    """Late phases make steps of 1e-7 of the ball and less. The end itself is rounded, after the noise."""
    bound = drift_factor(32, 12.0, 1e-3)
    for reach, norm, regularization in ((2e-5, 0.7, 0.0), (2e-6, 0.7, 0.0), (2e-6, 1.0, 3.0)):
        drifts = np.asarray(late_drifts(200, reach, norm, regularization))
        rounded = math.sqrt(2) * 2.0**-24 / (2 * reach / math.sqrt(32) / 4)
        assert drifts.max() <= bound + rounded
        assert np.quantile(drifts, 0.9) > 0.5, "the record counts"


def bare_plan():
    return planned(
        _one_ball.draft, ABSOLUTE, num_users=20, dim=3, epsilon=1.0, delta=1e-3, ball_radius=0.1
    )


NOTHING = UserData(Example(jnp.zeros((20, 1, 3)), jnp.zeros((20, 1))))


def test_half_precision_is_widened():
    plan = bare_plan()
    for dtype in (jnp.bfloat16, jnp.float16):
        found = jax.eval_shape(
            lambda start: (
                resque_erm.solve(jax.random.key(0), plan, ABSOLUTE, NOTHING, start).params
            ),
            jax.ShapeDtypeStruct((3,), dtype),
        )
        assert found.dtype == jnp.float32


def test_the_loss_that_is_run_is_the_one_that_counts():
    """Gradients are not clipped: a plan for another loss must neither lift the refusal nor save noise."""
    plan = bare_plan()
    with pytest.raises(ValueError, match="convex and Lipschitz on the whole space"):
        resque_erm.solve(
            jax.random.key(0), plan, losses.squared(1.0, 1.0, 1.0), NOTHING, jnp.zeros(3)
        )
    steep = _calls.make_setting(losses.absolute(3.0), NOTHING, plan)
    assert steep.lipschitz == 3.0
    assert _calls.make_setting(losses.absolute(0.5), NOTHING, plan).lipschitz == 1.0


# Whole calls of the solver.


@functools.partial(jax.jit, static_argnums=(0, 1))
def points(size, count, key, labels, beta, reach, regularization, ratio, start):
    calls = setting(jnp.ones((labels.shape[0], 1)), labels, ratio)

    def one(key):
        return _calls.localized(key, calls, size, jnp.zeros(1), start, beta, reach, regularization)[
            0
        ]

    return jax.vmap(one)(jax.random.split(key, count))


def shown_profile(first, second, epsilons):
    """Lower bounds of hockey-stick divergences: thresholds from one half, Clopper-Pearson on the other."""
    half, best = len(first) // 2, np.zeros(len(epsilons))
    for p, q in ((first, second), (-first, -second), (second, first), (-second, -first)):
        thresholds = np.quantile(np.concatenate([p[:half], q[:half]]), np.linspace(0, 1, 400))
        above = [1 - np.searchsorted(np.sort(x[:half]), thresholds) / half for x in (p, q)]
        for i, epsilon in enumerate(epsilons):
            best_one = thresholds[np.argmax(above[0] - math.exp(epsilon) * above[1])]
            hits, false = (np.sum(x[half:] > best_one) for x in (p, q))
            low = stats.beta.ppf(1e-4, hits, half - hits + 1) if hits else 0.0
            high = stats.beta.ppf(1 - 1e-4, false + 1, half - false) if false < half else 1.0
            best[i] = max(best[i], low - math.exp(epsilon) * high)
    return best


EPSILONS = (0.0, 0.3, 1.0)


def shown(size, users, ratio, beta, others, reach=2.0, regularization=0.0, start=0.0):
    """The record pulls one way or the other; all other users have their kink at ``others``."""
    pair = []
    for record in (1e6, -1e6):
        labels = jnp.full(users, others).at[0].set(record)
        key, begin = jax.random.key(int(record > 0)), jnp.full(1, start)
        pair.append(points(size, 100_000, key, labels, beta, reach, regularization, ratio, begin))
    return shown_profile(*map(np.asarray, pair), EPSILONS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "users", "ratio", "beta"),
    [
        (4, 3, 2.5, 0.5),
        (16, 15, 2.5, 0.5),
        (16, 15, 32.0, 0.5),
        (16, 40, 4.0, 1.0),
        (64, 63, 4.0, 1.0),
    ],
)
def test_worst_neighbours_show_no_more_than_is_claimed(size, users, ratio, beta):
    """Kinks at the center and at the edge of the ball, slopes of one sign, two starts and reaches."""
    call = ResqueCall(size, beta, ratio, users)
    claimed = np.array([claimed_profile(call, 1e-9, epsilon + 1e-12) for epsilon in EPSILONS])
    for others in (0.0, 1.0, -1e6, 1e6):
        assert np.all(shown(size, users, ratio, beta, others) <= claimed)
    assert np.all(shown(size, users, ratio, beta, 0.0, 2.0, 5.0, 1.0) <= claimed)
    if ratio > 16:
        found = shown(size, users, ratio, beta, -1e6)
        assert found[0] > 0.25 * claimed[0], "not by much, however"
        assert np.any(shown(size, users, ratio, 4 * beta, -1e6) > claimed), "a slip is seen"
