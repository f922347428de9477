"""A study run to its end at toy size, and its report."""

from dpsco_jax.sweeps.engine import Options, run
from dpsco_jax.sweeps.report import frame
from dpsco_jax.sweeps.store import Store


def finished(study, folder, statuses=frozenset({"ok"})):
    """The table of a study that was run in a folder; every run of it has ended well."""
    with Store(folder) as store:
        run(study, store, Options())
        table = frame(study, store)
    assert set(table["status"]) <= statuses, "\n".join(table["traceback"].dropna().unique())
    return table.drop(columns=["traceback"])


def report(study, table, folder, *figures):
    """Report a table; figures of these names are written, and hold more than axes."""
    study.report(table, folder)
    for stem in figures:
        for kind in ("png", "svg"):
            assert (folder / f"{stem}.{kind}").stat().st_size > 5000


def reported(study, folder, *figures):
    """The table of a study that was run and reported in a folder."""
    table = finished(study, folder)
    report(study, table, folder, *figures)
    return table
