"""What a store holds, as a table: one row for each cell of every run, whatever its configuration.

Cost: reads the whole store once.
"""

import sqlite3
from pathlib import Path
from typing import Any

from dpsco_jax._checks import require, require_instance
from dpsco_jax._extra import needs
from dpsco_jax.sweeps.experiment import CODE, RESERVED
from dpsco_jax.sweeps.store import FILE_NAME, Store

with needs("sweeps"):
    import pandas as pd


_COLUMNS = {"configuration": "config_hash"}


def results(path: str | Path) -> pd.DataFrame:
    """All records of an experiment, those of other constants and of failed cells included.

    Args:
        path: the experiment's folder, such as ``results/mine``, or the file ``cells.sqlite`` in it.

    Returns:
        One row for each stored cell, in the order in which they were stored. Columns are the settings (the
        axes), the results, the constants of the run as ``constant.NAME``, then ``status`` (``"ok"``,
        ``"nonfinite"`` or ``"failed"``), ``seconds`` (wall time of its chunk over its cells), ``device``,
        ``traceback`` (of a failed cell), ``id``, ``attempts``, ``started`` (its run, UTC), ``finished``
        (the cell, UTC), ``configuration``, which cells share that have name, version and constants in
        common, and ``experiment code``, a hash of the experiment's file and of what it imports from beside
        it (missing where the run has noted none). What a cell does not have is missing in its row (NaN).

    Raises:
        ValueError: if ``path`` is neither a folder with a ``cells.sqlite`` nor such a file.
    """
    require_instance("path", path, str | Path)
    file = Path(path)
    file = file / FILE_NAME if file.is_dir() else file
    there = file.name == FILE_NAME and file.is_file()
    require(there, "path", str(path), f"the folder of an experiment, with {FILE_NAME} in it")
    try:
        with Store(file.parent) as store:
            rows = store.rows()
    except sqlite3.DatabaseError as error:
        raise ValueError(f"path must be the store of an experiment, got {str(path)!r}") from error
    return pd.DataFrame(
        [
            row["settings"]
            | row["results"]
            | {
                f"constant.{name}": value
                for name, value in row["config"].get("constants", {}).items()
            }
            | {name: _of(row, name) for name in RESERVED}
            for row in rows
        ]
    )


def _of(row: dict[str, Any], name: str) -> Any:
    return row["versions"].get(CODE) if name == CODE else row[_COLUMNS.get(name, name)]
