"""The search for trials: where it ends, who gets which trials, and that its cells are the study's."""

import math

import pandas as pd
import pytest

from dpsco_jax.sweeps.cells import cells_of
from experiments.studies import trial_search
from experiments.studies.digits_network import OURS, PEER, DigitsNetwork

BEST = {OURS: (16.0, 0.5, "decay"), PEER: (0.5, 2.0, "average")}


@pytest.fixture(scope="module")
def task():
    return trial_search.task_of("digits-network", "2")


class Bench:
    """Errors with one minimum for each method, and what was asked for."""

    def __init__(self, lucky=None):
        self.asked, self.lucky = [], lucky

    def __call__(self, wanted):
        self.asked += wanted
        return pd.DataFrame([c | {"chosen_by": 1 - self.error(c)} for c in wanted])

    def error(self, cell):
        rate, clip_norm, trick = BEST[cell["method"]]
        far = abs(math.log2(cell["rate"] / rate)) + abs(math.log2(cell["clip_norm"] / clip_norm))
        found = 0.01 * far + 0.005 * (cell["trick"] != trick)
        # Its first seed, which a trial begins with, says that it is best of all.
        lucky = (cell["rate"], cell["clip_norm"], cell["trick"]) == self.lucky
        return found - 0.5 * (lucky and cell["seed"] == 0) + 0.5 * (lucky and cell["seed"] > 0)


def test_the_search_ends_at_trials_whose_neighbours_have_been_tried(task):
    """The minima lie outside of what it begins with, on either side."""
    bench = Bench()
    assert trial_search.search(task, (1.0, 2.0), bench) == BEST
    asked = {(c["method"], c["rate"], c["clip_norm"], c["trick"]) for c in bench.asked}
    for method, trial in BEST.items():
        assert {(method, *near) for near in trial_search.neighbours(trial)} <= asked


def test_methods_have_the_same_trials_and_seeds_that_are_reported_have_no_part(task):
    bench = Bench()
    trial_search.search(task, (1.0, 2.0), bench)
    of = {
        method: {(*c.values(),)[1:] for c in bench.asked if c["method"] == method}
        for method in BEST
    }
    assert of[OURS] == of[PEER]
    assert max(c["seed"] for c in bench.asked) < task.study.tuning_seeds < task.study.seeds


def test_a_trial_with_a_lucky_first_seed_is_not_chosen(task):
    assert trial_search.search(task, (1.0, 2.0), Bench(lucky=(1.0, 1.0, "decay"))) == BEST


def test_cells_are_those_of_the_study(task):
    wanted = trial_search.cells(task, task.methods, [(4.0, 0.5, "decay")], 2)
    part = trial_search.part_of(task.study, wanted)
    names = {cell.id for cell in cells_of(part)}
    assert len(names) == 4
    assert names <= {cell.id for cell in cells_of(DigitsNetwork())}
