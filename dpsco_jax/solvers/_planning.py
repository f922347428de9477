"""What plans share: the sizes of Gaussian runs, who takes part in a step, tables.

Formal guarantee: none of its own; ``sampler`` draws users by the law that the accounting assumes.

Cost: none.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from dpsco_jax import _checks
from dpsco_jax.oracles import sampling
from dpsco_jax.privacy._numerics import float32_above
from dpsco_jax.privacy.releases import ACCOUNTANTS, KEPT_SECRET, Scheme, fixed_size, poisson
from dpsco_jax.privacy.sampling import Poisson, WithoutReplacement

__all__ = [
    "ACCOUNTANTS",
    "KEPT_SECRET",
    "NEAR",
    "fixed_size",
    "float32_above",
    "near",
    "poisson",
    "release_rows",
    "require_everybody",
    "require_users",
    "sampler",
    "table",
]

NEAR = "a minimizer lies within"


def sampler(scheme: Scheme, num_users: int) -> Callable[[jax.Array], sampling.UserSample] | None:
    """Draws the users of a step as the accounting assumes; ``None`` for everybody.

    Args:
        scheme: of the releases.
        num_users: how many users the data have.

    Raises:
        ValueError: if the scheme is made for another number of users.
    """
    match scheme:
        case Poisson(probability):
            return lambda key: sampling.poisson(key, num_users, float(np.asarray(probability)))
        case WithoutReplacement(population, batch):
            _checks.require(
                population == num_users, "num_users", num_users, f"the planned {population}"
            )
            return lambda key: sampling.without_replacement(key, population, batch)
    return None


def release_rows(plan: Any) -> list[tuple[str, Any]]:
    """The lines of a plan's table that speak of cost and privacy.

    Args:
        plan: with ``releases`` (``GaussianReleases``), ``num_users``, ``epsilon`` and ``user_gradients``.
    """
    releases, gradients = plan.releases, plan.user_gradients
    multiplier = releases.noise_multiplier
    return [
        ("noise multiplier", multiplier),
        ("user gradients", f"{gradients} ({gradients / plan.num_users:.4g} passes)"),
        ("budget", f"({float(plan.epsilon):g}, {float(plan.delta):g})"),
        ("ledger epsilon", releases.steps.ledger_epsilon(multiplier, releases.delta)),
        ("certificate", ",".join(str(releases.certificate()).split("\n"))),
    ]


def near(distance: Any) -> str:
    """The assumption that a bound on the distance of the start is true."""
    return f"{NEAR} {float(distance):.4g} of the start"


def require_users(name: str, planned: int, data: Any) -> None:
    """``ValueError`` unless the data have the planned number of users; sizes are static."""
    found = jax.tree.leaves(data.items)[0].shape[0]
    if found != planned:
        raise ValueError(f"{name} must have plan.num_users = {planned} users, got {found}")


def require_everybody(releases: Any) -> None:
    """``ValueError`` unless all users take part in every step: nothing else is amplified by sampling."""
    users, batch = releases.population_size, releases.batch_size
    _checks.require(batch == users, "plan.releases.batch_size", batch, f"all of the {users} users")


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
