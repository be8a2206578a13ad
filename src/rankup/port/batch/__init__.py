"""Batch files: what one would start, in one table, and the rules that compare what stands in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ...base.findings import Finding, silenced
from ...base.text import clean
from ..rules.rule import rules_in
from . import rules_form, rules_job, rules_meet, rules_ranks
from .job import Job
from .script import BatchScript, is_batch, load
from .table import table

__all__ = ["RULES", "examine", "is_batch"]

_FORM = rules_in(rules_form)
_USE = rules_in(rules_ranks, rules_meet, rules_job)
RULES = (*_FORM, *_USE)
_SHELL = re.compile(r"#!.*\b(?:ba|da|z|k)?sh\b")


def examine(path: Path) -> tuple[list[str], list[Finding]]:
    """The table of what a batch file would start, a few lines, and its findings in their order.

    Raises:
        UserError: it cannot be read, or is no text.
    """
    script = load(path)
    shown, begins = list[str](), list[int]()
    if (alone := rules_form.hash_missing(script)) is not None:
        hits = [(alone, hit) for hit in alone.look(script)][:1]
    else:
        hits = [(rule, hit) for rule in _FORM for hit in rule.look(script)]
        # Of csh or a Python batch script the directives alone can be judged.
        if not script.lines[0].startswith("#!") or _SHELL.match(script.lines[0]):
            job = Job(script, table(script))
            shown = list(job.table.lines())
            begins = [step.line for step in job.table.steps]
            unsure = not job.table.whole or len(job.steps) < len(job.table.steps)
            rules = [rule for rule in _USE if not (rule.whole and unsure)]
            hits += [(rule, hit) for rule in rules for hit in rule.look(job)]
    hits.sort(key=lambda pair: (pair[1].at, pair[0].code))
    return shown, [
        rule.finding(f"{clean(str(path))}:{hit.at}", hit)
        for rule, hit in hits
        if not _silenced(script, rule.code, hit.at, begins)
    ]


def _silenced(script: BatchScript, code: str, line: int, begins: Sequence[int]) -> bool:
    """True where `# noqa` stands on the line, or above the command that it is in."""
    # A line that goes on, or stands in a quoted text, has no room for a comment.
    begin = max((begin for begin in begins if begin <= line), default=line)
    above = [script.lines[at - 2] for at in (begin, line) if at > 1]
    comments = [text for text in above if text.lstrip()[:1] == "#"]
    return any(silenced(code, text) for text in (script.lines[line - 1], *comments))
