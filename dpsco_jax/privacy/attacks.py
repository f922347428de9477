"""What (ε, δ) means to one person: how well anybody can tell whether that person's record is in the data.

Whoever sees what was released, knows all other records and has any amount of computing decides between two
data sets that differ in one record: by ADD_OR_REMOVE_ONE "the record is there" and "it is not", by
REPLACE_ONE "it is this record" and "it is that one". No rule to decide has a larger share of true positives
than is said here, at its share of false ones.

Source: Wasserman and Zhou 2010, Theorem 2.4; Kairouz, Oh and Viswanath 2015, Theorem 2.1 (the region of both
kinds of error); several records of one person: Vadhan 2017, Lemma 2.2.

Formal guarantee: with a the share of false positives, (ε, δ)-DP bounds that of true ones by
min(δ + e^ε·a, 1 - e^-ε·(1 - δ - a)), and some mechanism attains it at every a.

Example:
    >>> from dpsco_jax import Budget, privacy
    >>> print(privacy.attack_advantage(Budget(1.0, 1e-6)))
    who decides whether a record is in the data, at epsilon 1, delta 1e-06
      right in at most 73.1 % of cases, where guessing is right in 50 %
      of those who are in, at most   0.3 % are found while   0.1 % of others are taken for it
      of those who are in, at most   2.7 % are found while   1.0 % of others are taken for it
      of those who are in, at most  27.2 % are found while  10.0 % of others are taken for it
"""

import math
from typing import NamedTuple

import numpy as np

from dpsco_jax._checks import require, require_count, require_instance
from dpsco_jax.privacy.budget import Budget
from dpsco_jax.privacy.certificates import Certificate

_SHOWN = (0.001, 0.01, 0.1)


class Attack(NamedTuple):
    """The best that an attacker can do.

    Attributes:
        epsilon: of the guarantee that counts, which is that of all records of the person.
        delta: of the same.
        advantage: the largest difference of true and false positives, in [0, 1].
        accuracy: the largest share of right decisions if both cases are as likely, in [½, 1].
    """

    epsilon: float
    delta: float
    advantage: float
    accuracy: float

    def true_positives(self, false_positives: np.typing.ArrayLike) -> np.ndarray:
        """The largest share of true positives at these shares of false ones.

        Args:
            false_positives: numbers in [0, 1], of any shape.

        Returns:
            Numbers of the same shape, in float64.

        Raises:
            ValueError: a number is outside of [0, 1].
        """
        false = np.asarray(false_positives, np.float64)
        good = bool(np.all((false >= 0.0) & (false <= 1.0)))
        require(good, "false_positives", false_positives, "in [0, 1]")
        with np.errstate(over="ignore", invalid="ignore"):
            # e^ε·0 is nothing also where e^ε is no number of float64.
            near = self.delta + np.where(false > 0.0, np.exp(self.epsilon) * false, 0.0)
        far = 1.0 - math.exp(-self.epsilon) * (1.0 - self.delta - false)
        return np.clip(np.minimum(near, far), 0.0, 1.0)

    def __str__(self) -> str:
        lines = [
            "who decides whether a record is in the data, at epsilon "
            f"{self.epsilon:.4g}, delta {self.delta:.4g}",
            f"  right in at most {100 * self.accuracy:.1f} % of cases, where guessing is right in 50 %",
        ]
        for false, true in zip(_SHOWN, self.true_positives(_SHOWN), strict=True):
            lines.append(
                f"  of those who are in, at most {100 * true:5.1f} % are found while "
                f"{100 * false:5.1f} % of others are taken for it"
            )
        return "\n".join(lines)


def attack_advantage(guarantee: Certificate | Budget, records: int = 1) -> Attack:
    """How well an attacker can tell whether somebody's data were used. On the host.

    Args:
        guarantee: the certificate of what was released, or a budget that is thought of.
        records: how many records of the guarantee are one person's: 1 where a user is the record; with
            rows as records, the rows of one person. The guarantee for k of them is
            (k·ε, δ·(e^(kε) - 1)/(e^ε - 1)).

    Returns:
        Bounds that hold for every attacker, and print as a short text.

    Raises:
        ValueError: ``guarantee`` is neither, or ``records`` is no integer of at least 1.
    """
    require_instance("guarantee", guarantee, Certificate | Budget)
    records = require_count("records", records)
    single, delta = float(guarantee.epsilon), float(guarantee.delta)
    epsilon = records * single
    if records > 1:
        # In logarithms, since e^(kε) soon leaves float64; the ratio is k where ε is 0.
        ratio = math.log(records)
        if single > 0.0 and math.isfinite(single):
            ratio = epsilon - single
            ratio += math.log(-math.expm1(-epsilon)) - math.log(-math.expm1(-single))
        with np.errstate(over="ignore"):
            delta = min(1.0, delta * float(np.exp(ratio)))
    # Where both bounds on true positives meet, at a = (1 - δ)/(e^ε + 1).
    advantage = math.tanh(epsilon / 2.0) * (1.0 - delta) + delta
    return Attack(epsilon, delta, advantage, 0.5 + advantage / 2.0)
