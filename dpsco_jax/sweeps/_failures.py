"""What failed cells say: the exceptions' own messages, without the way that led to them."""

from collections import Counter
from collections.abc import Iterable

_HEADER = "Traceback (most recent call last):"
_MOST_LINES = 20


def message(traceback: str) -> str:
    """The exception's type and its whole message, from the text of a traceback.

    Frames of a traceback are indented and the exception that ends it is not; of exceptions that follow from
    each other the last one is meant.
    """
    lines = traceback.strip().rpartition(_HEADER)[2].strip("\n").splitlines()
    first = next((i for i, line in enumerate(lines) if line and not line[0].isspace()), 0)
    found = lines[first:]
    cut = [*found[: _MOST_LINES - 1], "..."] if len(found) > _MOST_LINES else found
    return "\n".join(cut)


def counted(tracebacks: Iterable[str]) -> list[str]:
    """A text for each message, the most frequent first: how many cells ended with it."""
    counts = Counter(map(message, tracebacks))
    return [f"{_cells(number)}: {text}" for text, number in counts.most_common()]


def _cells(number: int) -> str:
    return "1 cell" if number == 1 else f"{number} cells"
