"""Private ReSQue: localized SGD on reweighted queries, and the ball accelerations made of it."""
