"""What is shown of a URL holds no secret, and still tells it from others."""

from __future__ import annotations

import pytest

from rankup.base import urls


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://me:pass@host:8080/a/b.tgz?x=1#y", "https://host:8080/a/b.tgz"),
        ("https://token@host/a", "https://host/a"),
        ("https://u:p@ss@host/x?tok=1", "https://host/x"),
        ("https://u:it's@host/x", "https://host/x"),
        ("s3://key:secret@bucket/x?sig=1", "s3://bucket/x"),
        ("HTTPS://u:pw@Host/a?b=c", "https://host/a"),
        ("https://h/a;sig=1?x|y=SECRET", "https://h/a"),
        ("http://[::1]:80/a", "http://[::1]:80/a"),
        ("http://[broken/a?x=1", "http://..."),
        ("https://u:p/w@host/x", "https://..."),
        ("u:p@host/x?token=1", "host/x"),
        ("file:///data/a?b", "file:///data/a"),
        ("hf://datasets/org/a@abc/f.parquet", "hf://datasets/org/a@abc/f.parquet"),
    ],
)
def test_public_urls_hold_no_secret(url: str, expected: str) -> None:
    assert urls.public(url) == expected
    assert urls.public(expected) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "GET https://me:x@h/a?t=s failed (Max retries exceeded with url: /a/b?token=s (why))",
            "GET https://h/a failed (Max retries exceeded with url: /a/b?... (why))",
        ),
        ("'https://u:p@ss@host/x?tok=1', then", "'https://host/x', then"),
        ("s3://key:secret@h/x?sig=1 HTTPS://u:pw@h/a?b=c", "s3://h/x https://h/a"),
        ("\"https://h/a?X='SECRET'&sig=S2\": refused", '"https://h/a": refused'),
        ("https://h/a;sig=1?x|y=SECRET is gone", "https://h/a is gone"),
        ("https://h/a(1)?sig=S and host/x?sig=S", "https://h/a(1 and host/x?..."),
        ("(see https://h/a, or http://h:80).", "(see https://h/a, or http://h:80)."),
        ('{"url": "https://h/a?b=c", "code": 403}', '{"url": "https://h/a", "code": 403}'),
        ("is it there? x = 1", "is it there? x = 1"),
    ],
)
def test_texts_hold_no_secret_of_a_url(text: str, expected: str) -> None:
    assert urls.cleaned(text) == expected


def test_urls_in_a_command_line_are_public() -> None:
    line = "wget -q 'https://u:p@h/a.zip?key=1' && curl https://h/b; curl -L https://h/c|tar x"
    assert urls.among(line) == ["https://h/a.zip", "https://h/b", "https://h/c"]


def test_the_identity_tells_by_what_it_does_not_show() -> None:
    kept = urls.identity("https://me:pw@h/a;p=secret?id=1#top")
    for other in ("https://h/a;p=other?id=1", "https://h/a;p=secret?id=2", "https://h/a"):
        assert urls.identity(other) != kept
    assert urls.identity("https://you:other@h/a;p=secret?id=1") == kept
    assert urls.identity("https://h/a") == "https://h/a"
    for secret in ("pw", "secret", "id=1"):
        assert secret not in kept


@pytest.mark.parametrize(
    "url",
    ["http://[bad/x", "http://h:99999/x", "http:///x", "ftp://h/x", "http://a..b/x", "http://h/\n"],
)
def test_what_cannot_be_asked_for_is_no_url_of_the_web(url: str) -> None:
    assert urls.web_parts(url) is None


def test_long_texts_take_no_time() -> None:
    """A pattern that goes back over all of it would take until the test's time-out."""
    for text in ("a." * 50_000, "?" * 100_000, "a://" * 25_000, "?x" * 50_000, "a://'" * 20_000):
        urls.cleaned(text)
