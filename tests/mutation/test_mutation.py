"""The list of faults fits the tree, and a kill is a test that fails with the fault and passes without."""

import shutil

import pytest

from tests.mutation import Fault
from tests.mutation.__main__ import FAULTS, ROOT, outcome, text_with
from tests.mutation.cover import cover, of_room, report
from tests.mutation.fork_server import Run, Server
from tests.mutation.results import Book, table

FAULT = Fault("a fault", "sum.py", "a + b", "a - b", ("tests/test_sum.py", "tests/test_other.py"))


@pytest.fixture
def tree(tmp_path):
    clean = tmp_path / "tree"
    (clean / "dpsco_jax").mkdir(parents=True)
    (clean / "tests").mkdir()
    (clean / "dpsco_jax/__init__.py").touch()
    (clean / "dpsco_jax/sum.py").write_text("def total(a, b):\n    return a + b\n")
    (clean / "tests/__init__.py").touch()
    (clean / "tests/test_sum.py").write_text(
        "from dpsco_jax.sum import total\n\n"
        "def test_zero():\n    assert total(1, 0) == 1\n\n"
        "def test_sum():\n    assert total(1, 2) == 3\n"
    )
    (clean / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = ["-m", "not slow"]\nmarkers = ["slow: long"]\n'
    )
    (clean / "tests/test_slow.py").write_text(
        "import pytest\nfrom dpsco_jax.sum import total\n\n"
        "def test_zero():\n    assert total(1, 0) == 1\n\n"
        "@pytest.mark.slow\ndef test_sum():\n    assert total(1, 2) == 3\n"
    )
    (clean / "tests/test_other.py").write_text(
        "def test_for_ever():\n    while True:\n        pass\n"
    )
    return clean


def test_every_fault_has_its_text_once_and_tests_that_there_are():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert text_with(fault, ROOT) != (ROOT / "dpsco_jax" / fault.file).read_text()
        for test in fault.tests:
            path, *names = test.split("[")[0].split("::")
            text = (ROOT / path).read_text()
            assert all(f"def {name}(" in text for name in names), (fault.name, test)


def test_every_fault_is_one_line():
    texts = [path.read_text() for path in (ROOT / "tests/mutation").glob("faults_*.py")]
    assert sum(text.count("\n    Fault(") for text in texts) == len(FAULTS)


@pytest.mark.parametrize("text", ["a + c", "a", "a - b"])
def test_a_text_that_is_not_there_once_is_refused(tree, text):
    with pytest.raises(ValueError, match="must hold the text once"):
        text_with(FAULT._replace(right=text), tree)


def _outcome(tree, answers, fault=FAULT):
    """With runs of these statuses, by the kind of tree and the test; a kill is asked for once."""

    def run(where, test):
        faulty = "a - b" in (where / "dpsco_jax/sum.py").read_text()
        status = answers[faulty, test]
        return Run(status, f"{test}::test_sum" if status == 1 and faulty else "", "said")

    book = Book(tree / "results.jsonl", "hash")
    row = outcome(fault, tree, run, book)
    return row["result"], row["by"], row["said"]


_SUM, _OTHER = FAULT.tests
_FOUND = f"{_SUM}::test_sum"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({(True, _SUM): 1, (False, _FOUND): 0}, ("killed", _FOUND, "said")),
        ({(True, _SUM): 1, (False, _FOUND): 1}, ("error", _FOUND, "fails without the fault too")),
        (
            {(True, _SUM): 1, (False, _FOUND): None},
            ("error", _FOUND, "fails without the fault too"),
        ),
        ({(True, _SUM): 0, (True, _OTHER): 0}, ("survived", "", "")),
        ({(True, _SUM): None, (True, _OTHER): 0}, ("no end", _SUM, "")),
        ({(True, _SUM): 5}, ("error", _SUM, "pytest: 5: said")),
        ({(True, _SUM): -11}, ("error", _SUM, "pytest: -11: said")),
    ],
)
def test_outcome(tree, answers, expected):
    assert _outcome(tree, answers) == expected


def test_runs_without_a_fault_are_kept_for_their_tree_only(tree):
    path = tree / "results.jsonl"
    Book(path, "old").add({"clean": _SUM, "passes": False})
    Book(path, "old").add(
        {"name": FAULT.name, "file": FAULT.file, "result": "killed", "by": _FOUND}
    )
    assert Book(path, "old").clean[_SUM]["passes"] is False
    assert Book(path, "new").clean == {}
    assert Book(path, "new").faults[FAULT.name]["tree"] == "old"


def test_table():
    faults = [FAULT, FAULT._replace(name="another"), FAULT._replace(name="a third")]
    rows = {
        "another": {"name": "another", "file": "sum.py", "result": "survived", "by": ""},
        "a fault": {"name": "a fault", "file": "sum.py", "result": "killed", "by": _FOUND},
    }
    found = table(faults, rows).splitlines()
    assert found[0] == "1 of 2 faults are noticed (50.0 %)."
    assert found[-4] == "| a fault | `sum.py` | test_sum.py::test_sum |"
    assert found[-3] == "| another | `sum.py` | survived |"
    assert found[-1] == "Not run yet (1): a third."


def test_a_cover_takes_the_cheapest_tests_that_notice_all_faults():
    seen = {"a": ["t::x[1]", "t::x[2]", "t::y"], "b": ["t::x[2]"], "c": ["t::y", "t::z"], "d": []}
    found = cover(seen, {"t::x": 1.0, "t::y": 5.0, "t::z": 0.1})
    assert found.chosen == {"t::z": ["c"], "t::x": ["a", "b"]}
    assert found.alone == {"t::x": ["b"]}
    assert found.unseen == ["d"]
    rows = [{"name": name, "status": 1, "failures": tests} for name, tests in seen.items()]
    rows.append({"name": "e", "status": None, "failures": []})
    said = report(rows, {"t::x[1]": 0.5, "t::x[2]": 0.5, "t::y": 5.0, "t::z": 0.1})
    assert "2 of 3 tests notice all 3 faults" in said
    assert "Outside of the cover: 1 tests, 5 seconds.\n- t::y (5.0 s)" in said
    assert said.endswith("of the room: d.\nRuns that did not come to an end: e (None).")


def test_faults_and_tests_of_a_room():
    faults, tests = of_room(FAULTS, "rates", ROOT)
    assert {fault.file.split("/")[0] for fault in faults} == {"rates"}
    assert tests[0] == "tests/rates"
    with pytest.raises(ValueError, match=r"no fault in room 'attic', only in .*_keys, .*geometry"):
        of_room(FAULTS, "attic", ROOT)


@pytest.mark.slow
def test_a_fork_runs_the_tests_of_the_tree_that_it_is_given(tree, tmp_path):
    server = Server(tmp_path / "compiled")
    assert server.run(tree, _SUM, 60.0).status == 0
    faulty = tmp_path / "faulty"
    shutil.copytree(tree, faulty, ignore=shutil.ignore_patterns("__pycache__"))
    (faulty / "dpsco_jax/sum.py").write_text(text_with(FAULT, tree))
    found = server.run(faulty, _SUM, 60.0)
    assert found[:2] == (1, _FOUND)
    assert "assert -1 == 3" in found.said
    assert server.run(faulty, f"{_SUM}::test_zero", 60.0).status == 0
    found = server.run(faulty, f"{_SUM}\ntests/test_slow.py", 60.0, every=True)
    assert found.failures == [_FOUND]
    assert set(found.cost) == {f"{_SUM}::test_zero", _FOUND, "tests/test_slow.py::test_zero"}
    # Slow tests of a file are asked last; those of a name, where there are no others.
    assert server.run(tree, "tests/test_slow.py", 60.0).status == 0
    for asked in ("tests/test_slow.py", "tests/test_slow.py::test_sum"):
        assert server.run(faulty, asked, 60.0)[:2] == (1, "tests/test_slow.py::test_sum")
    assert server.run(faulty, "tests/test_slow.py::test_zero", 60.0).status == 0
    assert server.run(tree, _OTHER, 1.0).status is None
    assert server.run(tree, "tests/test_missing.py", 60.0).status == 4
    server.close()
