"""Faults in what inexact draws cost: the two losses, their choice, and numbers at the ends of floats."""

from tests.mutation import Fault

_CERTIFICATE = ("tests/privacy/test_inexact.py", "tests/privacy/test_inexact_floats.py")
_LOSS = (
    "tests/privacy/test_inexact.py",
    "tests/privacy/test_inexact_truth.py",
    "tests/privacy/test_inexact_floats.py",
)
_FLOATS = ("tests/privacy/test_inexact_floats.py", "tests/test_fail_closed.py")
_EXTREMES = ("tests/privacy/test_variation_extremes.py",)
_INEXACT, _VARIATION = "privacy/inexact.py", "privacy/variation.py"

FAULTS = (
    Fault("inexact: a certificate of the ideal mechanism", _INEXACT, "variation_epsilon(mu, variation, delta)", "variation_epsilon(mu, 0.0, delta)", _CERTIFICATE),
    Fault("inexact: a certificate at another δ", _INEXACT, "variation_epsilon(mu, variation, delta)", "variation_epsilon(mu, variation, 1.01 * delta)", _CERTIFICATE),
    Fault("inexact: a certificate forgets what was assumed", _INEXACT, "relation, by, carried)", "relation, by, ())", _CERTIFICATE),
    Fault("inexact: a negative distance is one", _INEXACT, "(tau >= 0) & (tau <= 1)", "(tau <= 1)", _FLOATS),
    Fault("inexact: a negative size is one", _INEXACT, "(shift >= 0) & (shift < xp.inf)", "(shift < xp.inf)", _FLOATS),
    Fault("inexact: invalid numbers are replaced", _INEXACT, "return unbounded_unless(valid, loss)", "return loss", _FLOATS),
    Fault("inexact: the distance alone is charged", _INEXACT, "tau[..., None] * (1.0 + xp.exp(xp.minimum(tried, _furthest(xp, eps))))", "tau[..., None]", _LOSS),
    Fault("inexact: the failure of the whole is forgotten", _INEXACT, "curves.approximate_dp(least, failure)", "curves.approximate_dp(least, 0.0 * failure)", _LOSS),
    Fault("inexact: whatever was tried is proven", _INEXACT, "spent <= failure[..., None] * slack", "spent < 1.0", _LOSS),
    Fault("inexact: the ideal mechanism never fails", _INEXACT, "spent = ideal + tau", "spent = 0.0 * ideal + tau", _LOSS),
    Fault("inexact: proven at δ, claimed at its share", _INEXACT, "spent <= failure[..., None] * slack", "spent <= failure[..., None] / _WHOLE_SHARE", _LOSS),
    Fault("inexact: the enlarged curve is not enlarged", _INEXACT, "with_variation(curves.gdp(shift), off,", "with_variation(curves.gdp(shift), 0.0,", _LOSS),
    Fault("inexact: the curve of half the size", _INEXACT, "curves.gdp(shift)", "curves.gdp(0.5 * shift)", _LOSS),
    Fault("inexact: the lesser failure of both", _INEXACT, "xp.where(composes, enlarged.delta, whole.delta)", "xp.minimum(enlarged.delta, whole.delta)", _LOSS),
    Fault("inexact: the lesser curve of both", _INEXACT, "xp.where(composes[..., None], enlarged.rdp, whole.rdp)", "xp.minimum(enlarged.rdp, whole.rdp)", _LOSS),
    Fault("inexact: half of the gap", _INEXACT, "gap = first - second + rounding", "gap = 0.5 * (first - second) + rounding", _LOSS),
    Fault("inexact: rounding is taken off", _INEXACT, "return first + rounding + xp.log", "return first - 2.0 * rounding + xp.log", _LOSS),
    Fault("inexact: a flushed distance is zero", _INEXACT, "xp.maximum(tau, xp.finfo(tau.dtype).tiny))", "tau)", _FLOATS),
    Fault("inexact: what is tried is cut off", _INEXACT, "finfo(like.dtype).max)) - 1.0", "finfo(like.dtype).max)) - 20.0", _FLOATS),
    Fault("inexact: the worse of both", _INEXACT, "epsilon_of(enlarged, total) <= _WORTH", "epsilon_of(enlarged, total) > _WORTH", _LOSS),
    Fault("inexact: composing is worth ten times the ε", _INEXACT, "_WORTH = 1.24", "_WORTH = 10.0", _LOSS),
    Fault("inexact: a horizon that is exceeded", _INEXACT, "off, 2.0 * eps,", "off, 0.5 * eps,", _LOSS),
    Fault("variation: e^ε is cut off", _VARIATION, "math.log(tau) + epsilon, 1.0", "math.log(tau) + min(epsilon, 700.0), 1.0", _EXTREMES),
    Fault("variation: underflow to zero", _VARIATION, "math.nextafter(math.exp(log), math.inf)", "math.exp(log)", _EXTREMES),
    Fault("variation: a flushed distance is zero", _VARIATION, "tau = xp.maximum(tau, floats.tiny)", "tau = tau + 0.0", _EXTREMES),
    Fault("variation: any zero is exact", "_numerics.py", "not isinstance(value, jax.Array) and np.equal(value, 0)", "not isinstance(value, jax.core.Tracer) and np.equal(value, 0)", _EXTREMES),
    Fault("variation: a horizon that is cut off", _VARIATION, "float(floats.max)) - 1.0", "float(floats.max)) - 20.0", _EXTREMES),
    Fault("variation: a sum that is not rounded", _VARIATION, "round_up(rdp + added, _ROUNDING_ULPS)", "rdp + round_up(added, _ROUNDING_ULPS)", _EXTREMES),
    Fault("variation: a horizon that is rounded down", _VARIATION, "round_up(xp.minimum(h, furthest), 1.0)", "xp.minimum(h, furthest)", _EXTREMES),
    Fault("variation: what is flushed is nothing", _VARIATION, "2.0 * failure - 4.0 * float(floats.tiny)", "2.0 * failure", _EXTREMES),
    Fault("Gaussian curve: an infinite logarithm", "privacy/curves/composition.py", "if first == -math.inf:", "if False:", _EXTREMES),
)  # fmt: skip
