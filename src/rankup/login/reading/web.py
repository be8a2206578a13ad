"""Calls that fetch a URL: of Python's libraries, or by a program that is started."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from .found import Download
from .use import Rule, Use, texts
from .worth import Known, Unknown, Value

_PROGRAMS = re.compile(
    r"\b(wget|curl|aria2c|git\s+clone|gsutil|gcloud\s+storage|aws\s+s3|rclone|gdown|kaggle"
    r"|hf\s+download|huggingface-cli\s+download)\b"
)
_URL = re.compile(r"(?:https?|ftp|gs|s3)://[^\s'\"|;&<>]+")


def to_file(url: int, file: int, *file_names: str) -> Rule:
    """A rule for a call that writes a URL into a file."""

    def rule(use: Use) -> Iterator[Download]:
        where = use.text(file, *file_names)
        for one in _urls(use.argument(url, "url")):
            yield from use.download("url", one, by_name=bool(where), to=where)

    return rule


def opened(use: Use) -> Iterator[Download]:
    """A call that reads a URL: where the bytes go is the script's own affair."""
    yield from _unless_local(use, use.argument(0, "url"))


def from_url(use: Use) -> Iterator[Download]:
    """A call that takes a URL or a path (`pandas.read_csv`): only URLs are downloads."""
    value = use.argument(0, "filepath_or_buffer", "path", "fname", "urlpath", "source")
    urls = [one for one in texts(value) if isinstance(one, str) and _URL.match(one)]
    if urls:
        yield from use.download("url", Known(tuple(urls)))


def command(use: Use) -> Iterator[Download]:
    """`os.system`, `subprocess.run`: wget, curl and their like."""
    value = use.argument(0, "args", "command", "cmd")
    if isinstance(value, Unknown):
        shown = use.program()
        if _PROGRAMS.search(shown):
            yield from use.download("other", Unknown(f"{shown}: {value.why}"))
        return
    for one in value.values:
        words = one if isinstance(one, str) else " ".join(map(str, one)) if one else ""
        found = _PROGRAMS.search(words)
        if found is None:
            continue
        urls = _URL.findall(words)
        if urls:
            yield from use.download("url", Known(tuple(urls)))
        else:
            program = " ".join(found[1].split())
            rest = _words(words[found.end() :])
            name = next((word for word in rest if not word.startswith("-")), "")
            yield from use.download("other", name or Unknown(f"what {program} fetches"))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _urls(value: Value) -> Iterator[Value]:
    if isinstance(value, Unknown):
        yield value
    else:
        for one in value.values:
            if not (isinstance(one, str) and one.startswith("file:")):
                yield Known((one,))


def _unless_local(use: Use, value: Value) -> Iterator[Download]:
    for one in _urls(value):
        yield from use.download("url", one)
