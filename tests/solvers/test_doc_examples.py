"""The example at the head of every public solver file runs, and says what it prints."""

import doctest
import importlib
import pkgutil

import jax
import pytest

from dpsco_jax.solvers import (
    ball,
    combinators,
    convex,
    element_level,
    item_level,
    nonconvex,
    online,
    resque,
    sampling,
    user_level,
)

FILES = sorted(
    f"{room.__name__}.{found.name}"
    for room in (
        *(ball, combinators, convex, element_level, item_level),
        *(nonconvex, online, resque, sampling, user_level),
    )
    for found in pkgutil.iter_modules(room.__path__)
    if not found.name.startswith("_")
)
FILES += [
    *("dpsco_jax.solvers.first_order", "dpsco_jax.solvers.out_of_core"),
    *("dpsco_jax.problems.stored", "dpsco_jax.problems.parquet", "dpsco_jax.oracles.streamed"),
    *("dpsco_jax.geometry.lasry_lions", "dpsco_jax.geometry.subspaces"),
    *("dpsco_jax.problems.fixtures", "dpsco_jax.problems.nonconvex_losses"),
    *("dpsco_jax.rates.nonconvex", "dpsco_jax.rates.online", "dpsco_jax.rates.uniform_convergence"),
    *("dpsco_jax.problems.streams", "dpsco_jax.privacy.online"),
    *("dpsco_jax.problems.heavy_tailed", "dpsco_jax.transforms.project_subspace"),
]


# The others take half of a second or more and wait for `make test-slow`: solvers run in tests of their own.
SHORT = {
    *("ball.ball_oracles", "ball.exact_ball_oracles", "ball.newton_ball_oracles"),
    *(
        "ball.parallel_baselines",
        "convex.ac_sa_stages",
        "convex.high_probability",
        "element_level.aprox",
    ),
    *("sampling.alternating_sampler", "sampling.attempt_bounds", "sampling.chain_lengths"),
    *("online.batched_redraw", "online.lazy_to_private", "dpsco_jax.problems.streams"),
    "online.noised_leader",
    *("dpsco_jax.privacy.online", "online.shrinking_dartboard", "sampling.log_sobolev"),
    *("sampling.zeroth_order", "user_level.item_sampled_sgd"),
    *("user_level.sampling_choice", "user_level.sgd", "dpsco_jax.problems.stored"),
    *("dpsco_jax.problems.parquet", "dpsco_jax.oracles.streamed", "dpsco_jax.geometry.subspaces"),
    *("dpsco_jax.rates.nonconvex", "dpsco_jax.rates.online", "dpsco_jax.rates.uniform_convergence"),
    *("dpsco_jax.problems.nonconvex_losses", "dpsco_jax.problems.heavy_tailed"),
}


def _example(name):
    short = name.removeprefix("dpsco_jax.solvers.")
    return pytest.param(name, id=short, marks=[pytest.mark.slow] * (short not in SHORT))


@pytest.mark.parametrize("name", [_example(name) for name in FILES])
def test_the_example_runs_as_printed(name):
    module = importlib.import_module(name)
    test = doctest.DocTestParser().get_doctest(module.__doc__, {}, name, module.__file__, 0)
    assert test.examples, "no example in the docstring of the file"
    assert any(example.want for example in test.examples), "an example that shows no result"
    printed = []
    with jax.debug_key_reuse(False):  # a reader may use a key twice
        runner = doctest.DocTestRunner(verbose=False)
        failures = runner.run(test, out=printed.append).failed
    assert not failures, "".join(printed)
