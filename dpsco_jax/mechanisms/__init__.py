"""How a statistic is released: pure functions that draw noise, each with its privacy loss."""
