"""`rankup fetch`: one thing after the other, each recorded when it is there."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from ...base.errors import EXIT_FAILED, UserError
from ...base.files import no_space, write_json
from ...base.lock import LockFailed
from ...base.text import clean, columns, say
from ...script.downloads import Download, read
from ...site import config as configs
from ...site import profile as sites
from ...site.caches import caches
from ...site.config import Config
from ...site.profile import Profile, seen_by_nodes
from ...slurm.client import Client, SlurmError
from .. import record
from ..record import Record
from . import script, things
from .request import FetchFailed, Request, table

_INTERRUPTED = 130
_NO_SITE = ("local", "generic")
_SLURM_PATIENCE = 10.0  # seconds
_REMEMBERED = ("rankup", "trusted.json")


def fetch(request: Request) -> int:
    """Do what was asked; the exit code.

    Raises:
        UserError: the request is wrong, or this is no place to do it; nothing has been done.
    """
    request.check()
    config = configs.load(Path.cwd())
    profile, _ = sites.choose(config, cluster_name=_cluster_name)
    if not request.empty:
        needs, scripts = things.asked(request), [request] if request.script else []
    elif config.fetch:
        _check_trust(config, trust=request.trust)
        # What stands in the file is meant from where it lies.
        os.chdir(config.project(Path.cwd()))
        needs, scripts = config.fetch, _scripts(config, request)
    else:
        where = f"{config.file} lists nothing" if config.file else f"no {configs.NAME} here"
        raise UserError(
            f"nothing to fetch: {where}; give a script (rankup fetch train.py), --dataset NAME, "
            "--model NAME or --url URL, or list them in [fetch] of rankup.toml"
        )
    own = caches(config, profile, os.environ)
    wanted = things.things(needs, own)
    if wanted or not (request.no_run or request.only_proof):
        _check_network(profile)
    for place in dict.fromkeys(thing.place for thing in wanted):
        _check_place(place, profile)
    run = _Run(config, profile, request.as_json)
    try:
        for thing in wanted:
            run.one(thing)
        for one in scripts:
            run.script(one)
    except KeyboardInterrupt:
        say("interrupted; run it again: what came is kept")
        run.code = _INTERRUPTED
    return run.end()


class _Run:
    """The things of one command, and how they went."""

    def __init__(self, config: Config, profile: Profile, as_json: bool) -> None:
        self._config, self._profile, self._as_json = config, profile, as_json
        self._project = config.project(Path.cwd())
        self._records: list[Record] = []
        self._failed: dict[str, str] = {}
        self.code = 0

    def one(self, thing: things.Thing) -> None:
        """Fetch a thing and record it; where that fails, remember why."""
        earlier = record.find(self._project, thing.key)
        try:
            done, lines = thing.get(earlier)
        except (FetchFailed, LockFailed) as failure:
            # In a job the network is the first guess.
            job = "; this is inside a job: on a login node there is a network"
            self.fail(thing.key, str(failure) + (job if "SLURM_JOB_ID" in os.environ else ""))
            return
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            place = Path(error.filename).parent if error.filename else thing.place
            room = f"; make room in {place} and run it again: what came is kept"
            why = f"{where}{error.strerror or error}{room if no_space(error) else ''}"
            self.fail(thing.key, f"{thing.key}: {why}")
            return
        if not self._as_json:
            _show(done, lines)
        self._keep(done)
        if done.proof == "failed":
            self.fail(thing.key, f"{thing.key} came, and does not load offline: {done.note}")

    def script(self, request: Request) -> None:
        """Read a script, or run it; it prints by itself what a user needs to know."""
        path = Path(request.script or "")
        if request.no_run:
            _show_reading(path, request.args, as_json=request.as_json)
            return
        try:
            done, code = script.fetch(request, self._config, self._profile)
        except (FetchFailed, LockFailed) as failure:
            self.fail(record.script_key(path, request.args), str(failure))
            return
        self._keep(done)
        self.code = self.code or code

    def fail(self, key: str, why: str) -> None:
        """Remember, and say, why a thing is not here."""
        self._failed[key] = why
        self.code = self.code or EXIT_FAILED
        say(why)

    def end(self) -> int:
        """Print what is left to say; the exit code."""
        if self._as_json and (self._records or self._failed):
            values = {"records": [asdict(one) for one in self._records], "failed": self._failed}
            print(json.dumps(values, indent=2))
        if len(self._failed) > 1:
            say(f"{len(self._failed)} things are not here: {', '.join(self._failed)}")
        return self.code

    def _keep(self, done: Record) -> None:
        self._records.append(done)
        try:
            record.write(self._project, done)
        except OSError as error:
            self.fail(
                done.key,
                f"{done.key} is here, but {self._project} cannot be written to ({error.strerror}): "
                "`rankup run` will not know of it; mend that, and run it again",
            )


def _show_reading(script: Path, args: tuple[str, ...], *, as_json: bool) -> None:
    """Print what the script fetches, how to fetch it, and what its text does not tell.

    Raises:
        UserError: it cannot be read, or is not Python.
    """
    found = read(script, args)
    by_name = _by_name(found.downloads)
    if as_json:
        values = {
            "script": str(script.resolve()),
            "args": list(args),
            "downloads": [{**asdict(one), "file": str(one.file)} for one in found.downloads],
            "command": by_name,
            "notes": list(found.notes),
        }
        print(json.dumps(values, indent=2))
        return
    for note in found.notes:
        print(f"note: {clean(note)}", file=sys.stderr)
    whole = shlex.join(["rankup", "fetch", str(script), *args])
    if not found.downloads:
        print(f"reading {script} finds no call that fetches something; to be sure: {whole}")
        return
    # The kind of each, its name or why that is not known, and where it is fetched.
    rows = [(one.what, one.wanted or one.why, _where(one)) for one in found.downloads]
    for line in columns(rows, left=(0, 1, 2)):
        print(clean(line))
    if by_name:
        print(f"\nby name: {clean(by_name)}")
    if not all(one.by_name for one in found.downloads):
        print(f"\nall of it, by the script's own calls: {clean(whole)}")


def _by_name(found: Iterable[Download]) -> str:
    """The command that fetches what can be fetched by name; empty where nothing can."""
    options = (
        (f"--{one.what}", one.wanted, *(("--to", one.to) if one.to else ()))
        for one in found
        if one.by_name
    )
    words = [word for option in dict.fromkeys(options) for word in option]
    return shlex.join(["rankup", "fetch", *words]) if words else ""


def _where(one: Download) -> str:
    """`load_dataset, train.py:12`, relative to where this runs; and what is to be said of it."""
    file = os.path.relpath(one.file)
    place = f"{one.how}, {one.file if file.startswith('..') else file}:{one.line}"
    notes = [one.why] if one.name and one.why else []
    if one.known and not one.by_name:
        notes.append("only this call puts it where it looks for it")
    return f"{place} ({'; '.join(notes)})" if notes else place


def _show(done: Record, lines: list[str]) -> None:
    proof = f", loads without a network ({record.HOW[done.proof]})" if done.proved else ""
    for line in table(done.key, done.items, proof):
        print(line)
    for line in lines:
        print(clean(f"  {line}"))
    sys.stdout.flush()


def _cluster_name() -> str | None:
    if shutil.which("sbatch") is None:
        return None
    try:
        return Client(timeout=_SLURM_PATIENCE).cluster_name()
    except SlurmError:  # it does not answer; files can be fetched all the same
        return None


def _scripts(config: Config, request: Request) -> list[Request]:
    """The requests for the scripts that `rankup.toml` lists; the current folder is the file's."""
    found = []
    for number, line in enumerate(config.fetch.scripts):
        try:
            script, *args = shlex.split(line)
        except ValueError:
            entry = f"fetch.scripts[{number}] in {config.file}"
            raise UserError(f"{entry} is no command line; give a script: train.py") from None
        found.append(replace(request, trust=False, script=script, args=tuple(args)))
        found[-1].check()
    return found


def _check_network(profile: Profile) -> None:
    """Raise UserError in a job on nodes that are known to have no internet."""
    if job := os.environ.get("SLURM_JOB_ID"):
        nodes = profile.shape(os.environ.get("SLURM_JOB_PARTITION"))
        if nodes is not None and nodes.internet is False:
            raise UserError(
                f"this is job {job} on a compute node of {profile.title}, which has no internet; "
                "run rankup fetch on a login node"
            )


def _check_place(folder: Path, profile: Profile) -> None:
    """Warn where a folder is small, and refuse it where jobs would not see it.

    Raises:
        UserError: compute nodes do not mount it.
    """
    if seen_by_nodes(profile, folder) is False:
        raise UserError(
            f"compute nodes of {profile.title} do not see {folder}: name another folder, by "
            "--to, by `cache` in [fetch] of rankup.toml, or by $RANKUP_CACHE"
        )
    if profile.name not in _NO_SITE and folder.resolve().is_relative_to(Path.home().resolve()):
        say(
            f"warning: {folder} is in $HOME, whose quota is small on {profile.title}; "
            "name another folder by $RANKUP_CACHE or `cache` in [fetch] of rankup.toml"
        )


def _check_trust(config: Config, *, trust: bool) -> None:
    """Refuse what another user's file would run or write, until the user says that it may.

    Once it may, that is remembered by the file, its owner and a hash of what it would run (scripts
    with the modules that they import) and write (URLs with a place).

    Args:
        trust: the user says so now.

    Raises:
        UserError: it may not; the message names the file, its owner, the scripts and the URLs.
    """
    file, scripts = config.file, config.fetch.scripts
    # A file at a place that it names may be one that something runs or imports later.
    placed = [record.key_of_url(one) for one in config.fetch.urls if one.to is not None]
    lines = [*scripts, *placed]
    if file is None or not lines:
        return
    found = file.stat()
    for_all = bool(found.st_mode & stat.S_IWOTH)
    if found.st_uid in (os.getuid(), 0) and not for_all:
        return
    store = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", *_REMEMBERED)
    known: dict[str, object] = {}
    with suppress(OSError, ValueError, TypeError):
        known = dict(json.loads(store.read_text(encoding="utf-8")))
    codes = []
    for line in scripts:
        with suppress(OSError, ValueError, IndexError):
            codes.append(record.code_of(file.parent / shlex.split(line)[0]))
    content = hashlib.sha256("".join(map(json.dumps, (lines, *codes))).encode()).hexdigest()
    path, entry = str(file.resolve()), {"owner": found.st_uid, "sha256": content}
    if known.get(path) == entry:
        return
    if not trust:
        try:
            owner = file.owner()
        except KeyError:
            owner = "another user"
        everybody = "everybody, who may all write to it"
        who = everybody if for_all else f"{owner} (uid {found.st_uid})"
        raise UserError(
            clean(
                f"{file} belongs to {who}, and would run or write as you: {'; '.join(lines)}. "
                "Nothing was done. Read the file and the scripts; if it may: rankup fetch --trust "
                "(remembered until they change)"
            )
        )
    store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(store, {**known, path: entry}, private=True)
