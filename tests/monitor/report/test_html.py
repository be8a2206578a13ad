"""The page of a run, without a browser: what is in it, and what cannot get into it."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rankup.monitor.load import load
from rankup.monitor.recording import Facts, Recording
from rankup.monitor.report.html import portal

from ..handmade import BEGIN, attempt, made
from ..traces import short
from .pages import text

LIMIT = 6_000_000


class Body(HTMLParser):
    """Text that a reader sees, and all addresses that a page names."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.addresses, self.ids, self._silent = "", [], [], 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in ("script", "style")
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.text += data


def empty() -> Recording:
    """A job of which nothing was recorded, as `load` has it."""
    facts = Facts(
        run="20251122-180000-none",
        name="none",
        command="rankup run train.py",
        directory="/runs/none",
        attempts=(attempt(BEGIN, BEGIN + 30, "FAILED", words="It died before it began."),),
    )
    with tempfile.TemporaryDirectory() as folder:
        return load(Path(folder), facts)


def test_the_page_is_one_file_that_asks_for_nothing() -> None:
    page = text(made())
    assert len(page.encode()) < LIMIT
    body = Body(page)
    assert all(address.startswith("#") for address in body.addresses)
    order = ["verdict", "job", "gpu", "cpu", "memory", "io", "network", "progress"]
    assert [one for one in body.ids if one in order] == order
    assert "Efficiency" in body.text
    assert "mean over all billed GPU time" in body.text
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe-eval" not in policy[1]
    assert "unsafe-inline" not in policy[1].split("style-src")[0]


def test_an_empty_recording_has_an_honest_page() -> None:
    body = Body(text(empty()))
    for sentence in (
        "No GPU was recorded",
        "No CPU was recorded",
        "No steps were recorded",
        "It died before it began.",
        "none recorded",
    ):
        assert sentence in body.text


def test_a_run_that_is_too_short_to_judge_is_not_called_good() -> None:
    page = text(short().recording())
    assert "Too short to judge" in page
    assert "Not judged" in page
    assert ">Good" not in page


def test_a_running_job_says_so() -> None:
    base = made()
    facts = replace(base.facts, attempts=(attempt(base.begin, None, "RUNNING"),))
    page = text(replace(base, running=True, facts=facts))
    assert "still running; as of" in Body(page).text


def test_what_comes_from_outside_is_text() -> None:
    evil = "</script><script>alert(1)</script>"
    base = made()
    head = replace(base.heads[0], node=evil)
    facts = replace(base.facts, name=evil, command=f"{evil}\u202e\u2028", what={evil: evil})
    page = text(replace(base, heads=(head, *base.heads[1:]), facts=facts))
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert page.count("</script>") == 3
    assert evil in Body(page).text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://llview.example.org/job/1", True),
        ("http://llview/1", True),
        ("javascript:alert(1)", False),
        ("JavaScript:alert(1)", False),
        ("data:text/html,x", False),
        ("file:///etc/passwd", False),
        ("//evil.example.org", False),
        ("https://", False),
        ("http://[", False),
        ("", False),
        (None, False),
    ],
)
def test_the_portal_is_a_web_page(url: str | None, shown: bool) -> None:
    assert bool(portal(url)) is shown
