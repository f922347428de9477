"""What a label may be: a link that is defined for every number, and a check of the labels of given data.

What it computes: ``for_any_label`` makes a link and its derivative zero where a label is not finite.
``check_labels`` compares labels with the range in which the loss reads them as they are.

Formal guarantee: a loss made total in this way is, for every label, convex and Lipschitz wherever
it was so for finite labels: where the label is not finite it is the constant 0. So one NaN among the labels
of a user takes away that item, not the user's other items (whose gradients it would turn into NaN, and the
clip then into zero).

Cost: a comparison and two selections for each item; the check reads all labels once, on the host.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dpsco_jax._checks import require, require_callable, require_mask, require_undisclosed
from dpsco_jax._given import plain
from dpsco_jax._redact import described


class LabelRange(NamedTuple):
    """The labels that a loss reads as they are; others it clips, or takes for no label.

    Attributes:
        low: the least label.
        high: the largest label.
        whole: whether labels are classes, so whole numbers.
        signed: whether the labels may be -1 and 1 alone, in place of a number in [0, 1].
    """

    low: float = -float("inf")
    high: float = float("inf")
    whole: bool = False
    signed: bool = False

    def __str__(self) -> str:
        number = "a whole number" if self.whole else "a finite number"
        text = f"{number} in [{self.low:g}, {self.high:g}]"
        return text + (", or -1 and 1 alone" if self.signed else "")


ANY_NUMBER = LabelRange()
TWO_CLASSES = LabelRange(0.0, 1.0, signed=True)


def for_any_label(link: Callable[..., Any]) -> Callable[..., Any]:
    """The link (or its derivative) where the label is finite, and zero elsewhere.

    Args:
        link: ``link(margin, label, *more) -> number``, elementwise.

    Returns:
        A function of the same arguments. Its gradient is zero too where the label is not finite.
    """
    require_callable("link", link)

    def total(margin: Any, label: Any, *more: Any) -> Any:
        there = jnp.isfinite(label)
        # The label is replaced before the link sees it: the gradient of a selection is 0·NaN otherwise.
        value = link(margin, jnp.where(there, label, jnp.zeros_like(label)), *more)
        return jnp.where(there, value, jnp.zeros_like(value))

    return total


def check_labels(objective: Any, data: Any) -> None:
    """Raise ``ValueError`` unless the loss reads every label of the data as it is. Host only.

    For data that were put together by hand; ``tables.from_frame`` has the labels declared. Solvers cannot
    ask: they see traced arrays. Whether this raises depends on the labels, so call it where the data holder
    alone sees it. The message shows no label.

    Args:
        objective: of ``problems.losses``, or with a ``label_range`` of its own. One for points without labels
            has none, and passes.
        data: ``UserData`` of ``Example`` items, with labels ``[users, items]``. Labels that the mask leaves
            out are not looked at.

    Raises:
        ValueError: the objective or the items alone speak of labels, or a label is no real number, not finite
            or out of the range of the loss: for ``logistic`` and ``hinge`` numbers in [0, 1] or else -1 and 1
            alone, for ``squared`` [-label_bound, label_bound], for ``softmax`` whole numbers in [0,
            num_classes - 1], for the others any finite number.
    """
    # By what is read of them: their classes are defined in files that import this one.
    require(hasattr(objective, "label_range"), "objective", objective, "an Objective")
    require(hasattr(data, "items") and hasattr(data, "mask"), "data", described(data), "a UserData")
    expected, label = objective.label_range, getattr(data.items, "label", None)
    if expected is None:
        what = "the range of its labels (labels.LabelRange), since the items have labels"
        require(label is None, "objective.label_range", expected, what)
        return
    require(label is not None, "data.items", type(data.items).__name__, "Example items with labels")
    label = plain("data.items.label", label)
    if data.mask is not None:
        mask = plain("data.mask", data.mask)
        label = label[require_mask("data.mask", mask, label.shape)]
    require(label.dtype.kind in "biuf", "data.items.label", label.dtype, str(expected))
    value = label.astype(np.float64)
    good = np.isfinite(value) & (value >= expected.low) & (value <= expected.high)
    if expected.whole:
        good &= value == np.floor(value)
    signs = expected.signed and bool(np.all(np.abs(value) == 1.0))
    require_undisclosed(signs or good.all(), "data.items.label", f"{expected}, for every item")
