"""The blocks of docs/deep_learning.md run as printed, in the order of the page, in one session."""

import difflib
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from dpsco_jax import privacy

PAGE = (Path(__file__).parents[2] / "docs" / "deep_learning.md").read_text()
SECTIONS = {
    title: re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    for title, text in re.findall(
        r"^##? ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
}
DOOR, OF_NNX = "Private training of networks", "A Flax NNX loop, made private"
FIRST = "Loops of your own: clipped sums without the gradients of single users"
CHEAP = ("Users and examples", "Flax NNX", "Checkpoints")


def _run(*titles):
    session = {}
    for title in (FIRST, *titles):
        for block in SECTIONS[title]:
            exec(compile(block, f"docs/deep_learning.md, {title}", "exec"), session)
    return session


def test_the_door():
    """It runs as printed, keeps its budget, and an NNX loop becomes private by a dozen lines at most."""
    session = {}
    for title in (DOOR, OF_NNX):
        for block in SECTIONS[title]:
            exec(compile(block, f"docs/deep_learning.md, {title}", "exec"), session)
    assert int(session["metrics"]["steps"]) == 10
    assert 0 < session["private"].spent(session["state"]) < 8.0
    assert session["classifier"](session["examples"]["x"]).shape == (2000, 3)
    before, after = (
        [line.strip() for line in block.split("\ndef ")[-1].split("\n\n\n")[0].splitlines()[1:]]
        for block in SECTIONS[OF_NNX]
    )
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    written = sum(
        sum(map(bool, after[first:last]))
        for what, _, _, first, last in matcher.get_opcodes()
        if what in ("replace", "insert")
    )
    assert written <= 12, written


def _check_users(session):
    assert {leaf.way for leaf in session["report"].leaves} == {"factors", "products", "rows"}
    assert 0.0 < float(session["spent"]) < 10.0
    # Dearer for the other steps, or not at all: the ledger counts steps, whatever is in them.
    assert float(privacy.epsilon(privacy.privacy_spent(session["flax_state"]), 1e-5)) == float(
        session["spent"]
    )
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(session["flax_params"]))


def _check_checkpoints(session):
    through, resumed = (privacy.privacy_spent(session[run][1]) for run in ("through", "resumed"))
    restored = privacy.privacy_spent(session["restored"][1])
    np.testing.assert_array_equal(through.rdp, resumed.rdp)
    np.testing.assert_allclose(restored.rdp, resumed.rdp / 2, rtol=1e-5)
    moved = np.abs(session["resumed"][0]["hidden"] - session["restored"][0]["hidden"])
    assert np.max(moved) > 0


@pytest.mark.slow
def test_users_flax_and_checkpoints():
    session = _run(*CHEAP)
    _check_users(session)
    _check_checkpoints(session)


@pytest.mark.slow
def test_all_blocks():
    session = _run(*(title for title in SECTIONS if title not in (DOOR, OF_NNX, FIRST)))
    assert sum(map(len, SECTIONS.values())) == PAGE.count("```python")
    _check_users(session)
    _check_checkpoints(session)
    # Five steps of 0.01: other samples would be farther apart than clips that differ by 0.4 %.
    assert session["difference"] < 3e-3
    start, end = (session[name] for name in ("weights", "bf16_params"))
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(end))
    assert np.any(start["hidden"] != end["hidden"])
    # Noise of 2 to 1 costs less than noise of 1 throughout.
    assert 0.0 < float(session["scheduled_epsilon"]) < 0.9 * float(session["spent"])
    assert {leaf.way for leaf in session["lora"].leaves} == {"factors"}
    assert session["choice"].way == "ghost"
    assert session["compared"].items.variance <= session["compared"].users.variance
    assert 3.9 < float(session["spent_on_items"]) <= 4.0
    assert session["by_items"].certificate().epsilon <= float(session["spent_on_items"])
    assert float(privacy.epsilon(session["solution"].privacy, 1e-5)) <= 1.25 * 2.0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(session["eqx_params"]))
