"""Runs tests of a given tree in children of a process that has the slow imports behind it.

A fresh interpreter spends most of a short test on importing JAX and its company. Here one process imports
them, and nothing of ours; each run is a fork of it that enters the tree and calls pytest. No JAX backend is
started before the fork: its threads would be missing in the child.
"""

import contextlib
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_IMPORTED = (
    "pytest", "hypothesis", "numpy", "scipy.stats", "scipy.optimize", "scipy.integrate", "scipy.signal",
    "jax", "jax.numpy", "jaxtyping", "optax", "chex", "mpmath", "dp_accounting", "dp_accounting.pld",
)  # fmt: skip
PASSED, FAILED, NONE_FOUND = 0, 1, 5  # exit statuses of pytest


class Run(NamedTuple):
    """What came of a run of pytest.

    Attributes:
        status: the exit status of pytest; ``None`` when it was ended for lack of time, and negative, a
            signal's number, when it crashed.
        failed: the first test that failed, as an argument of pytest, or nothing.
        said: the end of what it printed, or why the named test failed.
        cost: of each test that ran, its seconds of processor time.
        failures: all tests that failed; one, where the run ended with it.
    """

    status: int | None
    failed: str
    said: str
    cost: Mapping[str, float] = {}
    failures: Sequence[str] = ()


class Server:
    """A process to fork from; one run at a time.

    Args:
        cache: folder of compiled programs, kept between runs: a fault leaves most programs as they are.
    """

    def __init__(self, cache: pathlib.Path):
        settings = {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
        }
        # -P: neither this folder nor the checkout is where children find modules.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__], env=settings | os.environ,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, tree: pathlib.Path, test: str, seconds: float, every: bool = False) -> Run:
        """Runs tests, one a line, in a tree until one fails; or ``every`` one that is not slow."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"tree": str(tree), "test": test, "seconds": seconds, "every": every}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Run(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


class _Failures:
    """A plugin of pytest that keeps what failed, why the first did, and what each test cost."""

    def __init__(self):
        self.failed, self.said, self.failures, self.cost = "", "", [], {}

    def pytest_runtest_logstart(self, nodeid, location):
        self.cost[nodeid] = -time.process_time()

    def pytest_runtest_logfinish(self, nodeid, location):
        self.cost[nodeid] += time.process_time()

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failures.append(report.nodeid)
        if report.failed and not self.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failed = report.nodeid
            self.said = (crash.message if crash else report.longreprtext)[:300]


def _child(tree: str, test: str, seconds: float, output: int, every: bool) -> Run:
    os.setpgid(0, 0)
    signal.setitimer(signal.ITIMER_REAL, seconds)  # ends it, in the midst of compiled code as well
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(tree)
    sys.path.insert(0, tree)
    os.environ |= {"PYTHONPATH": tree}  # for tests that start processes of their own
    import pytest

    failures = _Failures()
    # Plugins that the parent has imported cannot have their assertions rewritten; none of them is on trial.
    known = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", known, *test.split("\n")]
    arguments += [] if every else ["-x"]
    status = int(pytest.main(arguments, plugins=[failures]))
    if not every and status in (PASSED, NONE_FOUND):
        # What the quick tests do not notice, the slow ones of the name may.
        slow = int(pytest.main([*arguments, "-m", "slow"], plugins=[failures]))
        status = status if slow == NONE_FOUND else slow
    for package in ("tests", "dpsco_jax"):
        where = getattr(sys.modules.get(package), "__file__", None)
        if where is not None and not where.startswith(tree + os.sep):
            raise RuntimeError(f"{package} was taken from {where} and not from {tree}")
    return Run(status, failures.failed, failures.said, failures.cost, failures.failures)


def _forked(tree: str, test: str, seconds: float, every: bool) -> Run:
    with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            try:
                json.dump(_child(tree, test, seconds, output.fileno(), every), answer)
                answer.flush()
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what it may have started itself
        answer.seek(0)
        output.seek(0)
        found, printed = answer.read(), output.read()[-600:]
    if os.WIFSIGNALED(status):
        ended = os.WTERMSIG(status)
        return Run(None if ended == signal.SIGALRM else -ended, "", printed)
    if not found:
        return Run(-signal.SIGABRT, "", printed)
    run = Run(*json.loads(found))
    return run if run.failed else run._replace(said=printed)


def _serve() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    from jax._src import xla_bridge

    assert not xla_bridge.backends_are_initialized(), "an import has started a JAX backend"
    assert not {"tests", "dpsco_jax"} & set(sys.modules)
    warnings.filterwarnings("ignore", ".*fork.*")
    for line in sys.stdin:
        print(json.dumps(_forked(**json.loads(line))), flush=True)


if __name__ == "__main__":
    _serve()
