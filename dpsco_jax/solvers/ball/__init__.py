"""Ball acceleration, its oracles, and the parallel methods that are made of it."""
