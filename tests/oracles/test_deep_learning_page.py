"""The examples of docs/deep_learning.md run as printed."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "deep_learning.md").read_text()


def test_the_examples_run(capsys):
    examples = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "docs/deep_learning.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "factors" in printed
    assert 0.0 < float(printed.strip().split("\n")[-1]) < 10.0
