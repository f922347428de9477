"""Lower bounds on ε from runs: many runs of two neighbours, or one run with many canaries."""
