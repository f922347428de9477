"""The block of docs/nonconvex.md runs as printed, and finds what the page says of it."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "nonconvex.md").read_text()


@pytest.mark.slow
def test_the_block_runs_as_printed():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    session = {}
    exec(compile(block, "docs/nonconvex.md", "exec"), session)
    released = session["found"].released
    assert float(released["gradient_bound"]) <= 0.0155
    assert float(released["curvature_bound"]) >= 0.04
