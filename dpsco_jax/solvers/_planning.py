"""What plans share: refusal of bad arguments, calibration of a run of releases, tables.

Formal guarantee: ``noise_multiplier`` returns a float32-representable number that meets (ε, δ) for exactly
the sizes it is given, rounded up past the rounding of the program that will use it.

Cost: a calibration by privacy loss distributions takes about a second, by Rényi curves milliseconds.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from dp_accounting import DpEvent, NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax.oracles import sampling
from dpsco_jax.privacy import events
from dpsco_jax.privacy.sampling import FullBatch, Poisson, WithoutReplacement

Scheme = FullBatch | Poisson | WithoutReplacement

_Plan = TypeVar("_Plan", bound=Any)

ACCOUNTANTS = ("pld", "rdp")
NEAR = "a minimizer lies within"
KEPT_SECRET = ("the key and the users sampled in each step stay secret",)
_LEDGER_ROUNDING = 2e-5
_LEAST_MULTIPLIER = 0.01


class Releases(NamedTuple):
    """A run of Gaussian releases: all that accounting needs to know of a first-order solver.

    Attributes:
        scheme: how the users of a step are drawn.
        relation: which data sets are neighbours.
        num_steps: how many releases.
    """

    scheme: Scheme
    relation: NeighboringRelation
    num_steps: int

    # Searches over plans ask for the same numbers again; a tuple of numbers keeps nothing alive.
    @functools.lru_cache(maxsize=1024)  # noqa: B019
    def noise_multiplier(self, epsilon: float, delta: float, accountant: str) -> float:
        """The smallest multiplier that meets (ε, δ) by ``"pld"`` or by the ledger's ``"rdp"``."""
        if accountant == "pld":
            value = privacy.certified_noise_multiplier(
                self.scheme, self.num_steps, epsilon, delta, self.relation
            )
        else:
            # The ledger adds in float32 and rounds up: leave it the room.
            value = privacy.calibrate(
                lambda s: privacy.scale(
                    self.scheme.gaussian_loss(s, self.relation), self.num_steps
                ),
                (1 - _LEDGER_ROUNDING) * epsilon,
                delta,
                _LEAST_MULTIPLIER,
                2 * math.sqrt(self.num_steps) / delta,
            )
        return float32_above(value)

    def ledger_epsilon(self, noise_multiplier: float, delta: float) -> float:
        """ε of the run by its Rényi curve: what the ledger will say, in float64."""
        step = self.scheme.gaussian_loss(float(noise_multiplier), self.relation)
        return float(privacy.epsilon(privacy.scale(step, self.num_steps), delta))

    def event(self, noise_multiplier: float) -> DpEvent:
        """What the run releases."""
        return events.repeated(self.scheme.gaussian_event(float(noise_multiplier)), self.num_steps)

    def certificate(self, noise_multiplier: float, delta: float) -> privacy.Certificate:
        """The guarantee of the run by the tightest accountant."""
        event = self.event(noise_multiplier)
        return privacy.certificate(event, float(delta), self.relation, KEPT_SECRET)

    def sampler(self, num_users: int) -> Callable[[jax.Array], sampling.UserSample] | None:
        """Draws the users of a step as the accounting assumes; ``None`` for everybody."""
        match self.scheme:
            case Poisson(probability):
                return lambda key: sampling.poisson(key, num_users, float(np.asarray(probability)))
            case WithoutReplacement(population, batch):
                return lambda key: sampling.without_replacement(key, population, batch)
        return None

    def rows(self, plan: Any) -> list[tuple[str, Any]]:
        """The lines of a plan's table that speak of cost and privacy."""
        multiplier, gradients = plan.noise_multiplier, self.num_steps * plan.batch_size
        certificate = str(self.certificate(multiplier, plan.delta)).split("\n")
        return [
            ("noise multiplier", multiplier),
            ("user gradients", f"{gradients} ({gradients / plan.num_users:.4g} passes)"),
            ("budget", f"({float(plan.epsilon):g}, {float(plan.delta):g})"),
            ("ledger epsilon", self.ledger_epsilon(multiplier, plan.delta)),
            ("certificate", ",".join(certificate)),
        ]


def fixed_size(num_users: int, batch_size: int, num_steps: int) -> Releases:
    """Batches of a fixed size, everybody if that is their size; one user may be replaced."""
    full = batch_size == num_users
    scheme = FullBatch() if full else WithoutReplacement(num_users, batch_size)
    return Releases(scheme, NeighboringRelation.REPLACE_ONE, num_steps)


def poisson(num_users: int, batch_size: int, num_steps: int) -> Releases:
    """Poisson samples of the given expected size; one user may be added or removed."""
    scheme = Poisson(batch_size / num_users)
    return Releases(scheme, NeighboringRelation.ADD_OR_REMOVE_ONE, num_steps)


def near(distance: Any) -> str:
    """The assumption that a bound on the distance of the start is true."""
    return f"{NEAR} {float(distance):.4g} of the start"


def float32_above(value: float) -> float:
    """A float32 number above the value by 2 to 4 units in the last place."""
    return float(np.float32(value * (1 + 3 * 2.0**-23)))


def pytree(cls: type[_Plan]) -> type[_Plan]:
    """Registers a plan: fields annotated ``Any`` are leaves, the others (sizes, names) static."""
    leaves = [field.name for field in dataclasses.fields(cls) if field.type is Any]
    static = [field.name for field in dataclasses.fields(cls) if field.type is not Any]
    return jax.tree_util.register_dataclass(cls, data_fields=leaves, meta_fields=static)


def require_users(name: str, planned: int, data: Any) -> None:
    """``ValueError`` unless the data have the planned number of users; sizes are static."""
    found = jax.tree.leaves(data.items)[0].shape[0]
    if found != planned:
        raise ValueError(f"{name} must have plan.num_users = {planned} users, got {found}")


def table(title: str, rows: Sequence[tuple[str, Any]]) -> str:
    """A plan as text: one line for each name and value, floats to five digits."""
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {_text(value)}" for name, value in rows]
    return "\n".join([title, *lines])


def _text(value: Any) -> str:
    if isinstance(value, str | int):
        return str(value)
    array = np.asarray(value)
    return f"{float(array):.5g}" if array.ndim == 0 else f"array of shape {array.shape}"


def require_params(name: str, planned: int, params: Any) -> None:
    """``ValueError`` unless the parameters have the planned number of entries; sizes are static."""
    found = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))
    if found != planned:
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(params)]
        raise ValueError(
            f"{name} must have plan.dim = {planned} entries, got {found} in leaves of shape {shapes}"
        )
