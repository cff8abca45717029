"""Fixtures that every suite may ask for by name."""

from tests.services import valkey

__all__ = ["valkey"]
