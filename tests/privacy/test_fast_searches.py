"""What makes searches for noise fast does not change what they find.

Everything here is compared with the plain way: all ends, all splits, all powers, one pair at a time.
"""

import math

import numpy as np
import pytest

from dpsco_jax.privacy import certified_noise
from dpsco_jax.privacy.concentrated import _accounting, _request, _search
from dpsco_jax.privacy.pld import convolution, pairs


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
        relation=_search.REPLACE_ONE,
        keep_level=None,
        threshold_fraction=None,
        false_halt_probability=0.05,
        shares=given.get("shares", (0.1, 0.3, 0.5)),
    )


@pytest.mark.parametrize("kinds", [("stream",), ("fresh",), ("stream", "fresh")])
def test_the_split_is_the_one_that_calibrating_all_of_them_finds(kinds):
    asked = _request_of()
    finals = []
    for kind in kinds:
        roughs = [
            _search.calibrated(asked, each, _accounting.quick_epsilon, 5e-3)
            for each in _search.splits(asked, kind)
        ]
        rough = min(filter(None, roughs), key=lambda s: s.noise)
        finals.append(_search.calibrated(asked, rough, _accounting.epsilon_at, 2e-5))
    found = _search.best(asked, kinds)
    assert found == min(filter(None, finals), key=lambda s: s.noise)
    assert _accounting.epsilon_at(found.phase, asked.delta) <= asked.epsilon


@pytest.mark.parametrize(
    "changed",
    [{"epsilon": 1.5}, {"delta": 1e-7}, {"num_steps": 4}, {"batch": 1400}, {"num_users": 4500}],
)
def test_a_split_that_was_found_is_not_taken_for_another_request(changed):
    first = _search.best(_request_of(shares=(0.3,)), ("stream",))
    other = _search.best(_request_of(shares=(0.3,), **changed), ("stream",))
    assert first.noise != other.noise
    spent = _accounting.epsilon_at(other.phase, changed.get("delta", 1e-5))
    assert spent <= changed.get("epsilon", 2.0)


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
