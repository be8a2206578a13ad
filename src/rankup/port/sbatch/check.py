"""`rankup check` of a batch script: what stands between it and many nodes."""

from __future__ import annotations

import re
from pathlib import Path

from ...base.findings import Finding, silenced
from ...base.text import clean
from . import rules_form, rules_nodes, rules_use
from .rule import Hit, Rule
from .script import BatchScript, load

_FORM = tuple(one for one in vars(rules_form).values() if isinstance(one, Rule))
_USE = tuple(
    one
    for module in (rules_nodes, rules_use)
    for one in vars(module).values()
    if isinstance(one, Rule)
)
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
    # A line that goes on, or stands in a quoted text, has no room for a comment.
    above = {
        line: one.line - 1
        for one in script.commands
        for line in range(one.line, one.end_line + 1)
        if one.line > 1
    }
    found = [
        (hit.line, finding(script, rule, hit))
        for rule in rules
        for hit in rule.look(script)
        if not _silenced(script, rule.code, hit.line, above.get(hit.line))
    ]
    return [one for _, one in sorted(found, key=lambda pair: (pair[0], pair[1].code))]


def finding(script: BatchScript, rule: Rule, hit: Hit) -> Finding:
    """Return a hit as a finding, its texts safe to show."""
    place = f"{clean(str(script.path))}:{hit.line}"
    return Finding(rule.code, hit.level or rule.level, place, clean(hit.message), clean(hit.todo))


def _silenced(script: BatchScript, code: str, line: int, above: int | None) -> bool:
    """Return True where `# noqa` stands on the line, or above the command it is in."""
    texts = [script.lines[line - 1]] if line <= len(script.lines) else []
    if above is not None and script.lines[above - 1].lstrip().startswith("#"):
        texts.append(script.lines[above - 1])
    return any(silenced(code, text) for text in texts)
