"""The bias of the multilevel estimator of a proximal point, against the number of users.

What it computes: the distance of the estimator's mean from the exact minimizer of the smoothed loss plus
(λ/2)·‖x‖², found by gradient descent, for absolute regression in two dimensions. The mean of the estimator is
that of its last level, by telescoping, so that level is what is run: n queries with β·√(T/n). Its mean has
far less variance than that of the estimator. Users repeat 64 ones, so no minimizer depends on n. The ball
has its edge at the minimizer, or has it well inside.

Source: thesis, Algorithm 11 and Proposition 2.4.15, whose bias (L/λ)·√d/(βn) takes β for that of the last
level; (L/λ)·√d/(β·√(nT)) is what Algorithm 10 gives there, both plus (L/λ)/√n.

Formal guarantee: none: nothing is released, and no noise is calibrated.

Cost: three minutes on two cores.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from dpsco_jax.oracles import linear
from dpsco_jax.problems import gaussian_smoothing, losses, users
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.resque import _calls as subsolvers
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show

_DIM = 2
_DISTINCT = 64
_REGULARIZATION = 4.0
_LOSS = losses.absolute(1.0)  # L = 1, and ρ = 1


def _data(num_users: int) -> UserData:
    """Unit features, labels of a point at distance 2, with noise; the same 64 users over and over."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 2 * math.pi, _DISTINCT)
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    labels = 2.0 * rows[:, 0] + 0.3 * rng.standard_normal(_DISTINCT)
    times = num_users // _DISTINCT
    features, labels = np.tile(rows, (times, 1)), np.tile(labels, times)
    return UserData(Example(jnp.asarray(features[:, None], float), jnp.asarray(labels[:, None])))


def minimizer() -> np.ndarray:
    """The proximal point, ``[2]``: f_1 is 1-smooth, so steps of 1/5 contract by 4/5 or better."""
    data = _data(_DISTINCT)
    smooth = gaussian_smoothing.smoothed(_LOSS, gaussian_smoothing.absolute, 1.0)
    slope = jax.grad(users.mean_loss(smooth))

    def step(_: Any, x: Any) -> Any:
        return x - 0.2 * (slope(x, data) + _REGULARIZATION * x)

    return np.asarray(jax.lax.fori_loop(0, 100, step, jnp.zeros(_DIM)))


@dataclasses.dataclass(frozen=True)
class ProximalBias:
    """Bias of the multilevel proximal estimator against its two laws.

    Attributes:
        users: n, powers of two from 64.
        places: distance of the minimizer from the ball's centre, over the radius.
        queries: T of the lowest level.
        beta: β of the lowest level.
        seeds: cells, for the error bars.
        runs: of a cell.
    """

    name: ClassVar[str] = "proximal-bias"
    version: ClassVar[int] = 1
    users: tuple[int, ...] = axis("users", (1024, 2048, 4096, 8192, 16384), static=True)
    places: tuple[float, ...] = axis("place", (1.0, 0.5))
    seeds: int = axis("seed", 4)
    queries: int = 64
    beta: float = 0.05
    runs: int = 250

    def cells(self) -> list[dict[str, Setting]]:
        return product(self)

    def build(self, static: Settings) -> Program:
        num_users = int(static["users"])
        model = _LOSS.linear_model
        assert model is not None
        rows = linear.prepare(model, _data(num_users), _DIM)
        target = minimizer()
        distance = float(np.linalg.norm(target))
        beta = self.beta * math.sqrt(self.queries / num_users)

        def run(shared: Any, key: Any, inputs: Any) -> dict[str, Any]:
            setting = subsolvers.Setting(
                model=model,
                data=shared,
                radius=distance / inputs["place"],
                smoothing_radius=1.0,
                lipschitz=1.0,
            )

            def once(run_key: Any) -> Any:
                sizes = subsolvers.levels(num_users)
                center = jnp.zeros(_DIM)
                found = subsolvers.strongly_convex(
                    run_key, setting, sizes, center, beta, _REGULARIZATION
                )
                return found - target

            errors = jax.vmap(once)(jax.random.split(key, self.runs))
            mean = jnp.mean(errors, axis=0)
            square = jnp.mean(jnp.sum(errors**2, axis=1))
            return {"along": mean[0], "across": mean[1], "mean square": square}

        return Program(run, rows)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        rows = []
        for (num_users, place), part in frame.groupby(["users", "place"]):
            bias = float(np.hypot(part["along"].mean(), part["across"].mean()))
            square = float(part["mean square"].mean())
            count = len(part) * self.runs
            n = float(str(num_users))
            noise = math.sqrt(_DIM) / self.beta
            rows.append(
                {
                    "users": int(n),
                    "place": place,
                    "bias": bias,
                    "standard error": math.sqrt(max(square - bias**2, 0.0) / count),
                    "deviation": math.sqrt(square),
                    "corrected": (noise / math.sqrt(n * self.queries) + n**-0.5) / _REGULARIZATION,
                    "printed": (noise / n + n**-0.5) / _REGULARIZATION,
                }
            )
        table = pd.DataFrame(rows)
        table.to_csv(folder / "proximal_bias.csv", index=False)
        show("bias of the proximal point", {name: table[name].tolist() for name in table})
        with panels(1, 1) as (figure, axes):
            panel = axes[0, 0]
            for i, (place, part) in enumerate(table.groupby("place")):
                name = f"at {float(str(place)):g} r"
                style = {"color": PALETTE[i], "marker": MARKERS[i], "ls": LINES[i]}
                error = 2 * part["standard error"]
                panel.errorbar(part["users"], part["bias"], error, label=name, **style)
            laws = table.drop_duplicates("users")
            panel.plot(laws["users"], laws["corrected"], color="black", label="corrected")
            panel.plot(laws["users"], laws["printed"], color="black", ls=":", label="printed")
            panel.set(xscale="log", yscale="log", xlabel="users", ylabel="bias")
            log_ticks(panel.xaxis, sorted(laws["users"]))
            log_ticks(panel.yaxis)
            shared_legend(figure, [panel])
            save(figure, folder / "proximal_bias")
