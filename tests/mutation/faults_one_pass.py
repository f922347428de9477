"""Faults in one-pass solvers under heavy tails: what steps do, what a user moves, what is released."""

from tests.mutation import Fault, rows

_GLM = ("tests/solvers/test_phased_clipped_glm.py",)
_PASS = "solvers/heavy_tailed/onepass_clipped_sgd.py"
_LOCAL = "solvers/heavy_tailed/localized_clipped_sgd.py"
_LOCALIZED = ("tests/solvers/test_localized_clipped_sgd.py",)
_PHASED = "solvers/heavy_tailed/phased_clipped_glm.py"

FAULTS = (
    Fault("clipped pass: the printed noise of Algorithm 43", _PHASED, "found.append(2.0 * step * clip + lost)", "found.append(4.0 * step * clip + lost)", _GLM),
    Fault("clipped pass: half the sensitivity", _PHASED, "found.append(2.0 * step * clip + lost)", "found.append(1.0 * step * clip + lost)", (*_GLM, *rows("phased_clipped_glm"))),
    Fault("clipped pass: steps of any length", _PHASED, "xp.all(steps * bend <= 2.0, axis=0)", "xp.all(steps * bend <= 9.0, axis=0)", _GLM),
    Fault("clipped pass: a longer step may be planned", _PHASED, 'require(step_size <= most, "step_size"', 'require(step_size <= 2 * most, "step_size"', _GLM),
    Fault("clipped pass: users of several items", _PHASED, "        items_per_user == 1,", "        items_per_user >= 1,", _GLM),
    Fault("clipped pass: a ridge is taken", _PHASED, "not ridge, \"objective.ridge\"", "True, \"objective.ridge\"", _GLM),
    Fault("clipped pass: several outputs are taken", _PHASED, "model is not None and model.outputs is None", "model is not None", _GLM),
    Fault("clipped pass: phases overlap by a user", _PASS, "step(state, first + t, point)", "step(state, jnp.maximum(first - 1, 0) + t, point)", (*_GLM, *rows("phased_clipped_glm"))),
    Fault("clipped pass: gradients are not clipped", _PASS, "return clip_to_norm(slope(user, point), clip_norm), True, state", "return slope(user, point), True, state", _GLM),
    Fault("clipped pass: the limit has no noise", _LOCAL, "1.0 / phase.limit_epsilon", "1e-9 / phase.limit_epsilon", _LOCALIZED),
    Fault("clipped pass: the pass of a run that halts is returned", _LOCAL, "jnp.where(halted, old, new), start, moved", "jnp.where(halted, new, new), start, moved", _LOCALIZED),
    Fault("clipped pass: what tests miss is free", _LOCAL, "released.delta + missed", "released.delta", _LOCALIZED),
    Fault("clipped pass: the limit is free", _LOCAL, "privacy.compose(tests, limit, average)", "privacy.compose(tests, average)", _LOCALIZED),
    Fault("clipped pass: no guard", _LOCAL, "jnp.where(clipped, 1.0, _GUARD)", "jnp.where(clipped, 1.0, 100.0 * _GUARD)", (*_LOCALIZED, *rows("localized_clipped_sgd"))),
    Fault("clipped pass: clips at the guard move no more than the clip", _LOCAL, "longest = _GUARD * clip", "longest = clip", _LOCALIZED),
    Fault("clipped pass: queries move by a part of what they may", _LOCAL, "return self.smoothness * self.sensitivity", "return 0.1 * self.smoothness * self.sensitivity", _LOCALIZED),
)  # fmt: skip
