"""Keys of others become paths of ours."""

from __future__ import annotations

import os
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.data import keys
from rankup.data.errors import BadContainer
from rankup.data.index import Strings

SAFE = (
    b"a",
    b"n01440764/x.JPEG",
    b"..a/b..",
    b".hidden",
    b"a b/\xff\xfe",
    "ü/日本.png".encode(),
    b"back\\slash",
    b"new\nline",
    b"C:drive",
    b"a" * 4096,
)
UNSAFE = (
    b"",
    b"/etc/passwd",
    b"../up",
    b"a/../b",
    b"a/..",
    b"..",
    b".",
    b"./a",
    b"a/./b",
    b"a/.",
    b"a//b",
    b"a/",
    b"a\0b",
    b"\\root",
    b"\\\\server\\share",
    b"C:\\x",
    b"c:\\..\\x",
    b"a\\..\\..\\b",
    b"a" * 4097,
)


@pytest.mark.parametrize("key", SAFE)
def test_safe(key: bytes) -> None:
    assert keys.safe(key)
    keys.check(key, "it")


@pytest.mark.parametrize("key", UNSAFE)
def test_unsafe(key: bytes) -> None:
    assert not keys.safe(key)
    with pytest.raises(BadContainer, match=r"the\.tar has a sample named"):
        keys.check(key, "the.tar")


@given(st.lists(st.text("a./\\:\0", max_size=5).map(str.encode), max_size=8))
def test_many_keys_are_looked_at_as_each(names: list[bytes]) -> None:
    many = Strings.of(names)
    assert keys.unsafe(many) == next((one for one in names if not keys.safe(one)), None)
    assert many.distinct() == (len(set(names)) == len(names))


def test_hidden_names_are_not_looked_at_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bytes] = []
    safe = keys.safe

    def counted(key: bytes) -> bool:
        looked.append(key)
        return safe(key)

    monkeypatch.setattr(keys, "safe", counted)
    assert keys.unsafe(Strings.of([b".cache/x", b"a/.x", b"a/._x.jpg", b"a.b", b"a.", b"a/.."]))
    assert looked == [b"a/.."]


def test_keys_of_any_length_are_distinct_or_not() -> None:
    names = [b"%d|" % number * (1 + number % 40) for number in range(20_000)] + [b"x" * 200_000]
    assert Strings.of(names).distinct()
    assert not Strings.of([*names, names[7]]).distinct()
    # A NUL adds nothing to the hash of a string, so that these two are compared themselves.
    assert Strings.of([b"a", b"a\0"]).distinct()


def test_the_message_is_short_and_escaped() -> None:
    with pytest.raises(BadContainer) as caught:
        keys.check(b"../\x1b[2J\n" + b"x" * 5000, "the.tar")
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@given(st.text("a./\\:\0", max_size=8))
def test_a_safe_key_stays_below_its_folder(key: str) -> None:
    if keys.safe(key.encode()):
        assert os.path.normpath(f"/x/y/{key}") == f"/x/y/{key}"
        if "\\" in key:
            windows = PureWindowsPath(key)
            assert not windows.root
            assert ".." not in windows.parts
        assert str(Path("/x/y", key)).startswith("/x/y/")
