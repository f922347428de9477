"""Methods of other authors, to compare with: baselines of the studies, no part of the library."""
