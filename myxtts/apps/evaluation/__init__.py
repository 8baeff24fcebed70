"""Evaluation of speech: test sentences, models and recordings, metrics with confidence intervals, and reports."""
