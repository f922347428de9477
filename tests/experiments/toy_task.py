"""A small task: columns and labels of the form of the real ones, for experiments on data sets."""

import contextlib

import numpy as np
import pytest

from dpsco_jax.geometry.domains import ball
from dpsco_jax.problems.datasets import Task
from dpsco_jax.problems.losses import logistic
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData
from experiments.studies import tasks
from tests.experiments.finished import finished

DIM = 12
NAMES = (*(f"score={i}" for i in range(8)), *(f"place={i}" for i in range(DIM - 8)))


def users(seed, count):
    rng = np.random.default_rng(seed)
    columns = np.stack([rng.integers(0, 8, (count, 4)), rng.integers(8, DIM, (count, 4))], axis=-1)
    chance = 1 / (1 + np.exp(3.0 - 0.9 * columns[..., 0]))
    labels = (rng.random((count, 4)) < chance).astype(np.float32)
    mask = rng.random((count, 4)) < 0.8
    mask[:, 0] = True
    return UserData(Example(OneHot(columns.astype(np.int32)), labels), mask)


def toy_task(name):
    objective = logistic(1.0, domain=ball(200.0), ridge=1e-3)
    return Task(name, users(0, 400), users(1, 100), DIM, objective, NAMES, "toy")


@contextlib.contextmanager
def every_task_is_the_toy():
    """Whatever task is asked for, the toy is loaded."""
    with pytest.MonkeyPatch.context() as patch:
        tasks.load_problem.cache_clear()
        patch.setattr(tasks, "load", toy_task)
        yield
    tasks.load_problem.cache_clear()


def finish(experiment, folder, **options):
    """The table of an experiment on the toy."""
    with every_task_is_the_toy():
        return finished(experiment, folder, **options)
