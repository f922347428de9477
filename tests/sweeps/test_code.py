"""Code and settings have names by which a difference is seen."""

import sys

from dpsco_jax.sweeps import _code, versions
from dpsco_jax.sweeps.load import experiments_in
from tests.sweeps.test_load import FILE


def test_modules_beside_a_file_are_named_by_what_is_in_them(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_sweep.py").write_text(FILE)
    (tmp_path / "beside_mine.py").write_text("TWO = 2\n")
    try:
        kind = experiments_in(tmp_path / "my_sweep.py")["Mine"]
        here = _code.beside(kind)
        assert [*here] == ["beside_mine"]  # neither the file itself nor what is installed
        assert _code.named(here) == here
        (tmp_path / "beside_mine.py").write_text("TWO = 3\n")
        assert _code.named(here) != here
    finally:
        sys.modules.pop("beside_mine", None)
        sys.modules.pop("dpsco_sweep_my_sweep", None)
    (tmp_path / "beside_mine.py").unlink()
    assert _code.named(here) == {"beside_mine": "missing"}
    assert _code.named(["no.such.module"]) == {"no.such.module": "missing"}


def test_settings_that_shape_results_are_said_where_they_are_not_the_default(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert versions.versions()["settings"] == "default"
    monkeypatch.setenv("XLA_FLAGS", " --b=1   --a=2")
    assert versions.versions()["settings"] == "--a=2 --b=1"
    monkeypatch.setattr(versions, "settings", lambda: {"jax_random_seed_offset": 5})
    assert versions.versions()["settings"] == "jax_random_seed_offset=5 --a=2 --b=1"


def test_code_of_the_package_has_the_name_of_its_files(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").write_text("1")
    (tmp_path / "c.txt").write_text("no code")
    first = versions._code_in(tmp_path)
    assert len(first) == 12
    (tmp_path / "c.txt").write_text("still none")
    assert versions._code_in(tmp_path) == first
    (tmp_path / "a" / "b.py").write_text("2")
    changed = versions._code_in(tmp_path)
    (tmp_path / "a" / "b.py").rename(tmp_path / "b.py")
    assert len({first, changed, versions._code_in(tmp_path)}) == 3
    assert versions.versions()["dpsco-jax code"] == versions._code_in(
        versions.Path(versions.__file__).parents[1]
    )
