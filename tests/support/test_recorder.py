"""The recorder and the account: all releases are seen, wherever they are made, and counted right."""

import functools
import math
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import dpsco_jax
from dpsco_jax import transforms
from dpsco_jax.mechanisms import additive, correlated_noise, selection, sparse_vector
from dpsco_jax.mechanisms.winsorized import private_range
from dpsco_jax.oracles import sampling
from tests.support import independent_account as account
from tests.support.recorder import Draw, Recorded, recorded, recording
from tests.support.recorder_patches import DRAWN_BY


def _steps(data, steps=3, correlation=None):
    chain = transforms.privatize(
        transforms.clipped_mean(1.0, 4), jax.random.key(3), 2.0, noise_correlation=correlation
    )

    def step(state, _):
        released, state = chain.update(data, state)
        return state, released

    return jax.lax.scan(step, chain.init(data[0]), length=steps)[1]


def test_releases_inside_of_compiled_loops_are_seen_with_what_was_declared():
    data = jnp.asarray(np.random.default_rng(0).standard_normal((4, 5)), jnp.float32)
    found = recorded(lambda: jax.jit(_steps)(data))
    assert [release.name for release in found] == ["gaussian"] * 3
    assert len({release.key for release in found}) == 3
    clipped = data / np.maximum(1.0, np.linalg.norm(data, axis=1, keepdims=True))
    for release in found:
        np.testing.assert_allclose(release.statistic, clipped.sum(0) / 4, atol=1e-5)
        np.testing.assert_allclose(
            (release.noise, release.sensitivity, release.multiplier), (1.0, 0.5, 2.0)
        )


def test_releases_under_vmap_and_in_while_loops_are_seen_one_by_one():
    def loop(key):
        def body(carry):
            step, total = carry
            return step + 1, total + additive.laplace(
                jax.random.fold_in(key, step), step * 1.0, 1.0
            )

        return jax.lax.while_loop(lambda carry: carry[0] < 2, body, (0, 0.0))[1]

    keys = jax.random.split(jax.random.key(0), 4)
    found = recorded(lambda: jax.jit(jax.vmap(loop))(keys))
    assert sorted(float(release.statistic[0]) for release in found) == [0.0] * 4 + [1.0] * 4
    assert len({release.key for release in found}) == 8


def test_frozen_releases_do_not_depend_on_data_and_statistics_still_do():
    data = jnp.ones((4, 5))
    run = Recorded(_steps, data)
    first, second = run(data), run(-data)
    np.testing.assert_array_equal(first.result, second.result)
    assert first.by_key().keys() == second.by_key().keys()
    for key, release in first.by_key().items():
        np.testing.assert_allclose(release.moved(second.by_key()[key]), 2.0, rtol=3e-5)
    assert len(first.charges) == 3


def test_correlated_noise_is_one_release_a_step():
    correlation = correlated_noise.banded_square_root(3, 1, bands=2)
    found = recorded(lambda: _steps(jnp.ones((4, 5)), correlation=correlation))
    assert [release.name for release in found] == ["correlated"] * 3
    np.testing.assert_allclose(found[0].noise, 2.0 * 0.5 * correlation.stretch(), rtol=1e-5)


def test_tests_intervals_and_selections_are_seen():
    def run():
        keys = jax.random.split(jax.random.key(0), 4)
        stream = sparse_vector.below_threshold(1.0, 2.0, 0.5)
        passed, _ = stream.step(keys[1], stream.init(keys[0]), -9.0)
        chosen = selection.exponential_mechanism(keys[2], jnp.asarray([3.0, 1.0]), 2.0, 0.5)
        return passed, chosen, private_range.private_range(keys[3], jnp.ones(4), 0.3, 0.1, 2.0)

    found = recorded(run)
    assert [(r.name, r.noise, r.sensitivity) for r in found] == [
        ("test", 1.0, 0.5),
        ("argmax", 0.5, 0.5),
        ("interval", pytest.approx(0.3), 1.0),
    ]
    with recording(freeze=True):
        passed, _, interval = run()
    assert passed, "frozen tests pass"
    assert abs(interval.center) < 1.0


def test_a_key_that_is_used_twice_is_found():
    def twice(x):
        key = jax.random.key(0)
        return additive.gaussian(key, x, 1.0) + additive.gaussian(jax.random.clone(key), x, 1.0)

    run = Recorded(twice, jnp.zeros(2))
    with pytest.raises(AssertionError, match="used for two releases"):
        run(jnp.zeros(2)).by_key()


@pytest.mark.parametrize(
    ("places", "message"),
    [((0, 1, 0), "a release and for a sample"), ((0, 0, 1), "two samples"), ((0, 1, 2), None)],
)
def test_a_key_that_is_used_for_a_sample_again_is_found(places, message):
    def solve(x):
        first, second, noise = (jax.random.key(place) for place in places)
        users = [sampling.poisson(key, 8, 0.5).indices for key in (first, second)]
        return additive.gaussian(noise, x + users[0][0] + users[1][0], 1.0)

    found = Recorded(solve, jnp.zeros(2))(jnp.zeros(2))
    assert len(found.samples) == 2
    if message is None:
        found.by_key()
    else:
        with pytest.raises(AssertionError, match=message):
            found.by_key()


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (lambda key: sampling.poisson(key, 8, 0.5), "random bits and other keys"),
        (lambda key: sampling.without_replacement(key, 8, 4), "random bits and other keys"),
    ],
)
def test_samples_and_noise_of_one_key_are_found_at_any_depth(sampler, message):
    """JAX splits a key into what folding in 0, 1, ... gives: samples and noise may meet further down."""

    def solve(x, place):
        noise_key = jax.random.fold_in(jax.random.key(0), 1)
        sample_key = jax.random.split(jax.random.split(jax.random.key(0), 2)[place])[0]
        return additive.gaussian(noise_key, x + sampler(sample_key).indices[0], 1.0)

    for place, is_apart in ((0, True), (1, False)):
        found = Recorded(functools.partial(solve, place=place), jnp.zeros(2))(jnp.zeros(2))
        if is_apart:
            found.by_key()
        else:
            with pytest.raises(AssertionError, match=message):
                found.by_key()


def test_all_that_the_package_draws_by_is_recorded():
    known = {*DRAWN_BY, "key", "split", "fold_in", "clone", "key_data", "wrap_key_data", "key_impl"}
    package = pathlib.Path(dpsco_jax.__file__).parent
    for room in ("mechanisms", "transforms", "oracles", "geometry", "solvers"):
        for path in (package / room).rglob("*.py"):
            code = re.sub(r"``.*?``", "", path.read_text(), flags=re.DOTALL)
            found = set(re.findall(r"\brandom\.(\w+)", code))
            assert found <= known, (path, found - known)


def test_a_user_can_be_forced_into_every_sample_and_the_noise_does_not_change():
    def solve(data):
        users = sampling.without_replacement(jax.random.key(1), 8, 2).indices
        return additive.gaussian(jax.random.key(2), jnp.sum(data[users]), 1.0)

    data = jnp.asarray(10.0 ** np.arange(8))
    run = Recorded(solve, data)
    drawn = float(run(data).releases[0].statistic[0])
    found = [run(data, forced=i) for i in range(8)]
    for user, one in enumerate(found):
        digits = f"{float(one.releases[0].statistic[0]):08.0f}"[::-1]
        assert digits[user] == "1"
        assert digits.count("1") == 2
    assert drawn in {float(one.releases[0].statistic[0]) for one in found}
    assert len({one.releases[0].key for one in found}) == 1
    assert run.draws == {Draw("without_replacement", (8.0, 2.0))}


def test_the_account_agrees_with_closed_forms():
    delta, mu = 1e-3, math.sqrt(3) / 2.0
    epsilon = account.epsilon([(2.0, None)] * 3, delta)
    spent = stats.norm.cdf(mu / 2 - epsilon / mu)
    spent -= math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    np.testing.assert_allclose(spent, delta, rtol=0.01)
    # Order 2 of a Poisson sample: log(1 + q²(e^(1/σ²) - 1)).
    rdp = account.renyi_of([(1.5, ("poisson", 0.3))], 2.0)
    np.testing.assert_allclose(rdp, math.log1p(0.09 * math.expm1(1 / 2.25)), rtol=1e-4)
    # A sample of everybody is no sample, and the grid agrees with the closed form.
    everybody = account.epsilon([(2.0, ("poisson", 1.0 - 1e-12))] * 3, delta)
    np.testing.assert_allclose(everybody, epsilon, rtol=0.01)
    # A coin of log odds ±ε/2 is ε/2-DP, and no less.
    coin = account.epsilon([(3.0, ("interval",))], 1e-9)
    np.testing.assert_allclose(coin, 1.5, atol=0.01)
    heads = special.expit(1.5)
    divergence = math.log(heads**2 / (1 - heads) + (1 - heads) ** 2 / heads)
    np.testing.assert_allclose(account.renyi_of([(3.0, ("interval",))], 2.0), divergence, rtol=1e-3)
