"""What becomes of public single-GPU scripts: a table of check, port and verify.

    .venv/bin/python tools/public_scripts.py FOLDER > table.md
    .venv/bin/python tools/public_scripts.py FOLDER --rows rows.json --into docs/public-scripts.md

FOLDER holds the scripts that `public_scripts.json` names as `repo/path`, each with what it imports
beside it; they are no part of this project. That file also says, where needed, `args` for a script,
`data` to be drawn beside it (`drawn_data.py`), `edits` made in a copy of its folder first (smaller
models, no terminal), which `stand_ins` for packages that are missing here it gets (all but those
that have to lie `beside` it), and a `remark`. With --rows a script whose port has not changed since
is not run again. With --into the page's row of a script that is not in FOLDER now stays as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import drawn_data

from rankup.base.errors import UserError
from rankup.port.check import check
from rankup.port.rewrite.ported import Ported, port

_HERE = Path(__file__).parent
_CELLS = 6
_TABLE = re.compile(r"(<!-- table -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Row:
    """One script.

    Attributes:
        expected: what was thought of it when it was read by a person.
        outcome: `ported`, `needs a person`, `refused`, `crashed`, or `not there`.
        findings: codes that `check` reports for it.
        verified: what `verify` says, in a few words.
        left: what is left for a person, or why it was refused.
        remark: of a person who compared the two.
        key: of what was run: a port with its arguments and data.
    """

    script: str
    expected: str
    outcome: str
    findings: tuple[str, ...] = ()
    verified: str = "-"
    left: str = ""
    remark: str = ""
    key: str = ""

    @property
    def silently_wrong(self) -> bool:
        """`verify` found a difference, and `port` has said nothing of it."""
        return self.outcome == "ported" and self.verified.startswith("differs")


def look(entry: dict[str, Any], folder: Path, seconds: float, known: Sequence[Row] = ()) -> Row:
    """Check, port and verify one script, in a copy of its folder.

    Args:
        seconds: limit of each run of `verify`.
        known: earlier rows; the one of an equal port says what `verify` says.
    """
    name, expected = f"{entry['repo']}/{entry['path']}", entry["verdict"]
    remark = entry.get("remark", "")
    source = folder / entry["repo"] / entry["path"]
    if not source.is_file():
        return Row(name, expected, "not there", remark=remark)
    with tempfile.TemporaryDirectory() as temporary:
        path = _copy(entry, source, Path(temporary, "copy"))
        codes: tuple[str, ...] = ()
        try:
            codes = tuple(sorted({one.code for one in check([path], ["RK"])}))
            ported = port(path)
        except UserError as error:
            why = str(error).replace(f"{path.parent}/", "")
            return Row(name, expected, "refused", codes, left=why, remark=remark)
        except Exception as error:
            return Row(name, expected, "crashed", left=f"{type(error).__name__}: {error}")
        if ported.why:
            return Row(name, expected, "refused", codes, left=ported.why, remark=remark)
        given = json.dumps({name: value for name, value in entry.items() if name != "remark"})
        key = hashlib.sha256(f"{ported.text}{given}".encode()).hexdigest()[:16]
        same = next((row.verified for row in known if row.key == key), None)
        verified = same or _verify(path, ported, entry, seconds)
    notes = [(one, note) for one in ported.files for note in one.left]
    outcome = "needs a person" if notes else "ported"
    lines = {one: "line " if one is ported else f"{one.path.name}:" for one in ported.files}
    places = [f"{lines[one]}{note.line}: " if note.line else "" for one, note in notes]
    left = "; ".join(at + note.text for at, (_, note) in zip(places, notes, strict=True))
    return Row(name, expected, outcome, codes, verified, left, remark, key)


def _copy(entry: dict[str, Any], source: Path, target: Path) -> Path:
    """The script in a copy of its folder, with its data, and with its edits made."""
    shutil.copytree(source.parent, target)
    for file, kind in entry.get("data", {}).items():
        drawn_data.KINDS[kind](target / file)
    for file in entry.get("beside", ()):
        shutil.copy(_HERE / "stand_ins" / "beside" / file, target)
    for file, edits in entry.get("edits", {}).items():
        text = (target / file).read_text(encoding="utf-8")
        for old, new in edits:
            if old not in text:
                raise SystemExit(f"{source.parent / file} has no {old!r}")
            text = text.replace(old, new)
        (target / file).write_text(text, encoding="utf-8")
    return target / source.name


def _verify(path: Path, ported: Ported, entry: dict[str, Any], seconds: float) -> str:
    """What `rankup verify` says of the port."""
    args = shlex.split(entry.get("args", ""))
    for one in ported.files:
        one.target.write_bytes(one.text.encode("utf-8", "surrogateescape"))
    options = ["--time", str(seconds)]
    for group in entry.get("stand_ins", ("pictures", "others")):
        options += ["--stand-ins", str(_HERE / "stand_ins" / group)]
    scripts = [path.name, ported.target.name]
    done = subprocess.run(
        [sys.executable, "-m", "rankup", "verify", *options, *scripts, "--", *args],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    return _said(done.returncode, done.stdout, done.stderr)


def _said(code: int, out: str, err: str) -> str:
    """The result of `rankup verify` in a few words."""
    if code == 2:
        lines = [line for line in err.splitlines() if line.startswith("rankup: ")]
        told = lines[-1].removeprefix("rankup: ") if lines else "?"
        return f"not run: {told[:100]}"
    wrong = [line for line in out.splitlines() if ". differs on " in line]
    if wrong:
        return "differs: " + "; ".join(dict.fromkeys(line.split(":")[0] for line in wrong))
    last = out.strip().splitlines()[-1] if out.strip() else "?"
    return last if code == 0 else f"failed: {last[:100]}"


def of_page(page: str) -> dict[str, Row]:
    """The rows of the table in a page, by script."""
    found: dict[str, Row] = {}
    table = _TABLE.search(page)
    for line in table[0].splitlines() if table else ():
        cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
        if len(cells) == _CELLS and "/" in cells[0]:
            script, expected, outcome, codes, verified, left = cells
            known = tuple(codes.split()) if codes != "-" else ()
            found[script] = Row(
                script, expected, outcome, known, verified, left if left != "-" else ""
            )
    return found


def with_earlier(rows: Sequence[Row], earlier: dict[str, Row]) -> list[Row]:
    """Rows; those of scripts that are not there as they were."""
    return [earlier.get(row.script, row) if row.outcome == "not there" else row for row in rows]


def table(rows: Sequence[Row], old: int = 0) -> str:
    """Markdown.

    Args:
        old: how many of the rows are of an earlier time.
    """
    lines = [
        "| script | read by a person | outcome | findings | verified | left to a person, or why |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (row.script, row.expected, row.outcome, " ".join(row.findings) or "-")
        rest = (row.verified, ". ".join(filter(None, (row.left, row.remark))) or "-")
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in (*cells, *rest)) + " |")
    wrong = [row.script for row in rows if row.silently_wrong]
    stayed = (
        f" (rows kept from an earlier time, since the script was not there: {old})" if old else ""
    )
    lines += ["", f"Made on {date.today()}{stayed}; silently wrong: {', '.join(wrong) or 'none'}."]
    return "\n".join(lines) + "\n"


def _known(file: Path | None) -> list[Row]:
    """The rows of an earlier time."""
    if file is None or not file.exists():
        return []
    found = json.loads(file.read_text(encoding="utf-8"))
    return [Row(**{**one, "findings": tuple(one["findings"])}) for one in found]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or put it into a page; 1 where a port is silently wrong."""
    parser = argparse.ArgumentParser(description="check, port and verify public scripts")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", type=Path, default=_HERE / "public_scripts.json")
    parser.add_argument("--rows", type=Path, help="keeps what was found, for the next time")
    parser.add_argument("--only", default="", help="scripts with this in their name")
    parser.add_argument("--into", type=Path, help="a page with the marks of a table")
    parser.add_argument("--time", type=float, default=120.0, help="seconds of a run")
    given = parser.parse_args(arguments)
    known = _known(given.rows)
    rows = []
    for entry in json.loads(given.list.read_text(encoding="utf-8")):
        if given.only in f"{entry['repo']}/{entry['path']}":
            rows.append(look(entry, given.folder, given.time, known))
            print(f"{rows[-1].script}: {rows[-1].outcome}, {rows[-1].verified}", file=sys.stderr)
            if given.rows is not None:
                names = {row.script for row in rows}
                kept = [*rows, *(row for row in known if row.script not in names)]
                text = json.dumps([asdict(row) for row in kept], indent=1)
                given.rows.write_text(text, encoding="utf-8")
    if given.into is None:
        print(table(rows), end="")
    else:
        page = given.into.read_text(encoding="utf-8")
        earlier = of_page(page)
        there = sum(row.outcome != "not there" for row in rows)
        rows = with_earlier(rows, earlier)
        old = sum(row.outcome != "not there" for row in rows) - there
        text = table(rows, old)
        given.into.write_text(_TABLE.sub(lambda m: m[1] + text + m[2], page), encoding="utf-8")
    return int(any(row.silently_wrong for row in rows))


if __name__ == "__main__":
    sys.exit(main())
