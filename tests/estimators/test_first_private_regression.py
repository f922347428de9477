"""The examples of docs/first_private_regression.md run in the order in which they are printed."""

import doctest
import importlib
import re
from pathlib import Path

import jax
import matplotlib as mpl
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "first_private_regression.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
SHOWN = re.search(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)[1]


def names_of(text):
    """What a report speaks of: titles, and the names of its rows."""
    return [line[:26].strip() for line in text.splitlines()]


@pytest.mark.slow
def test_examples_run(capsys, tmp_path, monkeypatch):
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    assert len(EXAMPLES) == 5
    assert len(EXAMPLES[1].splitlines()) <= 20
    names = {}
    for index, example in enumerate(EXAMPLES):
        exec(compile(example, f"first_private_regression.md, example {index + 1}", "exec"), names)
    assert (tmp_path / "wages.svg").stat().st_size > 10_000
    model, printed = names["model"], capsys.readouterr().out
    assert names_of(printed) == names_of(SHOWN)
    assert model.n_records_ == 4711
    # What the page says of the order of things: schooling and experience raise wages.
    said = dict(zip(model.columns_, model.coef_, strict=True))
    assert said["grade"] > 0.2
    assert said["ttl_exp"] > 0.1
    least, most = model.predict(names["women"])
    assert least < most
    mpl.pyplot.close("all")


# Regression runs in the examples of the page, above, and classes are fitted in ``test_fits``.
LATER = [pytest.param(name, marks=pytest.mark.slow) for name in ("classification", "regression")]


@pytest.mark.parametrize("name", ["pipelines", "report", *LATER])
def test_the_example_of_a_file_runs_as_printed(name):
    module = importlib.import_module(f"dpsco_jax.estimators.{name}")
    found = doctest.DocTestParser().get_doctest(module.__doc__, {}, name, module.__file__, 0)
    assert found.examples
    printed = []
    with jax.debug_key_reuse(False):
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
        failures = runner.run(found, out=printed.append).failed
    assert not failures, "".join(printed)
