"""Linear losses on a ball: laws of draws and plays, the account, the bound, and what the sums keep to."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from dpsco_jax import Budget, privacy
from dpsco_jax.problems import streams
from dpsco_jax.solvers.online import _ball_law, convex, lazy_to_private

BUDGET = Budget(4.0, 1e-6)


def inside(dim, k, a, count, seed=0):
    """Another program: exp(k·y_1 - a‖y‖²) on the unit ball, by attempts at a Gaussian in NumPy."""
    rng, found = np.random.default_rng(seed), []
    while sum(map(len, found)) < count:
        y = rng.normal(size=(50_000, dim)) / math.sqrt(2 * a)
        y[:, 0] += k / (2 * a)
        found.append(y[np.square(y).sum(axis=1) <= 1])
    return np.concatenate(found)[:count]


def truncated(k, a):
    """The law of d = 1, in closed form."""
    spread, mean = 1 / math.sqrt(2 * a), k / (2 * a)
    return stats.truncnorm((-1 - mean) / spread, (1 - mean) / spread, mean, spread)


@functools.cache
def drawn(dim, k, a, count=4000):
    towards = jnp.zeros(dim).at[-1].set(-3.0)
    keys = jax.random.split(jax.random.key(5), count)
    run = jax.jit(jax.vmap(lambda key, k, a: _ball_law.draw(key, towards, k, a), (0, None, None)))
    return np.asarray(run(keys, jnp.float32(k), jnp.float32(a)), np.float64)


@pytest.mark.parametrize(("k", "a"), [(0.0, 3.0), (3.0, 2.0), (40.0, 10.0)])
def test_draws_on_an_interval_have_the_law_of_a_truncated_normal(k, a):
    assert stats.kstest(-drawn(1, k, a)[:, 0], truncated(k, a).cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    ("dim", "k", "a"), [(2, 3.0, 2.0), (2, 8.0, 3.0), (5, 12.0, 8.0), (5, 0.0, 4.0)]
)
def test_draws_in_a_ball_have_the_law_of_attempts_at_a_gaussian(dim, k, a):
    y, other = drawn(dim, k, a), inside(dim, k, a, 40_000)
    assert np.linalg.norm(y, axis=1).max() <= 1 + 1e-6
    along = stats.ks_2samp(-y[:, -1], other[:, 0]).pvalue
    lengths = stats.ks_2samp(np.linalg.norm(y, axis=1), np.linalg.norm(other, axis=1)).pvalue
    sideways = stats.ks_2samp(y[:, 0], other[:, -1]).pvalue
    assert min(along, lengths, sideways) > 1e-4


LAWS = [
    (2, 0.0, 0.5),
    (5, 3.0, 10.0),
    (10, 400.0, 22.0),
    (10, 30.0, 22.0),
    (3, 1e4, 5.0),
    (2, 5.0, 300.0),
    (200, 900.0, 300.0),
    (2, 1.0, 1e-6),
]


def depth_by_quadrature(dim, k, a, z):
    c = math.sqrt(-math.expm1(-2 * z))
    top = min(c, k / (2 * a))
    most = k * top - a * top * top
    mass, _ = integrate.quad(
        lambda u: math.exp(k * u - a * u * u - most),
        -c,
        c,
        points=[top],
        epsabs=0,
        epsrel=1e-9,
        limit=400,
    )
    return -(dim - 1) * z + most + math.log(mass) - a * math.exp(-2 * z)


@pytest.mark.parametrize(("dim", "k", "a"), LAWS)
def test_the_density_across_is_that_of_quadrature(dim, k, a):
    depths = np.geomspace(1e-6, 8.0, 40)
    exact = np.array([depth_by_quadrature(dim, k, a, z) for z in depths])
    numbers = (jnp.asarray(x, jnp.float32) for x in (k, a, depths))
    found = np.asarray(_across()(dim, *numbers), np.float64)
    near = exact > exact.max() - 20
    assert np.ptp((found - exact)[near]) < 3e-5


@functools.cache
def _across():
    return jax.jit(_ball_law.log_across, static_argnums=0)


@pytest.mark.parametrize(("dim", "k", "a"), LAWS)
def test_an_attempt_counts_as_often_as_is_proven(monkeypatch, dim, k, a):
    """With one attempt the mode is taken where it fails: the value that comes up more than once."""
    monkeypatch.setattr(_ball_law, "ATTEMPTS", 1)
    keys, others = jax.random.split(jax.random.key(3), (2, 4000))
    k, a = jnp.float32(k), jnp.float32(a)
    z = jax.jit(jax.vmap(lambda key: _ball_law._across(key, dim, k, a)))(keys)
    u = jax.jit(jax.vmap(lambda key: _ball_law._along(key, k, a, jnp.float32(0.7))))(others)
    for found in (z, u):
        _, counts = np.unique(np.asarray(found), return_counts=True)
        failed = counts.max() / 4000
        assert 1 - failed >= 0.43 - 3 * math.sqrt(0.25 / 4000)


def test_what_no_attempt_brings_is_charged():
    plan = small()
    assert plan.variation == 2 * 0.57**96
    assert plan.replace(regularization=1e9).variation == 1.0
    assert plan.replace(regularization=1e9).certificate().epsilon == math.inf
    assert plan.replace(dim=10**9).variation == 1.0
    worse = dataclasses.replace(plan.releases, variation=1e-8)
    assert worse.certificate().epsilon > 1.001 * plan.certificate().epsilon
    settings = {"learning_rate": 0.1, "clip": 0.1, "draw_zcdp": 0.005, "redraw_probability": 0.2}
    exact, missed = (
        lazy_to_private.plan(50, **settings, delta=1e-6, variation=v).certificate().epsilon
        for v in (None, 1e-9)
    )
    assert missed > 1.01 * exact
    with pytest.raises(ValueError, match=r"budget\.delta must be above .*, of draws that fail"):
        convex.plan(1000, 3, Budget(40.0, 1e-6), radius=1.0, lipschitz=1.0)


@functools.cache
def moment_by_quadrature(dim, k, a):
    def mass(k):
        def density(u):
            across = special.gammainc((dim - 1) / 2, a * (1 - u * u)) if dim > 1 else 1.0
            return math.exp(k * (u - 1) - a * u * u) * across

        points = [0.0, 0.5, 0.9, 0.99, 0.999]
        return integrate.quad(density, -1, 1, points=points, epsabs=0, epsrel=1e-10, limit=500)[0]

    # In units of e^k, which is what the moment is over.
    return math.log(mass(0.0)) - math.log(mass(k))


@pytest.mark.parametrize(
    ("dim", "k", "a"),
    [(1, 5.0, 2.0), (1, 300.0, 5.0), (3, 40.0, 10.0), (10, 400.0, 22.0), (30, 2e3, 60.0)],
)
def test_the_moment_is_a_bound_and_hardly_more(dim, k, a):
    exact = moment_by_quadrature(dim, k, a)
    assert exact <= _ball_law.moment(dim, k, a) <= 1.01 * exact


@pytest.mark.parametrize("total", [0.0, 3.0, -12.0, 60.0])
@pytest.mark.parametrize("alpha", [1.1, 2.0, 8.0, 40.0])
def test_one_draw_is_as_private_as_it_says(total, alpha):
    """d = 1, by integration: replacing a loss of L by one of -L, beside any others."""
    beta, pull = 0.3, 0.8
    rho = beta / pull
    one, two = (truncated(beta * (total + g), beta * pull) for g in (1.0, -1.0))
    x = np.linspace(-1, 1, 20_001)
    height = np.exp(alpha * one.logpdf(x) + (1 - alpha) * two.logpdf(x))
    found = math.log(integrate.simpson(height, x=x)) / (alpha - 1)
    assert 0 < found <= alpha * rho
    if total == 0.0 and alpha == 1.1:
        assert found > 0.1 * alpha * rho  # the ball takes away the rest


def test_a_wide_ball_leaves_nothing_of_the_bound():
    beta, pull, alpha = 50.0, 2.0, 3.0
    x = np.linspace(-1, 1, 20_001)
    one, two = (truncated(beta * g * 0.05, beta * pull) for g in (1.0, -1.0))
    found = math.log(
        integrate.simpson(np.exp(alpha * one.logpdf(x) + (1 - alpha) * two.logpdf(x)), x=x)
    ) / (alpha - 1)
    assert found == pytest.approx(alpha * 0.05**2 * beta / pull, rel=1e-3)


@functools.cache
def small(dim=1, **changes):
    """Four batches of two rounds, of numbers that show what is done."""
    settings = {"batch_size": 2, "redraw_probability": 0.2, "radius": 2.0, "lipschitz": 1.5}
    plan = convex.plan(8, dim, BUDGET, **settings)
    numbers = {"learning_rate": 0.4, "regularization": 0.3, "redraw_probability": 0.2, "clip": 2.4}
    return plan.replace(**{**numbers, **changes})


@pytest.mark.parametrize("unit", [1e-30, 1e-20, 1e20])
def test_a_ledger_is_charged_in_any_units(unit):
    """Attacked: L² that is zero, or infinite, in float32."""
    changes = {"lipschitz": 1.5 * unit, "learning_rate": 0.4 / unit, "regularization": 0.3 * unit}
    one, other = (
        jax.jit(lambda plan: plan.loss().rdp)(jax.tree.map(jnp.float32, plan))
        for plan in (small(), small(**changes))
    )
    np.testing.assert_allclose(other, one, rtol=1e-4)


def test_bounds_of_which_the_law_is_not_in_floats_are_refused():
    with pytest.raises(ValueError, match="lipschitz must be of a size"):
        convex.plan(8, 1, BUDGET, batch_size=2, radius=1e15, lipschitz=1e30)


LINE = np.array([[1.0], [0.5], [-1.5], [1.0], [1.0], [0.0], [-0.5], [1.0]])


@functools.cache
def _many(count):
    def run(plan, table, key):
        losses = streams.rows(table)
        one = lambda key: convex.solve(key, plan, losses).released["plays"]  # noqa: E731
        return jax.vmap(one)(jax.random.split(key, count))

    return jax.jit(run)


def plays_of(plan, table, count=4000):
    return np.asarray(_many(count)(plan, jnp.asarray(table, jnp.float32), jax.random.key(2)), float)


@pytest.mark.parametrize("chance", [0.05, 0.2, 1.0])
def test_each_play_on_a_line_has_its_law(chance):
    plan = small(redraw_probability=chance)
    plays = plays_of(plan, LINE)[:, :, 0]
    a = 0.4 * 0.3 * 2.0**2
    for s in range(4):
        law = truncated(-0.4 * 2.0 * LINE[: 2 * s].sum(), a)
        assert stats.kstest(plays[:, s] / 2.0, law.cdf).pvalue > 1e-4
    kept = np.mean(plays[:, 1:] == plays[:, :-1], axis=0)
    if chance == 1.0:  # independent draws
        assert np.all(kept == 0)
        for s in range(3):
            assert stats.spearmanr(plays[:, s], plays[:, s + 1]).pvalue > 1e-4
    else:
        assert np.all(kept > 0.05)
        # Of both rounds of the batch: the probability of a kept play, over its law.
        law, lost = truncated(0.0, a), lambda x: 2 * (LINE[:2].sum() * x + np.abs(LINE[:2]).sum())
        x = np.linspace(-1, 1, 4001)
        expected = integrate.simpson((1 - chance) * np.exp(-0.4 * lost(x)) * law.pdf(x), x=x)
        assert abs(kept[0] - expected) < 4 * math.sqrt(expected / 4000)


def test_each_play_in_a_disk_has_its_law():
    plan = small(2)
    table = np.random.default_rng(1).normal(size=(8, 2))
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True) / 1.5, 1)
    plays = plays_of(plan, table) / 2.0
    for s in (1, 3):
        total = table[: 2 * s].sum(axis=0)
        other = inside(2, 0.8 * np.linalg.norm(total), 0.48, 20_000)
        along = -plays[:, s] @ total / np.linalg.norm(total)
        assert stats.ks_2samp(along, other[:, 0]).pvalue > 1e-4
        lengths = np.linalg.norm(plays[:, s], axis=1)
        assert stats.ks_2samp(lengths, np.linalg.norm(other, axis=1)).pvalue > 1e-4


def test_with_printed_references_a_play_does_not_depend_on_them():
    """The measure in Algorithm 44 as it is printed: x_s beside y_{s-1}, whose clip cuts nothing off."""
    own = small()
    measure = convex.measure(own)
    plan = lazy_to_private.plan(
        8,
        learning_rate=0.4,
        clip=2.4,
        draw_zcdp=float(own.draw_zcdp),
        redraw_probability=0.2,
        delta=1e-6,
        batch_size=2,
        variation=float(own.variation),
    )
    table = jnp.asarray(LINE, jnp.float32)

    @jax.jit
    def run(keys):
        def one(key):
            state, seen = lazy_to_private.init(key, plan, measure), []
            for t in range(4):
                seen.append(state.secret.reference)
                state, _ = lazy_to_private.step(state, measure, table[t])
            return jnp.stack([state.play[0], seen[-1][0]])

        return jax.vmap(one)(keys)

    x, y = np.asarray(run(jax.random.split(jax.random.key(11), 4000)), float).T / 2.0
    assert stats.kstest(x, truncated(-0.8 * LINE[:4].sum(), 0.48).cdf).pvalue > 1e-4
    assert stats.spearmanr(x, y).pvalue > 1e-4
    assert plan.variation == own.variation


def test_steps_are_what_a_whole_run_is_and_then_nothing_moves():
    plan = small(2, learning_rate=0.1, regularization=1.0, clip=0.6)
    table = jnp.asarray(np.random.default_rng(3).normal(size=(8, 2)), jnp.float32)
    whole = jax.jit(convex.solve)(jax.random.key(1), plan, streams.rows(table))
    assert set(whole.released) == {"plays"}
    step = jax.jit(lambda state, loss: convex.step(state, loss))  # a cache of its own
    state, plays = convex.init(jax.random.key(1), plan), []
    for t in range(8):
        plays.append(state.play)
        state, _ = step(state, table[t])
    whole = np.repeat(whole.released["plays"], 2, axis=0)
    np.testing.assert_allclose(np.array(plays), whole, atol=1e-4)  # two programs round otherwise
    after, play = step(state, jnp.ones(2))
    np.testing.assert_array_equal(play, state.play)
    assert int(after.round) == 8
    assert step._cache_size() == 1
    spent = privacy.epsilon(privacy.privacy_spent(after.ledger), 1e-6)
    assert plan.certificate().epsilon <= float(spent) <= 1.1 * plan.certificate().epsilon


def test_sums_are_of_clipped_gradients_to_the_last_digit():
    plan = small(3)
    measure = convex.measure(plan)
    rows = [[9.0, 9.0, -9.0], [np.nan, 1.0, 0.0], [np.inf, 0.0, 0.0], [1e-3, 0.0, -0.7], [3e38] * 3]
    update = jax.jit(measure.update)
    sums, parts = measure.init(), []
    for row in rows:
        before = sums
        sums = update(sums, jnp.asarray(row, jnp.float32))
        whole, part = (
            np.asarray(a, np.int64) - np.asarray(b, np.int64)
            for a, b in zip(sums, before, strict=True)
        )
        parts.append(whole * 2**24 + part)
    lengths = [math.sqrt(sum(int(x) ** 2 for x in part)) for part in parts]
    assert max(lengths) <= 2**24  # of L: so neighbours' sums are at most 2L apart, exactly
    assert lengths[0] > 0.9999 * 2**24
    assert lengths[1] == lengths[2] == 0
    assert np.all(np.asarray(sums[1]) >= 0)
    np.testing.assert_allclose(parts[3] / 2**24 * 1.5, rows[3], atol=2e-7)
    # What a coin is told is at least 0, and κ at most.
    for row in rows[:1] + rows[3:4]:
        for end in (2.0, -2.0):
            lost = measure.loss_at(jnp.asarray(row, jnp.float32), jnp.array([end, 0.0, 0.0]))
            assert -1e-5 <= float(lost) * 0.4 <= plan.clip * (1 + 1e-6)


def test_the_account_is_that_of_its_numbers():
    plan = convex.plan(1000, 3, BUDGET, radius=2.0, lipschitz=0.5, redraw_probability=0.3)
    rho = plan.learning_rate * 0.5**2 / plan.regularization
    assert rho < plan.draw_zcdp < 1.002 * rho  # and 1000 roundings
    assert plan.clip == pytest.approx(2 * plan.learning_rate * 0.5 * 2.0, rel=1e-5)
    assert plan.clip > 2 * plan.learning_rate * 0.5 * 2.0
    assert 0.999 * 4.0 < plan.certificate().epsilon <= 4.0
    assert plan.replace(learning_rate=2 * plan.learning_rate).certificate().epsilon > 5.0
    assert plan.replace(lipschitz=1.0).certificate().epsilon > 6.0
    assert plan.replace(clip=2 * plan.clip).certificate().epsilon > 4.1
    assert plan.replace(regularization=0.0).certificate().epsilon == math.inf
    assert plan.replace(redraw_probability=0.0).certificate().epsilon == math.inf
    scaled = convex.plan(1000, 3, BUDGET, radius=1.0, lipschitz=1.0, redraw_probability=0.3)
    assert scaled.regret_bound == pytest.approx(plan.regret_bound, rel=1e-6)
    # The bound is that of section 6, over LR.
    beta, pull = float(scaled.learning_rate), float(scaled.regularization)
    start = moment_by_quadrature(3, 1000 * beta, beta * pull)
    bound = start / beta + 1000 * scaled.batch_size / (4 * pull)
    assert bound <= scaled.regret_bound <= 1.01 * bound
    assert "not proven" in str(plan)


# T, d, ε: the bound of the plan, its batch and its chance (L = R = 1, δ = 1e-6).
TABLE = {
    (10**4, 1, 1.0): (682.69, 8, 0.120),
    (10**4, 10, 1.0): (1024.87, 64, 1.0),
    (10**4, 10, 4.0): (560.78, 16, 1.0),
    (10**6, 10, 1.0): (13026.3, 16, 0.0393),
}


@pytest.mark.parametrize("cell", TABLE)
def test_planned_bounds_are_those_that_were_found(cell):
    rounds, dim, epsilon = cell
    budget = Budget(epsilon, 1e-6, allow_large_delta=True)
    plan = convex.plan(rounds, dim, budget, radius=1.0, lipschitz=1.0)
    bound, size, chance = TABLE[cell]
    assert plan.regret_bound == pytest.approx(bound, rel=2e-3)
    assert plan.batch_size == size
    assert float(plan.redraw_probability) == pytest.approx(chance, rel=0.05)
    assert 0.99999 * epsilon < plan.certificate().epsilon <= epsilon
    redrawn = convex.plan(rounds, dim, budget, radius=1.0, lipschitz=1.0, redraw_probability=1.0)
    assert plan.regret_bound <= redrawn.regret_bound * (1 + 1e-9)


def gradients(kind, dim, size=1):
    """Streams of gradients of length at most 1."""
    if kind == "ones":
        return streams.rows(jnp.full((1000, dim), 1 / math.sqrt(dim)))
    coins = streams.repeated(jax.random.key(4), dim, size)
    return jax.tree_util.Partial(lambda coins, t: (2 * coins(t) - 1) / math.sqrt(dim), coins)


@functools.cache
def _planned(chance):
    return convex.plan(1000, 3, BUDGET, radius=1.0, lipschitz=1.0, redraw_probability=chance)


@pytest.mark.parametrize("kind", ["ones", "coins", "batches"])
@pytest.mark.parametrize("chance", [0.3, 1.0])
def test_the_regret_is_below_its_bound(kind, chance):
    plan = _planned(chance)
    losses = gradients(kind, 3, plan.batch_size if kind == "batches" else 1)
    table = np.asarray(jax.vmap(losses)(jnp.arange(1000)), np.float64)
    rows = streams.rows(jnp.float32(table))
    run = jax.jit(jax.vmap(lambda key: convex.solve(key, plan, rows).released["plays"]))
    plays = np.asarray(run(jax.random.split(jax.random.key(7), 12)), np.float64)
    played = np.repeat(plays, plan.batch_size, axis=1)[:, :1000]
    regret = np.einsum("std,td->s", played, table) + np.linalg.norm(table.sum(axis=0))
    assert regret.mean() <= plan.regret_bound + 3 * regret.std() / math.sqrt(12)
    assert plan.regret_bound < 1000
    if kind == "ones":  # the bound is what this stream costs at the start, and half of it is lost
        assert regret.mean() > 0.2 * plan.regret_bound


@pytest.mark.slow
def test_an_audit_of_plays_finds_no_more_than_is_claimed():
    """A stream that differs in its first loss; the score is how far the second play lies along it."""
    plan = convex.plan(
        3, 2, Budget(1.0, 1e-6), radius=1.0, lipschitz=1.0, batch_size=1, redraw_probability=1.0
    )
    spent = plan.certificate().epsilon
    table = np.zeros((2, 3, 2), np.float32)
    table[:, 0, 0] = 1.0, -1.0

    def mechanism(plan, key, losses):
        return convex.solve(key, plan, streams.rows(losses)).released["plays"]

    def score(plays):
        return plays[1, 0] + plays[2, 0]

    pair = jnp.asarray(table[0]), jnp.asarray(table[1])
    run = functools.partial(mechanism, plan)
    found = privacy.audit(jax.random.key(0), run, *pair, score, 12_000, 1e-6)
    assert found.epsilon <= spent
    sharp = functools.partial(mechanism, plan.replace(learning_rate=16 * plan.learning_rate))
    leaking = privacy.audit(jax.random.key(1), sharp, *pair, score, 12_000, 1e-6)
    assert leaking.epsilon > spent


def test_more_coordinates_than_float32_holds_the_law_of_are_refused():
    with pytest.raises(ValueError, match=r"^dim must be at most 10000"):
        convex.plan(1000, 10_001, Budget(1.0, 1e-6), radius=1.0, lipschitz=1.0)
    plan = convex.plan(1000, 3, Budget(1.0, 1e-6), radius=1.0, lipschitz=1.0)
    wide = dataclasses.replace(plan, dim=10_001)
    assert wide.certificate().epsilon == np.inf
