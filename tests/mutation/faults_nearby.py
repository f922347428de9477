"""Faults next to those that no test noticed at first: written down when these were mended, before any run.

Keys that serve two purposes, divergences that are not added up or multiplied, tests that are free in the
exact accounts as well, and the other clip of single users.
"""

from tests.mutation import Fault, rows

_LOSS = ("tests/privacy/test_loss.py",)
_PHASE = ("tests/privacy/test_threshold_phase.py",)
_TESTED = (
    *rows("multipass_sgd, tested"),
    "tests/transforms/test_outlier_removed_mean.py",
)
_ROWS = (
    "objective, data, start, self.clip_norm, sampler, self.chunk_size, _inner(self)\n"
    "        )\n        aggregate"
)

FAULTS = (
    Fault("clipped mean: everybody, whoever was drawn", "solvers/means.py", "objective, shapes, start, clip, sampler, chunk, radius", "objective, shapes, start, clip, None, chunk, radius", rows("private_ac_sa, sampled", "accelerated_sgd, clipped")),
    Fault("clipped mean: rows are clipped to twice the norm", "solvers/means.py", "objective, shapes, start, clip, sampler, chunk, radius", "objective, shapes, start, 2 * clip, sampler, chunk, radius", rows("private_ac_sa, sampled", "accelerated_sgd, clipped")),
    Fault("preconditioned SGD: moments and gradients have one key", "solvers/user_level/preconditioned_sgd.py", "moments_key, noise_key, oracle_key = jax.random.split(key, 3)", "moments_key, noise_key, oracle_key = (key,) * 3", rows("preconditioned_sgd")),
    Fault("ReSQue: users are drawn with the key of the noise", "solvers/resque/_calls.py", "users_key, shifts_key, noise_key = jax.random.split(key, 3)", "users_key, shifts_key, noise_key = (jax.random.split(key, 3)[0],) * 3", rows("resque_erm")),
    Fault("ReSQue: runs have one key", "solvers/resque/resque_erm_high_probability.py", "jax.random.split(key, self.num_runs)", "jax.random.split(key, 1).repeat(self.num_runs)", rows("resque_erm_high_probability")),
    Fault("parts in programs of their own have one key", "solvers/_sequence.py", "solver(_keys.of_part(key, i), part, objective, block(data)", "solver(jax.random.fold_in(key, 0), part, objective, block(data)", ("tests/solvers/test_sequence.py",)),
    Fault("phased SGD: phases have one key", "solvers/_sequence.py", "solver(_keys.of_part(key, i), part, objective, rows", "solver(jax.random.fold_in(key, 0), part, objective, rows", rows("phased_sgd, clipped")),
    Fault("accelerated phased ERM: turns have one key", "solvers/_sequence.py", "solver(_keys.of_part(key, i), part, objective, rows", "solver(jax.random.fold_in(key, 0), part, objective, rows", rows("accelerated_phased_erm, tested")),
    Fault("phased ERM: phases have one key", "solvers/_sequence.py", "solver(_keys.of_part(key, i), part, objective, rows", "solver(jax.random.fold_in(key, 0), part, objective, rows", rows("phased_erm")),
    Fault("tested means: test and noise have one key", "transforms/outlier_removed_mean.py", "key, test_key, select_key, noise_key = jax.random.split(state.key, 4)", "key, test_key, select_key, noise_key = jax.random.split(state.key, 4)[jnp.array([0, 1, 1, 1])]", _TESTED),
    Fault("selections: candidates have one key", "mechanisms/private_selection.py", "jax.random.split(jax.random.fold_in(draw_key, step))", "jax.random.split(jax.random.fold_in(draw_key, 0))", (*rows("finite_class, plain"), "tests/mechanisms/test_private_selection.py")),
    Fault("winsorized: coordinates have one key", "mechanisms/winsorized/winsorized_mean.py", "jax.random.fold_in(of_run, index)", "jax.random.fold_in(of_run, 0)", (*rows("winsorized_erm, winsorized"), "tests/mechanisms/test_winsorized_mean.py")),
    Fault("repetition does not multiply divergences", "privacy/loss.py", "rdp=xp.where(none, 0.0, rdp * xp.where(none, 1.0, times[..., None])),", "rdp=xp.where(none, 0.0, rdp),", _LOSS),
    Fault("parallel losses: the first counts", "privacy/loss.py", "PrivacyLoss(xp.maximum(total.rdp, loss.rdp), xp.maximum(total.delta, loss.delta))", "total", _LOSS),
    Fault("exact account of tested means: tests are free", "privacy/concentrated/_accounting.py", "return [(pairs.approximate_dp(e1, 0.0), responses), (step, steps)]", "return [(step, steps)]", _PHASE),
    Fault("exact account of tested means: fresh tests cost one", "privacy/concentrated/_accounting.py", 'responses = 1 if phase.test == "stream" else steps', "responses = 1", _PHASE),
    Fault("exact account of tested means: sampled tests are free", "privacy/concentrated/_accounting.py", 'tested = step if phase.test == "stream" else with_response(step, e1)', "tested = step", _PHASE),
    Fault("linear models: rows of users are clipped to twice the norm", "oracles/linear_users.py", "HEAD_ROOM * clip_norm / (entry * unit)", "2 * HEAD_ROOM * clip_norm / (entry * unit)", ("tests/oracles/test_linear_users.py",)),
)  # fmt: skip
