"""The table of experiments: to add one, write its file and add a line here."""

from experiments.experiment import Experiment

_ALL: tuple[type[Experiment], ...] = ()

EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}
