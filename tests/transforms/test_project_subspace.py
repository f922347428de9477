"""The projected aggregate: what is released, how far a user moves it, its noise, what each basis costs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax.privacy import events
from dpsco_jax.privacy.ledger import privacy_spent

REPLACE = NeighboringRelation.REPLACE_ONE
DIM = 5


def basis_of(rank, dim=DIM, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, rank)))[0]


def projected(columns=2, provenance="public", **options):
    mean = transforms.clipped_mean(1.0, 4.0)
    return transforms.project_subspace(mean, basis_of(columns), provenance=provenance, **options)


def test_what_is_released_is_the_projection_of_the_mean(rng):
    """In NumPy, from the definition: orthogonal, twice is once, and what is orthogonal vanishes."""
    updates = {"w": rng.normal(size=(4, 2, 2)), "b": rng.normal(size=4)}
    updates = jax.tree.map(jnp.float32, updates)
    rows = np.concatenate(
        [np.float64(updates["b"])[:, None], np.float64(updates["w"]).reshape(4, 4)], 1
    )
    mean = np.sum(rows / np.maximum(1.0, np.linalg.norm(rows, axis=1))[:, None], axis=0) / 4
    # The projector by another way than its two factors: I - (I - P), P from the null space.
    complement = np.linalg.qr(np.c_[basis_of(2), np.eye(DIM)])[0][:, 2:]
    expected = mean - complement @ (complement.T @ mean)
    aggregate = projected()
    found = aggregate.update(updates, aggregate.init(None))[0]
    np.testing.assert_allclose(found["b"], expected[0], atol=1e-6)
    np.testing.assert_allclose(found["w"].reshape(-1), expected[1:], atol=5e-6)
    again = transforms.project_subspace(aggregate, basis_of(2), provenance="public")
    np.testing.assert_allclose(
        again.update(updates, optax.EmptyState())[0]["w"], found["w"], atol=1e-6
    )


def test_a_rank_takes_the_first_columns(rng):
    updates = jnp.float32(rng.normal(size=(4, DIM)))

    @jax.jit
    def with_rank(rank):
        aggregate = projected(3, rank=rank)
        return aggregate.update(updates, optax.EmptyState())[0], aggregate.sensitivity

    for rank in (1, 2, 3):
        mean = transforms.clipped_mean(1.0, 4.0)
        few = transforms.project_subspace(mean, basis_of(3)[:, :rank], provenance="public")
        expected = few.update(updates, optax.EmptyState())[0]
        np.testing.assert_allclose(with_rank(rank)[0], expected, atol=1e-6)
        np.testing.assert_allclose(
            projected(3, rank=rank).update(updates, optax.EmptyState())[0], expected, atol=1e-6
        )
        assert with_rank(rank)[1] == pytest.approx(few.sensitivity, rel=1e-5)
    np.testing.assert_array_equal(with_rank(0)[0], np.zeros(DIM))
    for rank in (0, 4, 1.5, True):
        with pytest.raises(ValueError, match="rank must be"):
            projected(3, rank=rank)


@pytest.mark.parametrize("relation", list(NeighboringRelation)[:3])
def test_sensitivity_and_relation_are_those_of_what_is_projected(relation):
    inner = transforms.clipped_mean(0.7, 3.0, relation)
    aggregate = transforms.project_subspace(inner, basis_of(4, dim=4), provenance="public")
    assert aggregate.sensitivity == pytest.approx(inner.sensitivity, rel=1e-6)
    assert aggregate.relation is relation


def test_a_basis_that_is_not_orthonormal_is_charged_for_what_it_lengthens():
    """Traced, it cannot be refused: its worst pair is within the sensitivity all the same."""
    rng = np.random.default_rng(3)
    wrong = jnp.float32(basis_of(2, dim=4) + 0.3 * rng.normal(size=(4, 2)))
    inner = transforms.clipped_sum(1.0)

    @jax.jit
    def sensitivity(basis):
        return transforms.project_subspace(inner, basis, provenance="public").sensitivity

    bound = float(sensitivity(wrong))
    direction = np.linalg.svd(np.float64(wrong))[0][:, 0]
    moved = 2 * np.linalg.norm(np.float64(wrong) @ (np.float64(wrong).T @ direction))
    assert inner.sensitivity < 1.2 * inner.sensitivity < moved <= bound
    with pytest.raises(ValueError, match="basis must be orthonormal"):
        transforms.project_subspace(inner, wrong, provenance="public")
    # Within the tolerance it is taken, and the little that it lengthens is in the sensitivity.
    nearly = basis_of(2) * (1 + 2e-5)
    taken = transforms.project_subspace(inner, nearly, provenance="public").sensitivity
    assert 2 * (1 + 4e-5) <= taken < 2 * (1 + 1e-4)

    @jax.jit
    def spent(basis):
        aggregate = transforms.project_subspace(inner, basis, provenance="public")
        release = transforms.privatize(aggregate, jax.random.key(0), 1.0)
        state = release.update(jnp.ones((3, 4)), release.init(jnp.zeros(4)), jnp.zeros(4))[1]
        return privacy_spent(state).rdp

    assert np.all(np.isfinite(spent(wrong)))
    assert np.all(np.isinf(spent(wrong * jnp.nan)))
    assert np.all(np.isinf(spent(wrong * 1e30)))


def test_noise_is_isotropic_in_all_coordinates():
    """p·σ² in total and σ² in every direction, inside of the subspace and orthogonal to it."""
    users, sigma, draws = jnp.zeros((4, DIM)), 2.0, 4000
    aggregate = projected()
    stddev = sigma * 2 / 4

    def one(key):
        release = transforms.privatize(aggregate, key, sigma)
        return release.update(users, release.init(jnp.zeros(DIM)), jnp.zeros(DIM))[0]

    noise = np.float64(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), draws)))
    covariance = noise.T @ noise / draws
    assert np.trace(covariance) == pytest.approx(DIM * stddev**2, rel=0.02)
    assert np.linalg.matrix_rank(covariance, tol=0.5 * stddev**2) == DIM
    outside = noise @ scipy.linalg.null_space(basis_of(2).T)
    assert scipy.stats.kstest(outside.ravel() / stddev, "norm").pvalue > 1e-3


def spent_by(provenance):
    aggregate = projected(2, provenance)
    optimizer = optax.chain(
        transforms.privatize(aggregate, jax.random.key(0), 2.0), optax.trace(0.9)
    )
    params = jnp.zeros(DIM)
    state = optimizer.update(jnp.ones((4, DIM)), optimizer.init(params), params)[1]
    return privacy_spent(state)


def test_what_is_charged_depends_on_where_the_basis_comes_from():
    plain = transforms.privatize(transforms.clipped_mean(1.0, 4.0), jax.random.key(0), 2.0)
    state = plain.update(jnp.ones((4, DIM)), plain.init(jnp.zeros(DIM)), jnp.zeros(DIM))[1]
    expected = privacy_spent(state)
    for provenance in ("public", "private_history"):
        np.testing.assert_array_equal(spent_by(provenance).rdp, expected.rdp)
    lost = spent_by("private_nonreleasable")
    assert np.all(np.isinf(lost.rdp))
    assert privacy.epsilon(lost, 1e-5) == math.inf
    # Once lost, no projection on public directions proves anything again.
    lost = projected(2, "private_nonreleasable")
    assert not lost.proven
    assert not transforms.project_subspace(lost, basis_of(2), provenance="public").proven


def test_certificates_say_where_the_basis_comes_from():
    certificate = privacy.certificate(events.gaussian(2.0), 1e-5, REPLACE, ["a promise"])
    for provenance in ("public", "private_history", "private_nonreleasable"):
        found = transforms.projected_certificate(certificate, provenance)
        finite = provenance != "private_nonreleasable"
        assert found.epsilon == (certificate.epsilon if finite else math.inf)
        assert found.assumptions[0] == "a promise"
        assert len(found.assumptions) == 2
        assert ("analysis" in found.assumptions[1]) is not finite
    assert "inf" in str(found)


def test_a_basis_of_earlier_releases_is_charged_with_them():
    """Two parts on one state: the first releases the history, the second is projected on it."""
    sampling = privacy.Poisson(0.5)
    inner = transforms.clipped_sum(1.0, NeighboringRelation.ADD_OR_REMOVE_ONE)
    params, updates = jnp.zeros(DIM), jnp.ones((4, DIM))
    first = transforms.privatize(inner, jax.random.key(0), 2.0, sampling)

    @jax.jit
    def both(key):
        state, history = first.init(params), []
        for _ in range(3):
            released, state = first.update(updates, state, params)
            history.append(released)
        basis = jnp.linalg.qr(jnp.stack(history).T)[0][:, :2]
        later = transforms.privatize(
            transforms.project_subspace(inner, basis, provenance="private_history"),
            key,
            2.0,
            sampling,
        )
        for _ in range(2):
            _, state = later.update(updates, state, params)
        return state

    spent = privacy_spent(both(jax.random.key(1)))
    expected = privacy.scale(sampling.gaussian_loss(2.0, NeighboringRelation.ADD_OR_REMOVE_ONE), 5)
    np.testing.assert_allclose(spent.rdp, expected.rdp, rtol=1e-4)


@pytest.mark.slow
def test_what_is_learned_of_a_user_stays_below_the_claim():
    """Two releases, the second projected onto the first: the score is the likelihood ratio."""
    inner = transforms.clipped_sum(1.0)
    towards = jnp.eye(3)[0]

    def run(key, rows, noise):
        first_key, second_key = jax.random.split(key)

        def released(aggregate, key):
            release = transforms.privatize(aggregate, key, noise)
            return release.update(rows, release.init(towards), towards)[0]

        first = released(inner, first_key)
        basis = (first / jnp.linalg.norm(first))[:, None]
        later = transforms.project_subspace(inner, basis, provenance="private_history")
        return first @ towards + (released(later, second_key) @ basis[:, 0]) * (
            basis[:, 0] @ towards
        )

    rows = jnp.zeros((3, 3)).at[0, 0].set(1.0)
    event = events.composed(events.gaussian(2.0), events.gaussian(2.0))
    claim = privacy.certificate(event, 1e-3, REPLACE).epsilon
    found = []
    for noise in (2.0, 0.5):
        attack = jax.tree_util.Partial(lambda key, data, noise=noise: run(key, data, noise))
        found.append(
            privacy.audit(
                jax.random.key(0), attack, rows, -rows, lambda x: x, 200_000, 1e-3, 0.999,
                batch_size=20_000,
            ).epsilon
        )  # fmt: skip
    assert 0.3 * claim < found[0] <= claim < found[1]


def test_bad_arguments():
    mean = transforms.clipped_mean(1.0, 4.0)
    with pytest.raises(ValueError, match="aggregate must be"):  # noise first
        transforms.project_subspace(
            transforms.privatize(mean, jax.random.key(0), 1.0), basis_of(2), provenance="public"
        )
    for basis in (np.full((DIM, 2), np.nan), np.eye(2, 3)):
        with pytest.raises(ValueError, match="basis must be"):
            transforms.project_subspace(mean, basis, provenance="public")
    # Many small products, none of them above the tolerance.
    many = np.sqrt(1 - 5e-5) * np.eye(60) + np.full((60, 60), 4e-5)
    with pytest.raises(ValueError, match="orthonormal"):
        transforms.project_subspace(mean, many, provenance="public")
    aggregate = projected()
    with pytest.raises(ValueError, match="basis must be of one row for each number"):
        aggregate.update(jnp.ones((4, DIM + 1)), optax.EmptyState())


def test_a_basis_that_is_written_to_later_is_the_one_that_was_measured():
    basis = np.eye(3, 1, dtype=np.float32)
    inner = transforms.clipped_mean(1.0, num_users=1)
    projected = transforms.project_subspace(inner, basis, provenance="public")
    basis *= 100
    statistic, _ = projected.update(jnp.eye(1, 3), projected.init(jnp.zeros(3)), jnp.zeros(3))
    np.testing.assert_allclose(statistic, [1.0, 0.0, 0.0], atol=3e-5)
