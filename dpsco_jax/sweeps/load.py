"""Finds an experiment: by its name in a table, or in a file of the user, as in ``path/to/mine.py:Mine``.

The file is run as a module, with its folder on the path, so that it may import files beside it.
"""

import dataclasses
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from dpsco_jax._checks import require, require_instance
from dpsco_jax.sweeps.experiment import Experiment

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MEMBERS = ("name", "version", "cells", "build", "report")


def load(
    target: str, experiments: Mapping[str, type[Experiment]] | None = None
) -> type[Experiment]:
    """The class of an experiment.

    Args:
        target: a name in the table, or ``FILE.py:CLASS``.
        experiments: the table, from names to classes; none by default.

    Raises:
        ValueError: if ``target`` is neither; the message lists the names or the experiments of the file.
            Also if the class is no experiment: it must be a frozen dataclass with ``name``, ``version``,
            ``cells``, ``build`` and ``report``.
    """
    table = {} if experiments is None else experiments
    require_instance("experiments", table, Mapping)
    require_instance("target", target, str)
    if target in table:
        return table[target]
    file, separator, name = target.rpartition(":")
    if not separator:
        file, name = target, ""
    known = f"one of {', '.join(table)}, or FILE.py:CLASS" if table else "FILE.py:CLASS"
    require(file.endswith(".py"), "target", target, known)
    found = experiments_in(Path(file))
    require(name in found, "target", target, f"an experiment of {file}: {_listed(found)}")
    return found[name]


def experiments_in(file: Path) -> dict[str, type[Experiment]]:
    """The experiments that a Python file defines, by the names of their classes.

    Raises:
        ValueError: if ``file`` is not a Python file, or a class in it has the members of an experiment
            but is no frozen dataclass or has a name that cannot be that of a folder.
    """
    require_instance("file", file, str | Path)
    path = Path(file)
    require(path.suffix == ".py" and path.is_file(), "file", str(file), "a Python file that exists")
    module = _run(path.resolve())
    found = {}
    for name, value in vars(module).items():
        own = isinstance(value, type) and value.__module__ == module.__name__
        if own and all(hasattr(value, member) for member in _MEMBERS):
            require_experiment(name, value)
            found[name] = value
    return found


def require_experiment(name: str, kind: type[Experiment]) -> None:
    """Raise ``ValueError`` unless the class is a frozen dataclass with the members of an experiment.

    Args:
        name: what the message calls the class.
        kind: the class.
    """
    require(isinstance(name, str), "name", name, "a text")
    members = isinstance(kind, type) and all(hasattr(kind, member) for member in _MEMBERS)
    require(members, "kind", kind, f"a class with {', '.join(_MEMBERS)}")
    parameters = getattr(kind, "__dataclass_params__", None)
    frozen = dataclasses.is_dataclass(kind) and getattr(parameters, "frozen", False)
    require(frozen, name, kind, "a frozen dataclass: @dataclasses.dataclass(frozen=True)")
    folder = isinstance(kind.name, str) and _FOLDER_NAME.fullmatch(kind.name) is not None
    require(folder, f"{name}.name", kind.name, "a name of letters, digits, '-', '_' and '.'")
    whole = isinstance(kind.version, int) and not isinstance(kind.version, bool)
    require(whole, f"{name}.version", kind.version, "an integer")


def _run(path: Path) -> ModuleType:
    name = f"dpsco_sweep_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"file must be a Python file, got {str(path)!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = (
        module  # dataclasses and the parser of options look their annotations up there
    )
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _listed(found: Mapping[str, type[Experiment]]) -> str:
    return ", ".join(found) if found else "there is none in it"
