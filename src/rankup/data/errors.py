"""The one error that reading a container from elsewhere ends with."""

from __future__ import annotations

from ..base.errors import UserError


class BadContainer(UserError):  # noqa: N818 - it is what was found
    """A container or an index that is damaged, hostile, or not what it seems to be."""
