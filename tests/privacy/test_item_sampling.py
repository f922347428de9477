"""Users whose items are sampled one by one: curve and pair against integrals and ``dp_accounting``."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import PLDAccountant
from scipy import stats

from dpsco_jax import privacy
from dpsco_jax.privacy import ORDERS, PoissonItems, _kinds, pld
from dpsco_jax.privacy.curves import binomial
from dpsco_jax.privacy.dp_accounting import _translation, events
from dpsco_jax.privacy.pld import binomial_pairs, pairs

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
REPLACE = NeighboringRelation.REPLACE_ONE
# Noise from little to much, items from one to many; at some orders bumps lie beyond the nodes.
CASES = [(1.0, 0.1, 2), (4.0, 0.01, 10), (0.4, 0.05, 3), (30.0, 1e-4, 40), (2.0, 0.6, 3)]


def _rdp(sigma, q, k, order, back=False):
    """The Rényi divergence of the mixture, by its definition, in extended precision."""
    wide = np.longdouble
    order, power = wide(order), wide(1 - order if back else order)
    top = float(order) * k / sigma + 14
    s = np.arange(-14 - top * back, top, 0.02, dtype=wide)[:, None]
    j = np.arange(1, k + 1)
    chances = [math.comb(k, i) * wide(q) ** i * (1 - wide(q)) ** (k - i) for i in j]
    rise = np.expm1(s * j / wide(sigma) - j * j / (2 * wide(sigma) ** 2)) @ np.array(chances)
    excess = np.expm1(power * np.log1p(rise)) - power * rise
    density = np.exp(-(s[:, 0] ** 2) / 2) / np.sqrt(2 * wide(math.pi))
    return float(np.log1p(wide(0.02) * (density * excess).sum()) / (order - 1))


@pytest.mark.parametrize(("sigma", "q", "k"), CASES)
def test_the_curve_is_the_divergence_and_never_below(sigma, q, k):
    curve = privacy.item_sampled_gaussian(sigma, q, k).rdp
    narrow = jax.jit(lambda s, p: privacy.item_sampled_gaussian(s, p, k).rdp)
    float32 = np.asarray(narrow(jnp.float32(sigma), jnp.float32(q)), np.float64)
    host = privacy.item_sampled_gaussian(float(np.float32(sigma)), float(np.float32(q)), k).rdp
    assert np.all(float32 >= host * (1 - 1e-7))
    seen = 0
    for place in (3, 45, 101):
        order = float(ORDERS[place])
        if order * k / sigma <= 60 and order * k**2 / sigma**2 < 2000:
            true = _rdp(sigma, q, k, order)
            assert -1e-10 <= curve[place] / true - 1 <= 1e-9, order
            assert float32[place] / true - 1 <= 1e-3, order
            seen += 1
    assert seen >= 2


@pytest.mark.parametrize("k", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_in_single_precision_it_is_above_what_it_is_in_double(k):
    """Where the nodes of both reach; and a number wherever no item is drawn next to never."""
    rng = np.random.default_rng(k)
    sigma = np.float32(np.exp(rng.uniform(math.log(1.0), math.log(40.0), 40)))
    q = np.float32(np.exp(rng.uniform(math.log(1e-4), math.log(0.9), 40)))
    curve = jax.vmap(lambda s, p: privacy.item_sampled_gaussian(s, p, k).rdp)
    narrow = np.float64(jax.jit(curve)(jnp.asarray(sigma), jnp.asarray(q)))
    wide = privacy.item_sampled_gaussian(np.float64(sigma), np.float64(q), k).rdp
    reached = ORDERS * k / np.float64(sigma)[:, None] < 140
    ratio = (narrow / wide)[reached]
    assert 1.0 <= ratio.min() <= ratio.max() <= 1.01
    assert np.median(ratio) <= 1 + 1e-4
    assert np.all(np.isfinite(narrow))


def test_of_one_item_it_is_the_curve_of_poisson_samples():
    for sigma, q in ((0.7, 0.2), (3.0, 0.01)):
        one = privacy.item_sampled_gaussian(sigma, q, 1).rdp
        known = privacy.poisson_subsampled_gaussian(sigma, q).rdp
        low = 20 * sigma**2 > ORDERS
        np.testing.assert_allclose(one[low], known[low], rtol=1e-11)
        assert np.all(one <= privacy.gaussian(sigma).rdp * (1 + 1e-13))


def test_it_is_a_number_where_no_item_is_drawn_next_to_never():
    """In single precision (1 - q)^k is less than what 1 is known to."""
    curve = jax.jit(lambda s, p: privacy.item_sampled_gaussian(s, p, 50).rdp)
    narrow = np.float64(curve(jnp.float32(11.5), jnp.float32(0.53)))
    assert np.all(np.isfinite(narrow))
    low = ORDERS < 20
    ratio = narrow / privacy.item_sampled_gaussian(11.5, 0.53, 50).rdp
    np.testing.assert_allclose(ratio[low], 1.0, rtol=2e-3)


def test_in_single_precision_orders_next_to_one_are_not_rounded_away():
    """Of α - 1 = 0.01 taken from a rounded α more is lost than what results are rounded up by."""
    sigma, q, k = np.float32(0.18512930), np.float32(5.1708166e-6), 159
    narrow = np.float64(privacy.item_sampled_gaussian(jnp.asarray(sigma), jnp.asarray(q), k).rdp)
    # A is at least what the case of all items adds to it.
    last = ORDERS / (ORDERS - 1) * k * math.log(q) + ORDERS * k**2 / (2 * np.float64(sigma) ** 2)
    assert np.all(narrow >= last)


def test_where_the_last_node_is_left_of_the_middle_what_lies_beyond_is_nearly_everything():
    sigma, q = np.float64(0.04), np.float64(1e-30)
    draws = binomial._Draws(np, sigma, q, 2)
    for end in (-3.0, 2.0):
        beyond = draws.log_beyond(np.float64(end))
        assert np.all(beyond >= 2 * ORDERS * np.log1p(-q) + stats.norm.logsf(end))


def test_the_chances_of_many_items_are_known_to_what_is_said():
    """The logarithms of factorials are far larger than that of the ways to draw a few items."""
    for k in (300, 3000):
        q = 2.0**-7
        draws = binomial._Draws(np, np.float64(1.0), np.float64(q), k)
        for j in (1, 2, 4, 9, 30):
            true = math.log(math.comb(k, j)) + j * math.log(q) + (k - j) * math.log1p(-q)
            assert abs(draws.log_chance[j - 1] - true) <= draws.error[j - 1]
    wide = privacy.item_sampled_gaussian(82.61861419677734, 4.7233305622285116e-07, 186)
    place = int(np.argmin(np.abs(ORDERS - 3.95)))
    assert ORDERS[place] == pytest.approx(3.9536522918789987, rel=1e-15)
    # The divergence, summed in 70 digits (mpmath).
    assert wide.rdp[place] >= 2.235460825839866e-12


@pytest.mark.parametrize("sigma", [1e-160, np.float32(1e-20)])
def test_next_to_no_noise_costs_infinitely_much_and_is_a_number(sigma):
    number = jnp.asarray(sigma) if isinstance(sigma, np.float32) else sigma
    assert np.all(np.isposinf(privacy.item_sampled_gaussian(number, 0.5, 4).rdp))


def test_at_the_steep_orders_it_is_below_what_is_not_sampled_and_above_the_last_item():
    for sigma, q, k in CASES:
        rdp = privacy.item_sampled_gaussian(sigma, q, k).rdp
        assert np.all(np.diff(rdp) >= -1e-12 * rdp[1:])
        assert np.all(rdp <= privacy.gaussian(sigma / k).rdp * (1 + 1e-12))
        # A is at least what the case of all items adds to it.
        last = ORDERS * k * math.log(q) + ORDERS * (ORDERS - 1) * k**2 / (2 * sigma**2)
        assert np.all(rdp >= last / (ORDERS - 1) * (1 - 1e-12))
        assert rdp[-1] <= 1.001 * max(last[-1] / (ORDERS[-1] - 1), rdp[-2])


def test_more_items_cost_more_and_fewer_are_covered():
    losses = [privacy.item_sampled_gaussian(2.0, 0.05, k).rdp for k in (1, 2, 5, 20)]
    for less, more in itertools.pairwise(losses):
        assert np.all(less < more)
    spent = [
        privacy.certificate(events.item_sampled_gaussian(2.0, 0.05, k), 1e-4, ADD).epsilon
        for k in (1, 3)
    ]
    assert spent[0] < spent[1]


def _profile(sigma, places, chances, epsilons):
    """H of P against Q and of Q against P at each ε, by half lines."""
    z = np.linspace(-12 * sigma, max(places) + 12 * sigma, 8001)[:, None]
    p = stats.norm.sf(z, np.asarray(places), sigma) @ np.asarray(chances)
    q = stats.norm.sf(z[:, 0], 0, sigma)
    forward = [(p - np.exp(e) * q).max() for e in epsilons]
    back = [((1 - q) - np.exp(e) * (1 - p)).max() for e in epsilons]
    return np.array(forward), np.array(back)


def test_the_removal_is_the_dearer_direction_of_one_step():
    """The lemma by which the curve has one direction only, for mixtures of all kinds and by divergences."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        count = int(rng.integers(1, 6))
        places = np.concatenate([[0.0], rng.uniform(0.0, 6.0, count)])
        chances = rng.dirichlet(np.full(count + 1, rng.uniform(0.1, 3.0)))
        forward, back = _profile(rng.uniform(0.3, 3.0), places, chances, np.linspace(0, 4, 20))
        assert np.all(forward >= back - 1e-6)
    for order in (1.5, 4.0, 9.0):
        assert _rdp(1.0, 0.1, 2, order) >= _rdp(1.0, 0.1, 2, order, back=True)


def test_one_step_has_the_delta_of_its_integral():
    """By quadrature of (dP - e^ε dQ)+, which knows nothing of half lines or of losses."""
    for sigma, q, k in CASES[:2]:
        pair = binomial_pairs.binomial_removed_gaussian(sigma, q, k)
        z = np.linspace(-12 * sigma, k + 12 * sigma, 20_001)
        counts = np.arange(k + 1)
        p = stats.norm.pdf(z[:, None], counts, sigma) @ stats.binom(k, q).pmf(counts)
        other = stats.norm.pdf(z, 0, sigma)
        for way, (first, second) in ((pair, (p, other)), (pairs.reverse(pair), (other, p))):
            delta = 1e-3
            epsilon = pld.epsilon([(way, 1)], delta, 2**13)
            spent = [np.maximum(first - np.exp(e) * second, 0).sum() * (z[1] - z[0])
                     for e in (epsilon, max(epsilon - 1e-2, 0.0))]  # fmt: skip
            assert spent[0] <= delta * 1.0001
            assert spent[1] >= delta * 0.999 or epsilon == 0.0


def test_certificates_agree_with_dp_accounting():
    sigma, q, k, steps = 4.0, 0.05, 4, 5
    event = PoissonItems(q, k).gaussian_event(sigma)
    assert isinstance(event, MixtureOfGaussiansDpEvent)
    accountant = PLDAccountant(neighboring_relation=ADD, value_discretization_interval=1e-3)
    theirs = accountant.compose(event, steps).get_epsilon(1e-5)
    ours = privacy.certificate(events.repeated(event, steps), 1e-5, ADD).epsilon
    assert ours == pytest.approx(theirs, rel=2e-3)
    assert ours <= theirs
    for relation in (ADD, SPECIAL):
        loss = PoissonItems(q, k).gaussian_loss(sigma, relation)
        assert ours < privacy.epsilon(privacy.scale(loss, steps), 1e-5) < 1.7 * ours
    assert _translation.release_of(event, SPECIAL) == _translation.release_of(event, ADD)


@pytest.mark.parametrize(("q", "k"), [(0.75, 4), (1.0, 30)])
def test_noise_is_calibrated_to_the_budget_and_not_past_it(q, k):
    """More than one item moves the sum further than the sensitivity that a multiplier is over."""
    sigma = privacy.certified_noise_multiplier(PoissonItems(q, k), 2, 1.0, 1e-2, ADD)
    spent = privacy.certificate(
        events.repeated(events.item_sampled_gaussian(sigma, q, k), 2), 1e-2, ADD
    ).epsilon
    assert 1.0 - 1e-3 <= spent <= 1.0  # by doubling steps from too little noise it would be 0.5
    unsampled = privacy.certified_noise_multiplier(privacy.FullBatch(), 2, 1.0, 1e-2, ADD)
    assert sigma <= k * unsampled * (1 + 1e-9)


def test_events_are_read_as_they_were_written():
    rng = np.random.default_rng(1)
    for k in (2, 3, 17):
        for q in (0.1, 1 / 3, 1e-4, float(rng.uniform())):
            event = events.item_sampled_gaussian(2.0, q, k)
            read = _translation.release_of(event, ADD)
            assert (read.noise_multiplier, read.items_per_user) == (2.0, k)
            # Chances that another library computed: the rate is at least the true one, and near it.
            chances = [math.comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]
            other = MixtureOfGaussiansDpEvent(2.0, tuple(range(k + 1)), tuple(chances))
            found = _translation.release_of(other, ADD).sampling_probability
            assert q * (1 - 1e-15) <= found <= q * (1 + 1e-9)
            assert read.sampling_probability == pytest.approx(q, rel=1e-15)
    assert _translation.release_of(events.item_sampled_gaussian(2.0, 1.0, 4), ADD) == (
        _translation.release_of(GaussianDpEvent(0.5), ADD)
    )


@pytest.mark.parametrize(
    ("places", "chances"),
    [
        ((0.0, 2.0), (0.5, 0.5)),
        ((1.0, 2.0), (0.5, 0.5)),
        ((0.0, 1.0, 2.0), (0.5, 0.5)),
        ((0.0, 1.0, 2.0), (0.5, 0.1, 0.4)),
        ((0.0, 1.0, 2.0), (0.81, 0.18, 0.02)),
        ((0.0, 1.0, 2.0), (0.81, 0.18, math.nan)),
        ((0.0, 1.0, 2.0), (1.2, -0.3, 0.1)),
        ((0.0,), (1.0,)),
    ],
)
def test_other_mixtures_are_refused(places, chances):
    event = MixtureOfGaussiansDpEvent(2.0, places, chances)
    with pytest.raises(ValueError, match=r"sensitivities|sampling_probs"):
        privacy.certificate(event, 1e-5, ADD)


def test_a_user_who_is_replaced_has_no_proof_here():
    scheme = PoissonItems(0.1, 3)
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        scheme.gaussian_loss(2.0, REPLACE)
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        scheme.gaussian_release(2.0, REPLACE)
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        privacy.certificate(scheme.gaussian_event(2.0), 1e-5, REPLACE)
    made = _kinds.ItemsSampled(2.0, 0.1, 3)
    assert REPLACE not in made.bounds_under
    assert not made.symmetric
