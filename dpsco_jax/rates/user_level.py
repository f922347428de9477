"""Rates of user-level private convex optimization: risk, gradients and conditions of every algorithm.

What it computes: for n users with m items each, d parameters, losses that are L-Lipschitz (and β-smooth
where that is said) on a set of diameter R: the excess risk and the number of item gradients that each
algorithm needs, up to constants and logarithms, and whether its conditions hold. As in the papers'
tables, logarithms count as 1: a condition n ≥ log(d)/ε reads n ≥ 1/ε. These are orders of growth;
what a given run will do is in the plans of ``solvers.user_level``.

Source: U Table 1; T Table 10.1, Theorems 9.4.1, 10.2.1, 10.3.2, 10.4.1, Remark 10.3.6 and section 10.1;
Levy et al. 2021, Theorems 5 and 6 (lower bound); Bassily and Sun 2023; Ghazi et al. 2023. Corrected
where docs/corrections.md says so: the two last terms of Theorem 10.3.2 are a minimum; Theorem 10.4.1 needs
a further factor ε in its second term and the term n^(3/4)·m^(3/2)/√ε; the factor of the last entry
of Table 10.1 is √β.

Formal guarantee: none. The lower bound holds for (ε, δ)-privacy under replacement of one user, up to
a constant; no algorithm below is better than it.

Cost: none; float64 on the host, elementwise on arrays.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax._argument_kinds import Positive, checked
from dpsco_jax._checks import require_instance, require_positive


class Setting(NamedTuple):
    """A problem class. Fields may be arrays, which broadcast.

    Attributes:
        num_users: n.
        items_per_user: m.
        dim: d.
        epsilon: ε.
        lipschitz: L, of the loss of one item.
        diameter: R, of the domain.
        smoothness: β; ``None`` for losses that are not smooth.
    """

    num_users: Any
    items_per_user: Any
    dim: Any
    epsilon: Any = 1.0
    lipschitz: Any = 1.0
    diameter: Any = 1.0
    smoothness: Any = None


class Method(NamedTuple):
    """An algorithm of the tables.

    Attributes:
        name: as ``solvers.user_level`` or the literature calls it.
        source: where its rate is printed.
        smooth: whether the row is about smooth losses; ``None`` if it is about both kinds.
        risk: of a ``Setting``: the excess risk.
        gradient_terms: of a ``Setting``: the addends of the number of item gradients; ``inf`` where
            no polynomial is known.
        conditions: of a ``Setting``: what has to hold for the risk, by name, True or False.
    """

    name: str
    source: str
    smooth: bool | None
    risk: Callable[[Setting], Any]
    gradient_terms: Callable[[Setting], tuple[Any, ...]]
    conditions: Callable[[Setting], dict[str, Any]]

    def gradients(self, s: Setting) -> Any:
        """The number of item gradients: the sum of its terms."""
        return sum(self.gradient_terms(s))

    def leading_gradients(self, s: Setting) -> Any:
        """The largest term alone: what the papers' tables print."""
        terms = np.broadcast_arrays(*self.gradient_terms(s))
        return np.max(np.stack(terms), axis=0)[()]

    def holds(self, s: Setting) -> Any:
        """Whether all conditions hold."""
        return np.logical_and.reduce(list(self.conditions(s).values()))


def statistical(s: Setting) -> Any:
    """L·R/√(nm): the risk that remains without privacy."""
    require_instance("s", s, Setting)
    return s.lipschitz * s.diameter / np.sqrt(1.0 * s.num_users * s.items_per_user)


def lower_bound(s: Setting) -> Any:
    """L·R·(1/√(nm) + √d/(n·√m·ε)), up to a constant: no private algorithm has a smaller risk."""
    return statistical(s) + _privacy(s, np.sqrt(1.0 * s.dim))


def strongly_convex(s: Setting, strong_convexity: Any) -> Any:
    """(L²/μ)·(1/(nm) + d/(n²·m·ε²)): the risk for μ-strongly convex losses (T Thm 9.4.11)."""
    require_instance("s", s, Setting)
    require_positive("strong_convexity", strong_convexity)
    n, m, _ = _floats(s)
    rest = 1.0 / (n * m) + s.dim / (n**2 * m * s.epsilon**2)
    return s.lipschitz**2 / strong_convexity * rest


@checked
def table(
    num_users: Positive,
    items_per_user: Positive,
    dim: Positive,
    epsilon: Positive = 1.0,
    smoothness: Positive | None = None,
    lipschitz: Positive = 1.0,
    diameter: Positive = 1.0,
) -> str:
    """All methods for one setting as text; losses that are not smooth if ``smoothness`` is left out.

    One line each: risk, leading number of item gradients, source, and the conditions that fail. The
    last line is the lower bound on the risk and one pass over the items.
    """
    s = Setting(num_users, items_per_user, dim, epsilon, lipschitz, diameter, smoothness)
    rows = [("method", "risk", "gradients", "source", "fails")]
    for method in METHODS:
        if method.smooth not in (None, smoothness is not None):
            continue
        failing = [name for name, holds in method.conditions(s).items() if not holds]
        risk, cost = method.risk(s), method.leading_gradients(s)
        rows.append(
            (method.name, f"{risk:.3g}", f"{cost:.3g}", method.source, "; ".join(failing) or "-")
        )
    one_pass = f"{s.num_users * s.items_per_user:.3g}"
    rows.append(("lower bound", f"{lower_bound(s):.3g}", one_pass, "L Thm 6", "-"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(f"{x:<{w}}" for x, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _floats(s: Setting) -> tuple[Any, Any, Any]:
    """n, m, d in floating point: their powers overflow integers."""
    return (
        1.0 * np.asarray(s.num_users),
        1.0 * np.asarray(s.items_per_user),
        1.0 * np.asarray(s.dim),
    )


def _privacy(s: Setting, factor: Any) -> Any:
    n, m, _ = _floats(s)
    return s.lipschitz * s.diameter * factor / (n * np.sqrt(m) * s.epsilon)


def _curvature(s: Setting) -> Any:
    """βR/L, without a unit; not a number for losses that are not smooth."""
    return math.nan if s.smoothness is None else s.smoothness * s.diameter / s.lipschitz


def _enough_users(s: Setting) -> dict[str, Any]:
    return {"n >= 1/eps": s.num_users >= 1.0 / s.epsilon}


def _one_pass(s: Setting) -> tuple[Any, ...]:
    return (1.0 * s.num_users * s.items_per_user,)


def _linear_time_risk(s: Setting) -> Any:
    n, m, d = _floats(s)
    return s.lipschitz * s.diameter * (1.0 + np.sqrt(d)) / np.sqrt(n * m * s.epsilon)


def _trivial_risk(s: Setting) -> Any:
    return statistical(s) + s.lipschitz * s.diameter * np.sqrt(s.dim) / (s.num_users * s.epsilon)


def _multipass_terms(s: Setting) -> tuple[Any, ...]:
    n, m, d = _floats(s)
    if s.smoothness is None:
        return (n * m) ** 3, (n * m) ** 2 * np.sqrt(d)
    return (_curvature(s) * (n * m) ** 1.5,)


def _bassily_sun_terms(s: Setting) -> tuple[Any, ...]:
    n, m, _ = _floats(s)
    return (m * n**1.5,)  # printed for n = d, ε = 1 only


def _bassily_sun_conditions(s: Setting) -> dict[str, Any]:
    n, m, d = _floats(s)
    return {
        "n >= sqrt(d)/eps": n >= np.sqrt(d) / s.epsilon,
        "m <= max(sqrt(d), n eps^2/sqrt(d))": m
        <= np.maximum(np.sqrt(d), n * s.epsilon**2 / np.sqrt(d)),
        "beta R/L <= min(n/sqrt(m d), n^1.5/(d sqrt(m)))": _curvature(s)
        <= np.minimum(n / np.sqrt(m * d), n**1.5 / (d * np.sqrt(m))),
    }


def _bassily_sun_linear_conditions(s: Setting) -> dict[str, Any]:
    n, m, d = _floats(s)
    return {
        "m <= d/eps^2 <= n": (m <= d / s.epsilon**2) & (d / s.epsilon**2 <= n),
        "beta R/L <= eps^3 sqrt(n^3/(m d^3))": _curvature(s)
        <= s.epsilon**3 * np.sqrt(n**3 / (m * d**3)),
    }


def _accelerated_terms(s: Setting) -> tuple[Any, ...]:
    n, m, d = _floats(s)
    e = s.epsilon
    if s.smoothness is None:  # the smoothed loss has βR/L = εn√m
        return n * m, n**1.375 * m**1.25 * e**1.25, n**0.75 * m**1.5 / np.sqrt(e)
    root = np.sqrt(np.sqrt(_curvature(s)))
    steps = np.minimum((n * m) ** 0.125, (e**2 * n**2 * m / d) ** 0.125)
    users = np.minimum(n**0.25 * m**1.25 / e, np.sqrt(n / e) * m**1.25 / d**0.25)
    return n * m, n * m * e * root * steps, root**2 * users


def _winsorized_conditions(s: Setting) -> dict[str, Any]:
    n, m, d = _floats(s)
    e = s.epsilon
    # Sub-Gaussian with parameter σ = L, the worst that L-Lipschitz losses can be.
    most = n * e / np.sqrt(m) + np.sqrt(n**3 * e**4 / (d**2 * m))
    return {"n >= sqrt(d)/eps": n >= np.sqrt(d) / e, "beta R/L small": _curvature(s) <= most}


def _winsorized_terms(s: Setting) -> tuple[Any, ...]:
    n, m, d = _floats(s)
    return (np.minimum((n * m) ** 1.5, n**2 * m**1.5 / np.sqrt(d)),)


METHODS: tuple[Method, ...] = (
    Method(
        "phased_erm",
        "L Thm 5",
        True,
        lambda s: statistical(s) + _privacy(s, 1.0 * s.dim),
        _winsorized_terms,
        _winsorized_conditions,
    ),
    Method(
        "Bassily-Sun",
        "U Table 1; T Table 10.1",
        True,
        lower_bound,
        _bassily_sun_terms,
        _bassily_sun_conditions,
    ),
    Method(
        "Bassily-Sun, linear time",
        "T section 10.1",
        True,
        _linear_time_risk,
        _one_pass,
        _bassily_sun_linear_conditions,
    ),
    Method(
        "Ghazi et al.",
        "U Table 1",
        None,
        lambda s: statistical(s) + _privacy(s, np.sqrt(s.dim) / s.epsilon**1.5),
        lambda s: (math.inf,),
        _enough_users,
    ),
    Method(
        "multipass_sgd",
        "U Thm 4.1; T Table 10.1",
        None,
        lower_bound,
        _multipass_terms,
        _enough_users,
    ),
    Method("phased_sgd", "T Thm 10.2.1", None, _linear_time_risk, _one_pass, _enough_users),
    Method(
        "accelerated_phased_erm",
        "T Thms 10.3.2, 10.4.1",
        None,
        lower_bound,
        _accelerated_terms,
        _enough_users,
    ),
    Method(
        "item_group_privacy",
        "T section 10.1, footnote 2",
        True,
        _trivial_risk,
        _one_pass,
        lambda s: {},
    ),
)
