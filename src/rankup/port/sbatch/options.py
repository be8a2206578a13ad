"""The options of sbatch and srun: their names, and which of them take a value."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir",
    "G": "gpus", "H": "hold", "I": "immediate", "J": "job-name",
    "K": "kill-on-bad-exit", "L": "licenses", "M": "clusters", "N": "nodes",
    "O": "overcommit", "Q": "quiet", "S": "core-spec", "T": "threads",
    "W": "wait", "Z": "no-allocate", "a": "array", "b": "begin",
    "c": "cpus-per-task", "d": "dependency", "e": "error", "i": "input",
    "k": "no-kill", "l": "label", "m": "distribution", "n": "ntasks",
    "o": "output", "p": "partition", "q": "qos", "r": "relative",
    "s": "oversubscribe", "t": "time", "u": "unbuffered", "v": "verbose",
    "w": "nodelist", "x": "exclude",
}  # fmt: skip
# A short `-I` and the like take a value only when it is joined.
_WITHOUT_VALUE = """
contiguous exact exclusive get-user-env hold ignore-pbs immediate kill-on-bad-exit
kill-on-invalid-dep label multi-prog nice no-allocate no-kill no-requeue overcommit overlap
oversubscribe parsable preserve-env propagate pty quiet reboot requeue sbcast spread-job
stepmgr test-only unbuffered use-min-nodes verbose disable-status help usage version
resv-ports x11
"""
_FLAGS = frozenset(_WITHOUT_VALUE.split())
_NAMES = """
account acctg-freq array batch bb bbf begin chdir cluster cluster-constraint clusters
comment constraint consolidate-segments container container-id contiguous core-spec
cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
distribution error exclude exclusive export export-file extra extra-node-info get-user-env
gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint
hold ignore-pbs input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label
mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill no-requeue nodefile
nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket
open-mode output overcommit oversubscribe parsable partition power prefer priority profile
propagate qos quiet reboot requeue reservation resv-ports segment share signal
sockets-per-node spread-job stepmgr switches test-only thread-spec threads-per-core time
time-min tmp tres-bind tres-per-task uid usage help use-min-nodes verbose version wait
wait-all-nodes wckey workdir wrap oom-kill-step
"""
OF_SBATCH = frozenset(_NAMES.split())


@dataclass(frozen=True)
class Option:
    """An option with its long name; `value` is None where none was given."""

    name: str
    value: str | None


def read(words: Iterable[str]) -> tuple[list[Option], list[str]]:
    """Return the options that lead `words`, and the words behind them.

    Long names have hyphens, whatever was written (srun takes `--cpu_bind`, too).
    """
    left, found = deque(words), list[Option]()
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.popleft()
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, joined = word[2:].partition("=")
            name = name.replace("_", "-")
        else:
            name = SHORT.get(word[1], word[1])
            joined = word[2:].removeprefix("=")
            equals = joined
        if equals:
            found.append(Option(name, joined))
        elif name in _FLAGS or not left:
            found.append(Option(name, None))
        else:
            found.append(Option(name, left.popleft()))
    return found, list(left)


def split(line: str) -> list[str]:
    """Return the words of what follows `#SBATCH`; a `#` begins a comment.

    Raises:
        ValueError: a quote does not end.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return list(lexer)


def unknown(option: Option) -> bool:
    """Return True where sbatch has no such option; a unique beginning stands for a whole name."""
    if option.name in OF_SBATCH:
        return False
    if len(option.name) == 1:
        return option.name not in SHORT
    return sum(name.startswith(option.name) for name in OF_SBATCH) != 1


def gpus_of(gres: str) -> int | None:
    """Return the GPUs in `gpu:4`, `gpu:a100:4`, `craynetwork:1,gpu`; 0 for none, None unclear."""
    count = 0
    for one in gres.split(","):
        kind, *rest = one.split("(")[0].split(":")
        if kind.strip().removeprefix("gres/") == "gpu":
            number = rest[-1] if rest else "1"
            if not number.isdigit():
                number = "1" if number.isidentifier() else ""
            if not number:
                return None
            count += int(number[:9])
    return count
