"""The error of one thing that could not be fetched; the others are still tried."""

from __future__ import annotations


class FetchFailed(Exception):  # noqa: N818 - the fetch failed, the program did what it should
    """Why, and what to do; the message has no query and no credentials of a URL in it."""
