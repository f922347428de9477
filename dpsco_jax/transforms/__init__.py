"""How it chains: optax transformations for private and accelerated optimization."""

from dpsco_jax.transforms.ac_sa import (
    AcSaState,
    ac_sa,
    ac_sa_eval_params,
    balanced_smoothness,
)
from dpsco_jax.transforms.account import AccountState, account
from dpsco_jax.transforms.adaptive_spider import (
    AdaptiveSpiderState,
    AdaptiveStep,
    adaptive_spider,
    adaptive_state,
)
from dpsco_jax.transforms.aggregate import Aggregate
from dpsco_jax.transforms.aggregates import (
    clipped_mean,
    clipped_sum,
    summed_contributions,
)
from dpsco_jax.transforms.average import AverageState, average, average_eval_params
from dpsco_jax.transforms.centred_clip import (
    CentredClipState,
    centred_clip,
    stable_centre_rate,
)
from dpsco_jax.transforms.halt_when import HaltState, halt_when
from dpsco_jax.transforms.o2nc import O2ncState, o2nc, o2nc_eval_params
from dpsco_jax.transforms.outlier_removed_mean import (
    OutlierRemovedState,
    halted,
    outlier_removed_mean,
)
from dpsco_jax.transforms.perturb_when_small import PerturbState, perturb_when_small
from dpsco_jax.transforms.private_chain import PrivateChainState, private_chain
from dpsco_jax.transforms.privatize import PrivatizeState, privatize
from dpsco_jax.transforms.project import project
from dpsco_jax.transforms.project_subspace import project_subspace, projected_certificate
from dpsco_jax.transforms.prox_step import ProxStepState, prox_step, prox_step_eval_params
from dpsco_jax.transforms.restart import RestartState, restart_every, restart_stages
from dpsco_jax.transforms.smallest import SmallestState, smallest, smallest_eval_params
from dpsco_jax.transforms.spider import SpiderState, spider
from dpsco_jax.transforms.until_halted import UntilHaltedState, until_halted
from dpsco_jax.transforms.winsorized_mean import WinsorizedMeanState, winsorized_mean

__all__ = [
    "AcSaState",
    "AccountState",
    "AdaptiveSpiderState",
    "AdaptiveStep",
    "Aggregate",
    "AverageState",
    "CentredClipState",
    "HaltState",
    "O2ncState",
    "OutlierRemovedState",
    "PerturbState",
    "PrivateChainState",
    "PrivatizeState",
    "ProxStepState",
    "RestartState",
    "SmallestState",
    "SpiderState",
    "UntilHaltedState",
    "WinsorizedMeanState",
    "ac_sa",
    "ac_sa_eval_params",
    "account",
    "adaptive_spider",
    "adaptive_state",
    "average",
    "average_eval_params",
    "balanced_smoothness",
    "centred_clip",
    "clipped_mean",
    "clipped_sum",
    "halt_when",
    "halted",
    "o2nc",
    "o2nc_eval_params",
    "outlier_removed_mean",
    "perturb_when_small",
    "private_chain",
    "privatize",
    "project",
    "project_subspace",
    "projected_certificate",
    "prox_step",
    "prox_step_eval_params",
    "restart_every",
    "restart_stages",
    "smallest",
    "smallest_eval_params",
    "spider",
    "stable_centre_rate",
    "summed_contributions",
    "until_halted",
    "winsorized_mean",
]
