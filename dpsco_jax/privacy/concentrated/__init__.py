"""Tested means: what a phase of outlier-removed means costs, and how a budget is split over it."""
