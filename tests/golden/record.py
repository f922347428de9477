"""A plan and a result as numbers by name, written so that no bit is lost, and their comparison.

Numbers of a plan are compared as a set: a number may move to another field, or to a part of the plan, and
must be found with its value. Trivial ones (0, 1, infinite) say nothing and are left out.
"""

import dataclasses
import enum
import json
import math
import pathlib
import textwrap
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from tests.golden.cases import CASES, Case

Recorded = dict[str, dict[str, str]]
"""Numbers by name, of ``plan: ...`` and of ``run``, or one ``refused`` where there is no plan."""


def record(case: Case) -> Recorded:
    """What the case plans and returns."""
    found: Recorded = {}
    for name, make in case.plans.items():
        try:
            plan = make()
        except ValueError:
            found[f"plan: {name}"] = {"refused": "ValueError"}
            continue
        found[f"plan: {name}"] = dict(_numbers("", plan)) | _claims(plan)
    first = next(iter(case.plans.values()))()
    leaves, _ = jax.tree_util.tree_flatten_with_path(case.run(first))
    found["run"] = {
        jax.tree_util.keystr(path): " ".join(map(_written, np.ravel(np.asarray(leaf))))
        for path, leaf in leaves
    }
    return found


def record_named(name: str) -> Recorded:
    """What the case of this name plans and returns; for processes of their own."""
    return record(next(case for case in CASES if case.name == name))


def differences(before: Recorded, after: Recorded, tolerance: float) -> list[str]:
    """What has changed by more than the tolerance, relative to numbers in plans, absolute in runs."""
    said = []
    for part, numbers in before.items():
        now = after.get(part, {})
        if part == "run":
            for name, text in numbers.items():
                if not _near(_read(text), _read(now.get(name, "")), tolerance, tolerance):
                    said.append(f"{part}: {name} was {text}, is {now.get(name)}")
            continue
        if ("refused" in numbers) != ("refused" in now):
            said.append(f"{part}: {'refused' if 'refused' in now else 'no longer refused'}")
            continue
        values = np.sort(np.concatenate([_read(text) for text in now.values()] or [np.empty(0)]))
        for name, text in numbers.items():
            if not _all_among(_read(text), values, tolerance):
                said.append(f"{part}: {name} was {text}, and is not there any more")
    return said


def read(file: pathlib.Path) -> dict[str, Recorded]:
    """The records of a file, by the name of the case; empty where there is no file."""
    cases = json.loads(file.read_text()) if file.exists() else {}
    for parts in cases.values():
        for numbers in parts.values():
            if "like" in numbers:
                numbers |= parts[numbers.pop("like")] | numbers
                for name in [name for name, text in numbers.items() if text is None]:
                    del numbers[name]
    return cases


def write(file: pathlib.Path, cases: dict[str, Recorded]) -> None:
    """Write records: of later plans what differs from the first; a vector has a line of its own."""
    written = []
    for case, parts in cases.items():
        first = next(iter(parts))
        lines = []
        for part, numbers in parts.items():
            if part not in (first, "run") and "refused" not in numbers:
                gone = {name: None for name in parts[first] if name not in numbers}
                kept = {k: v for k, v in numbers.items() if parts[first].get(k) != v}
                numbers = {"like": first} | kept | gone
            lines.append(f"  {json.dumps(part)}: {{\n{_lines(numbers)}\n  }}")
        written.append(f" {json.dumps(case)}: {{\n" + ",\n".join(lines) + "\n }")
    file.write_text("{\n" + ",\n".join(written) + "\n}\n")


def _lines(numbers: dict[str, str]) -> str:
    entries = [f"{json.dumps(name)}: {json.dumps(text)}" for name, text in numbers.items()]
    # What is in the entries is no place to break a line.
    joined = ", ".join(entry.replace(" ", "\0") for entry in entries)
    wrapped = textwrap.fill(
        joined, 110, initial_indent="   ", subsequent_indent="   ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return wrapped.replace("\0", " ")


def _claims(plan: Any) -> dict[str, str]:
    """What the plan says of its privacy, and how many gradients it costs."""
    found = {}
    if hasattr(plan, "certificate"):
        certificate = plan.certificate()
        found["certificate.epsilon"] = _written(certificate.epsilon)
        found["certificate.delta"] = _written(certificate.delta)
    if hasattr(plan, "loss"):
        loss = plan.loss() if callable(plan.loss) else plan.loss
        found["loss.rdp"] = " ".join(map(_written, np.asarray(loss.rdp)[::16]))
    return found


def _numbers(name: str, node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, bool | str | None | enum.Enum) or callable(node):
        return
    if dataclasses.is_dataclass(node):
        for field in dataclasses.fields(node):
            if field.name != "made_for":  # constants of the case's objective, not of the plan
                yield from _numbers(f"{name}.{field.name}", getattr(node, field.name))
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _numbers(f"{name}[{key}]", value)
    elif isinstance(node, tuple | list):
        for index, value in enumerate(node):
            yield from _numbers(f"{name}[{index}]", value)
    elif hasattr(node, "dtype") and jax.dtypes.issubdtype(node.dtype, jax.dtypes.prng_key):
        yield name, " ".join(map(_written, np.ravel(jax.random.key_data(node))))
    else:
        values = np.ravel(np.asarray(node))
        if values.dtype.kind in "iuf":
            yield name, " ".join(map(_written, values))


def _written(value: Any) -> str:
    number = value.item() if hasattr(value, "item") else value
    return str(int(number)) if isinstance(number, int) else float(number).hex()


def _read(text: str) -> np.ndarray:
    return np.array([float.fromhex(x) if "x" in x or "n" in x else float(x) for x in text.split()])


def _near(a: np.ndarray, b: np.ndarray, relative: float, absolute: float) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=relative, atol=absolute, equal_nan=True)


def _all_among(wanted: np.ndarray, values: np.ndarray, tolerance: float) -> bool:
    for value in wanted:
        if not math.isfinite(value) or value in (0.0, 1.0):
            continue
        if not np.any(np.abs(values - value) <= tolerance * abs(value)):
            return False
    return True
