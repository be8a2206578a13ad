"""The options of sbatch and srun, on a command line and in the directives of a batch script."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

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
# Of plugins: those of JSC's machines, then those for containers (pyxis).
_PLUGIN_FLAGS = """
cuda-mps disable-dcgm disable-perfparanoid disable-turbomode
container-mount-home no-container-mount-home container-remap-root no-container-remap-root
container-entrypoint no-container-entrypoint container-writable container-readonly
"""
# The same of pyxis, of shifter, and of user environments.
_PLUGIN_VALUES = """
container-image container-mounts container-workdir container-name container-save container-env
image volume module environment uenv view
"""
FLAGS = frozenset((_WITHOUT_VALUE + _PLUGIN_FLAGS).split())
_NAMES = """
account acctg-freq array batch bb bbf begin chdir cluster cluster-constraint clusters
comment constraint consolidate-segments container container-id contiguous core-spec
cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
distribution error exclude exclusive export export-file extra extra-node-info get-user-env
gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint
hold ignore-pbs input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label
mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill no-requeue nodefile
nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket
tasks-per-node
open-mode output overcommit oversubscribe parsable partition power prefer priority profile
propagate qos quiet reboot requeue reservation resv-ports segment share signal
sockets-per-node spread-job stepmgr switches test-only thread-spec threads-per-core time
time-min tmp tres-bind tres-per-task uid usage help use-min-nodes verbose version wait
wait-all-nodes wckey workdir wrap oom-kill-step
"""
OF_SBATCH = frozenset(_NAMES.split())
_OF_PLUGINS = frozenset((_PLUGIN_FLAGS + _PLUGIN_VALUES).split())
_LONGEST = 4096  # characters of a directive
_MEANT = re.compile(r"#SBATCH[ \t]+(?=[^\s#])|\s*#+\s*SBATCH\b\s*(?=-)", re.IGNORECASE)
_LIKE = re.compile(r"#+\s?([A-Za-z]{5,7})[ \t]+(?=--?[A-Za-z])")
# As sbatch reads them: no backslash escapes, and a # begins a comment also within a word.
_QUOTED = re.compile(r"""\"([^"]*)"|'([^']*)'""")
_WORD = re.compile(rf"""(?:[^\s#"']|{_QUOTED.pattern})+""")


@dataclass(frozen=True)
class Option:
    """An option with its long name.

    Attributes:
        value: None where none was given.
        line: of an option in a directive.
    """

    name: str
    value: str | None
    line: int = 0


def read(
    words: Sequence[str],
    takes: Callable[[str], bool] = lambda name: name not in FLAGS,
    short: Mapping[str, str] = SHORT,
    last: str = "",
) -> tuple[list[Option], Sequence[str]]:
    """Return the options that lead `words`, and the words behind them.

    Long names have hyphens, whatever was written (srun takes `--cpu_bind`, too).

    Args:
        takes: True for the name of an option that takes a value.
        short: long names of letters.
        last: letters of options behind which none is read.
    """
    at, options = 0, list[Option]()
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        at += 1
        if word == "--":
            break
        if word.startswith("--"):
            name, joined, value = word[2:].partition("=")
            name = name.replace("_", "-")
        else:
            name = short.get(word[1], word[1])
            joined = value = word[2:]
        if not joined and at < len(words) and takes(name):
            joined = value = words[at]
            at += 1
        options.append(Option(name, value if joined else None))
        if name in last:
            break
    return options, words[at:]


@dataclass(frozen=True)
class Directive:
    """A line `#SBATCH …`, or one that was meant to be.

    Attributes:
        marker: what stands in the place of `#SBATCH`, as it is written.
        read: sbatch reads it: it begins with exactly `#SBATCH`, before the first command.
        rest: words that belong to no option.
        fault: why its words cannot be told apart; empty where they can.
    """

    line: int
    marker: str
    read: bool
    options: tuple[Option, ...] = ()
    rest: tuple[str, ...] = ()
    fault: str = ""

    @property
    def exact(self) -> bool:
        """True where it begins as it should."""
        return self.marker == "#SBATCH"


def directive(line: int, text: str, early: bool) -> Directive | None:
    """Return the directive in a line; None where there is none.

    Args:
        early: it stands before the first command.
    """
    match = _MEANT.match(text)
    if match is None:
        match = _LIKE.match(text)
        if match is None or SequenceMatcher(None, match[1].upper(), "SBATCH").ratio() < 0.8:
            return None
    marker = match[0].rstrip()
    empty = Directive(line, marker, early and marker == "#SBATCH")
    left: Sequence[str] = []
    text = text[match.end() :][:_LONGEST].rstrip().removesuffix(" \\").strip()
    while text and text[0] != "#":  # which begins a comment
        word = _WORD.match(text)
        if word is None:
            return replace(empty, fault="a quote has no end")
        left = [*left, _QUOTED.sub(r"\1\2", word[0])]
        text = text[word.end() :].lstrip()
    options, rest = list[Option](), list[str]()
    while left:  # an option may follow what is none
        more, left = read(left)
        options += (replace(option, line=line) for option in more)
        rest, left = [*rest, *left[:1]], left[1:]
    return replace(empty, options=tuple(options), rest=tuple(rest))


def unknown(option: Option) -> bool:
    """Return True where sbatch has no such option; a unique beginning stands for a whole name."""
    if option.name in OF_SBATCH or option.name in _OF_PLUGINS:
        return False
    if len(option.name) == 1:
        return option.name not in SHORT
    return sum(name.startswith(option.name) for name in OF_SBATCH) != 1


def gpus_of(gres: str) -> int | None:
    """Return the GPUs in `gpu:4`, `gpu:a100:4`, `craynetwork:1,gpu`; 0 for none, None unclear."""
    count = 0
    for part in gres.split(","):
        kind, *rest = part.split("(")[0].split(":")
        if kind.strip().removeprefix("gres/") == "gpu":
            number = rest[-1] if rest else "1"
            if not number.isdigit():
                number = "1" if number.isidentifier() else ""
            if not number:
                return None
            count += int(number[:9])
    return count
