"""A static value of a plan that somebody has replaced is refused by its name, or the plan says what it costs.

Of every plan that a public ``plan`` makes, private or not, every static field at any depth is replaced by
values that no such field can have, and sizes and lengths by 0 and infinity. What is of another kind is
refused where the plan is edited, with the name of the field. Whatever else is edited has a loss or is refused
with ``ValueError``.
"""

import dataclasses

import jax
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._pytrees import pytree, static
from dpsco_jax.privacy.releases import GaussianReleases
from tests.support import public
from tests.support.edited_plans import edited_statics
from tests.test_bad_arguments import FLOAT64, FUNCTIONS

# What ``sampling_choice`` returns is a table for readers, and no tree of JAX: nothing runs it.
PLANS = [
    path
    for path in FUNCTIONS
    if path.startswith("solvers.") and path.endswith(".plan") and "sampling_choice" not in path
]


@pytest.mark.parametrize("path", PLANS)
def test_an_edited_static_value_is_refused_by_name_or_accounted_for(path):
    with jax.enable_x64(path.startswith(FLOAT64)), np.errstate(all="ignore"):
        positional, named = public.good_call(path)
        plan = public.public_functions()[path](*positional, **named)
        edits = list(edited_statics(plan))
        assert any(edit.another_kind for edit in edits)
        for edit in edits:
            if edit.another_kind:
                with pytest.raises(ValueError, match=edit.name):
                    edit.make()
                continue
            try:
                loss = getattr(edit.make(), "loss", privacy.unbounded)()
            except ValueError:
                continue
            assert float(privacy.epsilon(loss, 1e-3)) >= 0, edit.label


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_releases_are_of_a_relation_whether_or_not_it_applies(sampling):
    made = GaussianReleases(100, 10, 3, sampling, 2.0, 1e-5)
    for relation in ("nonsense", None, 7, "REPLACE_ONE"):
        with pytest.raises(ValueError, match="poisson_relation must be"):
            dataclasses.replace(made, poisson_relation=relation)


def _zeroth_order():
    positional, named = public.good_call("solvers.sampling.zeroth_order.plan")
    return public.public_functions()["solvers.sampling.zeroth_order.plan"](*positional, **named)


@pytest.mark.parametrize("name", ["farthest", "start_norm", "feature_bound"])
def test_lengths_without_end_cost_infinity(name):
    with jax.enable_x64(True), np.errstate(invalid="ignore"):
        plan = _zeroth_order()
        edited = dataclasses.replace(plan, setting=plan.setting._replace(**{name: np.inf}))
        assert np.isinf(privacy.epsilon(edited.loss(), 1e-3))
        assert np.isinf(edited.certificate().epsilon)


def test_a_norm_that_is_none_is_refused():
    with jax.enable_x64(True):
        plan = _zeroth_order()
        for norm in (np.nan, -1.0, np.inf, 0.0):
            with pytest.raises(ValueError, match="norm must be"):
                dataclasses.replace(plan, norm=norm)


@pytree
class _Held:
    number: float = static()
    sizes: tuple[int, ...] = static(default=(1,))
    word: str = static(default="a", choices=("a", "b"))
    some: int | None = static(default=None, least=0)
    relation: NeighboringRelation = static(default=NeighboringRelation.REPLACE_ONE)


@pytree
class _Inherited(_Held):
    count: int = static(default=1)
    leaf: object = 0.0

    def __post_init__(self):
        assert isinstance(self.count, int), "checked before"


def test_static_fields_hold_what_their_annotations_say():
    for good in ({"sizes": (0, 3)}, {"number": np.inf}, {"number": 2, "some": 0}):
        _Inherited(**{"number": 0.0} | good)
    for name, values in {
        "number": (-1.0, np.nan, "1", None, True),
        "sizes": (1, [1], (1.5,), (True,), (-1,)),
        "word": ("c", 7, None),
        "some": (-1, 0.5, "0"),
        "relation": ("REPLACE_ONE", None),
        "count": (0, -1, 1.0, True),
    }.items():
        for bad in values:
            with pytest.raises(ValueError, match=name):
                _Inherited(**{"number": 1.0, name: bad})
    # Leaves may be anything, as JAX makes objects of tracers.
    assert jax.tree.map(lambda leaf: "any", _Inherited(number=1.0)).leaf == "any"
