"""Edits of plans, and accounts of what an edited plan runs, for the tests of ``tests/solvers``.

An account knows nothing of the package's curves: a lower bound on ε by a pair of data sets, or what the
theorem for tested means says of their values, by NumPy and SciPy from threshold, kept level, test and noise.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from dp_accounting import NeighboringRelation
from scipy import special, stats

FACTORS = (10.0, 0.1, math.nan, -1.0)


def edited_numbers(plan):
    """(name, plan) for every leaf times every factor; leaves of phases with one name are edited together.

    A name with ``[*]`` stands for all phases, the last phase alone follows under its own name.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(plan)
    groups = {}
    for index, (path, _) in enumerate(paths):
        together = "".join("[*]" if hasattr(key, "idx") else str(key) for key in path)
        groups.setdefault(together, []).append(index)
    for name, members in groups.items():
        chosen = (
            {name: members} if len(members) == 1 else {name: members, f"{name} last": members[-1:]}
        )
        for label, indices in chosen.items():
            for factor in FACTORS:
                leaves = [
                    np.asarray(leaf, float) * factor if i in indices else leaf
                    for i, (_, leaf) in enumerate(paths)
                ]
                leaves = [leaf if np.ndim(leaf) else float(leaf) for leaf in leaves]
                yield f"{label} x {factor}", jax.tree.unflatten(tree, leaves)


def edited_sizes(plan):
    """(name, make) for every static integer times 2 and halved; ``make()`` gives the plan, or refuses."""
    for name in sorted(_sizes(plan)):
        for text, change in (("x 2", lambda n: 2 * n), ("/ 2", lambda n: n // 2)):
            yield f"{name} {text}", lambda name=name, change=change: _resized(plan, name, change)


def _sizes(node):
    if isinstance(node, tuple | list) and not hasattr(node, "_fields"):
        return set().union(*map(_sizes, node)) if node else set()
    if not dataclasses.is_dataclass(node):
        return set()
    found = set()
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if (isinstance(value, int) and not isinstance(value, bool)) or _whole_numbers(value):
            found.add(field.name)
        else:
            found |= {f"{field.name}.{name}" for name in _sizes(value)}
    return found


def _whole_numbers(value):
    return isinstance(value, tuple) and bool(value) and all(type(v) is int for v in value)


def _resized(node, name, change):
    if isinstance(node, tuple | list):
        return type(node)(_resized(member, name, change) for member in node)
    head, _, rest = name.partition(".")
    if not hasattr(node, head):  # of other phases
        return node
    value = getattr(node, head)
    if rest:
        return dataclasses.replace(node, **{head: _resized(value, rest, change)})
    new = tuple(map(change, value)) if isinstance(value, tuple) else change(value)
    return dataclasses.replace(node, **{head: new})


_NO_NUMBER = (math.nan, -1, "1", None, True)
_KINDS = {
    int: (2.5, *_NO_NUMBER),
    float: _NO_NUMBER,
    bool: (7, "yes", None),
    str: ("nonsense", 7, None),
    NeighboringRelation: ("REPLACE_ONE", 7, None),
}
_ENDS = {int: (0,), float: (0.0, math.inf)}
_MAY_BE_MISSING = {
    "promised_relation",
    "stage_length",
    *("smoothness", "hessian_lipschitz", "loss_range"),
    "intercept",
    "outputs",
    "columns_per_row",
    "row_bound",
}
_OF_EITHER_SIGN = {"loss_strong_convexity"}
# For readers, any text will do; a set by another name is none that ``solve`` runs on.
_TEXT = {"title", "remarks", "premises", "omitted", "set_name"}


class StaticEdit(NamedTuple):
    """One static value of a plan, or of what it holds, that is replaced by another one.

    Attributes:
        label: where it is, and by what it is replaced.
        name: of the field.
        another_kind: whether the new value is none that such a field can have; else it is 0 or infinite.
        make: gives the plan, or refuses.
    """

    label: str
    name: str
    another_kind: bool
    make: Callable[[], Any]


def edited_statics(plan):
    """Every static value of a plan, at any depth, by values of other kinds, by 0 and by infinity.

    The fields of named tuples are edited as well, of tuples and of parts the first entry.
    """
    for path, value in _statics(plan):
        *_, name = (step for step in path if isinstance(step, str))
        where = ".".join(map(str, path))
        kind = next((kind for kind in _KINDS if type(value) is kind), None)
        if kind is None and value is not None and not isinstance(value, NeighboringRelation):
            continue  # of a class of its own, such as a scheme
        kind = NeighboringRelation if isinstance(value, NeighboringRelation) else kind
        bad = _KINDS.get(kind, (object(),))
        if name in _TEXT or "remarks" in path or "premises" in path:
            bad = (7, None)
        if name in _OF_EITHER_SIGN:
            bad = tuple(new for new in bad if new != -1)
        if name in _MAY_BE_MISSING:
            bad = tuple(new for new in bad if new is not None)
        for another_kind, values in ((True, bad), (False, _ENDS.get(kind, ()))):
            for new in values:
                yield StaticEdit(
                    f"{where} = {new!r}",
                    name,
                    another_kind,
                    lambda path=path, new=new: _with(plan, path, new),
                )


def _statics(node, path=(), inside=False):
    """(path, value) of static fields; paths are names of fields and places in tuples."""
    if hasattr(node, "_fields"):
        for name in node._fields if inside else ():
            yield from _statics(getattr(node, name), (*path, name), True)
    elif dataclasses.is_dataclass(node):
        for field in dataclasses.fields(node):
            static = inside or field.metadata.get("static", False)
            yield from _statics(getattr(node, field.name), (*path, field.name), static)
    elif isinstance(node, tuple):
        for place, part in list(enumerate(node))[:1]:
            yield from _statics(part, (*path, place), inside)
    elif inside:
        yield path, node


def _with(node, path, new):
    if not path:
        return new
    step, *rest = path
    if isinstance(step, int):
        return (*node[:step], _with(node[step], rest, new), *node[step + 1 :])
    changed = {step: _with(getattr(node, step), rest, new)}
    return (
        node._replace(**changed)
        if hasattr(node, "_fields")
        else dataclasses.replace(node, **changed)
    )


def least_epsilon(curve, delta):
    """The least ε >= 0 with ``curve(ε) <= δ``; infinite if there is none."""
    low, high = 0.0, 1e9
    if not curve(high) <= delta:
        return math.inf
    if curve(0.0) <= delta:
        return 0.0
    for _ in range(70):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if curve(middle) > delta else (low, middle)
    return low


def gaussian_curve(mu, epsilon):
    """δ at an ε of N(0, 1) against N(μ, 1)."""
    far = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    return max(special.ndtr(mu / 2 - epsilon / mu) - math.exp(min(far, 700.0)), 0.0)


def everybody(noise_multiplier, num_steps, delta):
    """ε of T Gaussian releases from all users, σ the multiplier of a replacement; exact."""
    sigma = abs(float(noise_multiplier))
    if num_steps == 0:
        return 0.0
    if not 0.0 < sigma < math.inf:
        return math.inf
    mu = math.sqrt(num_steps) / sigma
    return least_epsilon(lambda e: gaussian_curve(mu, e), delta)


def sampled(runs, delta, poisson=False):
    """ε of Gaussian releases on samples, from below: of data in which all others contribute nothing.

    A replaced user contributes C or -C (2C is the sensitivity), one who is added C or nothing.

    Args:
        runs: (noise multiplier, sampling rate, number of steps) of runs on the same users, one after another.
        delta: δ.
        poisson: whether users are added or removed, and samples are Poisson.
    """
    runs = tuple((abs(float(sigma)), rate, steps) for sigma, rate, steps in runs)
    if not all(0.0 < sigma < math.inf for sigma, _, _ in runs):
        return math.inf
    return _sampled(runs, delta, poisson)


@functools.cache
def _sampled(runs, delta, poisson):
    places = (1.0, 0.0) if poisson else (0.5, -0.5)
    return max(least_epsilon(_sampled_curve(runs, *pair), delta) for pair in (places, places[::-1]))


def _sampled_curve(runs, up, down):
    cells, step = 2**17, 60.0 / 2**17
    spectrum = np.ones(cells, complex)
    for sigma, rate, steps in runs:

        def mixed(of, place, sigma=sigma, rate=rate):
            return (1 - rate) * of(0.0, sigma) + rate * of(place, sigma)

        edges = np.linspace(-9 * sigma - 1, 9 * sigma + 1, 20001)
        middles = 0.5 * (edges[1:] + edges[:-1])
        densities = [
            mixed(lambda m, s, x=middles: stats.norm.pdf(x, m, s), place) for place in (up, down)
        ]
        mass = np.diff(mixed(lambda m, s, x=edges: stats.norm.cdf(x, m, s), up))
        # Losses to a grid, rounded down; sums of them by the Fourier transform.
        index = np.floor(np.log(densities[0] / densities[1]) / step).astype(int)
        index = np.clip(index, -cells // 2, cells // 2 - 1)
        spectrum *= np.fft.fft(np.bincount(index % cells, mass, minlength=cells)) ** steps
    law = np.real(np.fft.ifft(spectrum))
    losses = np.fft.fftfreq(cells, 1 / cells) * step

    def curve(epsilon):
        return float(np.sum(law * -np.expm1(np.minimum(epsilon - losses, 0.0)))) - 1e-12

    return curve


def tested(releases, delta):
    """ε of tested means of everybody, for the core that proves most; REPLACE_ONE, weights.

    From what runs: threshold, kept level, scale of the test and noise. The larger of two parts: the values
    with what passes by mistake, as in Theorems 2, 3 and 5 but with tests for nothing; and, of fresh tests,
    one bit alone: score and threshold such that it passes with 1/2 against exp(-ε₁ (1 - 1/K))/2. How tests
    and values add up is left out: there are sharper proofs of it than the theorems.
    """
    size, steps, test = releases.batch_size, releases.num_steps, releases.test
    threshold, keep = float(releases.threshold), float(releases.keep_level)
    e1, noise = float(releases.test_epsilon), float(releases.noise_stddev)
    numbers = (threshold, keep, e1, noise)
    if not all(map(math.isfinite, numbers)) or not 0.5 < keep < 1 or e1 <= 0 or noise <= 0:
        return math.inf
    return _tested(test, size, steps, *numbers, delta)


@functools.cache
def _tested(test, size, steps, threshold, keep, e1, noise, delta):
    cores = range(math.ceil(keep * size * (1 - 1e-6)), size)
    numbers = (test, size, steps, threshold, keep, e1, noise)
    values = min((_with_core(*numbers, core, delta) for core in cores), default=math.inf)
    bit = e1 * (1 - 1 / size) + math.log(max(1 - 2 * delta, 1e-9)) if test == "fresh" else 0.0
    return max(values, bit)


def _with_core(test, size, steps, threshold, keep, e1, noise, core, delta):
    gap, shared, ramp = threshold - core, size - 1, (keep - 0.5) * size
    if gap < 0:
        return math.inf
    if test == "fresh":
        wrong = stats.laplace.sf(gap, scale=2 / e1)
    else:
        b = 8 / e1
        wrong = (4 * math.exp(-gap / b) - math.exp(-2 * gap / b)) / 6
    if wrong > delta:
        return math.inf
    degrees = np.arange(size // 2 + 1, size + 1)
    weights = np.clip((degrees - size / 2) / ramp, 0, 1)

    def reach(near):
        return (6 * shared - 2 * core - 2 * np.minimum(near, core)) / shared

    moved = 2 * np.max(weights * reach(degrees - 1)) + (shared - core) / ramp * reach(
        (size - 1) / 2
    )
    mu = moved / core / noise * math.sqrt(steps)

    def curve(epsilon):
        total = gaussian_curve(mu, epsilon)
        return max(total, wrong) if test == "fresh" and steps == 1 else total + wrong

    return least_epsilon(curve, delta)
