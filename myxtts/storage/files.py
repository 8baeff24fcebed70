"""Shim."""

from myxtts.storage.checkpoint import read_json, write_json  # noqa: F401
