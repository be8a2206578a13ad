"""`rankup check` of a batch script: what stands between it and many nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ...base.findings import Finding
from . import rules_form, rules_nodes, rules_use
from .parsed import BatchScript, load
from .seen import Seen

Rule = Callable[[Seen], Iterator[Finding]]
_FORM: tuple[Rule, ...] = (
    *(rules_form.conflicts, rules_form.bash, rules_form.script, rules_form.not_read),
    *(rules_form.too_late, rules_form.bad_option, rules_form.no_limit, rules_form.placeholder),
    rules_form.log,
)
_USE: tuple[Rule, ...] = (
    *(rules_nodes.wrong_node, rules_nodes.many_ids, rules_nodes.fixed_port),
    *(rules_nodes.never_meet, rules_nodes.idle_nodes, rules_nodes.too_many_agents),
    *(
        rules_use.idle_gpus,
        rules_use.hidden_gpus,
        rules_use.too_many_ranks,
        rules_use.one_core,
        rules_use.no_cpus,
    ),
    *(rules_use.lost_status, rules_use.not_waited, rules_use.no_file),
)
_NOQA = re.compile(r"#\s*noqa\b(?::\s*([A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*))?", re.IGNORECASE)
_SHELL = re.compile(r"#!.*\b(?:ba|da|z|k)?sh\b")


def check(path: Path) -> list[Finding]:
    """The findings in a batch script, in the order of its lines; it is read and never run.

    Raises:
        UserError: it cannot be read, or is no text.
    """
    return judge(load(path))


def judge(script: BatchScript) -> list[Finding]:
    """The findings in a batch script that has been read."""
    seen = Seen(script)
    rules = list(_FORM)
    # Of csh or a Python batch script the directives alone can be judged.
    if not script.lines[0].startswith("#!") or _SHELL.match(script.lines[0]):
        rules += _USE
    found = [one for rule in rules for one in rule(seen)]
    found = [one for one in found if not _wanted(script, one)]
    return sorted(found, key=lambda one: (_line(one), one.code))


def _line(finding: Finding) -> int:
    return int(finding.place.rpartition(":")[2])


def _wanted(script: BatchScript, finding: Finding) -> bool:
    """Whether `# noqa` says that it is meant so: on its line, or above the command it is in."""
    line = _line(finding)
    places = [line - 1]
    # A line that goes on, or stands in a quoted text, has no room for a comment.
    begins = [one.line for one in script.commands if one.line <= line <= one.end_line]
    places += [first - 2 for first in begins[:1] if first > 1]
    for place in places:
        text = script.lines[place]
        said = _NOQA.search(text) if place == line - 1 or text.lstrip().startswith("#") else None
        if said and (said[1] is None or finding.code in re.split(r"[,\s]+", said[1].upper())):
            return True
    return False
