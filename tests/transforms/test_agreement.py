"""What an oracle says of its sum is compared with what the release accounts for."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import _compensated, privacy, transforms
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms import correlated_noise
from dpsco_jax.oracles import ghost, gradients, sampling
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from tests.support.good_calls import mechanisms
from tests.support.tested import phase

ADD_REMOVE, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
USERS = 50
OBJECTIVE = Objective(lambda w, x: jnp.sum(jnp.tanh(w) * x), 1.0, None, domains.whole_space())
DATA = UserData(jax.random.normal(jax.random.key(0), (USERS, 1, 3)))
PARAMS = jnp.ones(3)

DRAWS = {
    "poisson": lambda key: sampling.poisson(key, USERS, 0.1),
    "often": lambda key: sampling.poisson(key, USERS, 0.2),
    "fixed": lambda key: sampling.without_replacement(key, USERS, 5),
    "again": lambda key: sampling.with_replacement(key, USERS, 5),
    "everybody": None,
}


def _oracle(clip_norm=1.0, draw="poisson", kind=ghost):
    if kind is ghost:
        return ghost.clipped_gradient_sum(OBJECTIVE, clip_norm, DRAWS[draw])
    return kind(gradients.user_gradient(OBJECTIVE), clip_norm, DRAWS[draw])


def _chain(clip_norm=1.0, scheme=privacy.Poisson(0.1), relation=ADD_REMOVE, before=()):  # noqa: B008
    aggregate = transforms.summed_contributions(clip_norm, 5, relation)
    release = transforms.privatize(aggregate, jax.random.key(1), 2.0, scheme)
    return optax.chain(*before, release, optax.sgd(0.1))


def _spent(oracle, chain, **changed):
    """ε of one compiled step, in which nothing that depends on data is concrete."""

    @jax.jit
    def step(key):
        estimate = oracle(key, PARAMS, DATA)
        given = {**estimate.extra_args, **changed}
        return chain.update(estimate.gradient, chain.init(PARAMS), PARAMS, **given)[1]

    return float(privacy.epsilon(privacy.privacy_spent(step(jax.random.key(2))), 1e-5))


@pytest.mark.parametrize("kind", [ghost, gradients.clipped_gradient_sum])
def test_what_agrees_is_charged_as_before(kind):
    curve = privacy.poisson_subsampled_gaussian(2.0, 0.1)
    expected = float(privacy.epsilon(curve, 1e-5))
    assert _spent(_oracle(kind=kind), _chain()) == pytest.approx(expected, rel=1e-4)
    # Less than what is accounted for is private, too.
    assert np.isfinite(_spent(_oracle(0.5, kind=kind), _chain(1.0, privacy.Poisson(0.2))))


@pytest.mark.parametrize(
    ("oracle", "chain", "name"),
    [
        (_oracle(1.0), _chain(0.1), "clipped_to must be at most 0.1, got 1.0"),
        (_oracle(draw="often"), _chain(), "draw must be poisson of probability at most 0.1"),
        (_oracle(draw="fixed"), _chain(), "draw must be poisson"),
        (_oracle(draw="fixed"), _chain(scheme=privacy.FullBatch()), "draw must be poisson, or"),
        (_oracle(draw="again"), _chain(scheme=privacy.FullBatch(), relation=REPLACE), "draw must"),
        (
            _oracle(draw="fixed"),
            _chain(scheme=privacy.WithoutReplacement(USERS, 4), relation=REPLACE),
            "draw must be without replacement, at most 4 of at least 50",
        ),
        (
            _oracle(draw="fixed"),
            _chain(scheme=privacy.WithoutReplacement(USERS + 1, 5), relation=REPLACE),
            "at least 51",
        ),
        (
            _oracle(draw="poisson"),
            _chain(scheme=privacy.WithReplacement(USERS, 5), relation=REPLACE),
            "draw must be with replacement",
        ),
    ],
)
def test_what_does_not_agree_is_refused(oracle, chain, name):
    with pytest.raises(ValueError, match=name):
        _spent(oracle, chain)


@pytest.mark.parametrize(
    ("draw", "scheme", "relation"),
    [
        ("poisson", privacy.FullBatch(), ADD_REMOVE),
        ("fixed", privacy.FullBatch(), REPLACE),
        ("fixed", privacy.WithoutReplacement(USERS, 5), REPLACE),
        ("fixed", privacy.WithoutReplacement(USERS - 1, 6), ADD_REMOVE),
        ("again", privacy.WithReplacement(USERS, 6), REPLACE),
        ("often", privacy.PoissonUsers(0.2, 3.0), SPECIAL),
        ("everybody", privacy.FullBatch(), ADD_REMOVE),
    ],
)
def test_draws_that_are_covered(draw, scheme, relation):
    assert np.isfinite(_spent(_oracle(draw=draw), _chain(scheme=scheme, relation=relation)))


@pytest.mark.parametrize("draw", ["poisson", "fixed", "again", "everybody"])
@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
def test_correlated_noise_counts_participations_and_covers_no_draw(draw, relation):
    """A user with one participation in a hundred steps was drawn in fifty of them."""
    release = transforms.privatize(
        transforms.summed_contributions(1.0, 5, relation),
        jax.random.key(1),
        2.0,
        noise_correlation=correlated_noise.banded_square_root(100, 1),
    )
    if draw == "everybody":
        assert np.isfinite(_spent(_oracle(draw=draw), release))
    else:
        with pytest.raises(ValueError, match="draw must be absent with noise_correlation"):
            _spent(_oracle(draw=draw), release)


def test_rows_say_how_they_were_drawn():
    oracle = gradients.per_user_gradients(gradients.user_gradient(OBJECTIVE), None, DRAWS["fixed"])
    mean = transforms.clipped_mean(1.0, 5, REPLACE)

    def step(scheme):
        release = transforms.privatize(mean, jax.random.key(1), 2.0, scheme)
        rows = jax.jit(oracle)(jax.random.key(2), PARAMS, DATA)
        return release.update(rows.gradient, release.init(PARAMS), PARAMS, **rows.extra_args)

    step(privacy.WithoutReplacement(USERS, 5))
    with pytest.raises(ValueError, match="draw must be without replacement, at most 4 of"):
        step(privacy.WithoutReplacement(USERS, 4))


@pytest.mark.parametrize("traced", ["clip", "rate", "release"])
def test_what_is_traced_and_does_not_agree_is_unbounded(traced):
    @jax.jit
    def step(high, low):
        clip, rate = (high if traced == name else 0.1 for name in ("clip", "rate"))
        draw = functools.partial(sampling.poisson, num_users=USERS, probability=rate)
        oracle = ghost.clipped_gradient_sum(OBJECTIVE, clip, draw)
        chain = _chain(low if traced == "release" else 0.1)
        sums = oracle(jax.random.key(3), PARAMS, DATA)
        state = chain.init(PARAMS)
        state = chain.update(sums.gradient, state, PARAMS, **sums.extra_args)[1]
        return privacy.epsilon(privacy.privacy_spent(state), 1e-5)

    assert np.isfinite(step(0.1, 0.1))
    assert np.isinf(step(0.2, 0.05))
    assert np.isinf(step(np.nan, np.nan))


@pytest.mark.parametrize(
    "stage",
    [
        optax.scale(5.0),
        optax.scale(2.0),
        optax.scale_by_adam(),
        optax.add_decayed_weights(0.1),
        optax.clip_by_global_norm(1e-3),
        optax.masked(optax.scale(3.0), {"a": True, "b": False}),
    ],
    ids=["5", "2", "Adam", "decay", "clip", "masked"],
)
def test_a_stage_that_changes_a_sum_is_seen(stage):
    """512 entries and a factor of 2: the bits themselves would add up to the same word."""
    params = {"a": jnp.ones(512), "b": jnp.ones(2)}
    total = jax.tree.map(lambda x: 0.3 * x, params)
    known = {"clipped_to": 10.0, "checksum": _compensated.checksum(total)}

    def step(before, total):
        aggregate = transforms.summed_contributions(10.0, 5, ADD_REMOVE)
        release = transforms.privatize(aggregate, jax.random.key(1), 2.0)
        chain = optax.chain(before, release)
        spent = privacy.privacy_spent(
            chain.update(total, chain.init(params), params, **known)[1],
            trust=optax.ScaleByAdamState,
        )
        return privacy.epsilon(spent, 1e-5)

    assert np.isfinite(step(optax.identity(), total))
    assert np.isfinite(jax.jit(functools.partial(step, optax.identity()))(total))
    assert np.isinf(jax.jit(functools.partial(step, stage))(total))
    with pytest.raises(ValueError, match="updates must be the oracle's sum as it was") as refusal:
        step(stage, total)
    assert "0.3" not in str(refusal.value)


def test_a_sum_of_nobody_says_so():
    chain = _chain(scheme=privacy.FullBatch())
    with pytest.raises(ValueError, match="clipped_to must be given to update: the extra_args"):
        chain.update(jnp.ones(3), chain.init(PARAMS), PARAMS)
    chain.update(jnp.ones(3), chain.init(PARAMS), PARAMS, clipped_to=1.0)
    with pytest.raises(ValueError, match="clipped_to must be at most 1"):
        chain.update(jnp.ones(3), chain.init(PARAMS), PARAMS, clipped_to=1.01)
    with pytest.raises(ValueError, match="clipped_to must be at most 1"):
        chain.update(jnp.ones(3), chain.init(PARAMS), PARAMS, clipped_to=np.nan)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.scale_by_polyak(),
        optax.contrib.reduce_on_plateau(),
        optax.scale_by_backtracking_linesearch(5),
        optax.scale_by_zoom_linesearch(5),
        optax.contrib.momo(0.1),
    ],
    ids=["Polyak", "plateau", "backtracking", "zoom", "MoMo"],
)
def test_whoever_reads_a_loss_behind_a_release_is_refused(optimizer):
    release = transforms.privatize(
        transforms.summed_contributions(1.0, 5, ADD_REMOVE), jax.random.key(1), 2.0
    )
    chain = optax.chain(release, optimizer)
    raw = {"value": 1.0, "grad": PARAMS, "value_fn": lambda w: jnp.sum(w), "clipped_to": 1.0}
    state = chain.init(PARAMS)
    with pytest.raises(ValueError, match="value must be absent: what is behind a release"):
        chain.update(PARAMS, state, PARAMS, **raw)


@pytest.mark.parametrize("name", ["obj_fn", "grad_fn", "value_fn", "closure", "anything"])
def test_no_function_of_a_loss_goes_behind_a_release(name):
    """Sophia estimates a Hessian of the objective that it is given as ``obj_fn``."""
    release = transforms.privatize(
        transforms.summed_contributions(1.0, 5, ADD_REMOVE), jax.random.key(1), 2.0
    )
    chain = optax.chain(release, optax.contrib.sophia(0.1))
    given = {"clipped_to": 1.0, name: lambda w: jnp.sum(w)}
    with pytest.raises(ValueError, match=f"{name} must be absent: what is behind a release"):
        chain.update(PARAMS, chain.init(PARAMS), PARAMS, **given)
    with pytest.raises(ValueError, match=f"{name} must be absent"):
        chain.update(PARAMS, chain.init(PARAMS), PARAMS, **{**given, name: {"f": jnp.sum}})
    if name in ("obj_fn", "grad_fn"):
        with pytest.raises(ValueError, match=f"{name} must be absent"):
            release.update(PARAMS, release.init(PARAMS), PARAMS, **{"clipped_to": 1.0, name: 2.0})


@pytest.mark.parametrize("release", ["account", "winsorized", "outliers"])
def test_other_releases_refuse_raw_losses_too(release):
    if release == "account":
        chain = transforms.account(privacy.gaussian(2.0), REPLACE)
    elif release == "winsorized":
        chain = transforms.winsorized_mean(mechanisms.RELEASES.good(), jax.random.key(0))
    else:
        chain = transforms.outlier_removed_mean(phase(5, 3), 1.0, jax.random.key(0))
    with pytest.raises(ValueError, match="value must be absent"):
        chain.update(jnp.ones((5, 3)), chain.init(PARAMS), PARAMS, value=1.0)


def test_a_phase_of_outlier_removed_means_compares_its_draws():
    chain = transforms.outlier_removed_mean(phase(5, 3), 1.0, jax.random.key(0))
    rows, state = jnp.ones((5, 3)), chain.init(PARAMS)
    chain.update(rows, state, PARAMS, draw=sampling.Draw("without_replacement", 5, 5))
    with pytest.raises(ValueError, match="draw must be poisson, or without replacement"):
        chain.update(rows, state, PARAMS, draw=sampling.Draw("with_replacement", 5, 5))
    sampled = dataclasses.replace(phase(6, 3), batch_size=5)
    chain = transforms.outlier_removed_mean(sampled, 1.0, jax.random.key(0))

    @jax.jit
    def spent(first, second):
        state = chain.init(PARAMS)
        for number in (first, second):
            draw = sampling.Draw("without_replacement", 6, number)
            state = chain.update(rows, state, PARAMS, draw=draw)[1]
        return privacy.privacy_spent(state).rdp

    assert np.all(np.isfinite(spent(5.0, 5.0)))
    # The first step pays for the phase, and not for a later one that draws more.
    for taken in [(6.0, 5.0), (5.0, 6.0), (5.0, np.nan)]:
        assert np.all(np.isinf(spent(*taken)))


def test_a_winsorized_mean_takes_no_user_twice():
    chain = transforms.winsorized_mean(mechanisms.RELEASES.good(), jax.random.key(0))
    state, rows = chain.init(PARAMS), jnp.ones((5, 3))
    with pytest.raises(ValueError, match="draw must be poisson, or without replacement"):
        chain.update(rows, state, PARAMS, draw=sampling.Draw("with_replacement", 5, 5))


def test_words_of_a_checksum():
    """Against a second implementation, of Python's integers; in any order, and of 64 bits."""

    def scrambled(word):
        word = (word ^ (word >> 16)) * 0x7FEB352D % 2**32
        word = (word ^ (word >> 15)) * 0x846CA68B % 2**32
        return word ^ (word >> 16)

    values = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    expected = sum(scrambled(int(word)) for word in values.view(np.uint32).ravel()) % 2**32
    assert int(_compensated.checksum(jnp.asarray(values))) == expected
    assert int(_compensated.checksum(jnp.asarray(values[::-1]))) == expected
    with jax.enable_x64(True):
        wide = values.astype(np.float64) / 3
        expected = sum(scrambled(int(word)) for word in wide.view(np.uint32).ravel()) % 2**32
        assert int(_compensated.checksum(jnp.asarray(wide))) == expected
