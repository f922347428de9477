"""The table of experiments: to add one, write its file and add a line here."""

from experiments.experiment import Experiment
from experiments.user_level_tradeoff import UserLevelTradeoff
from experiments.user_level_tuning import UserLevelTuning

_ALL: tuple[type[Experiment], ...] = (UserLevelTradeoff, UserLevelTuning)

EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}
