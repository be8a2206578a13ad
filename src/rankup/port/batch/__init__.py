"""Batch files: what one would start, in one table, and the rules that compare what stands in it."""

from __future__ import annotations

import re
from pathlib import Path

from ...base.findings import Finding, silenced
from ...base.text import clean
from ..rules.rule import rules_in
from . import rules_form, rules_job, rules_meet, rules_ranks
from .job import Job
from .script import BatchScript, is_batch, load
from .table import table

__all__ = ["RULES", "check", "is_batch", "looked_at"]

_FORM = rules_in(rules_form)
_USE = rules_in(rules_ranks, rules_meet, rules_job)
RULES = (*_FORM, *_USE)
_SHELL = re.compile(r"#!.*\b(?:ba|da|z|k)?sh\b")


def check(path: Path) -> list[Finding]:
    """Return the findings in a batch script, in the order of its lines; nothing of it is started.

    Raises:
        UserError: it cannot be read, or is no text.
    """
    return looked_at(path)[1]


def looked_at(path: Path) -> tuple[list[str], list[Finding]]:
    """Return the table of what a batch script would start, a few lines, and its findings.

    Raises:
        UserError: it cannot be read, or is no text.
    """
    script = load(path)
    alone = rules_form.hash_missing(script)
    shown: list[str] = []
    hits = []
    if alone is not None:
        hits = [(alone, hit) for hit in alone.look(script)][:1]
    else:
        hits = [(rule, hit) for rule in _FORM for hit in rule.look(script)]
        # Of csh or a Python batch script the directives alone can be judged.
        if not script.lines[0].startswith("#!") or _SHELL.match(script.lines[0]):
            job = Job(script, table(script))
            shown = list(job.table.lines())
            unsure = bool(script.unread) or not job.table.whole
            unsure = unsure or len(job.steps) < len(job.table.steps)
            rules = [one for one in _USE if not (one.whole and unsure)]
            hits += [(rule, hit) for rule in rules for hit in rule.look(job)]
    found = [
        (hit.at, rule.code, rule.finding(f"{clean(str(path))}:{hit.at}", hit))
        for rule, hit in hits
        if not _silenced(script, rule.code, hit.at)
    ]
    return shown, [one for *_, one in sorted(found, key=lambda entry: entry[:2])]


def _silenced(script: BatchScript, code: str, line: int) -> bool:
    """Return True where `# noqa` stands on the line, or above the command it is in."""
    texts = [*script.lines[line - 1 : line]]
    for command in script.commands:
        # A line that goes on, or stands in a quoted text, has no room for a comment.
        if 1 < command.line <= line <= command.end_line:
            texts += [one for one in [script.lines[command.line - 2]] if one.lstrip()[:1] == "#"]
    return any(silenced(code, text) for text in texts)
