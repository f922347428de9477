"""Settings shared by all tests: cores, checked use of keys, and types and shapes checked on request."""

import gc
import os
from collections.abc import Iterator

# Two worker processes on two cores: more threads than cores only wait for each other, and a program
# that is cut into pieces for more of them takes a third longer to compile.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
if "xla_cpu_parallel_codegen_split_count" not in os.environ["XLA_FLAGS"]:
    os.environ["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# `make test-types`: every annotation of the package is checked at run time, which takes twice the time.
if os.environ.get("CHECK_TYPES"):
    from jaxtyping import install_import_hook

    from tests.support.checked import skip_refused_by_checker

    install_import_hook("dpsco_jax", "tests.support.checked.typechecker")
    skip_refused_by_checker()

import jax
import numpy as np
import pytest

from tests import tiers
from tests.support.lowered import share_contexts

jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_enable_x64", False)
# Programs need not say which line made each of their operations: that is a twentieth of the time.
jax.config.update("jax_traceback_in_locations_limit", 0)
share_contexts()


@pytest.hookimpl(tryfirst=True)  # before marks are asked for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if tiers.is_full(item.nodeid):
            item.add_marker(pytest.mark.full)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if not (path := os.environ.get("TEST_COSTS")):
        return (yield)
    started = sum(os.times()[:4])  # with the processes that a test has started and waited for
    answer = yield
    with open(path, "a") as file:
        file.write(f"{sum(os.times()[:4]) - started:.2f} {item.nodeid}\n")
    return answer


@pytest.fixture
def float64() -> Iterator[None]:
    """For files whose tests need it: ``pytestmark = pytest.mark.usefixtures("float64")``."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    """Of one seed for every test."""
    return np.random.default_rng(0)


def pytest_collection_finish() -> None:
    """Modules and collected tests live to the end: the collector need not walk them again and again."""
    gc.collect()
    gc.freeze()
    # Tracing makes many small objects that reference counts free; every 700 of them is too often.
    gc.set_threshold(20_000, 20, 20)
