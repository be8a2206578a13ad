"""All fixes by name, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Callable

from ...rules import RULES
from ...rules.decisions import broadcast_decisions, metrics_of_one_rank
from ...rules.metrics import training_numbers
from ...rules.model import wrap_models
from ...rules.steering import decided_alike
from ..context import Context

_RULES = {rule.code: rule.mend for rule in RULES}

FIXES: dict[str, Callable[[Context], None]] = {
    "RK104": _RULES["RK104"],
    "RK105": _RULES["RK105"],
    "RK103": _RULES["RK103"],
    "RK111": _RULES["RK111"],
    "RK116": _RULES["RK116"],
    "RK118": _RULES["RK118"],
    "wrap": wrap_models,
    "RK123": _RULES["RK123"],
    "RK125": _RULES["RK125"],
    "RK119": _RULES["RK119"],
    "training_numbers": training_numbers,
    "RK115": _RULES["RK115"],
    "RK187": _RULES["RK187"],
    "decisions": broadcast_decisions,
    "metrics": metrics_of_one_rank,
    "RK177": _RULES["RK177"],
    "RK141": _RULES["RK141"],
    "RK144": _RULES["RK144"],
    "RK146": _RULES["RK146"],
    "RK145": _RULES["RK145"],
    "RK149": _RULES["RK149"],
    "RK147": _RULES["RK147"],
    "RK186": decided_alike,
}
# What is said but not changed.
REMARKS: tuple[Callable[[Context], None], ...] = (
    _RULES["RK135"],
    _RULES["RK134"],
    _RULES["RK181"],
    _RULES["RK176"],
    _RULES["RK173"],
    _RULES["RK137"],
    _RULES["RK129"],
    _RULES["RK120"],
    _RULES["RK188"],
)
