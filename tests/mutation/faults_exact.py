"""Faults of exact draws, of the exponential mechanism and of log-Sobolev lengths, written before any ran."""

from tests.mutation import Fault

_MECHANISM = ("tests/solvers/test_exponential_mechanism.py",)
_EXACT = ("tests/solvers/test_exact.py",)
_LENGTHS = ("tests/solvers/test_log_sobolev.py",)
_CELLS = "solvers/sampling/_cells.py"
_CHAIN = "solvers/sampling/_exponential_chain.py"
_SOLVER = "solvers/sampling/exponential_mechanism.py"
_SOBOLEV = "solvers/sampling/log_sobolev.py"
_REJECTION = "solvers/sampling/target_rejection.py"
_CLOSED = "solvers/sampling/exact.py"

FAULTS = (
    Fault("exact: range without the factor 2", _CELLS, "return (4.0 * lipschitz", "return (2.0 * lipschitz", _MECHANISM),
    Fault("exact: no clip of values", _CELLS, "kept = jnp.clip(jnp.where(jnp.isfinite(each), each, 0.0), -bound, bound)", "kept = jnp.where(jnp.isfinite(each), each, 0.0)", _MECHANISM),
    Fault("exact: half the radius", _CELLS, "corner = 0.5 * (1.0 - 1.0 / max(cells, 1))", "corner = 0.25 * (1.0 - 1.0 / max(cells, 1))", _MECHANISM),
    Fault("exact: k twice", _CELLS, "key, scores, 2.0 * sensitivity", "key, scores, 4.0 * sensitivity", _MECHANISM),
    Fault("exact: linear: k twice", _CELLS, "epsilon = 2.0 * moves", "epsilon = 4.0 * moves", _MECHANISM),
    Fault("exact: values not relative to the centre", _CELLS, "each = values(center + offset, items, mask) - there", "each = values(center + offset, items, mask)", _MECHANISM),
    Fault("exact: NaN is kept", _CELLS, "jnp.where(jnp.isfinite(each), each, 0.0), -bound", "each, -bound", _MECHANISM),
    Fault("exact: corners of the ball are drawn", _CELLS, "if radius is not None:", "if False:", _MECHANISM),
    Fault("exact: slopes are not clipped", _CELLS, "slopes = slopes * jnp.minimum(1.0, lipschitz * (1.0 - 2.0**-40) / norms)", "slopes = slopes * 1.0", _MECHANISM),
    Fault("exact: one key for all coordinates", _CELLS, "keys = jax.random.split(key, dim)", "keys = jnp.broadcast_to(key, (dim,))", _MECHANISM),
    Fault("exact: corner of the cell", _CELLS, "within = jax.random.uniform(key, places.shape, jnp.float64)", "within = 0.5", _MECHANISM),
    Fault("exact: any k for a chain", _SOLVER, "            (k, self.chain.inverse_temperature),\n", "", _MECHANISM),
    Fault("exact: any place of the set", _SOLVER, "good = good & (norm <= self.chain.center_norm * (1.0 + slack))", "", _MECHANISM),
    Fault("exact: tau costs itself", _SOLVER, "(1.0 + xp.exp(xp.minimum(spent, _FURTHEST)))", "1.0", _MECHANISM),
    Fault("exact: certificate at any delta", _SOLVER, "good = good and float(self.failure) <= delta", "good = good", _MECHANISM),
    Fault("exact: chain certified for mu in place of k mu", _CHAIN, "convexity=k * mu * below**2", "convexity=mu * below**2", _MECHANISM),
    Fault("exact: chain certified for L in place of kL", _CHAIN, "lipschitz=k * slope * above", "lipschitz=slope * above", _MECHANISM),
    Fault("exact: chain forgets the scale", _CHAIN, "scale=inverse_temperature", "scale=1.0", _MECHANISM),
    Fault("exact: chain starts at the origin's quadratic", _CHAIN, "restricted_gaussian.box(chain.step_size, bend, center,", "restricted_gaussian.box(chain.step_size, bend, 0.0 * center,", _MECHANISM),
    Fault("exact: users without items count", _CHAIN, "return weight * model.link(", "return 1.0 * model.link(", _MECHANISM),
    Fault("exact: losses are declared", "solvers/sampling/_rows.py", "    proof = _proofs.require_proven(objective)\n", "    proof = objective\n", _MECHANISM),
    Fault("exact: share of delta without 1 + e^eps", _CHAIN, "/ (1.0 + math.exp(-budget.epsilon))", "", _MECHANISM),
    Fault("exact: k of the plan twice", _CELLS, "return _DOWN * epsilon * num_users / (4.0 * lipschitz", "return _DOWN * epsilon * num_users / (2.0 * lipschitz", _MECHANISM),
    Fault("exact: excess of one coordinate", _SOLVER, "finite = dim * math.log(count)", "finite = 0.0 * math.log(count)", _MECHANISM),
    Fault("exact: no projection onto the ball", _SOLVER, "if plan.ball:  #", "if False:  #", _MECHANISM),
    Fault("exact: one step more", _SOBOLEV, "left_after(0.5,", "left_after(-0.5,", _LENGTHS),
    Fault("exact: envelope half as far", _SOBOLEV, "math.exp(-0.5 * q", "math.exp(-0.25 * q", _LENGTHS),
    Fault("exact: half the oscillation", _SOBOLEV, "math.exp(-oscillation)", "math.exp(-0.5 * oscillation)", _LENGTHS),
    Fault("exact: sqrt of eta lost", "solvers/sampling/chain_lengths.py", "xp.log(2.0 * xp.sqrt(eta))", "xp.log(2.0 * eta)", _LENGTHS),
    Fault("exact: bregman sign", _REJECTION, "jnp.exp(-lost)", "jnp.exp(lost)", _EXACT),
    Fault("exact: theta left out", _REJECTION, "else dim) + _CLOSE**2)", "else dim))", _EXACT),
    Fault("exact: half the gradients", _REJECTION, "math.log1p(2.0 * mu / bend)", "math.log1p(8.0 * mu / bend)", _EXACT),
    Fault("exact: the sum leaves", _REJECTION, "center + (base + on_grid((anchor - base) + offset, unit))", "center + (anchor + offset)", _EXACT),
    Fault("exact: tangent without the quadratic", _REJECTION, "move = -anchor - gradient(at) / mu", "move = -gradient(at) / mu", _EXACT),
    Fault("exact: k left out of the test", _REJECTION, "lost = inverse_temperature * remainder", "lost = remainder", _EXACT),
    Fault("exact: variance 1/k", _CLOSED, "variance = 1.0 / (jnp.asarray(inverse_temperature, jnp.float64) * mu)", "variance = 1.0 / jnp.asarray(inverse_temperature, jnp.float64)", _EXACT),
    Fault("exact: mean on the other side", _CLOSED, "center - mean / mu", "center + mean / mu", _EXACT),
)  # fmt: skip
