"""The table of experiments: to add one, write its file and add a line here."""

from dpsco_jax.sweeps.experiment import Experiment
from experiments.studies.auto_choice import AutoChoice
from experiments.studies.ball_acceleration import BallAcceleration
from experiments.studies.digits_network import DigitsNetwork
from experiments.studies.element_cnn import ElementCNN
from experiments.studies.element_extras import ElementExtras
from experiments.studies.element_histogram import ElementHistogram
from experiments.studies.element_last_layer import ElementLastLayer
from experiments.studies.element_logistic import ElementLogistic
from experiments.studies.element_tables import ElementTables
from experiments.studies.feasible_region import FeasibleRegion
from experiments.studies.geometric_median import GeometricMedian
from experiments.studies.gradient_subspaces import GradientSubspaces
from experiments.studies.gradients_to_floor import GradientsToFloor
from experiments.studies.heavy_tails import HeavyTails
from experiments.studies.monteiro_svaiter import MonteiroSvaiter
from experiments.studies.movielens_factors import MovieLensFactors
from experiments.studies.online_regret import OnlineRegret
from experiments.studies.private_nonsmooth import PrivateNonsmooth
from experiments.studies.proximal_bias import ProximalBias
from experiments.studies.query_depth import QueryDepth
from experiments.studies.resque_drift import ResqueDrift
from experiments.studies.robust_regression import RobustRegression
from experiments.studies.rough_losses import RoughLosses
from experiments.studies.sampling_queries import SamplingQueries
from experiments.studies.sampling_risk import SamplingRisk
from experiments.studies.sampling_tuning import SamplingTuning
from experiments.studies.stationary_points import StationaryPoints
from experiments.studies.table_solvers import TableSolvers
from experiments.studies.table_tuning import TableTuning
from experiments.studies.user_level_robustness import UserLevelRobustness
from experiments.studies.user_level_scaling import UserLevelScaling
from experiments.studies.user_level_solvers import UserLevelSolvers
from experiments.studies.user_level_tradeoff import UserLevelTradeoff
from experiments.studies.user_level_tuning import UserLevelTuning

_ALL: tuple[type[Experiment], ...] = (
    UserLevelTradeoff,
    UserLevelTuning,
    UserLevelSolvers,
    TableTuning,
    TableSolvers,
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
    GradientSubspaces,
    AutoChoice,
    GeometricMedian,
    SamplingTuning,
    SamplingRisk,
    SamplingQueries,
    ElementLastLayer,
    ElementCNN,
    ElementHistogram,
    ElementLogistic,
    ElementTables,
    ElementExtras,
    DigitsNetwork,
    MovieLensFactors,
    RobustRegression,
    StationaryPoints,
    OnlineRegret,
    HeavyTails,
    RoughLosses,
)

EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}
