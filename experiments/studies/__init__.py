"""Studies: one file each, with their table, tasks and metrics."""
