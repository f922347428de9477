"""Faults in what people are told: what an attacker can tell, differences of levels, what is not drawn."""

from tests.mutation import Fault

_ATTACKS, _ATTACKS_TESTS = "privacy/attacks.py", ("tests/privacy/test_attacks.py",)
_REPORTING, _FITS = "estimators/_reporting.py", ("tests/estimators/test_fits.py",)

FAULTS = (
    Fault("attack: true positives are bounded on one side only", _ATTACKS, "np.clip(np.minimum(near, far), 0.0, 1.0)", "np.clip(far, 0.0, 1.0)", _ATTACKS_TESTS),
    Fault("attack: failures are left out of the advantage", _ATTACKS, "math.tanh(epsilon / 2.0) * (1.0 - delta) + delta", "math.tanh(epsilon / 2.0)", _ATTACKS_TESTS),
    Fault("attack: several records cost the epsilon of one", _ATTACKS, "epsilon = records * single", "epsilon = 1.0 * single", _ATTACKS_TESTS),
    Fault("attack: the delta of several records is that many times one", _ATTACKS, "            ratio = epsilon - single\n", "            return attack_advantage(guarantee._replace(epsilon=epsilon, delta=records * delta))\n", _ATTACKS_TESTS),
    Fault("contrasts: covariances of levels are left out", _REPORTING, "weights @ found @ weights.T", "weights @ np.diag(np.diagonal(found)) @ weights.T", _FITS),
    Fault("contrasts: the covariance begins with the intercept", _REPORTING, "found = model.covariance_[first:, first:]", "found = model.covariance_[: len(model.columns_), : len(model.columns_)]", _FITS),
    Fault("bars: numbers that are not seen are not drawn", _REPORTING, "(weights == 0.0) | np.asarray(numbers) | seen", "(weights == 0.0) | seen", _FITS),
)  # fmt: skip
