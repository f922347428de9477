"""Every private solver, run with every release recorded, against what it declares and what it charges.

The solvers are in ``private_table``; nothing here knows their algorithms. One compiled run serves all
properties: noise is multiplier times sensitivity (a); blocks that are paid for in parallel are disjoint (b);
what is charged covers what was released, and is not far above it (c); no neighbour moves a statistic by more
than its declared sensitivity, and some neighbour comes near it (d); with all releases frozen, nothing but
``unprivate`` depends on the data, in any run and by the structure of the program (e);
what comes out is in the domain, and counts what was done (f).
"""

import functools
import importlib
import itertools
import math
import pkgutil
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dpsco_jax import privacy
from dpsco_jax.solvers import (
    element_level,
    heavy_tailed,
    item_level,
    nonconvex,
    resque,
    sampling,
    user_level,
)
from dpsco_jax.solvers.nonconvex._stream_mean import correlation_of
from tests.solvers.every_row import EVERY_ROW
from tests.solvers.private_table import DIM, ROWS, Row
from tests.support import drawn
from tests.support import independent_account as account
from tests.support.recorder import Draw, Recorded, Release, Run

ROUNDING = 1 + 2e-5


def _replaced(data, user, **changes):
    """The data with another record for one user."""
    items = {name: np.array(getattr(data.items, name)) for name in ("features", "label")}
    mask = np.array(data.mask)
    for name, value in changes.items():
        if name == "mask":
            mask[user] = value
        else:
            items[name][user] = value
    return data._replace(items=data.items._replace(**items), mask=mask)


def _neighbours(row: Row, data, user):
    """Data sets that differ from ``data`` in one user, the worst we know."""
    empty = _replaced(data, user, features=0.0, label=0.0, mask=False)
    if row.removed:
        return [empty, _replaced(data, user, label=np.nan)]
    features, label = data.items.features[user], data.items.label[user]
    half = np.arange(row.items) < row.items // 2
    return [
        _replaced(data, user, label=-label),
        _replaced(data, user, features=-features, label=np.where(half, label, -label)),
        _replaced(data, user, features=-features),
        empty,
        _replaced(data, user, features=np.nan),
        _replaced(data, user, label=np.inf),
        _replaced(data, user, features=1e30 * features, label=-1e30),
        _replaced(data, user, features=0.0),
        _replaced(data, user, features=features[:, ::-1], label=0.0),
        _replaced(data, user, features=np.eye(len(features[0]))[0], label=label),
    ]


class Measured(NamedTuple):
    """All runs of a row.

    Attributes:
        plan: that was run.
        base: the run on the data.
        draws: the samples of users that the program asks for.
        entered: for each user the keys of the releases that some change of that user moved.
        moved: for each release how far the worst neighbour moved it.
        tested: for each release that a test has to allow, how far it moved where both tests passed.
        results: of all runs with the same samples, in lists, for leaks.
        reached: the results that the program computes from the data with all releases frozen.
        far: runs from starts outside of the domain, on all sides.
    """

    plan: Any
    base: Run
    draws: set[Draw]
    entered: list[set[bytes]]
    moved: dict[bytes, float]
    results: list[list[Any]]
    reached: list[str]
    far: list[Run]


@functools.cache
def _measured(name: str) -> Measured:
    row = next(row for row in ROWS if row.name == name)
    plan, data = row.plan(), row.data()

    def solve(data, start):
        return row.solve(jax.random.key(row.seed), plan, data, start)

    compiled = Recorded(solve, data, row.start)

    def run(data, forced=-1, start=row.start):
        return compiled(data, start, forced=forced)

    unchanged = functools.cache(lambda forced: run(data, forced=forced))

    entered: list[set[bytes]] = [set() for _ in range(row.num_users)]
    moved: dict[bytes, float] = {}
    results = []
    worst = (0, row.watched[len(row.watched) // 2], row.num_users - 1)
    # A user in a block that begins at a seam, or by mistake one before it, has this place in its samples.
    starts = {0, *row.seams, *(seam - 1 for seam in row.seams)} if compiled.draws else {}
    for user in row.watched:
        neighbours = _neighbours(row, data, user)
        if user not in worst:
            # Enough to see who enters: an opposite user, or one less.
            neighbours = neighbours[:1]
        places = {(user - start) // row.elements for start in starts if start <= user}
        for forced in sorted(places) or [-1]:
            base = unchanged(forced)
            releases = base.by_key()
            seen = [base.result]
            for neighbour in neighbours:
                other = run(neighbour, forced=forced)
                seen.append(other.result)
                changed = other.by_key()
                assert changed.keys() == releases.keys(), "which releases are made depends on data"
                for key, release in releases.items():
                    distance = release.moved(changed[key])
                    if distance > 0:
                        entered[user].add(key)
                    moved[key] = max(moved.get(key, 0.0), distance)
            results.append(seen)
    first = unchanged(-1)
    # Every second corner of a cube: both ends of every axis.
    corners = [
        100.0 * np.array(signs, row.start.dtype)
        for signs in itertools.product((-1, 1), repeat=DIM)
        if np.prod(signs) > 0
    ]
    far = [] if row.params is not None else [run(data, start=corner) for corner in corners]
    reached = compiled.dependent(0)
    return Measured(plan, first, compiled.draws, entered, moved, results, reached, far)


def _scheme(release: Release):
    """The way of sampling, in the words of the independent account."""
    match type(release.scheme).__name__:
        case "Poisson":
            return ("poisson", float(np.asarray(release.scheme.probability)))
        case "PoissonItems":
            return ("poisson_items", *release.scheme)
        case "PoissonUsers":
            return ("poisson_users", *release.scheme)
        case "WithoutReplacement":
            return ("without_replacement", *release.scheme)
        case "WithReplacement":
            return ("with_replacement", *release.scheme)
    return ("interval",) if release.name == "interval" else None


def _distances(plan) -> tuple[float, ...]:
    """Of the steps of a stream of correlated noise, what the account says of a user of that step alone."""
    of = plan.mean.releases
    length = of.longest if hasattr(of, "longest") else of.period
    if of.correlation == "tree":
        return account.stream_distances(length)
    made = correlation_of(of.correlation, length)
    return account.stream_distances(length, made.taken_back, made.decays)


def _counted(row: Row, release: Release, plan):
    if release.name == "correlated":
        # Releases come in the order of the steps, and a user takes part in one of a stream.
        distances = _distances(plan)
        return release.noise / release.sensitivity / distances[release.step % len(distances)], None
    if release.name == "interval":
        return release.noise, ("interval",)
    scheme = _scheme(release)
    if scheme is not None and scheme[0] == "poisson" and not row.removed:
        scheme = (*scheme, "replaced")
    return release.noise / release.sensitivity, scheme


def _check_noise(row: Row, found: Measured) -> None:
    """(a) Every release is declared, and its noise is the multiplier times the sensitivity."""
    assert found.base.releases, "nothing was released"
    for release in found.base.releases:
        assert np.all(np.isfinite(release.statistic)), f"{release.name} of a statistic not finite"
        assert release.noise > 0
        if row.kind in ("gaussian", "tested", "drawn", "last") and release.name != "interval":
            expected = release.multiplier * release.sensitivity
            if release.name == "correlated":
                expected *= max(_distances(found.plan))
            np.testing.assert_allclose(release.noise, expected, rtol=1e-5)


def _check_samples(row: Row, found: Measured) -> None:
    """(c) Users are drawn as the ledger is told."""
    if row.kind == "resque":
        return
    slots = row.items if row.solver.__name__.endswith("item_group_privacy") else 1
    declared = set()
    for release in found.base.releases:
        scheme = _scheme(release)
        if scheme is not None and scheme[0] in ("poisson", "poisson_items"):
            declared.add(Draw("poisson", (float(row.num_users), scheme[1])))
        elif scheme is not None and scheme[0] == "poisson_users":
            declared.add(Draw("poisson", (float(row.num_users // row.elements), scheme[1])))
        elif scheme is not None and scheme[0] != "interval":
            population, batch = scheme[1:]
            declared.add(Draw(scheme[0], (float(population * slots), float(batch))))
    assert found.draws == declared


def _groups(found: Measured) -> list[set[bytes]]:
    """Sets of releases that have no user in common."""
    groups: list[set[bytes]] = []
    for keys in found.entered:
        if keys:
            joined = [group for group in groups if group & keys]
            groups = [group for group in groups if not group & keys]
            groups.append(keys.union(*joined))
    return groups


def _check_blocks(row: Row, found: Measured) -> None:
    """(b) Releases fall into as many disjoint sets of users as are claimed; every release has users."""
    groups = _groups(found)
    assert len(groups) == row.groups
    missing = {release.key for release in found.base.releases}.difference(*groups)
    # Who is forced into a call of ReSQue enters its first phase; near vectors do not move a score.
    if row.kind in ("gaussian", "pure", "drawn", "chosen", "last", "selected"):
        assert not missing, f"nobody was seen to enter {len(missing)} releases"


def _check_sensitivity(row: Row, found: Measured) -> None:
    """(d) No neighbour moves a statistic by more than its sensitivity, and some come near."""
    shares = {}
    for release in found.base.releases:
        if np.isfinite(release.sensitivity):
            share = found.moved[release.key] / release.sensitivity
            if (_scheme(release) or ("",))[0] == "with_replacement":
                # The sensitivity is that of one draw, and the account knows how many there are.
                share /= max(1.0, np.rint(share))
            assert share <= ROUNDING, f"{release.name} moved by {share:.4g} of its sensitivity"
            if release.name != "interval":
                shares[release.key] = share
    if row.share is not None and shares:
        assert max(shares.values()) >= row.share
    if row.kind == "tested":
        # Users agree, and one who does not is far: the score moves by all it can, the mean by a third.
        means = {release.key for release in found.base.releases if release.name == "gaussian"}
        assert max(shares[key] for key in shares.keys() - means) >= 0.95
        assert max(shares[key] for key in means) >= 0.25
    if row.kind == "resque":
        # A phase's noise is step size · L / β, and a user of weight one moves its mean by twice the rest.
        largest = max(call.beta for call, _ in _calls(found.plan))
        shifts = [found.moved[release.key] / release.noise for release in found.base.releases]
        assert 0.5 * largest <= max(shifts) <= 2.2 * largest


def _check_leaks(row: Row, found: Measured) -> None:
    """(e) With all releases frozen nothing but ``unprivate`` depends on the data."""
    assert all(path.startswith(".unprivate") for path in found.reached), found.reached
    for seen in found.results:
        public = [jax.tree.leaves(result._replace(unprivate=None)) for result in seen]
        for other in public[1:]:
            for a, b in zip(public[0], other, strict=True):
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def _check_result(row: Row, found: Measured) -> None:
    """(f) The point is in the domain, wherever a run starts, and as many gradients were taken as is said."""
    if row.params is None and row.name != "resque_prox":  # whose answers are unbiased, not feasible
        for run in (found.base, *found.far):
            point = np.asarray(run.result.params)
            assert not np.all(np.isfinite(point)) or row.objective.domain.contains(point, 1e-4)
    for seen in found.results:
        for result in seen:
            made = np.asarray(result.unprivate["gradients"])
            # Of a Poisson sample the number that is said is an expectation.
            assert "poisson" in row.name or np.all(made <= np.asarray(result.gradients))
    # On a grid there are no gradients, only values.
    if row.kind != "pure" and getattr(found.plan, "user_gradients", None) != 0:
        assert np.any(np.asarray(found.base.result.unprivate["gradients"]) > 0)


def _calls(plan: Any):
    """The localized calls of ReSQue that a plan accounts for, with their numbers."""
    if hasattr(plan, "calls"):
        return plan.calls
    return [call for block in plan.parts for call in block.calls]


def _exact_places(row: Row, schemes: Sequence[Any], middle: int) -> tuple[int, ...]:
    """At which of the orders the independent account is the cost itself, so that a ledger is not above it."""
    ways = {scheme[0] if scheme else "everybody" for scheme in schemes}
    known = {"everybody", "poisson", "poisson_items", "without_replacement"}
    if row.kind != "gaussian" or not ways <= known:
        return ()
    # Of a sampled release a curve is a bound at small orders, and the grid ends before the largest do.
    return (5, middle, -20) if ways == {"everybody"} else (middle,)


def _check_charges(row: Row, found: Measured) -> None:
    """(c) What is charged is at least what every single user is exposed to, and not far above the worst."""
    certificate, spent = found.plan.certificate(), found.base.result.privacy
    releases = {release.key: release for release in found.base.releases}
    if row.kind == "pure":
        # A selection costs three times one candidate: the noise of one, and its interval.
        laplace = max(
            found.moved[r.key] / r.noise for r in releases.values() if r.name == "laplace"
        )
        intervals = [r.noise for r in releases.values() if r.name == "interval"]
        counted = 3 * (laplace + max(intervals, default=0.0))
        assert counted <= certificate.epsilon * ROUNDING
        assert counted <= float(spent.rdp[-1]) * 1.01
        assert float(spent.rdp[-1]) <= row.above * counted * ROUNDING
        assert certificate.epsilon <= row.above * counted
        return
    if row.kind == "selected":
        # A stream costs as much however many queries there are: twice what the last of them does, whose noise
        # has twice the scale of the threshold's.
        each = {"test": 4.0 / found.plan.num_candidates, "argmax": 2.0}
        counted = sum(each[r.name] * r.sensitivity / r.noise for r in releases.values())
        assert counted <= certificate.epsilon * ROUNDING
        assert certificate.epsilon <= row.above * counted
        assert certificate.delta == 0.0
        assert counted <= float(spent.rdp[-1]) * 1.01
        assert float(spent.rdp[-1]) <= row.above * counted * ROUNDING
        return
    if row.kind == "chosen":
        # Scores are odd about the centre: their differences range over twice what one of them moves by.
        counted = max(2 * found.moved[r.key] / r.noise for r in releases.values())
        assert len(releases) == {"exponential_mechanism": DIM, "gibbs": len(releases)}.get(
            row.name, 1
        )
        assert counted <= certificate.epsilon * ROUNDING
        assert certificate.epsilon <= row.above * counted
        assert certificate.delta == 0.0
        divergence = drawn.range_divergence([certificate.epsilon])
        place = int(np.argmin(np.abs(privacy.ORDERS - drawn.ORDER)))
        assert privacy.ORDERS[place] == drawn.ORDER
        assert divergence <= float(spent.rdp[place]) * ROUNDING <= 1.001 * divergence
        return
    delta = float(certificate.delta)
    charged = float(privacy.epsilon(spent, delta))
    if row.kind == "last":
        # All steps are alike: of linear losses the means of neighbours drift apart while noise adds up.
        plan, (multiplier,) = found.plan, {round(r.multiplier, 5) for r in releases.values()}
        c = 1 - float(plan.step_size) * (float(plan.regularization) + row.objective.ridge)
        powers = c ** np.arange(len(releases))
        one = [(multiplier * np.sqrt(np.sum(powers**2)) / np.sum(powers), None)]
        counted = account.epsilon(one, delta)
        assert len(releases) == plan.num_steps
        composed = account.epsilon([(multiplier, None)] * plan.num_steps, delta)
        assert certificate.epsilon < 0.9 * composed
        assert counted <= 1.005 * certificate.epsilon <= 1.005 * row.above * counted
        assert certificate.epsilon <= charged <= 1.25 * certificate.epsilon
        for place in (5, len(privacy.ORDERS) // 2, -20):
            least = account.renyi_of(one, float(privacy.ORDERS[place]))
            assert least <= float(spent.rdp[place]) * ROUNDING <= 1.001 * least
        return
    if row.kind == "resque":
        made = sum(count * math.log2(call.num_queries) for call, count in _calls(found.plan))
        assert 0 < len(releases) <= made, "more phases than calls that are accounted for"
        assert charged >= certificate.epsilon
        return
    # What tests give away is not counted: their laws are those of a stream, not of single releases.
    kinds = (
        ("gaussian", "correlated")
        if row.kind == "tested"
        else ("gaussian", "correlated", "interval")
    )
    users = {
        frozenset(keys): [
            _counted(row, releases[key], found.plan) for key in keys if releases[key].name in kinds
        ]
        for keys in found.entered
    }
    counted = max(account.epsilon(each, delta) for each in users.values())
    assert counted <= 1.005 * certificate.epsilon
    assert counted <= 1.005 * charged
    # A Rényi curve says a fifth more at most for these rows, a release that is charged twice 1.4 times.
    assert charged <= 1.25 * certificate.epsilon, charged / certificate.epsilon
    assert certificate.epsilon <= row.above * counted, certificate.epsilon / counted
    if row.kind == "found":  # of the choice see the rows of its own
        return
    if row.kind == "drawn":  # whose divergences are bounded up to a failure
        return
    middle = len(privacy.ORDERS) // 2
    exact = _exact_places(row, [scheme for each in users.values() for _, scheme in each], middle)
    for place in (5, middle, -20):
        order = float(privacy.ORDERS[place])
        least = max(account.renyi_of(each, order) for each in users.values())
        assert least <= float(spent.rdp[place]) * ROUNDING, f"order {order:g}"
        if place in exact:
            assert float(spent.rdp[place]) <= 1.001 * least, f"order {order:g}: charged too much"


@EVERY_ROW
def test_what_is_released_is_bounded_disjoint_and_paid_for(row):
    found = _measured(row.name)
    _check_noise(row, found)
    _check_samples(row, found)
    _check_blocks(row, found)
    _check_sensitivity(row, found)
    _check_charges(row, found)
    _check_leaks(row, found)
    _check_result(row, found)


def test_every_private_solver_has_a_row():
    solvers = set()
    rooms = (user_level, element_level, heavy_tailed, item_level, nonconvex, resque, sampling)
    for package in rooms:
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            public = not found.name.split(".")[-1].startswith("_")
            if public and hasattr(module, "plan") and hasattr(module, "solve"):
                solvers.add(found.name)
    assert len(solvers) >= 24
    assert solvers == {row.solver.__name__ for row in ROWS}
