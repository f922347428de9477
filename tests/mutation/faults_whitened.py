"""Faults in the private moments and in the stages of whitened SGD."""

from tests.mutation import Fault, rows

_ROW = rows("whitened_sgd")
_SOLVER = ("tests/solvers/test_whitened_sgd.py::test_the_ledger_of_a_run_is_that_of_the_plan",)
_PUBLIC = rows("whitened_sgd")  # by the structure of the program: no neighbour need show it
_MOMENTS = ("tests/oracles/test_row_moments.py",)
_SOLVER_COVARIANCE = (
    "tests/solvers/test_whitened_covariance.py::test_a_covariance_is_paid_for_and_only_then_released",
)
_MATRIX = ("tests/oracles/test_matrix_models.py",)
_SOLVER_MATRIX = ("tests/solvers/test_whitened_matrix.py",)
_COORDINATES = "solvers/user_level/_coordinates.py"
_WHITENED = "solvers/user_level/whitened_sgd.py"

_FIRST = "solvers/user_level/_first_intercept.py"

_RARE = ("tests/solvers/test_rare_class.py",)

FAULTS = (
    Fault("whitened: a rare class is at the quantile's border, not in its midst", _FIRST, "1.0 - 0.5 * holders", "1.0 - 1.0 * holders", _RARE),
    Fault("whitened: room for a class that noise hides", _FIRST, "(shares * (1.0 - shares) > least)", "(shares > 0.0)", _RARE),
    Fault("whitened: users of several items are rare as items are", _FIRST, "jnp.clip(steeper, 0.0, 1.0)) ** items", "jnp.clip(steeper, 0.0, 1.0))", _RARE),
    Fault("whitened: room for a rare class in place of a larger quantile that was planned", _FIRST, "return jnp.maximum(planned, jnp.minimum(", "return jnp.maximum(0.0, jnp.minimum(", _RARE),
    Fault("whitened: steps for a rare class are as long as it is rare, whatever noise makes of its share", _FIRST, "+ 3.0 * stddev", "+ 0.0 * stddev", _RARE),
    Fault("whitened: steps for a rare class have no limit", _FIRST, "known.largest / _LONGER_ROWS, known.largest", "0.0, known.largest", _RARE),
    Fault("whitened: other losses of two classes are taken for the logistic one", _FIRST, "return bool(alike and np.allclose(found, expected, atol=1e-4))", "return True", _RARE),
    Fault("whitened: a share that noise made has room", _FIRST, "& (_shares(found) > _SEEN * stddev)", "& (shares > _SEEN * stddev)", _RARE),
    Fault("whitened: a coefficient of rows that were made shorter is taken for a margin", "solvers/user_level/_coordinates.py", "constant = off <= jnp.maximum(_UNLIKE, 4.0 * mean_stddev)", "constant = off <= 1e9", _RARE),
    Fault("whitened: steps are longer where noise hides the radius", _FIRST, "longer = constant & (1.0 - quantile > plan.radius_multiplier / plan.num_users)", "longer = constant", _RARE),
    Fault("whitened: steps are longer whatever noise makes of the share", _FIRST, "flat = flatter(bends, objective, intercept, stddev)", "flat = flatter(bends, objective, intercept, 0.0)", _RARE),
    Fault("whitened: the descent follows the planned quantile where a class is rare", _WHITENED, "plan, phase, quantile, objective, bends,", "plan, phase, plan.quantile, objective, bends,", _RARE),
    Fault("whitened: steps on an intercept that is far out have no limit", _FIRST, "return jnp.clip(moved, -_LONGEST, _LONGEST) if classes else moved", "return moved", _RARE),
    Fault("whitened: steps on the intercept of a rare class are as long as curvature lets them", _FIRST, "jnp.maximum(bends.largest / _LONGER, noise / _MOVED)", "jnp.maximum(bends.largest / _LONGER, 0.0)", _RARE),
    Fault("whitened: the intercept of a rare class may be as far as noise carries it", _FIRST, "bounded = within_noise(objective, found, start, stddev)", "bounded = found", _RARE),
    Fault("whitened: the radius is searched at the planned quantile where a class is rare", _WHITENED, "spare = 1.0 - quantile\n    chain", "quantile = plan.quantile; spare = 1.0 - quantile\n    chain", _RARE),
    Fault("whitened: a quantile that was asked for is replaced where a class is rare", "solvers/user_level/_whitened_plan.py", "2.0 * math.sqrt(dim) * whole / num_users, 1.0\n", "2.0 * math.sqrt(dim) * whole / num_users, 0.0\n", _RARE),
    Fault("whitened: a ball is met by its nearest point in ℓ2, from which a descent ends elsewhere", _WHITENED, "if objective.domain.radius is not None:", "if False:", ('tests/solvers/test_whitened_sgd.py::test_without_noise_it_ends_at_the_minimizer_over_a_ball',)),
    Fault("whitened: the prior keeps its scale where points are beyond it", _WHITENED, "return jnp.maximum(plan.margin_scale, length)", "return jnp.maximum(plan.margin_scale, 0.0 * length)", ("tests/solvers/test_whitened_stages.py",)),
    Fault("whitened: steps for far margins have no limit", _WHITENED, "jnp.square(scale)), _FLATTEST)", "jnp.square(scale)), 1e9)", ("tests/solvers/test_whitened_stages.py",)),
    Fault("whitened: the multiplier of a ball is one Newton step", _WHITENED, "_NEWTON_STEPS = 10", "_NEWTON_STEPS = 1", ("tests/solvers/test_whitened_stages.py",)),
    Fault("whitened: the second matrix is free", _COORDINATES, "return to_params, privacy.compose(loss, second, check)", "return to_params, privacy.compose(loss, check)", _SOLVER),
    Fault("whitened: the check is free", _COORDINATES, "return to_params, privacy.compose(loss, second, check)", "return to_params, privacy.compose(loss, second)", _SOLVER),
    Fault("whitened: a matrix is clipped to twice what its noise is for", _COORDINATES, "row_moments.second_moments(bound, plan.matrices_at_once)", "row_moments.second_moments(2.0 * bound, plan.matrices_at_once)", _ROW),
    Fault("whitened: the check is clipped to twice what its noise is for", _COORDINATES, "row_moments.mean_squares(bound, plan.chunk_size)", "row_moments.mean_squares(2.0 * bound, plan.chunk_size)", ("tests/solvers/test_whitening_bounds.py",)),
    Fault("whitened: the check looks at the true squares", _COORDINATES, "factor = jnp.where(found.mean > 1.0 + 2.0 * found.stddev, found.mean, 1.0)", "factor = jnp.where(total / plan.num_users > 1.0, total / plan.num_users, 1.0)", _PUBLIC),
    Fault("whitened: both matrices have one key", _COORDINATES, "_second_round(keys[1],", "_second_round(keys[0],", _ROW),
    Fault("whitened: what clipping took from rare columns is not put back", _COORDINATES, "return matrix / common + jnp.diag(lacking), common", "return matrix / common, common", ("tests/solvers/test_whitening.py",)),
    Fault("whitened: means are free", _COORDINATES, "set(0.0), privacy.compose(spent, loss)", "set(0.0), spent", _SOLVER),
    Fault("whitened: terms of moments are not clipped", "oracles/row_moments.py", "factor = jax.vmap(norms.clip_factor, (0, None))(terms, bound)", "factor = jnp.ones(len(terms))", _MOMENTS),
    Fault("whitened: the triangle holds entries off the diagonal once", "oracles/row_moments.py", "return matrix[rows, columns] * np.where(rows == columns, 1.0, 2.0**0.5).astype(np.float32)", "return matrix[rows, columns]", _MOMENTS),
    Fault("whitened: scales from the true mean squares", _COORDINATES, "variances = squares - ", "variances = total / users - ", _PUBLIC),
    Fault("whitened: coordinates from the true matrices", _COORDINATES, "row_moments.from_triangle(found.mean, plan.columns)", "row_moments.from_triangle(total / plan.num_users, plan.columns)", _PUBLIC),
    Fault("whitened: sensitivity of the mean squares halved", _COORDINATES, "squares_key, users, total, bound, plan.squares_multiplier", "squares_key, users, total, 0.5 * bound, plan.squares_multiplier", _ROW),
    Fault("whitened: means as if none were negative", _COORDINATES, "feature_bound, plan.means_multiplier, nonnegative=False", "feature_bound, plan.means_multiplier, nonnegative=True", _ROW),
    Fault("whitened: the intercept is free", _FIRST, "        privacy.privacy_spent(end.opt_state),", "        privacy.zero(),", _SOLVER),
    Fault("whitened: sensitivity of the share inside halved", _WHITENED, "transforms.summed_contributions(0.5, plan.num_users)", "transforms.summed_contributions(0.25, plan.num_users)", _ROW),
    Fault("whitened: both phases have one key", _WHITENED, "noise_key, oracle_key = jax.random.split(keys[3 + phase])", "noise_key, oracle_key = jax.random.split(keys[3])", _ROW),
    Fault("whitened: one matrix of the covariance is free", _WHITENED, "return inverse @ middle @ inverse, privacy.compose(first.loss, second.loss)", "return inverse @ middle @ inverse, first.loss", _SOLVER_COVARIANCE),
    Fault("whitened: covariance from the true Hessian", _WHITENED, "hessian = _shrunk(*_released_matrix(first, dim), (0.003 * curvature, curvature))", "hessian = row_moments.from_triangle(sums.hessian / users, dim)", _PUBLIC),
    Fault("whitened: sensitivity of the matrices of the covariance halved", _WHITENED, "sums.hessian, bound, multiplier", "sums.hessian, 0.5 * bound, multiplier", ("tests/solvers/test_whitening_bounds.py",)),
    Fault("whitened: both matrices of the covariance have one key", _WHITENED, "released(keys[1], users, sums.gradients", "released(keys[0], users, sums.gradients", _ROW),
    Fault("sandwich: Hessians are not clipped", "oracles/sandwich.py", "norms.clip_to_norm(b, HEAD_ROOM * room * jnp.sqrt(bound))", "norms.clip_to_norm(b, 1e6 * jnp.sqrt(bound))", ("tests/oracles/test_sandwich.py",)),
    Fault("whitened: the step on the intercept clips at twice the slope", _FIRST, "inner = linear.clipped_gradient_sum(model, slope, None, plan.chunk_size)", "inner = linear.clipped_gradient_sum(model, 2.0 * slope, None, plan.chunk_size)", ("tests/solvers/test_whitened_stages.py",)),
    Fault("whitened: a column that is not the constant is taken for one", _FIRST, "lengths = jnp.maximum(jnp.abs(feature[..., 0]), 1e-6 * model.feature_bound)", "lengths = jnp.ones(feature.shape[:2])", ("tests/solvers/test_whitened_stages.py",)),
    Fault("whitened: radii that left the numbers are covered", _WHITENED, "covered = plan.accounted & jnp.all(positive_and_finite(end.trace, jnp.exp(opening)))", "covered = plan.accounted", ("tests/solvers/test_whitened_stages.py",)),
    Fault("whitened: no room for the rounding of matrices", "oracles/row_moments.py", "_ROOM = 1.0 - 2.0**-7", "_ROOM = 1.0", _MOMENTS),
    Fault("scaled sums: a slope over a small radius is NaN for everybody", "oracles/preconditioned.py", "weights = jnp.where(held, ratio * factor, 0.0)", "weights = ratio * factor", ("tests/oracles/test_preconditioned.py",)),
    Fault("matrix: classes are clipped one by one", "oracles/preconditioned.py", "factor = jax.vmap(norms.clip_factor)(rest, limit)\n", "factor = jnp.min(jax.vmap(jax.vmap(norms.clip_factor, (1, None)), (0, 0))(rest.reshape(len(rest), dim, -1), limit), axis=1)\n", _MATRIX),
    Fault("matrix: the lengths of slopes are left out of the clip of single items", "oracles/linear.py", "lengths = lengths * _norm_bounds(slopes, 1.0)", "lengths = lengths * 1.0", _MATRIX),
    Fault("matrix: a class whose slope is no number is held", "oracles/_linear_rows.py", "usable = counted & jnp.all(jnp.isfinite(derivatives), axis=axes)", "usable = counted & jnp.any(jnp.isfinite(derivatives), axis=axes)", _MATRIX),
    Fault("matrix: slopes of labels that are no class", "problems/losses.py", "return jnp.where(known, jax.nn.softmax(logits) - one, 0.0)", "return jax.nn.softmax(logits) - one", _MATRIX),
    Fault("matrix: noise of the intercept for each class as if it were alone", _FIRST, "transforms.summed_contributions(slope, plan.num_users), noise_key, multiplier", "transforms.summed_contributions(slope / 2.0, plan.num_users), noise_key, multiplier", rows("whitened_sgd, matrix")),
    Fault("matrix: the quantile is that of the columns alone", "solvers/user_level/_whitened_plan.py", "least_class = 2.0 * math.sqrt(dim)", "least_class = 2.0 * math.sqrt(columns)", _SOLVER_MATRIX),
)  # fmt: skip
