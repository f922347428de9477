"""Faults in private online learning: what lazy draws cost, what they look at, and what is charged."""

from tests.mutation import Fault

_ONLINE = "privacy/online.py"
_CURVE = ("tests/privacy/test_online.py",)

FAULTS = (
    Fault("online: coins cost nothing", _ONLINE, "total = coin + alpha * rho", "total = alpha * rho", _CURVE),
    Fault("online: coins in one direction alone", _ONLINE, "xp.maximum(xp.maximum(first, second), 0.0)", "xp.maximum(second, 0.0)", _CURVE),
    Fault("online: the first draw after the loss costs nothing", _ONLINE, "coin + alpha * rho + max", "coin + max", _CURVE),
    Fault("online: later draws as often as the least", _ONLINE, "redrawn = p - (1.0 - p) * xp.expm1(-high)", "redrawn = p", _CURVE),
    Fault("online: references cost nothing", _ONLINE, "(num_batches - 1) * fresh(p_y)", "0 * fresh(p_y)", _CURVE),
    Fault("online: a record moves a coin with reference by κ", _ONLINE, "2.0 * clip if lagged else clip", "clip", _CURVE),
    Fault("online: an envelope below B·κ", _ONLINE, " & (given[\"slack\"] >= 0)", "", _CURVE),
    Fault("online: inexact draws cost their distance once", _ONLINE, "(1.0 + math.exp(min(bound, 700.0))) * lost", "lost", _CURVE),
    Fault("online: draws of the reference are exact", _ONLINE, "(2 if self.reference == \"lagged\" else 1)", "1", _CURVE),
)  # fmt: skip
