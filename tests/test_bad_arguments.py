"""No public function takes a bad argument: each is refused, by its name, before anything is computed."""

import jax
import pytest

from tests.support import public
from tests.support.good_calls import EXEMPT, GOOD

FLOAT64 = (
    "solvers.sampling.proximal_oracle.",
    "solvers.sampling.regularized.",
    "solvers.sampling.value_queries.",
)
FUNCTIONS = sorted(public.public_functions())


def test_the_table_is_about_functions_that_there_are():
    known = set(FUNCTIONS)
    assert set(GOOD) <= known
    for path, name in EXEMPT:
        assert path in known
        assert name == "*" or name in {found.name for found in public.parameters(path)}


@pytest.mark.parametrize("path", FUNCTIONS)
def test_bad_arguments_are_refused_by_name(path):
    with jax.enable_x64(path.startswith(FLOAT64)):
        wrong = [
            f"{name}={bad!r}: {kind}: {said}"
            for name, bad, kind, said in public.tried(path)
            if kind != public.NAMED
        ]
    assert not wrong, "\n".join([path, *wrong])
