"""The examples of the README run as printed."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_four_doors():
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize(
    "index", range(4), ids=["table", "network", "plan and solve", "accounting"]
)
def test_example_runs(index, capsys):
    exec(compile(EXAMPLES[index], f"README.md, example {index + 1}", "exec"), {})
    assert capsys.readouterr().out.strip()
