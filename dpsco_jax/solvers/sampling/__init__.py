"""Private optimization by drawing a point from a density: samplers that come with a certificate."""
