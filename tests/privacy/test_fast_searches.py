"""What makes searches for noise fast does not change what they find.

Everything here is compared with the plain way: all ends, all splits, all powers, one pair at a time.
"""

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax.privacy import _renyi_noise, certified_noise, releases, resque
from dpsco_jax.privacy.concentrated import _accounting, _request, _search, threshold_phase
from dpsco_jax.privacy.curves import composition, subsampling
from dpsco_jax.privacy.dp_accounting import second_opinion
from dpsco_jax.privacy.pld import convolution, pairs
from dpsco_jax.privacy.resque import calls


@pytest.mark.parametrize(
    ("root", "expected"), [(0.3, 0.3), (-7.0, -2.0), (9.0, math.inf), (-1.99, -1.99)]
)
@pytest.mark.parametrize("start", [-1.0, 0.5, 3.0])
def test_a_search_between_ends_finds_the_root_or_the_end_that_will_do(root, expected, start):
    seen = []

    def excess(x):
        seen.append(x)
        return root - x

    found = certified_noise.root_above(excess, start, 1e-4, -2.0, 4.0)
    assert found == pytest.approx(expected, abs=1e-4)
    assert found == math.inf or root - found <= 0.0
    # It ends: beyond an end it looks at that end first.
    assert len(seen) < 40


def test_ends_are_not_looked_at_for_a_root_in_between():
    seen = []

    def excess(x):
        seen.append(x)
        return 0.3 - x

    assert certified_noise.root_above(
        excess, 0.0, 1e-4, -9.0, 9.0
    ) == certified_noise.decreasing_root(lambda x: 0.3 - x, 0.0, 1e-4)
    assert not {-9.0, 9.0} & set(seen)


def _request_of(**changed):
    given = {"num_users": 4000, "num_steps": 3, "batch": 1500} | changed
    return _request.Request(
        population=given["num_users"],
        batch=given["batch"],
        num_steps=given["num_steps"],
        epsilon=given.get("epsilon", 2.0),
        delta=given.get("delta", 1e-5),
        selection="weighted",
        relation=given.get("relation", _search.REPLACE_ONE),
        keep_level=given.get("keep_level"),
        threshold_fraction=given.get("threshold"),
        false_halt_probability=0.05,
        shares=given.get("shares", (0.1, 0.3, 0.5)),
    )


@pytest.fixture
def coarse(monkeypatch):
    """ε of phases by Chernoff's bound, and for which phase and δ it was asked. Nothing is kept."""
    asked = []

    def bound(phase, delta):
        asked.append((phase, delta))
        return quick(phase, delta)

    quick = _accounting.quick_epsilon
    monkeypatch.setattr(_accounting, "epsilon_at", bound)
    _search.best.cache_clear()
    threshold_phase._calibrated.cache_clear()
    yield asked
    _search.best.cache_clear()
    threshold_phase._calibrated.cache_clear()


def test_the_split_is_the_one_that_calibrating_all_of_them_finds(coarse):
    asked = _request_of()
    finals = {}
    for kind in ("stream", "fresh"):
        roughs = [
            _search.calibrated(asked, each, _accounting.quick_epsilon, 5e-3)
            for each in _search.splits(asked, kind)
        ]
        rough = min(filter(None, roughs), key=lambda s: s.noise)
        finals[kind] = _search.calibrated(asked, rough, _accounting.epsilon_at, 2e-5)
    for kinds in (("stream",), ("fresh",), ("stream", "fresh")):
        found = _search.best(asked, kinds)
        plain = min((finals[kind] for kind in kinds), key=lambda s: s.noise)
        assert found.phase._replace(mu=0.0) == plain.phase._replace(mu=0.0)
        assert found[1:] == plain[1:]
        assert found.noise == pytest.approx(plain.noise, rel=4e-5)
        # The certificate was evaluated at the very split that is returned.
        assert (found.phase, asked.delta) in coarse
        assert _accounting.epsilon_at(found.phase, asked.delta) <= asked.epsilon


def test_what_promises_least_noise_is_calibrated_and_hardly_anything_else(coarse, monkeypatch):
    """One look at each of the others, in an order in which the first is nearly the best."""
    asked, looks = _request_of(shares=None), []
    quick = _accounting.quick_epsilon
    monkeypatch.setattr(
        _accounting, "quick_epsilon", lambda *given: looks.append(given) or quick(*given)
    )
    found = _search.best(asked, ("stream", "fresh"))
    assert _accounting.epsilon_at(found.phase, asked.delta) <= asked.epsilon
    assert len(looks) - len(coarse) <= sum(map(len, _search.SHARES.values())) + 12
    assert len(coarse) <= 9


_PROMISED = (
    {},
    {"epsilon": 0.2, "delta": 1e-9, "num_users": 90_000, "batch": 60_000, "num_steps": 200},
    {"num_users": 1500, "relation": NeighboringRelation.REPLACE_SPECIAL},
    {"num_users": 1500, "num_steps": 1},
    {"num_users": 6000, "batch": 6000, "epsilon": 0.7, "num_steps": 40},
    {"keep_level": 0.7, "threshold": 0.9},
    {"num_users": 12, "batch": 12},
)


def _one_by_one(asked, kind):
    for share in asked.shares:
        if share < 1.0 or asked.rate < 1.0:
            parts = (_search.split(asked, kind, share, p) for p in _search.FAILURE_SHARES)
            yield min(filter(None, parts), key=lambda s: s.noise, default=None)


@pytest.mark.parametrize("kind", ["stream", "fresh"])
@pytest.mark.parametrize("changed", _PROMISED)
def test_splits_of_arrays_are_those_of_one_at_a_time(changed, kind):
    shares = _search.SHARES[kind][::14]
    asked = _request_of(**changed, shares=shares)
    alone = [each for each in _one_by_one(asked, kind) if each]
    together = list(_search.splits(asked, kind))
    assert bool(alone) == (asked.batch > 12)
    for found, each in zip(together, alone, strict=True):
        assert (found.core, found.keep_level) == (each.core, each.keep_level)
        assert (found.phase.test, found.phase.rate) == (kind, asked.rate)
        numbers = [(*split.phase[2:7], *split[1:]) for split in (found, each)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-9, abs=0.0)
    found, plain = (
        _search.least_noise(asked, each, _accounting.quick_epsilon, 5e-3)
        for each in (together, alone)
    )
    if found is not None:
        assert found.phase.test_epsilon == plain.phase.test_epsilon
        assert found.noise == pytest.approx(plain.noise, rel=1e-8)
        # Where nothing else calibrates it, it is the distance that is rounded down.
        assert found.phase.mu == plain.phase.mu or not _accounting.is_closed_form(found.phase)


def test_distances_of_many_responses_are_those_of_each():
    draw = np.random.default_rng(0)
    epsilons = np.exp(draw.uniform(-3.0, 2.5, 12))
    tests, deltas = epsilons * draw.uniform(0.0, 0.99, 12), 10.0 ** draw.uniform(-300.0, -1.0, 12)
    found = _search.response_mus(tests, epsilons, deltas)
    for mu, *each in zip(found, tests, epsilons, deltas, strict=True):
        assert mu == pytest.approx(composition.response_gaussian_mu(*each), rel=1e-9)


def test_promises_decide_nothing_but_the_order():
    asked = _request_of()
    roughs = list(_search.splits(asked, "stream"))
    plain = _search.least_noise(asked, roughs, _accounting.quick_epsilon, 1e-3)
    for i, each in enumerate(roughs):
        boasting = each._replace(phase=each.phase._replace(mu=9.0 * each.phase.mu))
        given = [*roughs[:i], boasting, *roughs[i + 1 :]]
        found = _search.least_noise(asked, given, _accounting.quick_epsilon, 1e-3)
        assert found.phase.test_epsilon == plain.phase.test_epsilon
        assert found.noise == pytest.approx(plain.noise, rel=2e-3)
        assert _accounting.quick_epsilon(found.phase, asked.delta) <= asked.epsilon


def test_splits_that_no_noise_helps_cost_one_look_each_but_the_first():
    asked = _request_of()
    roughs, looks = list(_search.splits(asked, "fresh")), []

    def hopeless(phase, delta):
        looks.append(phase.test_epsilon)
        return math.inf

    assert _search.least_noise(asked, roughs, hopeless, 5e-3) is None
    assert all(looks.count(each) == 1 for each in set(looks) - {looks[0]})
    assert len(set(looks)) == len(roughs) == 3
    last = max(roughs, key=lambda each: each.noise)

    def one_hope(phase, delta):
        hopes = phase.test_epsilon == last.phase.test_epsilon
        return _accounting.quick_epsilon(phase, delta) if hopes else math.inf

    found = _search.least_noise(asked, roughs, one_hope, 5e-3)
    assert found == _search.calibrated(asked, last, one_hope, 5e-3)
    assert found is not None


@pytest.mark.parametrize(
    "changed",
    [{"epsilon": 1.5}, {"delta": 1e-7}, {"num_steps": 4}, {"batch": 1400}, {"num_users": 4500}],
)
def test_a_split_that_was_found_is_not_taken_for_another_request(changed, coarse):
    first = _search.best(_request_of(shares=(0.3,)), ("stream",))
    other = _search.best(_request_of(shares=(0.3,), **changed), ("stream",))
    assert first.noise != other.noise
    spent = _accounting.epsilon_at(other.phase, changed.get("delta", 1e-5))
    assert spent <= changed.get("epsilon", 2.0)


def test_a_phase_that_was_calibrated_is_not_taken_for_another_one():
    """Nor one of another relation, another test or the paper's constants."""
    given = {"num_users": 4000, "num_steps": 12, "epsilon": 2.0, "delta": 1e-5}
    changes = (
        {},
        {"relation": NeighboringRelation.REPLACE_SPECIAL},
        {"delta": 1e-7},
        {"epsilon": 1.5},
        {"threshold": 0.9},
        {"false_halt_probability": 1e-3},
        {"constants": "paper", "num_users": 40_000},
        {"num_users": 40_000},
    )
    found = []
    for changed in changes:
        phase = threshold_phase.calibrate_concentrated(**given | {"test": "stream"} | changed)
        assert phase.certificate().epsilon <= (given | changed)["epsilon"]
        assert phase.certificate().delta == (given | changed)["delta"]
        found.append((phase.noise_stddev, phase.relation, phase.threshold))
    assert len(set(found)) == len(changes)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 3.0, 1000.0])
def test_powers_that_are_left_out_are_next_to_nothing(exponent):
    angles = np.linspace(0.0, 3.0, 400)
    values = np.exp(1j * angles) * np.geomspace(1.0, 1e-12, 400)
    found = convolution._power(values, np.abs(values), exponent)
    assert np.max(np.abs(found - values**exponent)) <= math.exp(-200.0)
    assert found[0] == values[0] ** exponent


@pytest.mark.parametrize("fraction", [1e-3, 0.2, 1.0])
def test_cells_of_many_shifts_are_those_of_each_pair(fraction):
    shifts, positive = np.array([1e-3, 0.2, 1.0, 6.0]), np.sinh(np.linspace(0.0, 4.0, 30))
    losses = np.concatenate([-positive[:0:-1], positive])
    together = pairs.without_replacement_cells(shifts, fraction, positive)
    for i, shift in enumerate(shifts):
        alone = pairs.gaussian_without_replacement(1.0 / shift, fraction).cells(losses)
        for many, one in zip(together, alone, strict=True):
            np.testing.assert_array_equal(many[i], one)
            assert np.sum(one) == pytest.approx(1.0, abs=1e-12)


_ADD, _REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


@pytest.mark.parametrize(
    ("steps", "epsilon", "delta"),
    [
        (releases.fixed_size(1000, 1000, 50), 1.0, 1e-6),
        (releases.fixed_size(1_000_000, 20_000, 700), 0.3, 1e-7),
        (releases.fixed_size(5000, 40, 3), 4.0, 1e-5),
        (releases.poisson(10_000, 100, 1000), 1.0, 1e-5),
    ],
)
def test_noise_of_curves_is_certified_least_and_found_in_a_few_of_them(
    steps, epsilon, delta, monkeypatch
):
    looks = []
    plain = releases.GaussianSteps.ledger_epsilon

    def counted(epsilon_of, *given):
        return _renyi_noise.least_multiplier(
            lambda multiplier: looks.append(multiplier) or epsilon_of(multiplier), *given
        )

    monkeypatch.setattr(releases, "least_multiplier", counted)
    found = steps._by_renyi_curves(epsilon, delta)
    assert found in looks
    assert len(looks) <= 8
    assert 1 - 2.1e-5 < plain(steps, found, delta) / epsilon <= 1 - 2e-5
    assert plain(steps, (1 - 1e-5) * found, delta) > (1 - 2e-5) * epsilon
    assert steps.noise_multiplier(epsilon, delta, "rdp") >= found


@pytest.mark.parametrize("root", [0.02, 1.7, 900.0])
@pytest.mark.parametrize("start", [1e-3, 1.0, 1e6])
def test_noise_of_curves_is_found_wherever_the_search_starts(root, start):
    seen = []

    def spent(multiplier):
        seen.append(multiplier)
        return root / multiplier

    found = _renyi_noise.least_multiplier(spent, 1.0, 1e-5, start, 1e4)
    assert found in seen
    assert 0.0 <= found / root - 1.0 < 5e-7
    assert _renyi_noise.least_multiplier(lambda m: 0.0, 1.0, 1e-5, start, 1e4) <= 0.0100001
    with pytest.raises(ValueError, match="epsilon must be what some noise"):
        _renyi_noise.least_multiplier(lambda m: 2.0, 1.0, 1e-5, start, 1e4)


@pytest.mark.parametrize("least", [0.0, 3.0, math.inf])
def test_what_is_not_a_number_proves_no_noise(least):
    def search():
        return _renyi_noise.least_multiplier(
            lambda m: math.nan if m < least else 0.5, 1.0, 1e-5, 2.0, 100.0
        )

    if least == math.inf:
        with pytest.raises(ValueError, match="epsilon must be what some noise"):
            search()
    else:
        assert search() == pytest.approx(max(least, 0.01), rel=1e-9)


def test_searches_start_somewhere_for_every_budget():
    """Where numbers vanish and where they overflow; else near the root for χ² divergences, in closed form."""
    for epsilon in (5e-324, 1e-160, 1e-17, 1e-9, 1.0, 1e9, 1e308):
        for delta in (1e-300, 1e-6, 1 - 1e-16):
            for rate in (0.0, 1e-9, 1.0):
                start = _renyi_noise.rule_of_thumb(epsilon, delta, 10, rate)
                assert start > 0.0
                found = _renyi_noise.least_multiplier(lambda m: 2.0 / m, 1.0, delta, start, 1e4)
                assert found == pytest.approx(2.0, rel=1e-6)
    # μ²/2 + μ √(2 log(1/δ)) = ε, and μ² = T/σ² for small μ.
    mu = math.sqrt(1e4) / _renyi_noise.rule_of_thumb(1e-9, 1e-6, 10**4, 1.0)
    assert mu * (mu / 2 + math.sqrt(2 * math.log(1e6))) == pytest.approx(1e-9, rel=1e-6)
    assert releases.poisson(1000, 1, 10).noise_multiplier(1e308, 1e-6, "rdp") < 0.0101
    tiny = releases.fixed_size(1000, 10, 10)
    assert tiny.ledger_epsilon(tiny.noise_multiplier(1e-17, 1e-6, "rdp"), 1e-6) <= 1e-17


def test_noise_of_curves_holds_for_another_accountant():
    """Poisson samples and everybody, which ``dp_accounting`` knows as tightly."""
    for steps in (releases.poisson(3000, 60, 40), releases.fixed_size(100, 100, 30)):
        noise = steps.noise_multiplier(1.0, 1e-5, "rdp")
        spent = second_opinion.second_opinion(steps.event(noise), 1e-5, steps.relation)
        assert spent["PLD"] <= 1.0
        assert spent["RDP"] <= 1.0 + 1e-3


def test_a_curve_that_is_kept_is_not_taken_for_another_one():
    loss = subsampling.subsampled_gaussian_without_replacement
    first = loss(1.5, 1000, 100, _REPLACE)
    first.rdp[:] = 0.0  # what is kept is not what callers hold
    sizes = (1.5, 1000, 100), (1.6, 1000, 100), (1.5, 1000, 101)
    others = [*(loss(*each, _REPLACE) for each in sizes), loss(*sizes[0], _ADD)]
    assert len({float(each.rdp[3]) for each in others} | {0.0}) == 5
    np.testing.assert_array_equal(loss(1.5, 2000, 200, _REPLACE).rdp, others[0].rdp)


def test_a_search_for_beta_that_knows_where_to_start_finds_the_same(monkeypatch):
    def at(beta):
        return [(resque.ResqueCall(64, beta, 12.0, 2000), 20)]

    looks, plain = [], calls.calls_epsilon

    def counted(made, delta, max_points=convolution.MAX_POINTS):
        looks.append((made, max_points))
        return plain(made, delta, min(max_points, 2**12))

    monkeypatch.setattr(calls, "calls_epsilon", counted)
    found = calls.calibrate_beta(at, 0.7, 1e-5)
    largest = math.nextafter(4.0, 0.0)  # its logarithm is that of 4
    for start, most in ((0.97 * found, 5), (1.2 * found, 8), (1e-6, 30), (largest, 30)):
        looks.clear()
        again = calls.calibrate_beta(at, 0.7, 1e-5, near=start)
        assert again == pytest.approx(found, rel=2e-4)
        assert plain(at(again), 1e-5, 2**12) <= 0.7
        assert (at(again), convolution.MAX_POINTS) in looks
        assert len(looks) <= most
    with pytest.raises(ValueError, match="near must be"):
        calls.calibrate_beta(at, 0.7, 1e-5, near=0.0)
