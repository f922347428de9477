"""The examples of docs/data.md run in the order in which they are printed."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_examples_run(capsys):
    assert len(EXAMPLES) == 9
    names = {}
    for index, example in enumerate(EXAMPLES):
        exec(compile(example, f"data.md, example {index + 1}", "exec"), names)
    printed = capsys.readouterr().out
    assert "data.items.label must be a finite number in [0, 1], or -1 and 1 alone" in printed
