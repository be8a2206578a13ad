"""Pages of the site that are made from the code: commands, Python names, rules, findings, examples.

A hook of MkDocs (`make docs`).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.main import get_command

import rankup
from rankup.cli.app import PANELS, app

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Pages that stand beside docs/ as files of the repository.
TAKEN = {
    "index.md": "README.md",
    "reference/figures.md": "bench/README.md",
    "about/contributing.md": "CONTRIBUTING.md",
    "about/changelog.md": "CHANGELOG.md",
    "about/security.md": "SECURITY.md",
    "about/licence.md": "LICENSE",
    "about/citation.md": "CITATION.cff",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code."""
    pages = {
        "reference/commands.md": _commands(),
        "reference/python.md": _names(),
        "reference/examples.md": _examples(),
        "reference/rules.md": _list_of("rules", "What `rankup check` looks for, and `port` mends."),
        "reference/findings.md": _list_of("findings", "What `doctor` and `report` find."),
        **{path: _taken(source) for path, source in TAKEN.items()},
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to what stands beside docs/ to the page that shows it."""
    here = page.file.src_uri
    source = TAKEN.get(here)
    at = ROOT / source if source else DOCS / here

    def place(match: re.Match[str]) -> str:
        link, _, anchor = match[1].partition("#")
        aim = (at.parent / link).resolve()
        if not aim.is_relative_to(ROOT) or not link or "://" in link:
            return match[0]
        page_of = _page(aim.relative_to(ROOT).as_posix())
        up = posixpath.relpath(page_of, posixpath.dirname(here) or ".")
        return f"]({up}{'#' + anchor if anchor else ''})"

    return LINK.sub(place, markdown)


def _page(path: str) -> str:
    """Return the page of the site that shows a file of the repository."""
    for page, source in TAKEN.items():
        if path == source:
            return page
    folder, _, name = path.partition("/")
    if folder == "examples":
        return f"reference/examples.md#{_anchor(name)}" if name else "reference/examples.md"
    if folder == "docs" and name in ("rules", "findings"):
        return f"reference/{name}.md"
    return path.removeprefix("docs/")


def _taken(source: str) -> str:
    text = (ROOT / source).read_text(encoding="utf-8")
    if source.endswith(".md"):
        return text
    return f"# {source}\n\n```\n{text}```\n"


def _anchor(path: str) -> str:
    return Path(path).stem.replace("_", "-")


def _list_of(folder: str, head: str) -> str:
    """A table of the pages of a folder: code and title."""
    rows = []
    for path in sorted((DOCS / folder).glob("RK*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        code, _, what = title.partition(":")
        rows.append(f"| [{code}](../{folder}/{path.name}) | {what.strip()} |")
    return "\n".join(
        [f"# {folder.capitalize()}", "", head, "", "| code | what is found |", "|---|---|", *rows]
    )


def _names() -> str:
    """Every public name, by its docstring."""
    homes: dict[str, str] = rankup._HOME
    parts = [
        "# Python",
        "",
        "All names are in `rankup`; they work in a plain `python train.py` too.",
    ]
    for name, module in homes.items():
        parts += ["", f"::: rankup.{module}.{name}"]
    return "\n".join(parts)


def _examples() -> str:
    parts = ["# Examples, by hand", "", "Complete scripts, to read and to run with torchrun."]
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts += ["", f"## {path.name} {{ #{_anchor(path.name)} }}", "", "```python"]
        parts += [path.read_text(encoding="utf-8").rstrip(), "```"]
    return "\n".join(parts)


def _commands() -> str:
    """Every verb with its arguments and options, as `--help` says them."""
    verbs: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    parts = ["# Commands"]
    for panel, names in PANELS.items():
        parts += ["", f"## {panel}"]
        for name in names:
            parts += ["", *_verb(f"rankup {name}", verbs[name])]
            for action, verb in getattr(verbs[name], "commands", {}).items():
                parts += ["", *_verb(f"rankup {name} {action}", verb)]
    return "\n".join(parts)


def _verb(name: str, verb: Any) -> list[str]:
    parts = [f"### {name}", "", verb.help or ""]
    rows = []
    for parameter in verb.params:
        if getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            spelled = parameter.name.upper()
        else:
            spelled = ", ".join([*parameter.opts, *parameter.secondary_opts])
        text = (getattr(parameter, "help", "") or "").replace("|", "\\|")
        rows.append(f"| `{spelled}` | {text} |")
    if rows:
        parts += ["", "| option | what it does |", "|---|---|", *rows]
    return parts
