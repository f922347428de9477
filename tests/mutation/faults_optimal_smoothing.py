"""Faults in the selection of a Goldstein-stationary point."""

from tests.mutation import Fault, rows

_TESTS = ("tests/solvers/test_optimal_smoothing.py",)
_RECORDED = rows("optimal_smoothing, ball", "optimal_smoothing, lasry_lions")
_SOLVER = "solvers/nonconvex/optimal_smoothing.py"

FAULTS = (
    Fault("optimal smoothing: means of balls are not clipped", _SOLVER, "return norms.clip_to_norm(jnp.mean(slopes, axis=0), plan.lipschitz)", "return jnp.mean(slopes, axis=0)", _TESTS),
    Fault("optimal smoothing: smoothed slopes are not clipped", _SOLVER, "jax.vmap(lambda g: norms.clip_to_norm(g, plan.lipschitz))(own)", "2.0 * own", _TESTS),
    Fault("optimal smoothing: a user moves a norm by half as much", _SOLVER, "return 2.0 * self.lipschitz * (1.0 + rounding", "return 1.0 * self.lipschitz * (1.0 + rounding", (*_TESTS, *_RECORDED)),
    Fault("optimal smoothing: the longest is taken", _SOLVER, "permute_and_flip(choice_key, -found,", "permute_and_flip(choice_key, found,", _TESTS),
    Fault("optimal smoothing: places at random are far", _SOLVER, "place(cell) + plan.smoothing_radius * drawn", "place(cell) + drawn", _TESTS),
    Fault("optimal smoothing: from below", _SOLVER, "own = -turned.gradient[inner]", "own = 0.5 * turned.gradient[inner]", _TESTS),
    Fault("optimal smoothing: no margin", _SOLVER, "math.ceil(2.0 * smoothing_radius / width) + 1", "1", _TESTS),
    Fault("optimal smoothing: a single point's chance", _SOLVER, "log = dim * math.log(cells) + math.log(", "log = math.log(", _TESTS),
)  # fmt: skip
