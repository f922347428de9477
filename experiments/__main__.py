"""The command line of the studies: ``python -m experiments list | run NAME [options] | report NAME``.

It is ``dpsco-sweep`` with the studies by their names; see ``dpsco_jax.sweeps.command``.
"""

import sys

from dpsco_jax.sweeps.command import main, use_all_cores
from experiments.studies.table import EXPERIMENTS

if __name__ == "__main__":
    use_all_cores()
    sys.exit(main(experiments=EXPERIMENTS, program="python -m experiments"))
