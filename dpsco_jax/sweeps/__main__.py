"""The console command ``dpsco-sweep``, also ``python -m dpsco_jax.sweeps``."""

import sys

from dpsco_jax.sweeps import command


def main() -> int:
    """Runs the command line of the process on all cores and returns its exit status."""
    command.use_all_cores()
    return command.main()


if __name__ == "__main__":
    sys.exit(main())
