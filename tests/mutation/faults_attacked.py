"""More faults of the proximal sampler, by one who did not write it. Written down before any was run."""

from tests.mutation import Fault

_ORACLE = ("tests/solvers/test_proximal_oracle.py",)
_ROUNDING = ("tests/solvers/test_proximal_rounding.py", "tests/solvers/test_proximal_oracle.py")
_PLAN = ("tests/solvers/test_regularized.py",)
_NEW = ("tests/solvers/test_regularized_attacked.py",)
_ROWS = ("tests/solvers/test_sampling_rows.py", "tests/solvers/test_proximal_rounding.py")
_ENVELOPES = ("tests/problems/test_envelopes.py",)
_REMAINDERS = ("tests/problems/test_remainders.py",)
_FILE = "solvers/sampling/proximal_oracle.py"
_NUMBERS = "solvers/sampling/proximal_oracle.py"
_SHARED = "solvers/sampling/_draw.py"
_SOLVER = "solvers/sampling/regularized.py"
_CHAIN = "solvers/sampling/alternating_sampler.py"
_LENGTHS = "solvers/sampling/chain_lengths.py"
_GRID = "solvers/sampling/_rows.py"
_BENT = "problems/envelopes.py"
_LEFT = "problems/_remainders.py"

FAULTS = (
    Fault("attacked: margins of the centre are forgotten", _FILE, "found = center_margins + _rows.margins", "found = 0.0 * center_margins + _rows.margins", _ORACLE),
    Fault("attacked: one user more in the mean gradient", _FILE, "return found, (parts[0] + parts[1]) / n", "return found, (parts[0] + parts[1]) / (n + 1)", _ORACLE),
    Fault("attacked: the rests of coefficients are lost", _FILE, "return found, (parts[0] + parts[1]) / n", "return found, parts[0] / n", _ROUNDING),
    Fault("attacked: half of the variance of y", _FILE, "to_noised = state.offset + jnp.sqrt(eta)", "to_noised = state.offset + jnp.sqrt(0.5 * eta)", _ORACLE),
    Fault("attacked: a proposal is a little narrow", _FILE, "step = deviation * jax.random.normal", "step = 0.97 * deviation * jax.random.normal", _ORACLE),
    Fault("attacked: long offsets are refused early", _FILE, "near = jnp.linalg.norm(offset) < LONGEST_OFFSET * deviation", "near = jnp.linalg.norm(offset) < 2.5 * deviation", _ORACLE),
    Fault("attacked: the rest of the offset is lost in the test", _FILE, "changes = _rows.margins(rows, large) + _rows.margins(rows, offset - large)", "changes = _rows.margins(rows, large)", _ROUNDING),
    Fault("attacked: the remainder is taken at the centre", _FILE, "remainder(state.margins, rows.labels, changes)", "remainder(center_margins, rows.labels, changes)", _ORACLE),
    Fault("attacked: anchors go as far as they like", _FILE, "inside = jnp.minimum(1.0, made.reach", "inside = jnp.minimum(1e9, 1e99 * made.reach", _ROUNDING),
    Fault("attacked: anchors are four times as far as is proven", _FILE, "> TOLERANCE * deviation", "> 4.0 * TOLERANCE * deviation", _ORACLE),
    Fault("attacked: gradients of the last step alone are counted", _FILE, "state.evaluations + count)", "count)", _PLAN + _NEW),
    Fault("attacked: constant time stops where it is near", _FILE, "return (far | all_gradients) &", "return far &", _PLAN + _NEW),
    Fault("attacked: terms of the test are on a coarse grid", _FILE, "2.0**-43", "2.0**-20", _NEW),
    Fault("attacked: anchors on a grid sixteen times as coarse", _NUMBERS, "width = xp.sqrt(eta / dim) / (16.0 *", "width = xp.sqrt(eta / dim) / (1.0 *", _ORACLE + _NEW),
    Fault("attacked: the ball does not hold the minimizer", _NUMBERS, "reach = slope / mu + spread", "reach = spread", _ORACLE + _NEW),
    Fault("attacked: going too far costs nothing", _NUMBERS, "variation=Variation(mixing, capped, far, rounding)", "variation=Variation(mixing, capped, 0.0 * far, rounding)", _PLAN + _NEW),
    Fault("attacked: a tenth more trials are counted than are made", _NUMBERS, "trials_variation(steps, trials, acceptance)", "trials_variation(steps, 1.1 * trials, acceptance)", _PLAN),
    Fault("attacked: anchors are taken to be exact in the acceptance", _NUMBERS, "acceptance = xp.exp(-0.5 * c * (1.0 + TOLERANCE**2))", "acceptance = xp.exp(-0.5 * c * 1.0)", _ORACLE + _NEW),
    Fault("attacked: points beyond the grids are taken to be exact", _NUMBERS, "fits = units <= 2.0 ** (_rows.SIGNIFICAND_BITS - 1)", "fits = units <= 2.0 ** (_rows.SIGNIFICAND_BITS + 9)", _PLAN + _NEW),
    Fault("attacked: any number of parameters", _NUMBERS, "(dim <= MOST_PARAMETERS) & (log_rows", "(log_rows", _PLAN + _NEW),
    Fault("attacked: the pull of the centre is not rounded", _NUMBERS, "+ 5.0 * rho + 4.0", "+ 0.0 * rho + 4.0", _PLAN + _NEW),
    Fault("attacked: sums over many rows are not rounded", _NUMBERS, "(13.0 + 0.5 * summed) * kappa", "13.0 * kappa", _PLAN + _NEW),
    Fault("attacked: errors of the test are not divided by the acceptance", _NUMBERS, "(tilt + tested / acceptance)", "(tilt + tested)", _PLAN + _NEW),
    Fault("attacked: offsets on a grid too fine for exact margins", _NUMBERS, "offset_unit=_rows.power_below(deviation * 2.0**-22)", "offset_unit=_rows.power_below(deviation * 2.0**-36)", _ROUNDING + _NEW),
    Fault("attacked: coefficients on a grid too fine for exact sums", _GRID, "bits = SIGNIFICAND_BITS - FEATURE_BITS -", "bits = 6 + SIGNIFICAND_BITS - FEATURE_BITS -", _ROWS),
    Fault("attacked: one-hot rows a hair too long", _GRID, "float(np.trunc(entry * (1.0 - 2.0**-40) / unit) * unit)", "float(np.ceil(entry * (1.0 + 2.0**-40) / unit) * unit)", _ROWS),
    Fault("attacked: NaN is a label", _GRID, "labels=jnp.where(there, labels, 0.0).ravel()", "labels=labels.ravel()", _ROWS),
    Fault("attacked: negative regularization is accounted where a ridge hides it", _SOLVER, "self.numbers.valid & (self.regularization >= 0)", "self.numbers.valid", _PLAN + _NEW),
    Fault("attacked: the loss does not ask whether it is proven", _SHARED, "good = (good > 0) & (s < xp.inf)", "good = (s < xp.inf)", _NEW),
    Fault("attacked: the certificate does not ask whether it is proven", _SHARED, "good = bool(np.asarray(self.accounted & (s < np.inf) & (tau < 1.0)))\n        good = good and bool(np.any(np.isfinite(self.loss().rdp)))", "good = bool(np.isfinite(s))", _NEW),
    Fault("attacked: trials are no passes", _SOLVER, "self.numbers.most_gradients + self.num_trials", "self.numbers.most_gradients", _PLAN + _NEW),
    Fault("attacked: another ridge than planned will do", _SOLVER, "if found != setting or float(objective.ridge) != plan.ridge:", "if found != setting:", _PLAN + _NEW),
    Fault("attacked: constant time for the loop alone", _SOLVER, "all_gradients=plan.constant_time", "all_gradients=False", _PLAN + _NEW),
    Fault("attacked: constant time for the gradients alone", _SHARED, "constant_time=plan.constant_time", "constant_time=False", _PLAN + _NEW),
    Fault("attacked: a run is reckoned in single precision", _SHARED, "jnp.asarray(leaf, jnp.float64), plan)", "jnp.asarray(leaf, jnp.float32), plan)", _PLAN + _NEW),
    Fault("attacked: what an envelope hides is free", _SOLVER, "gap = envelopes.envelope_gap(objective, smoothing)", "gap = 0.0", _PLAN),
    Fault("attacked: every trial has the same key", _CHAIN, "jax.random.fold_in(rest, i)", "jax.random.fold_in(rest, 0 * i)", _ORACLE),
    Fault("attacked: every move to y has the same key", _CHAIN, "oracle.diffuse(jax.random.wrap_key_data(words, impl=jax.random.key_impl(key)), held)", "oracle.diffuse(first, held)", _ORACLE),
    Fault("attacked: Chernoff twice over", _LENGTHS, "xp.exp(-trials * xp.maximum", "xp.exp(-2.0 * trials * xp.maximum", _PLAN),
    Fault("attacked: a start half as far away", _LENGTHS, "xp.log(2.0 * xp.sqrt(eta))", "xp.log(4.0 * xp.sqrt(eta))", _PLAN),
    Fault("attacked: an envelope that is too low", _BENT, "return g * r - 0.5 * smoothing * g * g", "return g * r - smoothing * g * g", _ENVELOPES),
    Fault("attacked: half of what an envelope hides", _BENT, "return 0.5 * smoothing * _kink", "return 0.25 * smoothing * _kink", _ENVELOPES),
    Fault("attacked: the remainder of an envelope is that of its multiple", _BENT, "return bent / smoothing", "return bent", _ENVELOPES),
    Fault("attacked: the kink is at zero", _BENT, "_remainders.ramp(m - place, change", "_remainders.ramp(m, change", _ENVELOPES),
    Fault("attacked: a change of the wrong sign", _LEFT, "t = jnp.where(margin > 0, -change, change)", "t = change", _REMAINDERS),
    Fault("attacked: downward the ramp has all of its height", _LEFT, "rise = jnp.where(upward, high - start, start - low)", "rise = high - start + 0.0 * upward", _REMAINDERS),
)  # fmt: skip
