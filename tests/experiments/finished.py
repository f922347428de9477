"""A study run to its end at toy size."""

from dpsco_jax.sweeps.engine import Options, run
from dpsco_jax.sweeps.report import frame
from dpsco_jax.sweeps.store import Store


def finished(study, folder):
    """The table of a study that was run in a folder; every run of it has ended well."""
    with Store(folder) as store:
        run(study, store, Options())
        table = frame(study, store)
    assert set(table["status"]) == {"ok"}, "\n".join(table["traceback"].dropna().unique())
    return table.drop(columns=["traceback"])
