"""The table of experiments: to add one, write its file and add a line here."""

from experiments.ball_acceleration import BallAcceleration
from experiments.experiment import Experiment
from experiments.feasible_region import FeasibleRegion
from experiments.gradients_to_floor import GradientsToFloor
from experiments.monteiro_svaiter import MonteiroSvaiter
from experiments.private_nonsmooth import PrivateNonsmooth
from experiments.proximal_bias import ProximalBias
from experiments.query_depth import QueryDepth
from experiments.resque_drift import ResqueDrift
from experiments.user_level_robustness import UserLevelRobustness
from experiments.user_level_scaling import UserLevelScaling
from experiments.user_level_solvers import UserLevelSolvers
from experiments.user_level_tradeoff import UserLevelTradeoff
from experiments.user_level_tuning import UserLevelTuning

_ALL: tuple[type[Experiment], ...] = (
    UserLevelTradeoff,
    UserLevelTuning,
    UserLevelSolvers,
    UserLevelScaling,
    UserLevelRobustness,
    GradientsToFloor,
    QueryDepth,
    BallAcceleration,
    MonteiroSvaiter,
    FeasibleRegion,
    ResqueDrift,
    PrivateNonsmooth,
    ProximalBias,
)

EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}
