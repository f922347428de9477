"""What needs IEEE float64 refuses a TPU when it is lowered for one, and is on other chips what it was."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from dpsco_jax import Budget, Problem, _float64
from dpsco_jax.geometry import domains, log_laplace
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.item_level import langevin
from dpsco_jax.solvers.sampling import exact, llt_sampler, proximal_oracle, restricted_gaussian
from tests.solvers.private_table import ROWS

pytestmark = pytest.mark.usefixtures("float64")

KEY = jax.random.key(0)


def _twice(x):
    return jax.lax.fori_loop(0, 2, lambda _, y: y + _float64.exact("adding", x), jnp.zeros_like(x))


def _lowered(function, *arguments, platforms):
    return export.export(jax.jit(function), platforms=platforms)(*arguments)


def _refused(function, *arguments, name):
    with pytest.raises(NotImplementedError, match=f"{name} must run on a CPU or a GPU"):
        _lowered(function, *arguments, platforms=["tpu"])


def test_any_other_program_is_the_one_that_it_would_be_without():
    def plain(x):
        return jax.lax.fori_loop(0, 2, lambda _, y: y + x, jnp.zeros_like(x))

    plain.__name__ = "_twice"
    x, y = jnp.arange(3.0), jnp.ones(3)
    for platform in ("cpu", "cuda"):
        found = _lowered(_twice, x, platforms=[platform]).mlir_module()
        assert found == _lowered(plain, x, platforms=[platform]).mlir_module()
    np.testing.assert_array_equal(_twice(x), 2 * x)
    np.testing.assert_array_equal(jax.vmap(_twice)(jnp.stack([x, y])), 2 * jnp.stack([x, y]))
    np.testing.assert_array_equal(jax.jvp(_twice, (x,), (y,))[1], 2 * y)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(_twice(x) ** 2))(x), 8 * x)
    np.testing.assert_array_equal(_float64.exact("adding", {"a": x})["a"], x)


@pytest.mark.parametrize("platforms", [["tpu"], ["cpu", "tpu"]])
def test_a_tpu_is_refused_whatever_is_done_with_the_function(platforms):
    x = jnp.ones((2, 3))
    for function in (_twice, jax.vmap(_twice), jax.grad(lambda x: jnp.sum(_twice(x) ** 2))):
        with pytest.raises(NotImplementedError, match="adding must run on a CPU or a GPU"):
            _lowered(function, x, platforms=platforms)


def test_an_array_on_a_tpu_is_refused_without_a_program():
    there = types.SimpleNamespace(devices=lambda: [types.SimpleNamespace(platform="tpu")])
    with pytest.raises(NotImplementedError, match="adding"):
        _float64._at_once(there, name="adding")


@pytest.mark.parametrize("row", [row for row in ROWS if row.float64], ids=lambda row: row.name)
def test_solvers_that_draw_a_point_refuse_a_tpu(row):
    plan = row.plan()
    # By its name, or that of the solver which runs the plan or a part of it.
    _refused(lambda data: row.solve(KEY, plan, data), row.data(), name=r"\w+")


def _box(y):
    law = restricted_gaussian.box(0.5, 1.0, jnp.zeros(2), -jnp.ones(2), jnp.ones(2))
    return restricted_gaussian.draw(KEY, law, y, 1).params


def _tangent(y):
    law = restricted_gaussian.tangent(0.5, lambda x: jnp.sum(x * x), lambda x: 2 * x)
    return restricted_gaussian.draw(KEY, law, y, 4).params


OBJECTIVE = losses.logistic(1.0)
DATA = UserData(Example(np.full((8, 1, 2), 0.5), np.ones((8, 1))), None)


def _anchored(center):
    oracle = proximal_oracle.proximal_oracle(
        OBJECTIVE, DATA, center, inverse_temperature=2.0, convexity=1.0, num_steps=3
    )
    return oracle.init(jnp.zeros(2)).anchor


def _start(drift):
    psi = llt_sampler.transform(2.0, 2, 4.0)
    return llt_sampler.start_draw(KEY, psi, 2, drift=drift, radius=9.0).params


def _last_iterate(start):
    with jax.ensure_compile_time_eval():
        problem = Problem(OBJECTIVE, num_users=8, items_per_user=1, dim=2, distance=1.0)
        plan = langevin.plan(problem, Budget(1.0, 1e-5), num_steps=2, precision="float64")
    return langevin.solve(KEY, plan, OBJECTIVE, DATA, start).params


PARTS = {
    "exact": lambda x: exact.mean_estimation(KEY, x, 2.0).params,
    "exact, linear": lambda x: exact.linear(KEY, x, x, 2.0, 1.0, domains.ball(9.0), 8).params,
    "in a box": _box,
    "by tangents": _tangent,
    "anchors": _anchored,
    "start of a chain": lambda x: _start(1.0 + jnp.sum(x * x)),
    "langevin": _last_iterate,
    "log-Laplace": lambda x: log_laplace.LpLogLaplace(2.0, 1.0, 2).value(x),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_samplers_refuse_a_tpu(name):
    _lowered(PARTS[name], jnp.ones(2), platforms=["cuda"])
    _refused(PARTS[name], jnp.ones(2), name="")
