"""Evaluation of a model's speech: sentences, sources, recognizers, figures with their intervals, pages."""
