"""Searches that know where to start, and bounds that are kept or quick: what they end in is certified."""

import dataclasses
import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax.privacy import _kinds, _renyi_noise, accountants, certified_noise, releases
from dpsco_jax.privacy.concentrated import _accounting, _proof, _search, threshold_phase
from dpsco_jax.privacy.curves import subsampling
from dpsco_jax.privacy.loss import PrivacyLoss
from dpsco_jax.privacy.orders import ORDERS
from dpsco_jax.privacy.pld import _chernoff, convolution, pairs

REPLACE = NeighboringRelation.REPLACE_ONE
_FEW = 2**11


@pytest.mark.parametrize("slope", [None, -1.0, -0.01, -50.0, 0.0, 2.0, math.nan, -math.inf])
def test_a_search_by_slopes_ends_where_the_function_was_seen_to_be_negative(slope):
    for start in (-6.0, 0.2, 9.0):
        seen = {}

        def excess(x, seen=seen):
            seen[x] = -math.tanh(0.3 * (x - 0.3)) * 5.0 - 0.1 * (x - 0.3)
            return seen[x]

        found = certified_noise.decreasing_root(excess, start, 1e-4, slope)
        assert -1e-4 <= seen[found] <= 0.0
        assert len(seen) < 30


@pytest.fixture
def looks(monkeypatch):
    """Multipliers that were looked at, with ε and the size of the grid; on small grids, for speed."""
    found = []
    plain = accountants.privacy_loss_distribution

    def counted(composition, delta, max_points=convolution.MAX_POINTS):
        spent = plain(composition, delta, _FEW)
        if max_points == convolution.MAX_POINTS:
            found.append((composition[0][0].noise_multiplier, spent))
        # What a small grid says is off by some percent, and by more than what is asked for.
        return spent if max_points == convolution.MAX_POINTS else 0.97 * spent

    monkeypatch.setattr(accountants, "privacy_loss_distribution", counted)
    return found


_STARTS = (None, 1e-300, 0.01, math.nextafter(0.01, 0.0), math.nextafter(0.01, 1.0), 0.6, 1e300)


@pytest.mark.parametrize("sizes", [(5000, 40, 30, 1.0), (5000, 1, 1, 3.0), (200, 199, 9, 0.1)])
def test_noise_is_certified_wherever_the_search_starts(sizes, looks):
    users, batch, steps, epsilon = sizes
    scheme = privacy.WithoutReplacement(users, batch)
    found = []
    for near in _STARTS:
        looks.clear()
        noise = privacy.certified_noise_multiplier(scheme, steps, epsilon, 1e-6, REPLACE, near)
        found.append(noise)
        made = releases.repeated(scheme.gaussian_release(noise, REPLACE), steps)
        assert accountants.privacy_loss_distribution(made, 1e-6) <= epsilon
        if noise > 0.01:
            assert (noise, looks[-1][1]) in looks[:-1]  # looked at before, on the full grid
    np.testing.assert_allclose(found, found[0], rtol=5e-5)
    with pytest.raises(ValueError, match="near must be"):
        privacy.certified_noise_multiplier(scheme, steps, epsilon, 1e-6, REPLACE, 0.0)


@pytest.mark.parametrize("share", [1.005, 1.015, 1.03])
def test_the_least_noise_is_taken_only_where_it_is_enough(share):
    # A percent more than it: the search by coarse grids may end at the least noise.
    scheme = privacy.WithoutReplacement(5000, 40)

    def spent(noise):
        made = releases.repeated(scheme.gaussian_release(noise, REPLACE), 1)
        return accountants.privacy_loss_distribution(made, 1e-6)

    epsilon = spent(0.01) / share
    for near in (None, 0.01):
        noise = privacy.certified_noise_multiplier(scheme, 1, epsilon, 1e-6, REPLACE, near)
        assert spent(noise) <= epsilon
        assert spent(noise) > epsilon * (1 - 2.1e-5)
    enough = privacy.certified_noise_multiplier(scheme, 1, spent(0.01) * share, 1e-6, REPLACE)
    assert enough == pytest.approx(0.01, rel=1e-12)


@pytest.mark.parametrize("batch", [4, 3])
def test_more_noise_than_without_sampling_is_found_as_well(batch):
    scheme, relation = privacy.WithoutReplacement(4, batch), NeighboringRelation.ADD_OR_REMOVE_ONE
    for near in (None, 0.1, 50.0):
        noise = privacy.certified_noise_multiplier(scheme, 1, 1.0, 1e-6, relation, near)
        made = releases.repeated(scheme.gaussian_release(noise, relation), 1)
        assert 1 - 2.1e-5 < accountants.privacy_loss_distribution(made, 1e-6) <= 1.0


def test_random_budgets_are_kept_and_no_noise_is_wasted(looks):
    draw = np.random.default_rng(5)
    for _ in range(12):
        users, steps = int(10 ** draw.uniform(2, 6)), int(10 ** draw.uniform(0, 3))
        batch = max(1, int(users * draw.uniform(0.001, 0.9)))
        epsilon, delta = 10 ** draw.uniform(-1.0, 0.8), 10 ** draw.uniform(-9, -4)
        made = releases.fixed_size(users, batch, steps)
        noise = made.noise_multiplier(epsilon, delta, "pld")
        plain = accountants.privacy_loss_distribution
        assert plain(made.composition(noise), delta) <= epsilon
        if noise > 0.0101:
            assert plain(made.composition(noise * (1 - 1e-4)), delta) > epsilon * (1 - 2e-5)
        by_curves = made.noise_multiplier(epsilon, delta, "rdp")
        assert made.ledger_epsilon(by_curves, delta) <= epsilon


def test_a_curve_at_some_orders_is_the_curve_there_and_infinite_elsewhere():
    for sigma, fraction, start in (
        (0.05, 0.3, 0),
        (0.9, 1e-4, 60),
        (3.0, 0.02, 120),
        (80.0, 0.9, 170),
    ):
        which = slice(start, min(start + 13, len(ORDERS)))
        some = subsampling.at_orders(sigma, fraction, which).rdp
        whole = subsampling.subsampled_gaussian_of_fraction(sigma, fraction).rdp
        np.testing.assert_allclose(some[which], whole[which], rtol=1e-13)
        assert np.all(np.isinf(np.delete(some, np.arange(len(ORDERS))[which])))


def test_a_bound_that_is_kept_is_not_taken_for_another_one():
    def bound(release, count=3, delta=1e-5, points=_FEW):
        return accountants.privacy_loss_distribution(((release, count),), delta, points)

    release = _kinds.SampledWithoutReplacement(1000, 50, 1.5)
    others = [
        bound(release),
        bound(release, count=4),
        bound(release, delta=1e-6),
        bound(release, points=2**8),
        bound(dataclasses.replace(release, noise_multiplier=1.6)),
        bound(dataclasses.replace(release, batch_size=51)),
        bound(_kinds.Gaussian(1.5)),
        bound(_kinds.Laplace(1.5)),  # equal as a tuple of numbers
        bound(_kinds.PoissonSampled(0.05, 1.5)),
    ]
    assert len(set(others)) == len(others)
    assert bound(release) == others[0]


def test_what_can_change_is_not_kept():
    frozen = _kinds.Gaussian(1.0)
    assert accountants._is_frozen(frozen)
    assert not accountants._is_frozen(dataclasses.replace(frozen, noise_multiplier=np.ones(1)))

    class Own:
        dominated = symmetric = True
        multiplier = 1.0

        def pair(self):
            return pairs.gaussian(self.multiplier)

    own = Own()
    first = accountants.privacy_loss_distribution(((own, 2),), 1e-5, _FEW)
    own.multiplier = 0.5
    assert accountants.privacy_loss_distribution(((own, 2),), 1e-5, _FEW) > 1.5 * first


@pytest.mark.parametrize("center", [0.0, 1e-3, 1e3])
def test_what_is_guessed_of_a_loss_decides_nothing_but_the_time(center, monkeypatch):
    made = [(pairs.gaussian_without_replacement(2.0, 0.05), 500)]
    plain = convolution.epsilon(made, 1e-6)
    choose = convolution.choose_window
    monkeypatch.setattr(
        convolution, "choose_window", lambda *given: choose(*given)._replace(center=center)
    )
    assert convolution.epsilon(made, 1e-6) == pytest.approx(plain, rel=3e-5)
    exact = accountants.gaussian_epsilon(1.0, 1e-6)
    found = convolution.epsilon([(pairs.gaussian(2.0), 4)], 1e-6)
    assert exact <= found <= exact * (1 + 3e-5)


def test_chernoffs_bound_of_a_gaussian_is_above_the_closed_form_by_a_tenth():
    tilts = np.geomspace(0.05, 2000.0, 200)
    for mu in (0.01, 0.3, 2.0, 9.0):
        for delta in (1e-12, 1e-6, 1e-2):
            moments = 0.5 * mu**2 * tilts * (1.0 + tilts)
            exact = accountants.gaussian_epsilon(1.0 / mu, delta)
            found = _chernoff.chernoff_epsilon(moments, tilts, delta)
            assert exact <= found <= 1.35 * exact + 2e-3


def test_quick_bounds_of_phases_are_bounds():
    draw = np.random.default_rng(1)
    for test in ("stream", "fresh") * 6:
        steps, rate = int(10 ** draw.uniform(0.3, 2.5)), 10 ** draw.uniform(-2.5, -0.1)
        phase = _proof.Phase(
            test,
            rate,
            steps,
            10 ** draw.uniform(-2, 0),
            1e-9 / steps,
            0.0,
            10 ** draw.uniform(-1, 0.5),
        )
        quick = _accounting.quick_epsilon(phase, 1e-6)
        assert quick >= _accounting.epsilon_at(phase, 1e-6)
        # What has lost its tail is infinite.
        assert _accounting.quick_epsilon(phase._replace(wrong_pass=1.0), 1e-6) == math.inf


def test_losses_without_end_count_for_quick_bounds(monkeypatch):
    phase = _proof.Phase("stream", 0.1, 10, 0.1, 1e-12, 0.0, 0.5)
    plain, law_of = _accounting.quick_epsilon(phase, 1e-6), _accounting.discretize
    share = [0.0]

    def heavier(pair, losses):
        return law_of(pair, losses)._replace(infinite=share[0])

    monkeypatch.setattr(_accounting, "discretize", heavier)
    share[0] = 0.5e-7
    assert plain < _accounting.quick_epsilon(phase, 1e-6) < math.inf
    share[0] = 1e-7
    assert _accounting.quick_epsilon(phase, 1e-6) == math.inf


def test_phases_by_chernoffs_bound_meet_the_budget_with_a_little_more_noise():
    for changed in (
        {},
        {"test": "fresh"},
        {"epsilon": 0.7, "num_users": 60_000, "batch_size": 9000},
    ):
        given = {"num_users": 9000, "num_steps": 6, "epsilon": 2.0, "delta": 1e-5} | {
            "batch_size": 3000
        }
        given |= {"test": "stream"} | changed
        quick = threshold_phase.calibrate_concentrated(**given, accountant="chernoff")
        tight = threshold_phase.calibrate_concentrated(**given)
        phase = quick.on_host()
        assert _accounting.quick_epsilon(phase, given["delta"]) <= given["epsilon"]
        assert quick.certificate().epsilon <= given["epsilon"]
        assert tight.certificate().epsilon <= given["epsilon"]
        assert 1.0 < quick.noise_stddev / tight.noise_stddev < 1.25
    with pytest.raises(ValueError, match="accountant must be"):
        threshold_phase.calibrate_concentrated(9000, 6, 2.0, 1e-5, accountant="rdp")


def test_noise_is_raised_until_what_runs_meets_the_budget():
    """A split that the search did not calibrate: nothing is taken on trust."""
    asked = _search.Request(9000, 3000, 6, 2.0, 1e-5, "weighted", REPLACE, None, None, 0.05, (0.3,))
    kept = _search.best(asked, ("stream",))
    boasting = kept._replace(phase=kept.phase._replace(mu=1.01 * kept.phase.mu))
    for bound in (_accounting.quick_epsilon, _accounting.epsilon_at):
        made = threshold_phase._releases(asked, boasting, bound)
        assert made.certificate().epsilon <= asked.epsilon
        assert made.noise_stddev > boasting.noise


def test_fewer_points_prove_no_less():
    event = releases.fixed_size(1000, 30, 400).event(1.2)
    few, many = (
        privacy.certificate(event, 1e-6, REPLACE, max_points=points) for points in (2**11, 2**17)
    )
    assert many.epsilon < few.epsilon < 1.2 * many.epsilon


@pytest.mark.parametrize("target", [1e-3, 0.3, 100.0])
def test_epsilon_of_few_orders_is_that_of_all_wherever_the_search_was_expected_to_end(target):
    """Where the best of few orders is the first or the last of them, all are looked at."""
    delta = 1e-6

    def whole(multiplier):
        return PrivacyLoss(0.5 * ORDERS / multiplier**2, np.zeros(()))

    def some(multiplier, orders):
        rdp = np.full(len(ORDERS), np.inf)
        rdp[orders] = whole(multiplier).rdp[orders]
        return PrivacyLoss(rdp, np.zeros(()))

    spent = _renyi_noise.spent_near(whole, some, target, delta)
    for multiplier in (0.1, 20.0, 0.5, 3.0, 3.1):
        assert spent(multiplier) == float(privacy.epsilon(whole(multiplier), delta))
