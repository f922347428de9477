"""Faults in the escape from saddles by Hessians: their sums, their noise, jumps, and what everything costs."""

from tests.mutation import Fault, rows

_HESSIANS = ("tests/oracles/test_hessians.py",)
_ESCAPE = ("tests/solvers/test_hessian_escape.py",)
_RECORDED = rows("hessian_escape, full", "hessian_escape, one pass")
_ORACLE = "oracles/hessians.py"
_SOLVER = "solvers/nonconvex/hessian_escape.py"
_SCHEDULE = "solvers/nonconvex/_escape_schedule.py"

FAULTS = (
    Fault("escape: Hessians are clipped to two", _ORACLE, "gradients.clipped_gradient_sum(hessian, 1.0,", "gradients.clipped_gradient_sum(hessian, 2.0,", _HESSIANS),
    Fault("escape: entries beside the diagonal count half", _ORACLE, "np.where(rows == columns, 0.5, math.sqrt(0.5))", "np.where(rows == columns, 0.5, 0.25 * math.sqrt(2))", _HESSIANS),
    Fault("escape: noise beside the diagonal is as large as on it", _ORACLE, "factors = np.where(rows == columns, 1.0, math.sqrt(0.5))", "factors = np.where(rows == columns, 1.0, 1.0)", (*_ESCAPE, *_HESSIANS)),
    Fault("escape: one noise for all Hessians", _SOLVER, "own = jax.random.fold_in(hessian_key, state.made)", "own = jax.random.fold_in(hessian_key, 0 * state.made)", _RECORDED),
    Fault("escape: one noise for all estimates", _SOLVER, "jax.random.fold_in(gradient_key, state.made)", "jax.random.fold_in(gradient_key, 0 * state.made)", _RECORDED),
    Fault("escape: Hessians have a tenth of their noise", _SOLVER, "transforms.privatize(divided, own, plan.hessian_multiplier)", "transforms.privatize(divided, own, 0.1 * plan.hessian_multiplier)", _RECORDED),
    Fault("escape: a single look is paid for", _SOLVER, "privacy.scale(one, self.most_looks)", "privacy.scale(one, 1)", (*_ESCAPE, *_RECORDED)),
    Fault("escape: the certificate knows of no Hessian", _SOLVER, "(first**-2 + self.most_looks * other**-2) ** -0.5", "(first**-2 + 0 * other**-2) ** -0.5", _ESCAPE),
    Fault("escape: of one pass the certificate is that of gradients", _SOLVER, "return xp.minimum(first, other)", "return xp.maximum(first, other)", _ESCAPE),
    Fault("escape: any number of looks", _SOLVER, "looks = short & (state.looks < plan.most_looks)", "looks = short", _ESCAPE),
    Fault("escape: every Hessian is of the same users", _SOLVER, "population_size + looks * size", "population_size + 0 * looks * size", (*_ESCAPE, *_RECORDED)),
    Fault("escape: Hessians are of the users of gradients", _SOLVER, "begun = plan.mean.releases.population_size + looks", "begun = looks", _ESCAPE),
    Fault("escape: a jump up the estimate", _SOLVER, "jnp.vdot(numbers, along) > 0, -1.0, 1.0)", "jnp.vdot(numbers, along) > 0, 1.0, -1.0)", _ESCAPE),
    Fault("escape: along the largest eigenvalue", _SOLVER, "along = vectors[:, 0]", "along = vectors[:, -1]", _ESCAPE),
    Fault("escape: the ridge bends nothing", _SOLVER, "matrix = matrix + objective.ridge * jnp.eye(", "matrix = matrix + 0.0 * jnp.eye(", _ESCAPE),
    Fault("escape: the ridge has no slope", _SOLVER, "jax.tree.map(jnp.add, estimate, objective.regularizer_gradient(state.point))", "estimate", _ESCAPE),
    Fault("escape: who finds nothing says that it did", _SOLVER, "found=looks & ~saddle", "found=looks", _ESCAPE),
    Fault("escape: jumps of half the length", _SCHEDULE, "(curvature + sqrt(room * (room > 0)))", "0.5 * (curvature + sqrt(room * (room > 0)))", _ESCAPE),
    Fault("escape: looks are half as many", _SCHEDULE, "looks, others = jumps + 1,", "looks, others = np.ceil(jumps / 2) + 1,", _ESCAPE),
    Fault("escape: jumps begin no estimate anew", _SCHEDULE, "1 + jumps + np.floor(moved / kappa)", "1 + np.floor(moved / kappa)", _ESCAPE),
    Fault("escape: one end of one look", _SCHEDULE, "_spread(goal, 2 * looks)", "_spread(goal, 0.5)", _ESCAPE),
    Fault("escape: whom a Hessian is of does not matter", _SCHEDULE, "bends.width * np.sqrt(log / 2)", "0.0 * log", _ESCAPE),
)  # fmt: skip
