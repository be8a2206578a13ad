"""The front door: what README and tour show is what the commands print, and the site is whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from .monitor.report.browser import chromium

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"(<!-- not run: [^>]*-->\n)?^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What differs from machine to machine: ids of runs, folders, numbers, widths of a table.
_VARIES = (
    (re.compile(r"\d{8}-\d{6}-[a-z]{4}"), "ID"),
    (re.compile(r"(\.\.\.|/)[\w./-]*/"), "FOLDER/"),
    (re.compile(r"\d[\d,.]*(e[+-]\d+)?"), "N"),
    (re.compile(r"\s+"), " "),
)


def _plain(line: str) -> str:
    for pattern, put in _VARIES:
        line = pattern.sub(put, line)
    return line.strip()


def _shown(page: Path) -> list[tuple[str, list[str]]]:
    """Each command that a page shows, with the lines it shows below."""
    found: list[tuple[str, list[str]]] = []
    for not_run, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if not_run:
            continue
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:].partition("  #")[0].strip(), []))
            elif line.strip() != "...":
                found[-1][1].append(line)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)  # the tour trains eight times
def test_what_the_pages_show_is_what_their_commands_print(tmp_path: Path) -> None:
    """README, then the tour in the same folder: what both do is done once."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    beside = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{beside}:{os.environ['PATH']}", "COLUMNS": "200"}
    del environment["RANKUP_MONITOR"]
    printed: dict[str, list[str]] = {}
    for page in ("README.md", "docs/tour.md"):
        commands = [one for one in _shown(ROOT / page) if not one[0].startswith(("make ", "pip "))]
        assert len(commands) > 4
        for command, lines in commands:
            if command not in printed:
                words = ["bash", "-c", command]
                done = subprocess.run(
                    words, cwd=tmp_path, env=environment, capture_output=True, text=True
                )
                printed[command] = [_plain(s) for s in (done.stdout + done.stderr).splitlines()]
            there = printed[command]
            if any(line.startswith("verdict: not proved: time") for line in there):
                # On a busy machine `port` has no time to verify; the page's `verify` has, below.
                lines = [line for line in lines if not line.startswith("verdict: ")]
            missing = [line for line in lines if _plain(line) not in there]
            assert not missing, f"{command} does not print {missing} of {page}:\n{there}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; `--strict` is in mkdocs.yml: a dead link or an orphan ends the build."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_search_of_the_site_finds_a_term(site: Path) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, chromium() as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_address[1]}/"
        tab = browser.open(home + "index.html?q=all-reduce")
        tab.until("document.querySelectorAll('.md-search-result__item').length > 2")
        links = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
        found = tab.run(links)
        assert any("/strategies/" in link for link in found), found
        assert [url for url in tab.requests() if not url.startswith(home)] == []
        server.shutdown()


@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 150
    wide = []
    with chromium() as browser:
        for page in pages:
            tab = browser.open(page, width=390, height=800)
            if tab.run("document.documentElement.scrollWidth") > 390:
                wide.append(page.name)
            tab.close()
    assert wide == []
