"""The block of docs/online.md runs as printed, and its numbers are those of the plans."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "online.md").read_text()


@pytest.mark.slow
def test_the_block_runs_as_printed():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    session = {}
    exec(compile(block, "docs/online.md", "exec"), session)
    plan, plays = session["plan"], session["solution"].released["plays"]
    assert len(plays) == plan.num_batches
    assert round(plan.regret_bound) == 602
    assert "259, 602, 2,375" in PAGE
