"""Batch scripts: what is wrong with one (`check`), and one for many nodes out of it (`port`)."""

from __future__ import annotations

import re
from pathlib import Path

from ...base.findings import Finding, silenced
from ...base.text import clean
from ..rules.rule import rules_in
from . import rules_form, rules_use
from .rewrite import Ported, port
from .script import BatchScript, is_batch, load

__all__ = ["RULES", "Ported", "check", "is_batch", "port"]

_FORM = rules_in(rules_form)
_USE = rules_in(rules_use)
RULES = (*_FORM, *_USE)
_SHELL = re.compile(r"#!.*\b(?:ba|da|z|k)?sh\b")


def check(path: Path) -> list[Finding]:
    """Return the findings in a batch script, in the order of its lines; nothing of it is run.

    Raises:
        UserError: it cannot be read, or is no text.
    """
    script = load(path)
    rules = list(_FORM)
    # Of csh or a Python batch script the directives alone can be judged.
    if not script.lines[0].startswith("#!") or _SHELL.match(script.lines[0]):
        rules += [rule for rule in _USE if not (rule.whole and script.unread)]
    found = [
        (hit.at, rule.code, rule.finding(f"{clean(str(path))}:{hit.at}", hit))
        for rule in rules
        for hit in rule.look(script)
        if not _silenced(script, rule.code, hit.at)
    ]
    return [one for *_, one in sorted(found, key=lambda entry: entry[:2])]


def _silenced(script: BatchScript, code: str, line: int) -> bool:
    """Return True where `# noqa` stands on the line, or above the command it is in."""
    texts = [*script.lines[line - 1 : line]]
    for command in script.commands:
        # A line that goes on, or stands in a quoted text, has no room for a comment.
        if 1 < command.line <= line <= command.end_line:
            texts += [one for one in [script.lines[command.line - 2]] if one.lstrip()[:1] == "#"]
    return any(silenced(code, text) for text in texts)
