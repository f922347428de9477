"""Faults in noisy gradient descent that releases its last point: sensitivity, contraction, noise, average.

Written down before any of them was run.
"""

from tests.mutation import Fault, rows

_SOLVER = ("tests/solvers/test_langevin.py", "tests/solvers/test_langevin_proofs.py")
_ROW = rows("langevin")
_TRACED = ("tests/privacy/test_traced_iteration.py",)
_RUN = "solvers/item_level/langevin.py"
_STEPS = "solvers/_schedules/langevin.py"
_LOOP = "mechanisms/noisy_iteration.py"
_END = "return jax.lax.fori_loop(0, num_steps, step, jax.tree.map(jnp.asarray, params))"
_AVERAGE = (
    "return jax.tree.map(lambda points: points.mean(0), jax.lax.scan(lambda x, t: (step(t, x),) * 2, "
    "jax.tree.map(jnp.asarray, params), jnp.arange(num_steps))[1])"
)

FAULTS = (
    Fault("last point: G for 2G", "problems/_proofs.py", "twice = 2.0 * self.lipschitz", "twice = self.lipschitz", (*_SOLVER, *_ROW)),
    Fault("last point: gradients are near each other farther out too", "problems/losses.py", "np.exp(-radius * np.maximum", "np.exp(-0.5 * radius * np.maximum", ("tests/problems/test_gaps.py",)),
    Fault("last point: the start counts as the origin", _RUN, "own.gap + 2.0 * own.smoothness * far", "own.gap + 0.0 * far", _SOLVER),
    Fault("last point: points go farther than the sensitivity knows", _RUN, "near.project(objective.domain.project(point))", "objective.domain.project(point)", _SOLVER),
    Fault("last point: points leave the domain", _RUN, "near.project(objective.domain.project(point))", "near.project(point)", (*_ROW, *_SOLVER)),
    Fault("last point: the regularizer is off centre", _RUN, "plan.regularization * (w - origin)", "plan.regularization * w", _SOLVER),
    Fault("last point: the step is doubled after it was certified", _RUN, "-plan.step_size * slope", "-2.0 * plan.step_size * slope", (*_ROW, *_SOLVER)),
    Fault("last point: the average is released", _LOOP, _END, _AVERAGE, ('tests/solvers/test_langevin.py::test_on_linear_losses_the_last_point_is_as_private_as_is_said_and_no_more', *_SOLVER)),
    Fault("last point: one key for all steps", _LOOP, "_keys.of_part(key, t)", "_keys.of_part(key, 0)", ("tests/mechanisms/test_noisy_iteration.py", *_ROW)),
    Fault("last point: noise of half the size", _LOOP, "stddev = jnp.asarray(noise_multiplier, float)", "stddev = 0.5 * jnp.asarray(noise_multiplier, float)", (*_ROW, "tests/mechanisms/test_noisy_iteration.py")),
    Fault("last point: steps shrink distances twice as fast", _STEPS, "slow / _OWN_ROUNDING", "2.0 * slow", (*_SOLVER, *_ROW)),
    Fault("last point: however long steps are, they contract", _STEPS, "xp.minimum(slow / _OWN_ROUNDING, 2.0 - fast * _OWN_ROUNDING)", "slow / _OWN_ROUNDING", _SOLVER),
    Fault("last point: the loss itself counts as strongly convex", _RUN, "own.smoothness, own.ridge + self.regularization", "own.smoothness, 0.5 * own.smoothness + own.ridge + self.regularization", (*_SOLVER, *_ROW)),
    Fault("last point: gradients are clipped", _RUN, "_CLIP_ROOM = 1.0 + 2.0**-12", "_CLIP_ROOM = 0.5", _SOLVER),
    Fault("last point: losses are taken that are Lipschitz on their domain alone", "problems/_proofs.py", "if not (proof.everywhere and objective.globally_convex_lipschitz):", "if False:", _SOLVER),
    Fault("last point: whatever the objective is, it runs", _RUN, "if found != plan.proven_for:", "if False:", _SOLVER),
    Fault("last point: one user more than there are", _RUN, "gap / self.num_users", "gap / (self.num_users + 1)", (*_ROW, *_SOLVER)),
    Fault("last point: a negative regularization is accounted", _RUN, "good = good & (added >= 0) & (added < math.inf)", "good = good & (added < math.inf)", _SOLVER),
    Fault("last point: no room for float32 sums", _RUN, "(_BLOCKS, _MARGINS) if", "(0.0, 0.0) if", _SOLVER),
    Fault("traced iteration: the limit of long runs, at all lengths", "privacy/iteration.py", "-xp.expm1(log_power) / (2.0 + xp.expm1(log_power))", "xp.ones_like(log_power)", _TRACED),
    Fault("traced iteration: noise of all steps adds up undamped", "privacy/iteration.py", "met * (2.0 - share) / share", "met / share", _TRACED),
    Fault("traced iteration: maps that expand are accounted", "privacy/iteration.py", "valid = valid & (q >= 0) & (q <= 1) & (sigma > 0)", "valid = valid & (sigma > 0)", _TRACED),
)  # fmt: skip
