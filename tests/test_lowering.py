"""Programs are lowered for accelerators, without one: no number in float64, no call back to the host.

Lowering is what ``jax.export`` does for a platform that is not there; it traces the branches of that platform
alone, and says what its kernels do not know. Calls of Python functions it refuses by itself.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest
from jax import export

from dpsco_jax import Budget, Problem, transforms
from dpsco_jax.geometry import clipping
from dpsco_jax.mechanisms import additive
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.oracles import ghost, resque, sampling
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import sgd
from tests.solvers.private_table import ROWS

PLATFORMS = ("cuda", "tpu")
ROW = jnp.ones((40, 3))


def _lowered(function, *arguments):
    """The texts of the program for each platform by itself."""
    program = jax.jit(lambda *given: jax.tree.leaves(function(*given)))
    exported = [export.export(program, platforms=[name])(*arguments) for name in PLATFORMS]
    return "\n".join(found.mlir_module() for found in exported)


def _check(text):
    assert not re.search(r"\bf64\b|xf64\b", text)
    assert "callback" not in text


def _key():
    return jax.random.key(0)


def _squares(params, example):
    return jnp.sum(jnp.square(jnp.tanh(params * example)))


PROGRAMS = {
    "sum_of_clipped": lambda rows: clipping.sum_of_clipped(rows, 1.0, jnp.ones(len(rows), bool)),
    "clipped_mean": lambda rows: transforms.clipped_mean(1.0, 40).update(rows, None, rows[0])[0],
    "ghost": lambda rows: ghost.clipped_sum(_squares, rows[0], rows, 1.0),
    "fixed size": lambda rows: sampling.without_replacement(_key(), 40, 10),
    "poisson": lambda rows: sampling.poisson(_key(), 70_000, 0.1),
    "gaussian": lambda rows: additive.gaussian(_key(), rows, 1.0),
    "concentration": lambda rows: concentrated_mean.concentration(rows, 1.0),
    "resque": lambda rows: resque.reweighted_gradient(
        resque.Pool(rows[0], rows, rows), rows[0], 1.0
    ),
}


def test_what_is_forbidden_would_be_seen():
    def asked(x):
        return jax.pure_callback(lambda x: x, x, x)

    with pytest.raises(ValueError, match="different from the lowering platform"):
        _lowered(asked, ROW)
    with jax.enable_x64(True), pytest.raises(AssertionError):
        _check(_lowered(lambda x: x.astype(jnp.float64), ROW))


@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_are_lowered_for_accelerators(name):
    _check(_lowered(PROGRAMS[name], ROW))


def test_elsewhere_than_on_a_cpu_a_step_takes_its_users_in_one_chunk(monkeypatch):
    """The loops of a program for a GPU, whose plan was made beside one; a size that is given stays."""

    def loops_of_chunks(items, **settings):
        objective = losses.logistic(1.0)
        problem = Problem(objective, num_users=600, dim=3, items_per_user=items, distance=1.0)
        plan = sgd.plan(problem, Budget(1.0, 1e-6), num_steps=2, sampling="full", **settings)
        data = UserData(Example(jnp.ones((600, items, 3)), jnp.ones((600, items))))

        def run(rows):
            return sgd.solve(_key(), plan, objective, rows, jnp.zeros(3)).params

        text = export.export(jax.jit(run), platforms=["cuda"])(data).mlir_module()
        # A chunk of 64 users is cut from all of them by a slice that begins where the loop is.
        return plan.mean.chunk_size, f"{64}x{items}x3xf32" in text

    assert loops_of_chunks(2) == (64, True)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert loops_of_chunks(2) == (600, False)
    assert loops_of_chunks(2, chunk_size=64) == (64, True)
    wide = Problem(losses.logistic(1.0), num_users=10**5, dim=2**16, items_per_user=4, distance=1.0)
    settings = {"num_steps": 2, "sampling": "full"}
    assert sgd.plan(wide, Budget(1.0, 1e-6), **settings).mean.chunk_size == 2**8
    any_loss = wide.objective._replace(linear_model=None)
    unknown = dataclasses.replace(wide, objective=any_loss)
    assert sgd.plan(unknown, Budget(1.0, 1e-6), **settings).mean.chunk_size == 64


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ROWS if not row.float64], ids=lambda row: row.name)
def test_private_solvers_are_lowered_for_accelerators(row):
    plan = row.plan()
    _check(_lowered(lambda data: row.solve(_key(), plan, data), row.data()))
