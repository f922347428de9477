"""Planted faults of what rests on IEEE float64, and refuses a TPU."""

from tests.mutation import Fault

_TESTS = ("tests/test_float64.py",)
_FILE = "_float64.py"

FAULTS = (
    Fault("float64: a TPU is lowered for", _FILE, "mlir.register_lowering(_exact_p, _lowered_for_a_tpu, platform=\"tpu\")", "", _TESTS),
    Fault("float64: arrays on a TPU are fine", _FILE, "if any(device.platform == \"tpu\" for", "if any(device.platform == \"none\" for", _TESTS),
    Fault("float64: solvers that draw a point do not need it", "solvers/sampling/_draw.py", "return _float64.exact(solver, wide)", "return wide", _TESTS),
    Fault("float64: vectors of samplers do not need it", "solvers/sampling/_precision.py", "_float64.exact(\"a sampler\", jnp.asarray(value))", "jnp.asarray(value)", _TESTS),
    Fault("float64: anchors do not need it", "solvers/sampling/proximal_oracle.py", "point = _float64.exact(\"proximal_oracle\", jnp.asarray(point))", "point = jnp.asarray(point)", _TESTS),
    Fault("float64: starts of chains do not need it", "solvers/sampling/llt_sampler.py", "_float64.exact(\"llt_sampler\", jnp.zeros(dim))", "jnp.zeros(dim)", _TESTS),
    Fault("float64: log-Laplace transforms do not need it", "geometry/log_laplace.py", "_float64.exact(\"log_laplace\", jnp.asarray(x))", "jnp.asarray(x)", _TESTS),
    Fault("float64: sums of langevin do not need it", "solvers/item_level/langevin.py", "if plan.precision == \"float64\":\n        params", "if plan.precision == \"none\":\n        params", _TESTS),
)  # fmt: skip
