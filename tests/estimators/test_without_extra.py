"""Without the extra the import says what to install; with it, polars and matplotlib are not asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BARE = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def bare(names, code):
    command = [sys.executable, "-c", BARE.format(names=names) + code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("missing", ["sklearn", "pandas"])
def test_the_import_names_the_extra(missing):
    done = bare([missing], "import dpsco_jax; dpsco_jax.estimators")
    said = f"ModuleNotFoundError: {missing} is not installed: pip install 'dpsco-jax[sklearn]'"
    assert done.stderr.splitlines()[-1] == said


@pytest.mark.slow
def test_estimators_need_no_polars_and_no_matplotlib_until_they_are_used():
    code = """
import numpy as np
from dpsco_jax.estimators import PrivateLogisticRegression
assert "matplotlib" not in sys.modules and "polars" not in sys.modules
model = PrivateLogisticRegression()
model.coef_, model.columns_ = np.ones((1, 1)), ["a"]
try:
    model.plot()
except ModuleNotFoundError as error:
    print(error)
"""
    done = bare(["matplotlib", "polars"], code)
    assert done.stdout.endswith("pip install 'dpsco-jax[sklearn]'\n"), done.stderr
