"""A model as files that speak without this project."""
