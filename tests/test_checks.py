"""The vocabulary of refusal: what passes, what does not, and that a refusal says name, value and range."""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks
from dpsco_jax._redact import described

NAN, INF = math.nan, math.inf
NO_NUMBERS = ("1", b"1", None, True, np.True_, 1j, np.array(1j), [True], ["1"], object())


@pytest.mark.parametrize("value", [1, 1.5, np.float32(2), np.int8(3), fractions.Fraction(1, 3)])
def test_numbers_of_all_libraries_are_numbers(value):
    _checks.require_number("x", value)
    _checks.require_number("x", np.asarray(value, np.float64))
    _checks.require_number("x", jnp.asarray(float(value)))
    _checks.require_positive("x", value)


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize(
    "check",
    [
        _checks.require_number,
        _checks.require_positive,
        _checks.require_nonnegative,
        _checks.require_multiplier,
        _checks.require_probability,
        _checks.require_inside,
        _checks.require_finite,
        _checks.require_count,
        _checks.require_integers,
        lambda name, value: _checks.require_whole(name, value, 0),
        lambda name, value: _checks.require_real(name, value, 0.0),
        _checks.require_share,
    ],
)
def test_what_is_no_number_is_refused_wherever_one_is_asked_for(check, value):
    with pytest.raises(ValueError, match=r"^x must be .*, got "):
        check("x", value)


@pytest.mark.parametrize("array", [np.array([7654321.5, -3.0]), jnp.array([7654321.5, -3.0])])
def test_no_entry_of_an_array_is_shown(array):
    """It may be users' data that were passed as another argument."""
    checks = [
        *(_checks.require_count, _checks.require_integers, _checks.require_positive),
        *(_checks.require_inside, _checks.require_flag, _checks.require_callable),
        *(_checks.require_mask, _checks.require_shape),
        lambda name, value: _checks.require_key(value, name),
        lambda name, value: _checks.require_choice(name, value, ("a", "b")),
        lambda name, value: _checks.require_whole(name, value, 0),
        lambda name, value: _checks.require_real(name, value, 0.0),
        lambda name, value: _checks.require_instance(name, value, str),
    ]
    for check in checks:
        with pytest.raises(ValueError, match=r"^x must be") as refusal:
            check("x", array)
        assert "7654321" not in str(refusal.value)


RANGES = {
    "require_positive": ([1e-300, 5.0], [0.0, -1.0, NAN, INF]),
    "require_nonnegative": ([0.0, 5.0], [-1e-300, NAN, INF]),
    "require_multiplier": ([0.0, 5.0, INF], [-1.0, NAN, -INF]),
    "require_probability": ([0.0, 0.5, 1.0], [-0.1, 1.0 + 1e-12, NAN]),
    "require_share": ([0, 0.5, 1.0], [-0.1, 1.0 + 1e-12, NAN, np.array([0.5]), [0.5]]),
    "require_inside": ([1e-300, 0.5], [0.0, 1.0, NAN]),
    "require_finite": ([-1e300, 0.0], [NAN, INF, -INF]),
    "require_count": ([1, np.int32(7), 2**70], [0, -1, 1.0, 2.99, NAN]),
}


@pytest.mark.parametrize("name", RANGES)
def test_the_ends_of_every_range(name):
    good, bad = RANGES[name]
    for value in good:
        getattr(_checks, name)("x", value)
    for value in bad:
        with pytest.raises(ValueError, match=r"^x must be "):
            getattr(_checks, name)("x", value)


def test_one_bad_entry_of_an_array_is_enough():
    for bad in (np.array([1.0, -1.0]), jnp.array([1.0, NAN])):
        with pytest.raises(ValueError, match="x must be"):
            _checks.require_positive("x", bad)


def test_a_count_is_never_cut_off():
    assert _checks.require_integer("x", np.int64(3), 0) == 3
    assert type(_checks.require_integer("x", np.int64(3), 0)) is int
    assert _checks.require_integer("x", jnp.int32(3), 0, 3) == 3
    for bad in (3.0, 2.99, np.float32(3), "3", 4, -1, np.array([3]), True):
        with pytest.raises(ValueError, match=r"x must be an integer in \[0, 3\]"):
            _checks.require_integer("x", bad, 0, 3)
    for value in (3, 3.0, np.array([0.0, 4.0])):
        _checks.require_whole("x", value, 0)
    for bad in (2.99, -1.0, NAN, INF, np.array([3.0, 2.5])):
        with pytest.raises(ValueError, match="x must be a whole number of at least 0"):
            _checks.require_whole("x", bad, 0)


def test_traced_numbers_are_looked_at_only_for_what_is_static():
    def run(x):
        _checks.require_positive("x", x)
        _checks.require_whole("x", x, 1)
        _checks.require_probability("x", x)
        return x

    assert jax.jit(run)(-0.5) == -0.5
    for bad in (1j, True):
        with pytest.raises(ValueError, match="x must be"):
            jax.jit(run)(bad)


def test_only_relations_are_relations():
    relation = NeighboringRelation.REPLACE_ONE
    assert _checks.require_relation("r", relation) is relation
    for bad in ("REPLACE_ONE", None, 7, relation.value, NeighboringRelation):
        with pytest.raises(ValueError, match=r"r must be one of NeighboringRelation\."):
            _checks.require_relation("r", bad)
    with pytest.raises(ValueError, match="ADD_OR_REMOVE_ONE"):
        _checks.require_relation("r", relation, (NeighboringRelation.ADD_OR_REMOVE_ONE,))


def test_keys_masks_words_flags_functions_and_classes():
    _checks.require_key(jax.random.key(0))
    for bad in (jax.random.split(jax.random.key(0)), jnp.zeros(2, jnp.uint32), 0, None):
        with pytest.raises(ValueError, match="key must be a single typed key"):
            _checks.require_key(bad)
    _checks.require_mask("m", np.ones(3, bool), (3,))
    for bad in (np.array([1.0, 0.3, 0.0]), np.ones(3, int), [True] * 3, np.ones(4, bool)):
        with pytest.raises(ValueError, match="m must be an array of booleans"):
            _checks.require_mask("m", bad, (3,))
    assert _checks.require_choice("w", "a", ("a", "b")) == "a"
    for bad in ("c", None, 7, ["a"]):
        with pytest.raises(ValueError, match="w must be one of a, b, got"):
            _checks.require_choice("w", bad, ("a", "b"))
    assert _checks.require_flag("f", np.True_) is True
    for bad in (1, "yes", None):
        with pytest.raises(ValueError, match="f must be True or False"):
            _checks.require_flag("f", bad)
    for bad in (None, 7, "len"):
        with pytest.raises(ValueError, match="f must be a function"):
            _checks.require_callable("f", bad)
    assert _checks.require_sentences("s", ["a", "b"]) == ("a", "b")
    for bad in ("ab", 7, None, ("a", 7)):
        with pytest.raises(ValueError, match="s must be"):
            _checks.require_sentences("s", bad)
    assert type(_checks.require_share("s", np.asarray(jnp.float32(0.5)))) is float
    _checks.require_instance("o", (1,), tuple | list)
    with pytest.raises(ValueError, match="o must be of type dict, got 7"):
        _checks.require_instance("o", 7, dict)
    _checks.require_shape("s", (2, 0))
    for bad in (3, (1.5,), (-1,), "12"):
        with pytest.raises(ValueError, match="s must be"):
            _checks.require_shape("s", bad)


def test_trees():
    _checks.require_tree("t", {"a": 1, "b": jnp.zeros(2), "c": ()})
    _checks.require_real_leaves("t", {"a": 1.0, "b": jax.ShapeDtypeStruct((2,), jnp.float32)})
    for bad in ({"a": "1"}, jnp.ones(2, complex), [True]):
        with pytest.raises(ValueError, match="t must be"):
            _checks.require_tree("t", bad)
        with pytest.raises(ValueError, match="t must be"):
            _checks.require_real_leaves("t", bad)
    with pytest.raises(ValueError, match="t must be"):
        _checks.require_real_leaves("t", jnp.ones(2, int))


def test_several_at_once_are_refused_under_their_own_names():
    _checks.require_each(_checks.require_count, a=1, b=2)
    _checks.require_given(_checks.require_count, a=1, b=None)
    for several in (_checks.require_each, _checks.require_given):
        with pytest.raises(ValueError, match=r"^b must be an integer at least 1, got 0"):
            several(_checks.require_count, a=1, b=0)


def test_counted_things():
    _checks.require_counted("pairs", [(1.0, 2), (2.0, 0)], float)
    for bad in ("nonsense", 7, None, [(1.0, 1.5)], [(1.0, -1)], [("a", 1)], [1.0], [(1.0,)]):
        with pytest.raises(ValueError, match="pairs"):
            _checks.require_counted("pairs", bad, float)


def test_sequences_of_one_class_are_no_texts_and_hold_nothing_else():
    _checks.require_instances("x", ("a", "b"), str)
    _checks.require_instances("x", [], str)
    for bad in ("ab", b"ab", ("a", 1), {"a"}, 7, None):
        with pytest.raises(ValueError, match="x must be a sequence of type str, got"):
            _checks.require_instances("x", bad, str)


def test_tables_columns_sets_and_objects_are_not_shown():
    polars = pytest.importorskip("polars")
    secret = 7654321

    class Holder:
        def __repr__(self):
            return str(secret)

    frames = [pd.DataFrame({"a": [secret]}), polars.DataFrame({"a": [secret]})]
    values = [
        *frames,
        *(frame["a"] for frame in frames),
        {secret},
        Holder(),
        [secret],
        {"a": secret},
    ]
    values.append(np.array({secret}))
    for value in values:
        assert str(secret) not in repr(described(value))
        for check in (
            lambda value: _checks.require_integers("count", value),
            lambda value: _checks.require_integer("count", value, 1),
            lambda value: _checks.require_instance("count", value, str),
            lambda value: _checks.require_mask("count", value),
        ):
            with pytest.raises(ValueError, match="count must be ") as raised:
                check(value)
            assert str(secret) not in str(raised.value)
    for value in [*frames, {secret}, np.array({secret})]:
        with pytest.raises(ValueError, match="count must be positive, got ") as raised:
            _checks.require(False, "count", value, "positive")
        assert str(secret) not in str(raised.value)
