"""The code that an experiment is made of, named by hashes, so that workers and later runs can compare it.

For workers (``beside``, ``named``) what counts are the modules that the driver has loaded from the package
of the experiment's class, or from the folder of its file; not what is installed, whose versions are compared.
The class itself goes to workers by value, if it comes from a file or a notebook. A module that only ``build``
imports is not known in time.

For later runs (``own``) it is the file of the class and whatever that imports, itself or through others, from
the same folder or package: as it is written, wherever in the file the import stands, with nothing imported.

Cost: reads those files once for each worker, and once for each run.
"""

import ast
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
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


def own(kind: type) -> str | None:
    """The experiment's file and those beside it that it imports, as 12 hexadecimal characters.

    Names are taken relative to the folder, so that a copy of it has the same. A comment is code, too.

    Returns:
        ``None`` where the class comes from no file, as in a notebook.
    """
    file = _file(sys.modules.get(kind.__module__))
    if file is None:
        return None
    in_package = not kind.__module__.startswith(_NOT_IMPORTED)
    depth = kind.__module__.count(".") if in_package else 0
    # A package is a folder, whose file lies in it.
    depth += in_package and file.name == "__init__.py"
    root = file.parents[min(depth, len(file.parents) - 1)]
    content = hashlib.sha256()
    for path in sorted(_imported_by(file, root)):
        content.update(f"{path.relative_to(root).as_posix()}\0{_hash(path)}\0".encode())
    return content.hexdigest()[:12]


def changed(codes: Mapping[str, str | None], now: str | None) -> list[str]:
    """Those by a code that is known and is not that of now; none where that of now is not known.

    Args:
        codes: of ``Store.codes``.
        now: of ``own``.
    """
    return [] if now is None else [cell for cell, of in codes.items() if of not in (None, now)]


def _imported_by(file: Path, root: Path) -> set[Path]:
    """The file and all files under ``root`` that it imports, or that those import."""
    found, left = {file}, [file]
    while left:
        for path in _imports(left.pop(), root):
            installed = any(place in path.parents for place in (*_INSTALLED, root / _OWN))
            # The folder of a file that is run is no package.
            inside = root in path.parents and path != root / "__init__.py"
            if inside and not installed and path not in found and path.is_file():
                found.add(path)
                left.append(path)
    return found


def _imports(file: Path, root: Path) -> Iterator[Path]:
    """Where what a file imports may be: the modules, and the packages on the way."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # whoever imports it is told
        return
    for node in ast.walk(tree):
        names, start = [], root
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = file.parents[node.level - 1] if node.level else root
            names = [f"{node.module or ''}.{alias.name}".lstrip(".") for alias in node.names]
        for words in (name.split(".") for name in names):
            for count in range(len(words) + 1):
                place = start.joinpath(*words[:count])
                yield place / "__init__.py"
                yield place.with_name(f"{place.name}.py")


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
