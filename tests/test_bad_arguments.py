"""No public function takes a bad argument: each is refused, by its name, before anything is computed.

An argument that has to do with one of several ways (a method, a sampling, a form of constants) is refused on
the other ways as well: by its value, or because it does not apply.
"""

import itertools
import re

import jax
import pytest

from tests.support import public
from tests.support.good_calls import EXEMPT, GOOD

FLOAT64 = (
    "solvers.heavy_tailed.localized_clipped_sgd.",
    "solvers.heavy_tailed.phased_clipped_glm.",
    "geometry.log_laplace.",
    "solvers.nonconvex.gibbs.",
    "solvers.nonconvex.net_exponential_mechanism.",
    "solvers.nonconvex.certify.",
    "solvers.nonconvex.find_sosp.",
    "solvers.nonconvex.optimal_smoothing.",
    "solvers.nonconvex.select_sosp.",
    "solvers.sampling.exponential_mechanism.",
    "solvers.sampling.llt_sampler.",
    "solvers.sampling.proximal_oracle.",
    "solvers.sampling.regularized.",
    "solvers.sampling.value_queries.",
    "solvers.sampling.zeroth_order.",
)
FUNCTIONS = sorted(public.public_functions())


def test_the_table_is_about_functions_that_there_are():
    known = set(FUNCTIONS)
    assert set(GOOD) <= known
    for path, name in EXEMPT:
        assert path in known
        assert name == "*" or name in {found.name for found in public.parameters(path)}


PLANS = [path for path in FUNCTIONS if path.startswith("solvers.") and path.endswith(".plan")]


@pytest.mark.parametrize("path", FUNCTIONS)
def test_bad_arguments_are_refused_by_name(path):
    with jax.enable_x64(path.startswith(FLOAT64)):
        wrong = [
            f"{name}={bad!r}: {kind}: {said}"
            for name, bad, kind, said in public.tried(path)
            if kind != public.NAMED
        ]
    assert not wrong, "\n".join([path, *wrong])


_LATER = ("resque.", "sampling.value_queries", "user_level.phased_")  # seconds a plan


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.slow] * any(name in path for name in _LATER))
        for path in PLANS
    ],
)
def test_bad_arguments_are_refused_whatever_way_is_chosen(path):
    with jax.enable_x64(path.startswith(FLOAT64)):
        _made(path)  # or what is refused below may be something else
        for way, word in _ways(path):
            try:
                _made(path, **{way: word})
            except ValueError:
                continue  # not with the other arguments of the table
            for parameter in public.parameters(path):
                if not parameter.optional or parameter.name == way:
                    continue
                for bad in itertools.islice(public.bad_values(parameter), 3):
                    with pytest.raises(ValueError, match=rf"(?<!\w){parameter.name}(?!\w)"):
                        pytest.fail(f"{_made(path, **{way: word, parameter.name: bad})} is made")


def _made(path, /, **changes):
    positional, named = public.good_call(path, **changes)
    return public.public_functions()[path](*positional, **named)


def _ways(path):
    """(argument, word) for every argument that is one of several words, as its refusal lists them."""
    for parameter in public.parameters(path):
        _, said = public.outcome(path, parameter.name, "nonsense")
        if found := re.search(rf"{parameter.name} must be one of ([\w, ]+), got", said):
            yield from ((parameter.name, word) for word in found[1].split(", "))


@pytest.mark.parametrize(
    ("path", "given", "name"),
    [
        ("solvers.item_level.erm.plan", {"method": "direct", "num_stages": 3}, "num_stages"),
        ("solvers.item_level.sco.plan", {"constants": "paper", "num_stages": 2}, "num_stages"),
        ("solvers.item_level.sco.plan", {"method": "localization", "num_blocks": 3}, "num_blocks"),
        (
            "solvers.ball.ball_acceleration.plan",
            {"search": "fixed", "max_searches": 4},
            "max_searches",
        ),
        ("transforms.ac_sa.balanced_smoothness", {"num_steps": 2.5}, "num_steps"),
        ("transforms.centred_clip.stable_centre_rate", {"dim": 2.5}, "dim"),
    ],
)
def test_what_does_not_apply_is_refused(path, given, name):
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        _made(path, **given)
