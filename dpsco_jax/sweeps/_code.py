"""The code that an experiment is made of, beside its class: named by hashes, so that workers can compare it.

What counts are the modules that the driver has loaded from the package of the experiment's class, or from the
folder of its file; not what is installed, whose versions are compared. The class itself goes to workers by
value, if it comes from a file or a notebook. A module that only ``build`` imports is not known in time.

Cost: reads those files once for each worker.
"""

import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

_INSTALLED = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")]
_NOT_IMPORTED = ("__", "dpsco_sweep_")  # scripts, and files that go to workers by value
_OWN = __name__.partition(".")[0]


def beside(kind: type) -> dict[str, str]:
    """The modules that a class may use and that are not installed, by name, each with its hash."""
    top = kind.__module__.partition(".")[0]
    file = _file(sys.modules.get(kind.__module__))
    folder = None if file is None else file.parent
    found = {}
    for name, module in [*sys.modules.items()]:
        source, first = _file(module), name.partition(".")[0]
        if source is None or first == _OWN or name.startswith(_NOT_IMPORTED):
            continue
        near = first == top or (folder is not None and folder in source.parents)
        if near and not any(place in source.parents for place in _INSTALLED):
            found[name] = _hash(source)
    return found


def named(names: Iterable[str]) -> dict[str, str]:
    """What this process would import under these names, each with its hash, or ``"missing"``."""
    return {name: _hash_of_import(name) for name in names}


def _hash_of_import(name: str) -> str:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    origin = Path(spec.origin) if spec is not None and spec.origin else None
    return _hash(origin) if origin is not None and origin.is_file() else "missing"


def _file(module: ModuleType | None) -> Path | None:
    """The Python file of a module; ``None`` where it has none."""
    path = getattr(module, "__file__", None)
    found = Path(path).resolve() if isinstance(path, str) and path.endswith(".py") else None
    return found if found is not None and found.is_file() else None


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
