"""Without the extra cells are run and stored; what needs more says what to install."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from dpsco_jax import sweeps

ROOT = Path(__file__).parents[2]
BARE = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("matplotlib", "pandas", "rich", "tyro"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
NEEDED = ("results", "show", "summarize", "panels", "save", "Progress")
WORKS = """
import dataclasses, tempfile
import dpsco_jax
from dpsco_jax import sweeps

@dataclasses.dataclass(frozen=True)
class Mine:
    name = "mine"
    version = 1
    seeds: int = sweeps.axis("seed", 3)
    def cells(self):
        return sweeps.product(self)
    def build(self, static):
        return sweeps.Program(lambda shared, key, inputs: {"seed_squared": inputs["seed"] ** 2})
    def report(self, frame, folder):
        pass

with tempfile.TemporaryDirectory() as folder, sweeps.Store(folder) as store:
    print(sweeps.run(Mine(), store).done)
    print(sorted(row["results"]["seed_squared"] for row in store.rows()))
"""
REFUSED = f"""
from dpsco_jax import sweeps
for name in {NEEDED}:
    try:
        getattr(sweeps, name)
    except ImportError as error:
        print(error)
"""


LOOKED_AT = """
import inspect, pydoc
for module in (dpsco_jax, sweeps):
    names = [name for name, _ in inspect.getmembers(module)]
    print("run" in names, "sweeps" in names, bool({"Progress", "estimators"} & set(names)))
    print("pip install" in pydoc.render_doc(module) or module is sweeps)
"""
COMMAND = "from dpsco_jax.sweeps.__main__ import main; sys.exit(main())"


@functools.cache
def bare():
    """One after the other in one process, which takes seconds to start."""
    command = [sys.executable, "-c", BARE + WORKS + REFUSED + LOOKED_AT + COMMAND]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_cells_are_run_and_stored_without_the_extra():
    done = bare()
    assert done.stdout.splitlines()[:2] == ["3", "[0, 1, 4]"], done.stderr


@pytest.mark.slow
def test_what_needs_the_extra_names_it_when_it_is_asked_for():
    lines = bare().stdout.splitlines()[2:-4]
    assert len(lines) == len(NEEDED)
    for line in lines:
        assert line.endswith("is not installed: pip install 'dpsco-jax[sweeps]'")


def test_the_command_says_what_to_install():
    done = bare()
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()  # and no traceback
    assert said.startswith("dpsco-sweep: ")
    assert said.endswith("pip install 'dpsco-jax[sweeps]'")


def test_help_and_members_show_what_is_there():
    """Both had asked for what needs the extra, and failed."""
    assert bare().stdout.splitlines()[-4:] == [
        *("False True False", "True"),
        *("True False False", "True"),
    ]


def test_all_public_names_are_there_and_no_others():
    for name in sweeps.__all__:
        assert getattr(sweeps, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sweeps.nothing  # noqa: B018
