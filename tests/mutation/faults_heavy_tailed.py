"""Faults in solvers under heavy tails: clipped descent, its bounds, what copies and phases do."""

from tests.mutation import Fault

_DESCENT = ("tests/solvers/test_clipped_gd.py",)
_STEP = ("tests/transforms/test_prox_step.py",)
_CUT = ("tests/geometry/test_two_balls.py",)

_COPIES = ("tests/solvers/test_population_localize.py",)

_KNOWN = ("tests/solvers/test_known_lipschitz.py",)
_DUMMIES = "solvers/heavy_tailed/known_lipschitz.py"

_QUANTILE = ("tests/solvers/test_quantile_clip.py",)
_RECORDED = ("tests/solvers/test_recorded_releases.py",)

FAULTS = (
    Fault(
        "heavy tails: steep users take part",
        _DUMMIES,
        "mask = there & kept[:, None]",
        "mask = there & (kept[:, None] | True)",
        _KNOWN,
    ),
    Fault(
        "heavy tails: a slope that is no number takes part",
        _DUMMIES,
        "kept = (bounds >= 0) & (bounds <= plan",
        "kept = ~(bounds < 0) & ~(bounds > plan",
        _KNOWN,
    ),
    Fault(
        "heavy tails: dummies take nothing away",
        _DUMMIES,
        "found.localized.bound + dropped if",
        "found.localized.bound if",
        _KNOWN,
    ),
    Fault(
        "heavy tails: the noise of the paper is for C/n",
        "solvers/heavy_tailed/clipped_gd.py",
        "math.sqrt(num_steps / (2 * rho))",
        "math.sqrt(num_steps / (8 * rho))",
        _DESCENT,
    ),
    Fault(
        "heavy tails: the noise of the paper is that of one step",
        "solvers/heavy_tailed/clipped_gd.py",
        "math.sqrt(num_steps / (2 * rho))",
        "math.sqrt(1 / (2 * rho))",
        _DESCENT,
    ),
    Fault(
        "heavy tails: the pull is an explicit step",
        "transforms/prox_step.py",
        "/ (1 + pull)",
        "",
        _STEP,
    ),
    Fault(
        "heavy tails: the last point is averaged in place of the one before",
        "transforms/prox_step.py",
        "share * (x - a)).astype(a.dtype), state.average, wide",
        "share * (x - a)).astype(a.dtype), state.average, kept",
        _STEP,
    ),
    Fault(
        "heavy tails: the pull is to the last point",
        "transforms/prox_step.py",
        "return moves, ProxStepState(state.start,",
        "return moves, ProxStepState(kept,",
        _STEP,
    ),
    Fault(
        "heavy tails: a cut domain is not cut",
        "geometry/two_balls.py",
        "jnp.where(inside, middle, low), jnp.where(inside, high, middle)",
        "middle, high",
        _CUT,
    ),
    Fault(
        "heavy tails: the bias of the clip is free",
        "solvers/_schedules/clipped_descent.py",
        "bias = _biases(moments, clip) / of_clip",
        "bias = 0 * _biases(moments, clip) / of_clip",
        _DESCENT,
    ),
    Fault(
        "heavy tails: the noise is exceeded as often as it likes",
        "solvers/_schedules/clipped_descent.py",
        "gap = (each * slopes + pull) / of_noise",
        "gap = each * slopes + pull",
        _DESCENT,
    ),
    Fault(
        "heavy tails: the mean of the copies in place of the agreed point",
        "solvers/copies.py",
        "robust_point.aggregate_points(flat)",
        "jnp.mean(flat, axis=0)",
        _COPIES,
    ),
    Fault(
        "heavy tails: copies share users",
        "solvers/copies.py",
        "lambda leaf: leaf.reshape(copies, users, *leaf.shape[1:]), mine",
        "lambda leaf: jnp.stack([leaf[:users]] * copies), mine",
        _COPIES,
    ),
    Fault(
        "heavy tails: as many copies as one likes",
        "solvers/copies.py",
        "_checks.require(copies <= most,",
        "_checks.require(True,",
        _COPIES,
    ),
    Fault(
        "heavy tails: one copy of many is as near as all",
        "solvers/heavy_tailed/_phases.py",
        "answer._replace(distance=3 * answer.distance)",
        "answer",
        _COPIES,
    ),
    Fault(
        "heavy tails: a phase forgets where the one before has ended",
        "solvers/_schedules/clipped_descent.py",
        "starts = [distance, *reached[:-1]]",
        "starts = [distance, *[0.0 for _ in reached[:-1]]]",
        _DESCENT,
    ),
    Fault(
        "heavy tails: a ridge has no slope",
        "solvers/heavy_tailed/_phases.py",
        "return self.moments.first + self.known",
        "return self.moments.first",
        _COPIES,
    ),
    Fault(
        "heavy tails: rounds each fail as often as all together",
        "solvers/heavy_tailed/population_localize.py",
        "share = failure / count",
        "share = failure",
        _COPIES,
    ),
    Fault(
        "heavy tails: a round starts nearer than the excess of the one before lets it",
        "solvers/heavy_tailed/_phases.py",
        "math.sqrt(2 * end / convexity)",
        "math.sqrt(end / convexity)",
        _COPIES,
    ),
    Fault(
        "heavy tails: with a quantile the divisor is twice the users",
        "solvers/heavy_tailed/_quantile_clip.py",
        "self.clip_norm,\n            self.releases.batch_size,",
        "self.clip_norm,\n            2 * self.releases.batch_size,",
        _QUANTILE,
    ),
    Fault(
        "heavy tails: a quantile halves the noise",
        "solvers/heavy_tailed/_quantile_clip.py",
        "aggregate, key, self.releases.noise_multiplier, self",
        "aggregate, key, 0.5 * self.releases.noise_multiplier, self",
        _RECORDED,
    ),
    Fault(
        "heavy tails: a radius that is no length is charged as one",
        "transforms/centred_clip.py",
        "sensitivity = jnp.where(divides, sensitivity, jnp.inf)",
        "pass",
        _QUANTILE,
    ),
    Fault(
        "heavy tails: everybody is charged as some",
        "solvers/heavy_tailed/_quantile_clip.py",
        '_checks.require_instance("releases.scheme", self.releases.scheme, FullBatch)',
        "pass",
        _QUANTILE,
    ),
)
