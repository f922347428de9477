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
    resque,
    sampling,
    user_level,
)

FILES = sorted(
    f"{room.__name__}.{found.name}"
    for room in (ball, combinators, convex, element_level, item_level, resque, sampling, user_level)
    for found in pkgutil.iter_modules(room.__path__)
    if not found.name.startswith("_")
)
FILES += [
    *("dpsco_jax.solvers.first_order", "dpsco_jax.solvers.out_of_core"),
    *("dpsco_jax.problems.stored", "dpsco_jax.problems.parquet", "dpsco_jax.oracles.streamed"),
    "dpsco_jax.geometry.subspaces",
    "dpsco_jax.transforms.project_subspace",
]


# Whatever takes half of a second waits for `make test-slow`, but for the example of SGD. Their solvers run in
# tests of their own.
LONG = {
    *("ball.ball_ac_sa", "first_order", "out_of_core", "sampling.routes"),
    *("user_level.accelerated_sgd", "user_level.accelerated_strongly_convex"),
    *("user_level.finite_class", "user_level.localized_sgd", "user_level.phased_erm"),
    *("ball.ball_acceleration", "combinators.composite", "combinators.localization"),
    *("combinators.regularization", "combinators.restarts", "element_level.federated"),
    *("element_level.glm", "element_level.m_estimation", "element_level.sgd", "item_level.erm"),
    *("item_level.private_ac_sa", "item_level.sco", "resque.ball_accelerated_erm"),
    *("resque.ball_accelerated_regularized_erm", "resque.ball_accelerated_sco"),
    *("resque.resque_erm", "resque.resque_erm_high_probability", "resque.resque_prox"),
    *("sampling.exponential_mechanism", "sampling.llt_sampler", "sampling.proximal_oracle"),
    *("sampling.regularized", "sampling.value_queries", "user_level.accelerated_phased_erm"),
    *("user_level.auto", "user_level.momentum_sgd", "user_level.preconditioned_sgd"),
    *("user_level.whitened_sgd", "dpsco_jax.transforms.project_subspace"),
    *("user_level.phased_sgd", "user_level.winsorized_erm", "user_level.multipass_sgd"),
    *(
        "user_level.item_group_privacy",
        "user_level.output_perturbation",
        "user_level.metric_entropy",
    ),
    *("item_level.regularized_sgd", "item_level.langevin", "item_level.staged_ac_sa"),
    *("sampling.rejection_oracle", "sampling.exact", "sampling.restricted_gaussian"),
    *("sampling.target_rejection", "convex.ac_sa", "ball.parallel_sco", "ball.epoch_sgd"),
}


def _example(name):
    short = name.removeprefix("dpsco_jax.solvers.")
    return pytest.param(name, id=short, marks=[pytest.mark.slow] * (short in LONG))


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
