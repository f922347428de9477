"""Opacus takes turns with the other programs of a benchmark, from a process of another interpreter."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

_PROGRAM = Path(__file__).with_name("opacus_peer.py")


@contextlib.contextmanager
def running(python: str, model: str, number: int, *options: str) -> Iterator[Callable[[], float]]:
    """A function that makes a step there and returns its processor seconds, of one thread.

    Args:
        python: path of an interpreter that has torch and opacus.
        model: ``"perceptron"`` or ``"convolutional"``.
        number: of examples.
        options: more arguments of ``opacus_peer``.

    Raises:
        RuntimeError: the program ends before it answers.
    """
    command = [python, str(_PROGRAM), model, str(number), *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        given, answers = process.stdin, process.stdout
        assert given is not None
        assert answers is not None

        def answer() -> str:
            line = answers.readline()
            if not line:
                raise RuntimeError(f"{' '.join(command)} ended with {process.wait()}")
            return line

        def step() -> float:
            given.write("\n")
            given.flush()
            return float(answer())

        try:
            while answer() != "ready\n":
                pass
            yield step
        finally:
            process.kill()
