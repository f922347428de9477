"""Batches of a fixed size: against the definition, real divergences, PLD figures and dp_accounting."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from dpsco_jax import privacy
from dpsco_jax.privacy import ORDERS, FullBatch, Poisson, WithoutReplacement, WithReplacement
from dpsco_jax.privacy.curves.subsampling import (
    subsampled_gaussian_with_replacement,
    subsampled_gaussian_without_replacement,
)
from dpsco_jax.privacy.dp_accounting import events
from tests.privacy.references import mixture_rdp, symmetric_sampled_gaussian_rdp

REPLACE, ADD = NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE
_SOME = [int(np.argmin(np.abs(ORDERS - order))) for order in (1.1, 1.8, 2.0, 4.0, 9.0, 17.0)]


def test_replacement_matches_the_integral_of_its_profile():
    for sigma, users, batch, index in [
        (1.0, 100, 1, 2),
        (0.5, 10, 3, 1),
        (4.0, 20, 1, 5),
        (20.0, 1000, 999, 4),
        (0.8, 100_000, 1, 3),
        (300.0, 7, 2, 0),
    ]:
        found = subsampled_gaussian_without_replacement(sigma, users, batch).rdp[_SOME[index]]
        exact = symmetric_sampled_gaussian_rdp(ORDERS[_SOME[index]], sigma, batch / users)
        assert -1e-12 <= float(found / exact - 1) <= 1e-10


@pytest.mark.parametrize(
    ("q", "sigma"),
    [
        (0.01, 4.0),
        (0.2, 1.0),
        (0.7, 0.6),
        *(
            pytest.param(q, sigma, marks=pytest.mark.slow)
            for q, sigma in (
                *((0.01, 0.6), (0.01, 1.0), (0.2, 0.6)),
                *((0.2, 4.0), (0.7, 1.0), (0.7, 4.0)),
            )
        ),
    ],
)
def test_replacement_covers_every_arrangement_of_three_points(sigma, q):
    """The differing users and the one who stands in for them are within distance 1 of each other."""
    rdp = subsampled_gaussian_without_replacement(sigma, 100, round(100 * q)).rdp
    weights = np.asarray([1 - q, q])
    for with_one, with_other, with_neither in [(1, 0, 0), (0, 1, 0), (0.5, -0.5, 0), (1, 0, 0.5)]:
        for i in _SOME:
            divergence = mixture_rdp(
                ORDERS[i],
                weights,
                [with_neither, with_one],
                weights,
                [with_neither, with_other],
                sigma,
            )
            assert rdp[i] >= divergence * (1 - 1e-9)


def test_never_above_theorem_27():
    whole = np.flatnonzero((ORDERS % 1 == 0) & (ORDERS < 40))
    for sigma in (0.5, 1.0, 4.0, 30.0):
        for batch in (1, 50, 500):
            accountant = RdpAccountant(ORDERS[whole], REPLACE)
            accountant.compose(
                SampledWithoutReplacementDpEvent(1000, batch, GaussianDpEvent(sigma))
            )
            ours = subsampled_gaussian_without_replacement(sigma, 1000, batch).rdp[whole]
            assert np.all(ours <= accountant._rdp * (1 + 1e-9) + 1e-12)


@pytest.mark.parametrize("curve", [subsampled_gaussian_without_replacement])
def test_ends_of_the_range(curve):
    for relation in (REPLACE, ADD):
        unsampled = privacy.gaussian(2.0 if relation == REPLACE else 1.0).rdp
        np.testing.assert_allclose(curve(2.0, 10, 10, relation).rdp, unsampled, rtol=1e-13)
        assert np.all(curve(2.0, 10, 0, relation).rdp == 0)
        assert np.all(np.isinf(curve(0.0, 10, 1, relation).rdp))


def test_adding_or_removing_changes_the_batch_by_a_replacement():
    found = subsampled_gaussian_without_replacement(3.0, 200, 10, ADD).rdp
    np.testing.assert_allclose(
        found, privacy.poisson_subsampled_gaussian(1.5, 0.05).rdp, rtol=1e-13
    )
    # The clip norm is 1: the batch holds user i (at 1) or somebody else in his place (at -1).
    q = 0.05
    for i in _SOME:
        one_way = mixture_rdp(ORDERS[i], [1 - q, q], [-1, 1], [1.0], [-1], 3.0)
        other_way = mixture_rdp(ORDERS[i], [1.0], [-1], [1 - q, q], [-1, 1], 3.0)
        assert found[i] * (1 + 1e-9) >= max(one_way, other_way)


@pytest.mark.parametrize("relation", [REPLACE, ADD])
def test_one_draw_with_replacement_is_one_draw_without(relation):
    drawn = subsampled_gaussian_with_replacement(1.5, 50, 1, relation)
    chosen = subsampled_gaussian_without_replacement(1.5, 50, 1, relation)
    np.testing.assert_allclose(drawn.rdp, chosen.rdp, rtol=1e-10)
    assert drawn.delta == 0


@pytest.mark.parametrize(("relation", "distance"), [(REPLACE, 1.0), (ADD, 2.0)])
def test_with_replacement_covers_the_mixture_over_multiplicities(relation, distance):
    users, draws, sigma = 20, 6, 4.0
    loss = subsampled_gaussian_with_replacement(sigma, users, draws, relation)
    times = np.arange(draws + 1)
    weights = stats.binom.pmf(times, draws, 1 / users)
    assert loss.delta <= 1e-15
    for i in _SOME:
        one_way = mixture_rdp(ORDERS[i], weights, distance * times, [1.0], [0.0], sigma)
        other_way = mixture_rdp(ORDERS[i], [1.0], [0.0], weights, distance * times, sigma)
        assert loss.rdp[i] * (1 + 1e-9) >= max(one_way, other_way)


def test_with_replacement_counts_what_it_leaves_out():
    for users, draws, tail in [
        (1000, 100, 1e-9),
        (1000, 1000, 1e-15),
        (10, 30, 0.0),
        (10, 500, 0.0),
    ]:
        loss = subsampled_gaussian_with_replacement(30.0, users, draws, tail_probability=tail)
        left_out = [k for k in range(17) if stats.binom.sf(k, draws, 1 / users) <= max(tail, 0.0)]
        kept = min([*left_out, 16])
        assert loss.delta >= stats.binom.sf(kept, draws, 1 / users) * (1 - 1e-9)
        assert loss.delta <= max(tail, 30 * stats.binom.sf(16, draws, 1 / users), 1e-300)
    fewer = subsampled_gaussian_with_replacement(1.0, 1000, 100, tail_probability=1e-6)
    more = subsampled_gaussian_with_replacement(1.0, 1000, 100, tail_probability=1e-15)
    assert np.all(fewer.rdp <= more.rdp)


def test_monotone_on_the_host():
    rdp = subsampled_gaussian_without_replacement(
        np.geomspace(0.26, 100, 10)[:, None], 1000, np.asarray([0, 1, 5, 30, 200, 999, 1000])
    ).rdp
    assert np.all(np.diff(rdp, axis=0) <= 1e-9 * rdp[1:])
    assert np.all(np.diff(rdp, axis=1) >= -1e-9 * rdp[:, 1:])
    drawn = subsampled_gaussian_with_replacement(np.geomspace(0.5, 50, 6), 1000, 20).rdp
    assert np.all(np.diff(drawn, axis=0) <= 1e-9 * drawn[1:])


def test_float32_in_jit_is_never_below_the_host_and_compiles_once():
    curve = jax.jit(chex.assert_max_traces(subsampled_gaussian_without_replacement, n=1))
    sigma = np.float32([0.4, 1.0, 3.0, 50.0, 300.0])
    for users, batch in ((1024, 1), (4096, 1024)):
        found = curve(jnp.asarray(sigma), jnp.asarray(users), jnp.asarray(batch))
        host = subsampled_gaussian_without_replacement(np.float64(sigma), users, batch)
        ratio = np.float64(found.rdp) / host.rdp
        assert ratio.min() >= 1.0
        assert np.median(ratio) < 1 + 2e-5


def test_scheme_values_give_the_curve_and_the_event():
    np.testing.assert_array_equal(
        FullBatch().gaussian_loss(2.0, REPLACE).rdp, privacy.gaussian(2.0).rdp
    )
    np.testing.assert_array_equal(
        Poisson(0.1).gaussian_loss(2.0, ADD).rdp, privacy.poisson_subsampled_gaussian(2.0, 0.1).rdp
    )
    np.testing.assert_array_equal(
        WithoutReplacement(100, 10).gaussian_loss(2.0, REPLACE).rdp,
        subsampled_gaussian_without_replacement(2.0, 100, 10).rdp,
    )
    assert FullBatch().gaussian_event(2.0) == events.gaussian(2.0)
    assert Poisson(0.1).gaussian_event(2.0) == events.poisson_subsampled_gaussian(2.0, 0.1)
    assert WithoutReplacement(100, 10).gaussian_event(
        2.0
    ) == events.subsampled_gaussian_without_replacement(2.0, 100, 10)
    np.testing.assert_array_equal(
        Poisson(0.1).gaussian_loss(2.0, REPLACE).rdp,
        privacy.poisson_replaced_gaussian(2.0, 0.1).rdp,
    )


def test_schemes_draw_whole_numbers_of_users():
    """NumPy integers are sizes; a float is none, even where it is a whole number, unless it is traced."""
    expected = WithoutReplacement(100, 10).gaussian_loss(2.0, REPLACE)
    sizes = WithoutReplacement(np.int64(100), np.int32(10))
    np.testing.assert_array_equal(sizes.gaussian_loss(2.0, REPLACE).rdp, expected.rdp)
    assert sizes.gaussian_event(2.0) == WithoutReplacement(100, 10).gaussian_event(2.0)

    def traced(batch):
        return WithoutReplacement(100, batch).gaussian_loss(2.0, REPLACE).rdp

    for batch in (10, 10.0):
        np.testing.assert_allclose(jax.jit(traced)(batch), expected.rdp, rtol=1e-3)
    assert np.all(np.isinf(jax.jit(traced)(9.5)))
    for sizes in ((100.0, 10), (100, 10.0), (np.float32(100), 10)):
        for scheme in (WithoutReplacement(*sizes), WithReplacement(*sizes)):
            with pytest.raises(ValueError, match=r"(population_size|batch_size|num_draws) must be"):
                scheme.gaussian_loss(2.0, REPLACE)


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ((1.0, 10, 11), "batch_size"),
        ((1.0, 10, 1, NeighboringRelation.REPLACE_SPECIAL), "relation"),
    ],
)
def test_refuses(args, name):
    with pytest.raises(ValueError, match=name):
        subsampled_gaussian_without_replacement(*args)
    if args[2] != 11:
        with pytest.raises(ValueError, match=name):
            subsampled_gaussian_with_replacement(*args)
