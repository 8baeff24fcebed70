"""Judging what a model says: sentences, what speaks them, what listens, figures with their intervals, pages."""
