"""EpochSGD and AC-SA as ball oracles: sizes, counts, feasibility; with many seeds, their guarantee."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.oracles import resque
from dpsco_jax.problems import gaussian_smoothing, losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData, mean_loss
from dpsco_jax.solvers.ball import ball_ac_sa, epoch_sgd

DIM, RADIUS = 10, 0.05
ACCURACIES = (1 / 4, 1 / 16, 1 / 64)
SOLVERS = [epoch_sgd, ball_ac_sa]


def absolute_regression():
    """Unit rows and small labels, so that the minimizer moves within a ball of radius 0.05."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 1, DIM))
    rows = (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)
    labels = (0.02 * rng.normal(size=(50, 1))).astype(np.float32)
    center = (0.3 * rng.normal(size=DIM) / np.sqrt(DIM)).astype(np.float32)
    return UserData(Example(rows, labels)), jnp.asarray(center)


DATA, CENTER = absolute_regression()
OBJECTIVE = losses.absolute(1.001)
SMOOTH = mean_loss(gaussian_smoothing.smoothed(OBJECTIVE, gaussian_smoothing.absolute, RADIUS))
SAMPLED = resque.sampled_user_gradient(OBJECTIVE, DATA)


def value(point, regularization):
    """The ball problem's objective."""
    return SMOOTH(point, DATA) + regularization / 2 * jnp.sum((point - CENTER) ** 2)


def planned(solver, sizes="proved", **changes):
    arguments = {
        "lipschitz": 1.0,
        "ball_radius": RADIUS,
        "smoothing_radius": RADIUS,
        "min_regularization": 10.0,
        "accuracies": ACCURACIES,
        "sizes": sizes,
    }
    return solver.plan(**{**arguments, **changes})


@pytest.mark.parametrize("solver", SOLVERS)
def test_answers_and_counts_in_a_ball_that_the_domain_cuts(solver):
    domain_radius = float(jnp.linalg.norm(CENTER))
    plan = planned(solver, accuracies=(0.05,))
    blocks = []

    @jax.jit
    def run(key, regularization, slope):
        def gradient(keys, points):
            jax.debug.callback(lambda p: blocks.append(len(p)), points)
            return slope * SAMPLED(keys, points)

        (oracle,) = solver.ball_oracles(plan, gradient, domain_radius)
        return oracle(key, CENTER, regularization)

    for regularization in (11.0, 50.0):
        blocks.clear()
        answer = run(jax.random.key(2), regularization, 1.0)
        jax.effects_barrier()
        queries = plan.queries[int(jnp.argmax(answer.calls))]
        assert queries <= sum(blocks) < queries + 128
        assert jnp.sum(answer.calls) == 1
        assert answer.multiplier == regularization
        assert jnp.linalg.norm(answer.point) <= domain_radius * (1 + 1e-5)
        assert jnp.linalg.norm(answer.point - CENTER) <= RADIUS * (1 + 1e-5)
        gap = value(answer.point, regularization) - value(CENTER, regularization)
        assert gap < (-1e-3 if regularization == 11.0 else 1e-4)
    # No slope, no move: the regularizer alone is least at the center.
    still = run(jax.random.key(2), 11.0, 0.0).point
    np.testing.assert_allclose(still, CENTER, atol=1e-6)


SLOPE = np.linspace(-0.5, 0.7, DIM)
FAR = {"ball_radius": RADIUS, "smoothing_radius": 1e6}  # all weights are 1


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_mean_excess_stays_below_the_guarantee(solver):
    """Beside the minimizer over the ball, by projected gradients on the exact smoothed loss."""
    weight, keys = 10.0, jax.random.split(jax.random.key(1), 40)
    smoothness = np.sqrt(2 / np.pi) / RADIUS + weight

    def step(_, point):
        move = point - jax.grad(value)(point, weight) / smoothness - CENTER
        return CENTER + move * jnp.minimum(1.0, RADIUS / jnp.linalg.norm(move))

    best = value(jax.jit(lambda: jax.lax.fori_loop(0, 300, step, CENTER))(), weight)
    for accuracy, oracle in zip(
        ACCURACIES, solver.ball_oracles(planned(solver), SAMPLED), strict=True
    ):
        points = jax.jit(jax.vmap(lambda key, f=oracle: f(key, CENTER, weight).point))(keys)
        mean = jnp.mean(jax.vmap(lambda x: value(x, weight))(points)) - best
        # Proved is the accuracy itself.
        assert -1e-4 < mean / (weight * RADIUS**2) < 0.15 * accuracy
        assert jnp.max(jnp.linalg.norm(points - CENTER, axis=1)) <= RADIUS * (1 + 1e-5)


def same_everywhere(keys, points):
    return jnp.broadcast_to(jnp.asarray(SLOPE, jnp.float32), points.shape)


def onto_ball(point, center):
    arrow = point - center
    return center + arrow * min(1.0, RADIUS / max(np.linalg.norm(arrow), 1e-30))


def test_epoch_sgd_makes_the_steps_of_algorithm_6():
    weight, center = 25.0, np.asarray(CENTER, float)
    point = epoch_sgd.minimize(
        jax.random.key(0), same_everywhere, CENTER, weight, num_epochs=2, max_epochs=3, **FAR
    )
    x = center
    for epoch in range(2):
        eta, length = 1 / (4 * weight * 2**epoch), 16 * 2**epoch
        y = onto_ball((x + eta * weight * center) / (1 + eta * weight), center)
        total = y.copy()
        for _ in range(length - 1):
            free = (y + eta * weight * center - eta * SLOPE) / (1 + eta * weight)
            y = onto_ball(free, center)
            total += y
        x = total / length
    np.testing.assert_allclose(point, x, atol=2e-6)


def test_ac_sa_makes_the_steps_of_algorithm_7_as_corrected():
    weight, center, steps = 25.0, np.asarray(CENTER, float), 5
    far = {**FAR, "smoothing_radius": 1e3}
    lipschitz = 3e4  # enough for its share of the smoothness to be seen
    point = ball_ac_sa.minimize(
        jax.random.key(0),
        same_everywhere,
        CENTER,
        weight,
        lipschitz=lipschitz,
        num_steps=steps,
        batch_sizes=np.asarray([3, 200], np.int32),
        max_queries=5 * 203,
        **far,
    )
    smoothness = np.sqrt(2 / np.pi) * lipschitz / 1e3 + weight
    ag = center
    for _ in range(2):
        x = ag
        for t in range(1, steps + 1):
            alpha, gamma = 2 / (t + 1), 4 * smoothness / (t * (t + 1))
            pull = (1 - alpha) * weight + gamma
            move = (alpha * weight * center + pull * x - alpha * SLOPE) / (weight + gamma)
            x = onto_ball(move, center)
            ag = alpha * x + (1 - alpha) * ag
    np.testing.assert_allclose(point, ag, atol=2e-6)


def test_sizes_of_epoch_sgd():
    plan = planned(epoch_sgd, "paper")
    assert plan.queries[:4] == (0, 15, 46, 109)
    assert plan.depths[:4] == (0, 16, 48, 112)
    for accuracy, edges in zip(plan.accuracies, plan.thresholds, strict=True):
        for regularization in np.geomspace(10, 100, 37):
            samples = np.ceil(48 / (regularization**2 * RADIUS**2 * accuracy))
            epochs = int(np.floor(np.log2(samples / 16 + 1)))
            if 1 / (2 * regularization) <= accuracy * regularization * RADIUS**2:
                epochs = 0
            assert np.sum(regularization < edges) == epochs
    proved, practical = planned(epoch_sgd), planned(epoch_sgd, "practical")
    assert max(practical.queries) < max(proved.queries) < max(plan.queries)


def test_proved_epochs_meet_the_recursion():
    """The bound b_m, iterated as it stands, is met by the number of epochs chosen and by no fewer."""
    plan = planned(epoch_sgd, accuracies=(0.01,))

    def bound(epochs, weight):
        square = min(RADIUS, 1 / weight) ** 2
        result = 1 / (2 * weight)
        for k in range(epochs):
            result = weight * square / 8 + np.e / (4 * weight * 2**k) / 2
            square = result / weight
        return result

    for weight in np.geomspace(10, 200, 40):
        epochs = int(np.sum(weight < plan.thresholds[0]))
        goal = 0.01 * weight * RADIUS**2
        assert bound(epochs, weight) <= goal * (1 + 1e-5)
        assert epochs == 0 or bound(epochs - 1, weight) > goal * (1 - 1e-5)


def test_proved_stages_meet_the_recursion():
    plan = planned(ball_ac_sa, accuracies=(0.01,))
    paper = planned(ball_ac_sa, "paper", accuracies=(0.01,))
    for i, stages in enumerate(plan.stages):
        weight, steps = 10.0 * 2**i, stages.num_steps
        smoothness = np.sqrt(2 / np.pi) / RADIUS + weight
        excess = weight * min(RADIUS, 1 / weight) ** 2 / 2  # stands for the distance squared
        for size in stages.batch_sizes:
            optimization = 2 * smoothness * (2 * excess / weight) / (steps * (steps + 1))
            excess = optimization + 2 * (np.e / size) / (weight * (steps + 1))
        if stages.batch_sizes:
            assert excess <= 0.01 * weight * RADIUS**2
        assert stages.queries < paper.stages[i].queries
        assert stages.depth < paper.stages[i].depth
    assert paper.stages[0].num_steps == int(np.ceil(4 * np.sqrt(1 + 1 / (RADIUS * 10))))
    sizes = [np.ceil(48 * 2**k / (0.25 * 7)) for k in range(1, 8)]
    assert list(paper.stages[0].batch_sizes) == sizes


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("smoothing_radius", RADIUS / 2),
        ("accuracies", ()),
    ],
)
def test_bad_arguments_are_refused(solver, name, bad):
    with pytest.raises(ValueError, match=name):
        planned(solver, **{name: bad})
