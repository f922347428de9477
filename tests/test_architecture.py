"""What the documents say of the house is what stands there: its picture, and the files of the systems."""

import ast
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

from tests import tiers

ROOT = pathlib.Path(__file__).parents[1]
SYSTEMS = (ROOT / "docs" / "systems.md").read_text().splitlines()
ROWS = [line for line in SYSTEMS if line.startswith("| ") and "`" in line]


def _exists(name):
    """Below the package, or from the root: studies, tests, documents."""
    return any((ROOT / folder / name).exists() for folder in ("dpsco_jax", "."))


def test_the_picture_is_that_of_the_contracts():
    house = runpy.run_path(str(ROOT / "docs" / "house.py"))
    assert house["PICTURE"].read_text() == house["picture"](), "run python docs/house.py"


@pytest.mark.parametrize("row", [row for row in ROWS if "| done" in row], ids=lambda row: row[2:40])
def test_files_of_what_is_done_are_there(row):
    paths = re.findall(r"`([\w/.]+(?:\.py|/))`", row) + re.findall(r"\]\(([^)]+)\)", row)
    missing = [
        p for p in paths if not _exists(p) and not (ROOT / "docs" / p.split("#")[0]).exists()
    ]
    assert not missing


def test_every_folder_says_what_it_is_for():
    for folder in (ROOT / "dpsco_jax").rglob("__init__.py"):
        assert folder.read_text().startswith('"""'), folder


@pytest.mark.slow
def test_rooms_are_imported_when_they_are_asked_for():
    code = """
import sys, dpsco_jax
assert not {"jax", "optax"} & set(sys.modules), "imported at once"
assert set(dpsco_jax.__all__) <= set(dir(dpsco_jax))
assert dpsco_jax.privacy.epsilon and dpsco_jax.solvers.user_level.sgd.plan
assert dpsco_jax.sweeps.results
try:
    dpsco_jax.nonsense
except AttributeError as error:
    assert "nonsense" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def _solver_modules():
    """Every module of the rooms of solvers that makes or runs plans: name and file."""
    for folder in sorted((ROOT / "dpsco_jax" / "solvers").iterdir()):
        if folder.is_dir() and not folder.name.startswith("_"):
            for file in sorted(folder.glob("[a-z]*.py")):
                if not re.search(r"^def (plan|solve)\(", file.read_text(), re.MULTILINE):
                    continue
                yield file.stem, file.relative_to(ROOT / "dpsco_jax")


def test_every_solver_is_imported_from_a_room_and_has_a_row_of_systems():
    from dpsco_jax.solvers import (
        convex,
        element_level,
        heavy_tailed,
        item_level,
        nonconvex,
        online,
        sampling,
        user_level,
    )

    rooms = (
        convex,
        element_level,
        heavy_tailed,
        item_level,
        nonconvex,
        online,
        sampling,
        user_level,
    )
    offered = {name for room in rooms for name in room.__all__}
    for name, file in _solver_modules():
        assert name in offered, f"{name} is in the __all__ of no room of dpsco_jax.solvers"
        assert any(f"`{file.as_posix()}`" in row for row in ROWS), (
            f"docs/systems.md: no row has {file}"
        )


def test_the_tests_that_are_not_quick_are_there():
    rows = {f"{path}::{name}" for path, names in tiers.BY_FAMILY.items() for name in names}
    for test in sorted(tiers.FULL | rows):
        path, *within = test.split("::")  # a function, or a class and a method of it
        name = within[-1]
        there = (ROOT / path).exists() and f"def {name}(" in (ROOT / path).read_text()
        assert there, f"tests/full_tests.txt, or tests/tiers.py: there is no {test}"
    size = "tests/solvers/test_contract.py::test_a_size_that_lets_a_run_draw_more_costs_more"
    assert [tiers.is_full(f"{size}[{row}]") for row in ("sgd, full", "sgd, fixed")] == [False, True]
    quick = "tests/test_architecture.py::test_systems_are_counted"
    assert not tiers.is_full(quick)
    said = tiers.report({quick: 2.0, f"{size}[sgd, full]": 1.0, f"{size}[sgd, fixed]": 3.0})
    assert said.splitlines() == [
        *("quick: 2 tests, 3 seconds", "full: 1 tests, 3 seconds", f"   2.0  {quick}"),
    ]


def test_editors_and_type_checkers_see_what_the_package_has():
    """Rooms are imported when they are asked for; what reads types alone has to be told their names."""
    import dpsco_jax

    tree = ast.parse((ROOT / "dpsco_jax" / "__init__.py").read_text())
    (block,) = [
        node for node in tree.body if isinstance(node, ast.If) and node.test.id == "TYPE_CHECKING"
    ]
    told = {alias.name for statement in block.body for alias in statement.names}
    assert told == set(dpsco_jax.__all__) - {"Infeasible", "__version__"}


def test_systems_are_counted():
    said = next(line for line in SYSTEMS if re.match(r"\d+ systems: ", line))
    states = [
        re.search(r"\| (done|partial|planned)", row) for row in SYSTEMS if row.startswith("| ")
    ]
    found = [match[1] for match in states if match]
    counts = [found.count(state) for state in ("done", "partial", "planned")]
    assert said.startswith(
        f"{sum(counts)} systems: {counts[0]} done, {counts[1]} partial, {counts[2]} planned"
    )
