"""Private training of any loss with any optax optimizer: everything is said once, and every step is private.

What it computes: ``plan`` finds the noise of a run from its sizes. A step draws users, sums their clipped
gradients without forming them (``oracles.ghost``), adds noise, charges the ledger in the state, and lets the
optimizer do what it will with what was released.

Source: Abadi et al. 2016 (DP-SGD); the order of ``transforms.private_chain``.

Formal guarantee: everything in a state but its keys is (ε, δ)-DP under the plan's relation, for any data,
any start that does not depend on them, and any optimizer, which sees released values alone. A state that has
made all planned steps does not change any more.

Cost: about a gradient of the mean for each step; memory for ``chunk_size`` users at once.

Example:
    >>> import jax, jax.numpy as jnp, optax
    >>> from dpsco_jax import training
    >>> loss = lambda w, example: jnp.square(example["x"] @ w - example["y"])
    >>> x = jax.random.normal(jax.random.key(0), (1000, 3))
    >>> data = {"x": x, "y": x @ jnp.array([1.0, -1.0, 0.5])}
    >>> private = training.plan(
    ...     loss, epsilon=4.0, delta=1e-5, num_users=1000, batch_size=100, num_steps=50, clip_norm=1.0
    ... )
    >>> state = private.init(jax.random.key(1), jnp.zeros(3), optax.sgd(0.3))
    >>> data = private.prepare(data)
    >>> for _ in range(50):
    ...     state, metrics = private.step(state, data)
    >>> bool(jnp.abs(state.params - jnp.array([1.0, -1.0, 0.5])).max() < 0.5)
    True
    >>> 3.9 < private.spent(state) <= 4.0
    True
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation
from jaxtyping import Array, Int, Key

from dpsco_jax import _checks, privacy, transforms
from dpsco_jax._argument_kinds import Count, Flag, Function, Positive, checked
from dpsco_jax._pytrees import pytree, static
from dpsco_jax.geometry import clipping, domains
from dpsco_jax.oracles import Estimate, ghost, user_gradients
from dpsco_jax.privacy.releases import GaussianReleases, fixed_size, poisson
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _planning
from dpsco_jax.solvers.means import Sampling

__all__ = ["State", "Training", "plan", "stored"]


@pytree
class State:
    """Where a run is. A pytree: jit, scan and map over it, put it on a mesh, store it (``stored``).

    Attributes:
        optimizer: the optimizer that ``init`` was given.
        params: of the model.
        chain: the state of release and optimizer, with the ledger and the key of the noise.
        key: of the samples. As secret as the data, as is the one in ``chain``.
        steps: that have been made.
    """

    optimizer: Any = static()
    params: Any
    chain: Any
    key: Key[Array, ""]
    steps: Int[Array, ""]


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """How a model is trained privately; ``plan`` makes it, and finds the noise.

    Attributes:
        loss: ``loss(params, item)``, of one item.
        releases: sampling, noise multiplier, relation and number of steps, with ``certificate()``.
        clip_norm: to which a user's gradient is clipped; a number, or a tree of them.
        normalize: γ, where every gradient is scaled to the clip norm; ``None`` where only longer ones are.
        chunk_size: users who are held at once.
        trainable: which parameters are trained: booleans, a tree that is a prefix of the parameters.
    """

    loss: Callable[[Any, Any], Any]
    releases: GaussianReleases
    clip_norm: Any
    normalize: float | None
    chunk_size: int
    trainable: Any

    @property
    def num_steps(self) -> int:
        """Steps that are planned."""
        return self.releases.num_steps

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the sensitivity, which ``relation`` defines."""
        return float(self.releases.noise_multiplier)

    def init(self, key: Key[Array, ""], params: Any, optimizer: Any) -> State:
        """The state before the first step.

        Args:
            key: of samples and noise; secret, and used for nothing else.
            params: the start, any pytree of floating arrays. Must not depend on the private data; public
                pretraining is free.
            optimizer: any ``optax.GradientTransformation``; it sees released values and parameters.
        """
        _checks.require_key(key)
        noise_key, sample_key = jax.random.split(key)
        params = jax.tree.map(jnp.asarray, params)
        chain = self._chain(noise_key, optimizer).init(self._trained(params))
        return State(optimizer, params, chain, sample_key, jnp.zeros((), jnp.int32))

    def prepare(self, data: Any) -> UserData:
        """The data in the form that steps read where they are: once, for many calls of ``step``.

        A step that is given examples adds an axis to all of them, which takes the time of a copy; one that is
        given what this returns reads its sample alone.

        Args:
            data: see ``step``.

        Raises:
            ValueError: the data are of another number of users than planned.
        """
        if not isinstance(data, UserData):
            data = jax.tree.map(jnp.asarray, data)
            _checks.require_same_rows("data", data)
            data = UserData(jax.tree.map(lambda leaf: leaf[:, None], data))
        _planning.require_accounted(self.releases.population_size, data)
        return data

    def step(self, state: State, data: Any) -> tuple[State, dict[str, Array]]:
        """One step: a compiled, pure function of its arguments.

        Never go on twice from one state with other data or another plan: the two steps share sample and
        noise, and their difference has no noise.

        Args:
            state: of ``init``, or of the step before.
            data: of all users: a pytree of arrays ``[num_users, ...]``, one example each; or ``UserData``
                with items ``[num_users, items, ...]``, of which a user's gradient is the mean; or what
                ``prepare`` makes of either, once for all steps.

        Returns:
            The next state, and numbers that may be looked at: ``steps`` that have been made, and
            ``update_norm``, the length of the optimizer's update. After the last planned step the state is
            returned as it is.

        Raises:
            ValueError: the data are of another number of users; or the planned steps have been made, where
                that is known without waiting for the device.
        """
        made = state.steps
        known = isinstance(made, jax.Array) and not isinstance(made, jax.core.Tracer)
        if known and made.ndim == 0 and made.is_ready():  # type: ignore[attr-defined]
            wanted = f"below the planned {self.num_steps}: plan a longer run, with more noise"
            _checks.require(int(made) < self.num_steps, "state.steps", int(made), wanted)
        return _step(self, state, data)

    def run(self, state: State, data: Any, num_steps: int) -> tuple[State, dict[str, Array]]:
        """So many steps in one program; the numbers of ``step``, with a leading axis of steps."""
        count = _checks.require_integer("num_steps", num_steps, 1, self.num_steps)
        return _run(self, state, data, count)

    def sums(self, key: Key[Array, ""], params: Any, data: Any) -> Estimate:
        """The clipped sum of a sample, for a loop of your own: not private until it is released.

        ``optimizer.update(sums.gradient, opt_state, params, **sums.extra_args)`` releases it, with a chain
        that begins with ``transformation``. The key must be another one in every step.
        """
        users, clip = self.prepare(data), self.clip_norm
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), users.items)
        value = jax.eval_shape(self.loss, params, one)
        scalar = isinstance(value, jax.ShapeDtypeStruct) and value.shape == ()
        _checks.require(scalar, "loss", value, "a function whose value is one number for one item")
        trained = self._trained(params)
        objective = Objective(
            lambda some, item: self.loss(self._whole(params, some), item),
            math.inf,
            None,
            domains.whole_space(),
        )
        sampler = _planning.sampler(self.releases.scheme, self.releases.population_size)
        # A tree of bounds is none of the forms that know single gradients; numpy has no axes for it either.
        if self.normalize is None and jax.tree_util.treedef_is_leaf(jax.tree.structure(clip)):
            oracle, rows = user_gradients.clipped_sum_oracle(
                objective, users, trained, clip, sampler, self.chunk_size
            )
            return oracle(key, trained, rows)
        oracle = ghost.clipped_gradient_sum(
            objective, clip, sampler, self.chunk_size, self.normalize
        )
        return oracle(key, trained, users)

    def transformation(self, key: Key[Array, ""]) -> optax.GradientTransformationExtraArgs:
        """The release of ``sums``, with its ledger: the head of a chain. The key is that of the noise."""
        releases = self.releases
        aggregate = transforms.summed_contributions(
            self.clip_norm, releases.batch_size, releases.relation
        )
        return transforms.privatize(aggregate, key, releases.noise_multiplier, releases.scheme)

    def certificate(self, state: State | None = None) -> privacy.Certificate:
        """The (ε, δ) of all planned steps; of those that a state has made, if one is given. Host only.

        Where ledger and number of steps disagree, as in an edited state, the larger ε is returned; where the
        ledger is of another relation than the plan, that of the ledger, under its relation.

        Raises:
            ValueError: this is a batch of states, whose runs cost more together than each.
        """
        if state is None:
            return self.releases.certificate()
        _checks.require_instance("state", state, State)
        shape = np.shape(state.steps)
        _checks.require(shape == (), "state", f"a batch of {shape}", "that of a single run")
        made = _checks.require_integer("state.steps", int(state.steps), 0)
        delta = float(self.releases.delta)
        charged = privacy.privacy_spent(state.chain)
        if made:
            partly = dataclasses.replace(self.releases, num_steps=made)
            said = partly.loss()
            found = partly.certificate()
        else:
            said = privacy.zero()
            found = privacy.Certificate(0.0, delta, self.releases.relation, "nothing was released")
        same = zip(jax.tree.leaves(said), jax.tree.leaves(charged), strict=True)
        agree = all(np.allclose(one, other, rtol=1e-3, atol=1e-30) for one, other in same)
        by_ledger = privacy.state_certificate(state.chain, delta)
        # The same noise is half as many sensitivities where a user is replaced.
        if by_ledger.relation is not found.relation:
            return by_ledger
        if agree:
            return found
        return max(found, by_ledger, key=lambda one: one.epsilon)

    def spent(self, state: State) -> float:
        """ε of the steps that a state has made, at the planned δ: that of ``certificate(state)``."""
        return float(self.certificate(state).epsilon)

    def resume(self, saved: Any, params: Any, optimizer: Any) -> State:
        """The state that ``stored`` wrote; goes on at the same bits, at the same cost.

        Never go on twice from one state with other data: two steps would share their noise.

        Args:
            saved: what ``stored`` returned, in the same structure.
            params: parameters like the ones that were trained, for their structure.
            optimizer: the one that was given to ``init``.
        """
        like = jax.eval_shape(lambda: self.init(jax.random.key(0), params, optimizer))
        leaves, structure = jax.tree.flatten(like)
        found = jax.tree.leaves(saved)
        _checks.require(
            len(found) == len(leaves), "saved", f"{len(found)} arrays", f"{len(leaves)}"
        )
        return jax.tree.unflatten(structure, map(_restored, leaves, found))  # type: ignore[no-any-return]

    def __str__(self) -> str:
        sizes = self.releases
        quarters = dict.fromkeys(max(1, self.num_steps * q // 4) for q in (1, 2, 3, 4))
        spent = [
            (
                f"{steps} steps",
                f"{dataclasses.replace(sizes, num_steps=steps).certificate().epsilon:.4g}",
            )
            for steps in quarters
        ]
        certificate = self.certificate()
        rows = [
            ("users", sizes.population_size),
            ("batch", f"{sizes.batch_size} users, {sizes.sampling}"),
            (
                "steps",
                f"{self.num_steps}, {self.num_steps * sizes.batch_size / sizes.population_size:.4g} passes",
            ),
            ("clip norm", clipping.joint_bound(self.clip_norm)),
            ("noise multiplier", f"{self.noise_multiplier:.5g}"),
            ("noise of the mean", f"{self.noise_stddev:.4g} on each parameter"),
            ("epsilon after", ", ".join(f"{steps}: {value}" for steps, value in spent)),
            ("certificate", ",".join(str(certificate).split("\n"))),
        ]
        return "\n".join(["private training", *(f"  {name:<17}  {value}" for name, value in rows)])

    @property
    def noise_stddev(self) -> float:
        """σ of the noise on each parameter of the mean gradient."""
        replaced = self.releases.relation == NeighboringRelation.REPLACE_ONE
        bound = float(clipping.joint_bound(self.clip_norm)) * (2 if replaced else 1)
        return self.noise_multiplier * bound / self.releases.batch_size

    def _chain(self, key: Key[Array, ""], optimizer: Any) -> Any:
        return transforms.private_chain(None, self.transformation(key), optimizer)

    def _trained(self, params: Any) -> Any:
        """The parameters without those that are not trained."""
        return jax.tree.map(lambda flag, part: part if flag else None, self.trainable, params)

    def _whole(self, params: Any, trained: Any) -> Any:
        return jax.tree.map(
            lambda flag, old, new: new if flag else old, self.trainable, params, trained
        )

    def _advanced(self, state: State, data: Any) -> tuple[State, dict[str, Array]]:
        def advance(state: State) -> tuple[State, Array]:
            # Split, not folded with a number that may be set back: no draw is ever looked at twice.
            sample_key, key = jax.random.split(state.key)
            sums = self.sums(key, state.params, data)
            # The key of the noise is in the state; this one only makes the functions.
            chain = self._chain(jax.random.key(0), state.optimizer)
            trained = self._trained(state.params)
            updates, chain_state = chain.update(
                sums.gradient, state.chain, trained, **sums.extra_args
            )
            params = self._whole(state.params, optax.apply_updates(trained, updates))
            made = dataclasses.replace(
                state,
                params=params,
                chain=jax.tree.map(_as_wide, chain_state, state.chain),
                key=sample_key,
                steps=state.steps + 1,
            )
            return made, optax.tree.norm(updates).astype(jnp.float32)

        def stay(state: State) -> tuple[State, Array]:
            return state, jnp.zeros((), jnp.float32)

        state, length = jax.lax.cond(state.steps < self.num_steps, advance, stay, state)
        return state, {"steps": state.steps, "update_norm": length}


@functools.partial(jax.jit, static_argnums=0)
def _step(training: Training, state: State, data: Any) -> tuple[State, dict[str, Array]]:
    return training._advanced(state, data)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _run(
    training: Training, state: State, data: Any, num_steps: int
) -> tuple[State, dict[str, Array]]:
    return jax.lax.scan(
        lambda state, _: training._advanced(state, data), state, None, length=num_steps
    )


@checked
def plan(
    loss: Function,
    *,
    num_users: Count,
    batch_size: Count,
    num_steps: Count,
    clip_norm: Any,
    delta: float,
    epsilon: Positive | None = None,
    noise_multiplier: Positive | None = None,
    sampling: Sampling = "poisson",
    relation: NeighboringRelation | None = None,
    normalize: Positive | None = None,
    chunk_size: Count = 64,
    trainable: Any = True,
    allow_large_delta: Flag = False,
) -> Training:
    """Checks all arguments and finds the least noise that keeps (ε, δ). All arguments are public.

    Args:
        loss: ``loss(params, item)``, a scalar, of one item (an example without a leading axis). What it
            closes over is taken to be public, and a batching rule of its own (``jax.custom_batching``) to
            keep items apart.
        num_users: N; a user is one index of the data's leading axis, with one example or many.
        batch_size: users of a step, in [1, N]: the expected number under Poisson sampling.
        num_steps: of the whole run. Fewer may be made, and are paid for.
        clip_norm: bound on the joint Euclidean norm of a user's gradient, above 0; or a tree of bounds that
            is a prefix of the parameters, one for each layer.
        delta: δ in (0, 1/N).
        epsilon: ε of the whole run; or give ``noise_multiplier``.
        noise_multiplier: standard deviation of the noise over the sensitivity, in place of ε.
        sampling: ``"poisson"``: each user by itself with probability batch_size/N; ``"fixed"``: so many
            without replacement; ``"full"``: all.
        relation: ADD_OR_REMOVE_ONE (if left out), REPLACE_ONE or REPLACE_SPECIAL under Poisson sampling;
            REPLACE_ONE, left out or not, else.
        normalize: γ: gradients are scaled to C·g/(‖g‖ + γ) whatever their norm ("automatic clipping").
        chunk_size: users whose activations are held at once; more are accumulated.
        trainable: which parameters are trained: True, or a tree of booleans that is a prefix of them.
        allow_large_delta: whether δ may be 1/N or more.

    Raises:
        ValueError: an argument is out of range, or of ε and noise multiplier not exactly one is given.
    """
    either = (epsilon is None) != (noise_multiplier is None)
    both = (epsilon, noise_multiplier)
    _checks.require(either, "epsilon, noise_multiplier", both, "one of the two, and not the other")
    delta = _checks.require_real("delta", delta, 0.0, 1.0)
    budget = privacy.Budget(epsilon or 1.0, delta, allow_large_delta=allow_large_delta)
    budget.require_for(num_users)
    _checks.require_integer("batch_size", batch_size, 1, num_users)
    whole = sampling != "full" or batch_size == num_users
    _checks.require(
        whole, "batch_size", batch_size, f"{num_users}, the number of users, for 'full'"
    )
    clipping.joint_bound(clip_norm)  # refuses what is no bound
    flags = jax.tree.leaves(trainable)
    good = bool(flags) and all(isinstance(flag, bool) for flag in flags) and any(flags)
    _checks.require(good, "trainable", trainable, "True, or a tree of booleans, one of them True")
    if sampling == "poisson":
        relation = NeighboringRelation.ADD_OR_REMOVE_ONE if relation is None else relation
        steps = poisson(num_users, batch_size, num_steps, relation)
    else:
        steps = fixed_size(num_users, batch_size, num_steps)
        good = relation is None or relation is steps.relation
        _checks.require(good, "relation", relation, f"REPLACE_ONE for sampling={sampling!r}")
    if noise_multiplier is None:
        noise_multiplier = steps.noise_multiplier(budget.epsilon, delta, "pld")
    releases = GaussianReleases(
        num_users,
        batch_size,
        num_steps,
        "poisson" if sampling == "poisson" else "fixed",
        noise_multiplier,
        delta,
        **({"poisson_relation": steps.relation} if sampling == "poisson" else {}),
    )
    return Training(loss, releases, clip_norm, normalize, chunk_size, trainable)


def stored(state: State) -> dict[str, np.ndarray]:
    """The state as plain arrays by number, for any checkpoint format; ``Training.resume`` reads them.

    Keep them as secret as the data: whoever has the keys can take the noise off.
    """
    _checks.require_instance("state", state, State)
    leaves = jax.tree.leaves(state)
    plain = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in leaves]
    return {f"{i:05d}": np.asarray(leaf) for i, leaf in enumerate(plain)}


def _as_wide(new: Any, old: Any) -> Any:
    """Released values are float32 and may be wider than what an optimizer began with."""
    new = jnp.asarray(new)
    return new if new.dtype == old.dtype else new.astype(old.dtype)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _restored(like: Any, saved: Any) -> Array:
    saved = np.asarray(saved)
    if _is_key(like):
        width = jax.random.key_data(jax.random.key(0)).shape
        wanted = f"{width}: key data of another implementation; set jax_default_prng_impl to it"
        _checks.require(saved.shape == width, "saved", saved.shape, wanted)
        found = jax.random.wrap_key_data(jnp.asarray(saved))
    else:
        # Files of numpy know narrow floats as so many bytes.
        void = saved.dtype.kind == "V" and saved.dtype.itemsize == like.dtype.itemsize
        found = jnp.asarray(saved.view(like.dtype) if void else saved)
    same = found.shape == like.shape and found.dtype == like.dtype
    wanted = f"an array {like.dtype}{list(like.shape)}, as the state has"
    _checks.require(same, "saved", f"{found.dtype}{list(found.shape)}", wanted)
    return found
