"""First-order methods as values: how private gradients move the point, and which point is reported.

What it computes: a method is a frozen pytree of its numbers. ``on(domain, num_steps)`` makes of it an optax
chain that takes the gradient of the whole objective, and the point to report (``Chain``).

- ``ProjectedSgd``: steps against the gradient, an average of the points;
- ``ScheduledSgd``: steps of given lengths, a weighted average, or a point that is drawn;
- ``Momentum``: heavy-ball steps, constant or falling to nothing; the last point;
- ``AcSa``: accelerated stochastic approximation, restarted or not; its aggregate;
- ``StagedAcSa``: the same for convex losses, in stages;
- ``ShortestGradient``: steps of one length; the point of the shortest gradient;
- ``Perturbed``: steps of one length, and a random push where the gradient is small; the last point;
- ``O2nc``: moves of bounded length by online learning, for rough losses that are not convex; the average of a
  block that is drawn;
- ``Optax``: any optax transformation.

A method of your own is a class with the same function ``on``; make it a pytree, and its numbers may be
traced. One with ``draws`` true is first asked for ``drawn(key, num_steps)``, with a key of its own.

Source: thesis, Algorithm 1 (META).

Formal guarantee: none is needed. A method sees what a private mean has released, and is post-processing.

Cost: some vectors of the size of the parameters, whatever the method.

Example:
    >>> import jax
    >>> from dpsco_jax.geometry import domains
    >>> from dpsco_jax.solvers import methods
    >>> chain = methods.ProjectedSgd(step_size=0.1).on(domains.ball(1.0), num_steps=10)
    >>> chain.steps.init(jax.numpy.zeros(3)) is not None
    True
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpsco_jax import _checks, transforms
from dpsco_jax._argument_kinds import one_of
from dpsco_jax._pytrees import Number, padded, pytree, static
from dpsco_jax.geometry.domains import Domain

__all__ = [
    "AVERAGING",
    "AcSa",
    "Chain",
    "Method",
    "Momentum",
    "O2nc",
    "Optax",
    "Perturbed",
    "PowerSteps",
    "ProjectedSgd",
    "PulledSteps",
    "ScheduledSgd",
    "ShortestGradient",
    "StagedAcSa",
]

_DECAY = {"uniform": 0.0, "polynomial": 3.0, "last": None}
"""How fast the weight of iterate t grows: as t to this power; ``None`` for no average."""
AVERAGING = tuple(_DECAY)
Averaging = Annotated[str, one_of(*AVERAGING)]


class Chain(NamedTuple):
    """What runs.

    Attributes:
        steps: takes the gradient of the whole objective, gives the update.
        report: ``report(opt_state, params)``, of the state of the whole chain: whatever nests the states of
            ``steps``, so find them as ``optax.tree.get(opt_state, "name of a field")`` does.
    """

    steps: optax.GradientTransformation
    report: Callable[[Any, Any], Any]


@runtime_checkable
class Method(Protocol):
    """Whatever a private mean can drive.

    The steps of its chain end in ``transforms.project(domain)``: nothing else keeps the points in the domain.
    """

    def on(self, domain: Domain, num_steps: Any) -> Chain:
        """The chain for a domain and a number of steps, which may be traced."""


@pytree
class ProjectedSgd:
    """Steps against the gradient, projected onto the domain; an average of the points is reported.

    Attributes:
        step_size: η.
        averaging: ``"uniform"``, ``"polynomial"`` (towards the last points) or ``"last"``, for no average.
        step_decay: ``"none"``, or ``"sqrt"`` for η/√(t + 1), t = 0, 1, ...
    """

    step_size: Number
    averaging: str = static(default="uniform", choices=AVERAGING)
    step_decay: str = static(default="none", choices=("none", "sqrt"))

    def length(self, t: Any) -> Any:
        """η_t of the number t = 0, 1, ... of a step."""
        return self.step_size if self.step_decay == "none" else self.step_size / jnp.sqrt(t + 1.0)

    def on(self, domain: Domain, num_steps: Any) -> Chain:
        """The chain for a domain; ``ValueError`` if the step size is no real number."""
        del num_steps
        _checks.require_number("step_size", self.step_size, "a real number")
        if self.step_decay == "none":
            step: optax.GradientTransformation = optax.scale(-self.step_size)
        else:
            step = optax.scale_by_schedule(lambda t: -self.length(t))
        return _averaged([step], self.averaging, domain)


@pytree
class ScheduledSgd:
    """Steps of given lengths against the gradient, projected; a weighted average is reported.

    Attributes:
        step_sizes: γ_0, ..., γ_{T-1}.
        shares: of the iterates in the average, as in ``transforms.average``.
        reported: ``"average"``, or ``"random"``: the point before a step, of which all are equally likely;
            the shares say nothing then.
    """

    step_sizes: Number = padded()
    shares: Number = padded()
    reported: str = static(default="average", choices=("average", "random"))

    @property
    def draws(self) -> bool:
        """Whether a key says which point is reported."""
        return self.reported == "random"

    def drawn(self, key: jax.Array, num_steps: int) -> "ScheduledSgd":
        """The method that reports the point which the key draws."""
        steps = jnp.asarray(self.step_sizes)
        # The point before step s: the start itself for s = 0.
        chosen = jax.random.randint(key, (), 0, num_steps)
        shares = (jnp.arange(num_steps) + 1 == chosen).astype(steps.dtype)
        return dataclasses.replace(self, shares=shares, reported="average")

    def on(self, domain: Domain, num_steps: Any) -> Chain:
        """The chain; ``ValueError`` unless there are as many step sizes, and shares, as steps."""
        _checks.require_number("step_sizes", self.step_sizes, "real numbers")
        _checks.require_probability("shares", self.shares)
        _checks.require_instance("domain", domain, Domain)
        each = jnp.asarray(self.step_sizes)
        if isinstance(num_steps, int):
            for name in ("step_sizes", "shares"):
                found = jnp.shape(getattr(self, name))
                _checks.require(found == (num_steps,), name, found, f"of {num_steps} steps")
        same = each.ndim == 1 and each.shape == jnp.shape(self.shares)
        wanted = f"as many as shares: {jnp.shape(self.shares)}"
        _checks.require(same, "step_sizes", each.shape, wanted)
        steps = [
            optax.scale_by_schedule(lambda count: -each[count]),
            transforms.project(domain),
            transforms.average(shares=self.shares),
        ]
        return Chain(optax.chain(*steps), transforms.average_eval_params)


@pytree
class PowerSteps:
    """Projected steps of lengths α_0·k^(-β), k = 1, 2, ..., against the gradient; their average is reported.

    Attributes:
        initial_step: α_0 > 0.
        decay: β in (1/2, 1), for which the average has a normal law (``element_level.m_estimation``).
    """

    initial_step: Number
    decay: Number = 0.6

    def length(self, t: Any) -> Any:
        """α_k of the step with t = k - 1 before it."""
        return self.initial_step * (t + 1.0) ** (-self.decay)

    def on(self, domain: Domain, num_steps: Any) -> Chain:
        """The chain; ``ValueError`` if a number is out of its range."""
        del num_steps
        _checks.require_positive("initial_step", self.initial_step)
        _checks.require_within("decay", self.decay, 0.5, 1.0, open_low=True, open_high=True)
        step = optax.scale_by_schedule(lambda t: -self.length(t))
        return _averaged([step], "uniform", domain)


@pytree
class Momentum:
    """Heavy-ball steps, projected: v ← β·v + (1 - β)·gradient, w ← Π(w - η_t·v). The last point is reported.

    Under ``"linear"`` decay step t = 0, ..., T - 1 has the length η·(T - t)/(T + 1), which for the last point
    and β = 0 proves what the average of steps of the length η has (docs/theory/linear_decay.md).

    Attributes:
        step_size: η, what a gradient moves the point by in all the steps that remember it.
        momentum: β in [0, 1).
        step_decay: ``"none"`` or ``"linear"``.
    """

    step_size: Number
    momentum: Number = 0.0
    step_decay: str = static(default="none", choices=("linear", "none"))

    def on(self, domain: Domain, num_steps: Any) -> Chain:
        """The chain; ``ValueError`` if a number is out of its range."""
        _checks.require_number("step_size", self.step_size, "a real number")
        _checks.require_within("momentum", self.momentum, 0.0, 1.0, open_high=True)
        step: optax.GradientTransformation = optax.scale(-self.step_size)
        if self.step_decay == "linear":
            step = optax.scale_by_schedule(
                lambda t: -self.step_size * jnp.maximum(num_steps - t, 0) / (num_steps + 1)
            )
        # Gradients are released in float32 or wider, whatever the parameters have.
        velocity = optax.trace(self.momentum, accumulator_dtype=jnp.zeros(()).dtype)
        weighted = optax.chain(velocity, optax.scale(1 - self.momentum))
        return _averaged([weighted, step], "last", domain)


@pytree
class AcSa:
    """Accelerated stochastic approximation; its aggregate is reported.

    Attributes:
        smoothness: H of what is minimized, or the step parameter of a policy.
        strong_convexity: μ.
        stage_length: steps between restarts from the aggregate; ``None`` for no restart.
    """

    smoothness: Number
    strong_convexity: Number
    stage_length: int | None = static(default=None)

    def on(self, domain: Domain, num_steps: Any) -> Chain:
        """The chain; ``ValueError`` if a number is out of its range."""
        del num_steps
        _checks.require_instance("domain", domain, Domain)
        steps: optax.GradientTransformation = transforms.ac_sa(
            self.smoothness, self.strong_convexity, domain
        )
        if self.stage_length is not None:
            steps = transforms.restart_every(steps, self.stage_length, transforms.ac_sa_eval_params)
        return Chain(steps, transforms.ac_sa_eval_params)

    def lowered(self) -> "AcSa":
        """The same with a stage length that is a number, for several runs in one program."""
        if self.stage_length is None:
            return self
        return _RestartedAcSa(self.smoothness, self.strong_convexity, self.stage_length)


@pytree
class _RestartedAcSa(AcSa):
    """``AcSa`` whose stage length is a number."""

    stage_length: Number = None


@pytree
class StagedAcSa:
    """AC-SA for convex losses in stages, each from the aggregate of the one before, which is reported.

    Attributes:
        smoothness: Γ of every stage, ``[stages]``.
        lengths: steps of every stage; the last stage is repeated if there are more.
    """

    smoothness: Number
    lengths: tuple[int, ...] = static()

    def on(self, domain: Domain, num_steps: Any) -> Chain:
        """The chain; ``ValueError`` if there are not as many numbers as lengths, or one is no number."""
        del num_steps
        _checks.require_number("smoothness", self.smoothness, "real numbers")
        _checks.require_instance("domain", domain, Domain)
        each = jnp.asarray(self.smoothness)
        steps = transforms.restart_stages(
            lambda stage: transforms.ac_sa(each[stage], 0.0, domain),
            self.lengths,
            transforms.ac_sa_eval_params,
        )
        wanted = (len(self.lengths),)
        _checks.require(each.shape == wanted, "smoothness", each.shape, f"of shape {wanted}")
        return Chain(steps, transforms.ac_sa_eval_params)


@pytree
class ShortestGradient:
    """Steps of one length against the gradient, projected; the point of the shortest gradient is reported.

    Attributes:
        step_size: η.
    """

    step_size: Number

    def on(self, domain: Domain, num_steps: Any) -> Chain:
        """The chain; ``ValueError`` if the step size is no real number."""
        del num_steps
        moves = _steps_of(self.step_size, domain)
        return Chain(optax.chain(transforms.smallest(), *moves), transforms.smallest_eval_params)


@pytree
class Perturbed:
    """Steps of one length against the gradient, which is pushed at random where it is small; the last point.

    Attributes:
        step_size: η.
        threshold: of the gradient's norm.
        stddev: of the push on each coordinate of the gradient.
        wait: steps from a push to the next, at least.
        key: of the pushes; of each run its own.
    """

    draws = True

    step_size: Number
    threshold: Number
    stddev: Number
    wait: Number
    key: jax.Array | None = None

    def drawn(self, key: jax.Array, num_steps: int) -> "Perturbed":
        """The method whose pushes the key draws."""
        del num_steps
        return dataclasses.replace(self, key=key)

    def on(self, domain: Domain, num_steps: Any) -> Chain:
        """The chain; ``ValueError`` if a number is out of its range, or no key is drawn."""
        del num_steps
        _checks.require(self.key is not None, "method.key", self.key, "drawn for the run")
        push = transforms.perturb_when_small(
            self.key,  # type: ignore[arg-type]
            self.threshold,
            self.stddev,
            self.wait,
        )
        steps = optax.chain(push, *_steps_of(self.step_size, domain))
        return Chain(steps, lambda opt_state, params: params)


@pytree
class PulledSteps:
    """Proximal steps of a pull to the start, 4/(λ(t + 1)) long, within a distance of it (``prox_step``).

    What is minimized is the objective plus (λ/2)·‖w - start‖². The average of the points before the steps, of
    weights t + 4, is reported.

    Attributes:
        strength: λ.
        radius: r, no point is farther from the start.
    """

    strength: Number
    radius: Number

    def on(self, domain: Domain, num_steps: Any) -> Chain:
        """The chain; ``ValueError`` if a number is not positive."""
        del num_steps
        steps = transforms.prox_step(self.strength, self.radius, domain)
        return Chain(steps, transforms.prox_step_eval_params)


@pytree
class O2nc:
    """Online learning in a ball (``transforms.o2nc``); the average of a block of points, which is drawn.

    Attributes:
        radius: D, which no move is longer than.
        step_size: η of the online learner.
        block_length: M, steps of a block; those after the last whole block are made in vain.
        key: what the block, and points between two moves, are drawn from; of each run its own.
    """

    draws = True

    radius: Number
    step_size: Number
    block_length: int = static()
    key: jax.Array | None = None

    def drawn(self, key: jax.Array, num_steps: int) -> "O2nc":
        """The method that draws by this key."""
        del num_steps
        return dataclasses.replace(self, key=key)

    def on(self, domain: Domain, num_steps: Any) -> Chain:
        """The chain; ``ValueError`` for a bounded domain, fewer steps than a block has, or no key."""
        _checks.require_instance("domain", domain, Domain)
        wanted = "unbounded: moves are not projected"
        _checks.require(np.isinf(domain.diameter), "domain.diameter", domain.diameter, wanted)
        length = _checks.require_integer("block_length", self.block_length, 1, num_steps)
        _checks.require(self.key is not None, "method.key", self.key, "drawn for the run")
        steps = transforms.o2nc(
            self.key,  # type: ignore[arg-type]
            self.radius,
            self.step_size,
            length,
            num_steps // length,
        )
        project = transforms.project(domain)
        return Chain(optax.chain(steps, project), transforms.o2nc_eval_params)


@pytree
class Optax:
    """Any optax transformation, projected onto the domain; an average of the points is reported.

    Attributes:
        transformation: takes the gradient of the whole objective, such as ``optax.adam(0.1)``. Static:
            another one is another program.
        averaging: ``"uniform"``, ``"polynomial"`` (towards the last points) or ``"last"``, for no average.
    """

    transformation: Any = static()
    averaging: str = static(default="last", choices=AVERAGING)

    def on(self, domain: Domain, num_steps: Any) -> Chain:
        """The chain for a domain; ``ValueError`` if the transformation is none."""
        del num_steps
        kind = optax.GradientTransformation
        _checks.require_instance("transformation", self.transformation, kind)
        return _averaged([self.transformation], self.averaging, domain)


def _steps_of(step_size: Any, domain: Domain) -> list[optax.GradientTransformation]:
    _checks.require_number("step_size", step_size, "a real number")
    _checks.require_instance("domain", domain, Domain)
    return [optax.scale(-step_size), transforms.project(domain)]


def _averaged(moves: list[optax.GradientTransformation], averaging: str, domain: Domain) -> Chain:
    """Moves, projected onto the domain, and what is reported of the points."""
    _checks.require_instance("domain", domain, Domain)
    steps, power = [*moves, transforms.project(domain)], _DECAY[averaging]
    if power is None:
        return Chain(optax.chain(*steps), lambda opt_state, params: params)
    return Chain(optax.chain(*steps, transforms.average(power)), transforms.average_eval_params)
