"""Faults in losses that are not convex, and in selection and certificates of stationary points."""

from tests.mutation import Fault

_LOSSES = ("tests/problems/test_nonconvex_losses.py",)
_FIXTURES = ("tests/problems/test_fixtures.py",)
_SECOND = ("tests/oracles/test_second_order.py",)
_SELECT = ("tests/solvers/test_select_sosp.py",)
_CERTIFY = ("tests/solvers/test_certify.py",)
_LASRY = ("tests/geometry/test_lasry_lions.py",)
_UNIFORM = ("tests/rates/test_uniform_convergence.py",)
_RATES = ("tests/rates/test_nonconvex.py",)
_MADE = "problems/nonconvex_losses.py"
_ORACLE = "oracles/second_order.py"
_BOUNDS = "solvers/nonconvex/_second_order_bounds.py"
_SELECTION = "solvers/nonconvex/select_sosp.py"
_CERTIFICATE = "solvers/nonconvex/certify.py"

FAULTS = (
    Fault("welsch: a slope without its exponential", _MADE, "slope=scale * math.exp(-0.5)", "slope=scale", _LOSSES),
    Fault("welsch: the third derivative at another place", _MADE, "math.sqrt(3.0 - math.sqrt(6.0))", "math.sqrt(2.9 - math.sqrt(6.0))", _LOSSES),
    Fault("tukey: the third derivative within", _MADE, "third=8.0 / scale", "third=3.6 / scale", _LOSSES),
    Fault("phase retrieval: the slope at the edge", _MADE, "slope=max(1.75 * edge**3", "slope=max(edge**3", _LOSSES),
    Fault("completion: the least curvature is that above", _MADE, "smoothness=square / factor_ridge,", "smoothness=0.25 * square / factor_ridge,", _LOSSES),
    Fault("completion: what was not observed counts", _MADE, "rows = jnp.where(observed[:, None], params, jnp.zeros_like(params))", "rows = params", _LOSSES),
    Fault("completion: ratings are not bounded", _MADE, "ratings = clip_to_norm(ratings, rating_bound)", "pass", _LOSSES),
    Fault("network: the part of the second derivative is dropped", _MADE, "smoothness = gradient**2 / 4.0 + hessian", "smoothness = gradient**2 / 16.0", _LOSSES),
    Fault("losses that are not convex pass for proven convex ones", "problems/_proofs.py", "if proof is None or proof.loss_strong_convexity < 0.0:", "if proof is None:", _LOSSES),
    Fault("losses that are not convex say that they are", "problems/_links.py", "globally_convex_lipschitz=everywhere and least_curvature == 0.0", "globally_convex_lipschitz=everywhere", _LOSSES),
    Fault("a bound for convex losses is stated of all", "solvers/_plan_base.py", "if convex and bounded and problem.objective.loss_strong_convexity < 0:", "if False:", _LOSSES),
    Fault("escape: an oracle that is no worse than exact", "problems/fixtures.py", "jnp.where(jnp.linalg.norm(found) <= error, jnp.zeros_like(found), found)", "found", _FIXTURES),
    Fault("second order: gradients are not clipped", _ORACLE, "clipped = jax.vmap(lambda g: norms.clip_to_norm(g, clip_norm))(gradients)", "clipped = gradients", _SECOND),
    Fault("second order: curvatures of items are not clipped", _ORACLE, "bends = jnp.clip(bends, least_curvature / square, most_curvature / square)", "pass", _SECOND),
    Fault("second order: eigenvalues of users are not clipped", _ORACLE, "bends = jnp.clip(bends, least_curvature, most_curvature)\n", "pass\n", _SECOND),
    Fault("second order: a Hessian that is not finite counts", _ORACLE, "whole = jnp.where(good, 0.5 * (hessian + hessian.T), 0.0)", "whole = 0.5 * (hessian + hessian.T)", _SECOND),
    Fault("second order: items that are not there count", _ORACLE, "weights = jnp.where(counted[:, None], rows.weights, 0.0)", "weights = jnp.where(counted[:, None], jnp.max(rows.weights, axis=1, keepdims=True) + 0.0 * rows.weights, 0.0)", _SECOND),
    Fault("sensitivity: G in place of 2G", _BOUNDS, "return 2.0 * self.clip_norm * self._share", "return 1.0 * self.clip_norm * self._share", (*_SELECT, *_CERTIFY)),
    Fault("sensitivity: of Hessians, one end only", _BOUNDS, "(self.most_curvature - self.least_curvature) * self._share", "self.most_curvature * self._share", (*_SELECT, *_CERTIFY)),
    Fault("statistics: the ridge bends nothing", _BOUNDS, "jnp.linalg.eigvalsh(_float64.exact(name, found.hessian))[0] + objective.ridge", "jnp.linalg.eigvalsh(_float64.exact(name, found.hessian))[0]", (*_SELECT, *_CERTIFY)),
    Fault("statistics: a point that is no number looks stationary", _BOUNDS, "good = jnp.all(jnp.isfinite(flat))", "good = True", _SELECT),
    Fault("statistics: the largest eigenvalue", _BOUNDS, "found.hessian))[0]", "found.hessian))[-1]", _SELECT),
    Fault("selection: each of two tests has all of ε", _SELECTION, "plan.epsilon / number, 1.0)", "plan.epsilon, 1.0)", _SELECT),
    Fault("selection: one test at half of its noise", _SELECTION, "plan.epsilon / number, 1.0)", "plan.epsilon / number, 0.5)", _SELECT),
    Fault("selection: one noise for all candidates", _SELECTION, "jax.random.fold_in(steps_key, index), len(tests)", "jax.random.fold_in(steps_key, 0), len(tests)", _SELECT),
    Fault("selection: both tests by one key", _SELECTION, "for test, one in zip(tests, jax.random.split(start_key, len(tests)), strict=True)", "for test, one in zip(tests, [start_key] * len(tests), strict=True)", _SELECT),
    Fault("selection: either test will do", _SELECTION, "jnp.all(jnp.stack(passed))", "jnp.any(jnp.stack(passed))", _SELECT),
    Fault("selection: the curvature is not looked at", _SELECTION, "queries = (jnp.minimum(*found),) if", "queries = (found[0],) if", _SELECT),
    Fault("selection: no offset", _SELECTION, "sparse_vector.above_threshold(-plan.offset,", "sparse_vector.above_threshold(0.0 * plan.offset,", _SELECT),
    Fault("selection: the slack of a single candidate", _SELECTION, "4.0 * math.log(2.0 * count / omega)", "4.0 * math.log(2.0 / omega)", _SELECT),
    Fault("selection: the farthest is named", _SELECTION, "return -jnp.maximum(norm / steep, -least / bent)", "return jnp.maximum(norm / steep, -least / bent)", _SELECT),
    Fault("selection: a run that found nothing says that it did", _SELECTION, 'released={"found": success,', 'released={"found": success | True,', _SELECT),
    Fault("certificate: one key for both", _CERTIFICATE, "least = _released(second, least,", "least = _released(first, least,", _CERTIFY),
    Fault("certificate: a bound on both sides", _CERTIFICATE, "quantile = -ndtri(jnp.asarray(plan.failure, jnp.float64))", "quantile = -ndtri(jnp.asarray(0.05 * plan.failure, jnp.float64))", _CERTIFY),
    Fault("certificate: the eigenvalue is bounded from above", _CERTIFICATE, "bent = least - quantile", "bent = least + quantile", _CERTIFY),
    Fault("certificate: the budget of a single release", _CERTIFICATE, "fixed_size(users, users, 2).noise_multiplier(", "fixed_size(users, users, 1).noise_multiplier(", _CERTIFY),
    Fault("certificate: α without the curvature", _CERTIFICATE, "jnp.maximum(steep, jnp.square(down) / safe)", "steep", _CERTIFY),
    Fault("lasry-lions: one weight for both envelopes", "geometry/lasry_lions.py", "spacing, 2.0 * jnp.asarray(smoothing, values.dtype))", "spacing, 1.0 * jnp.asarray(smoothing, values.dtype))", _LASRY),
    Fault("lasry-lions: the place of the other axis", "geometry/lasry_lions.py", "places = [jnp.take_along_axis(known, found, axis) for known in places]", "pass", _LASRY),
    Fault("uniform convergence: one end of the spectrum of a vector", "rates/uniform_convergence.py", "level = (points + math.log(dim)) / num_users", "level = points / num_users", _UNIFORM),
    Fault("uniform convergence: nothing moves between points", "rates/uniform_convergence.py", "+ 2.0 * smoothness * radii", "+ 0.0 * radii", _UNIFORM),
    Fault("rates: chapter 7 has the exponent of chapter 6", "rates/nonconvex.py", '"adaptive spider, population": total(_SAMPLED, _private(_HALF))', '"adaptive spider, population": total(_SAMPLED, _private(Fraction(3, 7)))', _RATES),
)  # fmt: skip
