"""What reading a script brings to light."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

What = Literal["dataset", "model", "url", "torchvision", "torch.hub", "fastai", "other"]


@dataclass(frozen=True)
class Import:
    """A module that a script, or a local module that it imports, imports.

    Attributes:
        module: dotted, absolute (`torch.nn`); local modules are read, and not listed.
        optional: the script goes on without it (`try`/`except ImportError`), or never imports it
            (`if TYPE_CHECKING`).
        late: in a function, which may not be called.
        file: where it stands.
    """

    module: str
    line: int
    optional: bool
    late: bool = False
    file: Path = Path()


@dataclass(frozen=True)
class Download:
    """A call that fetches something, where it is not there yet.

    Attributes:
        name: what it fetches, as far as it is known (`gpt2`, `mnist`, a URL).
        how: the call (`load_dataset`, `AutoModel.from_pretrained`).
        known: reading tells what it fetches.
        by_name: `rankup fetch` with its name, or URL, puts it where the call looks for it; else
            only the call itself does.
        config: of a data set on a hub.
        revision: commit, tag or branch on a hub.
        to: the file that a URL is written to.
        why: what is not known of it, where it is not.
    """

    line: int
    file: Path
    what: What
    name: str | None
    how: str
    known: bool
    config: str = ""
    revision: str = ""
    to: str = ""
    by_name: bool = False
    why: str = ""

    @property
    def wanted(self) -> str:
        """As `rankup fetch` takes it: NAME[:config][@revision]; empty without a name."""
        if self.name is None:
            return ""
        config = f":{self.config}" if self.config else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.name}{config}{revision}"


@dataclass(frozen=True)
class Reading:
    """What a script imports and fetches, in the order of files and lines.

    Attributes:
        files: those that were read: the script first.
        notes: what was not read, and why, one line each.
    """

    imports: tuple[Import, ...]
    downloads: tuple[Download, ...]
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()
