"""The console command ``dpsco-sweep``, also ``python -m dpsco_jax.sweeps``."""

import sys


def main() -> int:
    """Runs the command line of the process on all cores and returns its exit status."""
    try:
        from dpsco_jax.sweeps import command
    except ModuleNotFoundError as missing:
        print(f"dpsco-sweep: {missing}", file=sys.stderr)
        return 1
    command.use_all_cores()
    return command.main()


if __name__ == "__main__":
    sys.exit(main())
