"""Which steps, and what they prove: mathematics in float64 on the host, without JAX and without data."""
