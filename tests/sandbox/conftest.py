"""Fixtures of the tests of the sandbox."""

from __future__ import annotations

from ..login.conftest import web

__all__ = ["web"]
