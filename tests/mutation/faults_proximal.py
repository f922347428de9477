"""Faults of the proximal sampler: its oracle, its numbers, its plan. Written down before any was run."""

from tests.mutation import Fault

_ORACLE = ("tests/solvers/test_proximal_oracle.py",)
_ROUNDING = ("tests/solvers/test_proximal_rounding.py",)
_PLAN = ("tests/solvers/test_regularized.py",)
_ROWS = ("tests/solvers/test_sampling_rows.py",)
_FILE = "solvers/sampling/proximal_oracle.py"
_NUMBERS = "solvers/sampling/proximal_oracle.py"
_SHARED = "solvers/sampling/_draw.py"
_SOLVER = "solvers/sampling/regularized.py"

FAULTS = (
    Fault("sampler: G in place of 2G in what is accounted", _SOLVER, "change = 2.0 * self.setting.lipschitz", "change = 1.0 * self.setting.lipschitz", _PLAN),
    Fault("sampler: G in place of 2G in what is planned", _SOLVER, "change = 2.0 * setting.lipschitz", "change = 1.0 * setting.lipschitz", _PLAN),
    Fault("sampler: the distance from the ideal law costs nothing in the loss", _SHARED, "xp.where(good, tau, 0.0)", "xp.where(good, 0.0 * tau, 0.0)", _PLAN),
    Fault("sampler: the distance from the ideal law is not in the certificate", _SHARED, "(float(s), float(tau)) if good", "(float(s), 0.0) if good", _PLAN),
    Fault("sampler: the ridge counts twice", _SOLVER, "convexity = self.regularization + self.ridge", "convexity = self.regularization + 2 * self.ridge", _PLAN),
    Fault("sampler: the sign of the remainder", _FILE, "jnp.exp(-exponent)", "jnp.exp(exponent)", _ORACLE),
    Fault("sampler: proposal and test have one key", _FILE, "normal_key, uniform_key = jax.random.split(key)", "normal_key, uniform_key = (jax.random.split(key)[0],) * 2", _ORACLE),
    Fault("sampler: the proposal forgets the regularization", _FILE, "to_noised / eta - made.convexity * anchor", "to_noised / eta - 0.0 * anchor", _ORACLE),
    Fault("sampler: twice the step that was certified", _FILE, "eta, precision = made.step_size", "eta, precision = 2.0 * made.step_size", _ORACLE),
    Fault("sampler: anchors are not moved", _FILE, "return (far | all_gradients) &", "return jnp.asarray(all_gradients) & far &", _ORACLE),
    Fault("sampler: anchors are not on the grid", _FILE, "_rows.on_grid(anchor * inside, made.anchor_unit)", "anchor * inside", _ROUNDING),
    Fault("sampler: a point leaves with the digits of its offset", _FILE, "return base + _rows.on_grid(rest, made.release_unit)", "return base + rest", ("tests/solvers/test_regularized_mended.py",)),
    Fault("sampler: margins of the centre are not on the grid", _FILE, "center_margins = _rows.on_grid(_rows.margins(rows, center), unit)", "center_margins = _rows.margins(rows, center)", _ROUNDING),
    Fault("sampler: the factor k is lost in the test", _FILE, "_exact_sum((k / n) * (rows.weights", "_exact_sum((0.9 * k / n) * (rows.weights", _ORACLE),
    Fault("sampler: weights are lost in the test", _FILE, "(rows.weights * remainders)", "(jnp.sqrt(rows.weights) * remainders)", ("tests/solvers/test_proximal_oracle.py::test_draws_are_those_of_the_mean_over_users_of_their_means",)),
    Fault("sampler: the offset is not moved with the anchor", _FILE, "offset = state.offset - (anchor - state.anchor)", "offset = state.offset", _ORACLE),
    Fault("sampler: what is left to y is not moved with the anchor", _FILE, "left = to_noised - (anchor - state.anchor)", "left = to_noised", _ORACLE),
    Fault("sampler: acceptance is claimed twice as well", _NUMBERS, "acceptance = xp.exp(-0.5 * c", "acceptance = xp.exp(-0.25 * c", _ORACLE),
    Fault("sampler: rounding costs nothing", _NUMBERS, "rounding = _UNIT * (steps", "rounding = 0.0 * _UNIT * (steps", _PLAN),
    Fault("sampler: one gradient for an anchor", _NUMBERS, "most_gradients = 2.0 + xp.ceil(xp.log(ratio) / xp.log1p(2.0 / c))", "most_gradients = 2.0 + 0.0 * ratio", _ORACLE),
    Fault("sampler: the start is taken to be the mode", _NUMBERS, "start = slope / mu + xp.sqrt(dim / m)", "start = xp.sqrt(dim / m)", _PLAN),
    Fault("sampler: two steps more are counted than are made", "solvers/sampling/chain_lengths.py", "left_after(1.0,", "left_after(-1.0,", _PLAN),
    Fault("sampler: a trial that failed is taken", "solvers/sampling/alternating_sampler.py", "state = _choose(counted, proposed, state)", "state = _choose(counted | True, proposed, state)", ("tests/solvers/test_alternating_sampler.py",)),
    Fault("sampler: a trial counts as a step", "solvers/sampling/alternating_sampler.py", "return state, accepted + counted,", "return state, accepted + 1,", _PLAN),
    Fault("sampler: the regularizer is off centre", _SOLVER, "center = jnp.asarray(params, jnp.float64).ravel() * (", "center = 0.0 * jnp.asarray(params, jnp.float64).ravel() * (", _PLAN),
    Fault("sampler: the ridge moves no centre", _SOLVER, "(plan.regularization / convexity)", "1.0", _PLAN),
    Fault("sampler: realized trials are the gradients", _SOLVER, "jnp.asarray(plan.user_gradients, jnp.int64) * slots", "end.num_trials.astype(jnp.int64) * slots", _PLAN),
    Fault("sampler: any start will do", _SHARED, "privacy.unbounded_unless(near, plan.loss())", "plan.loss()", _PLAN),
    Fault("sampler: more items than planned will do", _SHARED, "_checks.require(slots <= most", "_checks.require(slots <= 9 * most", _PLAN),
    Fault("sampler rows: every item is a user", "solvers/sampling/_rows.py", "weights=jnp.where(there, 1.0 / counts[:, None], 0.0)", "weights=jnp.where(there, 1.0 + 0.0 * counts[:, None], 0.0)", _ROWS),
    Fault("sampler rows: masked items count", "solvers/sampling/_rows.py", "there = mask & jnp.isfinite(labels)", "there = jnp.isfinite(labels)", _ROWS),
    Fault("sampler rows: entries are rounded away from zero", "solvers/sampling/_rows.py", "return jnp.trunc(bounded * (1.0 - 2.0**-40) / unit) * unit, None", "return jnp.sign(bounded) * jnp.ceil(jnp.abs(bounded) / unit) * unit, None", _ROWS),
    Fault("sampler rows: features have no bound", "solvers/sampling/_rows.py", "bounded_row(row, model.feature_bound)", "bounded_row(row, 10 * model.feature_bound)", _ROWS),
    Fault("remainder: the derivative is taken twice", "problems/_remainders.py", "by_values = jax.nn.softplus(low + t) - jax.nn.softplus(low) - slope * t", "by_values = jax.nn.softplus(low + t) - jax.nn.softplus(low) - 2 * slope * t", ("tests/problems/test_remainders.py",)),
    Fault("remainder: three terms that cancel", "problems/_remainders.py", "small = jnp.abs(t) < _SMALL", "small = jnp.abs(t) < 0.0", ("tests/problems/test_remainders.py",)),
    Fault("remainder: a ramp rises from where it is flat", "problems/_remainders.py", "flat = jnp.maximum(jnp.where(upward, low - margin, margin - high), 0.0)", "flat = jnp.zeros_like(margin + change)", ("tests/problems/test_remainders.py",)),
)  # fmt: skip
