"""`rankup fetch`: one thing after the other, each recorded when it is there."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shlex
import shutil
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path

from ...base.errors import EXIT_FAILED, UserError
from ...base.files import write_json
from ...base.lock import LockFailed
from ...base.text import clean, say
from ...site import config as configs
from ...site import detect, places
from ...site.caches import caches
from ...site.config import Config
from ...site.profile import Profile
from ...slurm.client import Client, SlurmError
from .. import record
from ..record import Record
from . import no_run, script, things
from .request import FetchFailed, Request, table

_INTERRUPTED = 130
_NO_SITE = ("local", "generic")
_SLURM_PATIENCE = 10.0  # seconds
_REMEMBERED = Path("rankup") / "trusted.json"


def fetch(request: Request) -> int:
    """Do what was asked; the exit code.

    Raises:
        UserError: the request is wrong, or this is no place to do it; nothing has been done.
    """
    request.check()
    absent: list[str] = []
    config = configs.load(Path.cwd())
    profile, _ = detect.choose(config, os.environ, os.uname().nodename, cluster_name=_cluster_name)
    if not request.empty:
        needs, scripts = things.asked(request), [request] if request.script else []
    elif config.fetch:
        _check_trust(config, trust=request.trust, environment=os.environ)
        # What stands in the file is meant from where it lies.
        os.chdir(config.project(Path.cwd()))
        needs = config.fetch
        scripts, absent = _from_file(config, request)
    else:
        raise UserError(_nothing(config))
    own = caches(config, profile, os.environ)
    wanted = things.things(needs, own)
    if wanted or not (request.no_run or request.only_proof):
        _check_network(profile, os.environ)
    for place in dict.fromkeys(thing.place for thing in wanted):
        _check_place(place, profile, Path.home())
    run = _Run(config, profile, request.as_json)
    try:
        for thing in wanted:
            run.one(thing)
        for one in scripts:
            run.script(one)
        for why in absent:
            run.fail(why.partition(":")[0], why)
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
            came = thing.get(earlier)
        except (FetchFailed, LockFailed) as failure:
            self.fail(thing.key, _with_hint(str(failure), os.environ))
            return
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            self.fail(thing.key, f"{thing.key}: {where}{error.strerror or error}")
            return
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        done = Record(
            thing.key, now, came.items, came.variables, came.offline, came.proof, came.note
        )
        if not self._as_json:
            _show(done, came.lines)
        self._keep(done)
        if done.proof == "failed":
            self.fail(thing.key, f"{thing.key} came, and does not load offline: {came.note}")

    def script(self, request: Request) -> None:
        """Read a script, or run it; it prints by itself what a user needs to know."""
        assert request.script is not None
        if request.no_run:
            path = Path(request.script)
            code = no_run.show(path, request.args, as_json=request.as_json)
        else:
            try:
                done, code = script.fetch(request, self._config, self._profile)
            except (FetchFailed, LockFailed) as failure:
                self.fail(record.script_key(Path(request.script), request.args), str(failure))
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
                "`rankup run` will not know of it",
            )


def _show(done: Record, lines: tuple[str, ...]) -> None:
    proofs = {
        "namespace": ", loads without a network (network namespace)",
        "blocked": ", loads without a network (Python's connections blocked)",
    }
    for line in table(done.key, done.items, proofs.get(done.proof, "")):
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


def _from_file(config: Config, request: Request) -> tuple[list[Request], list[str]]:
    """The requests for the scripts that `rankup.toml` lists, and what to say of absent ones.

    The current folder is the file's.
    """
    found, absent = [], []
    for number, line in enumerate(config.fetch.scripts):
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UserError(f"rankup.toml: fetch.scripts: {line!r}: {error}") from None
        if not words:
            raise UserError("rankup.toml: fetch.scripts: an empty line; give a script")
        if os.path.isfile(words[0]):
            one = replace(request, trust=False, script=words[0], args=tuple(words[1:]))
            one.check()
            found.append(one)
        else:
            absent.append(f"fetch.scripts[{number}] in {config.file}: no such file: {words[0]}")
    return found, absent


def _nothing(config: Config) -> str:
    where = f"{config.file} lists nothing" if config.file else f"no {configs.NAME} here"
    return (
        f"nothing to fetch: {where}; give a script (rankup fetch train.py), --dataset NAME, "
        "--model NAME or --url URL, or list them in [fetch] of rankup.toml"
    )


def _check_network(profile: Profile, environment: Mapping[str, str]) -> None:
    """Raise UserError in a job on nodes that are known to have no internet."""
    if not environment.get("SLURM_JOB_ID"):
        return
    nodes = profile.shape(environment.get("SLURM_JOB_PARTITION"))
    if nodes is not None and nodes.internet is False:
        raise UserError(
            f"this is job {environment['SLURM_JOB_ID']} on a compute node of {profile.title}, "
            "which has no internet; run rankup fetch on a login node"
        )


def _with_hint(why: str, environment: Mapping[str, str]) -> str:
    """A reason for a failure, and where to try again: in a job the network is the first guess."""
    if environment.get("SLURM_JOB_ID"):
        return f"{why}; this is inside a job: on a login node there is a network"
    return why


def _check_place(folder: Path, profile: Profile, home: Path) -> None:
    """Warn where a folder is small, and refuse it where jobs would not see it.

    Raises:
        UserError: compute nodes do not mount it.
    """
    if places.mounted(profile, folder) is False:
        raise UserError(
            f"compute nodes of {profile.title} do not see {folder}: name another folder, by "
            "--to, by `cache` in [fetch] of rankup.toml, or by $RANKUP_CACHE"
        )
    if profile.name not in _NO_SITE and folder.resolve().is_relative_to(home.resolve()):
        say(
            f"warning: {folder} is in $HOME, whose quota is small on {profile.title}; "
            "name another folder by $RANKUP_CACHE or `cache` in [fetch] of rankup.toml"
        )


def _check_trust(config: Config, *, trust: bool, environment: Mapping[str, str]) -> None:
    """Refuse what another user's file would run, where the user has not said that it may.

    Once it may, that is remembered by the file, its owner and a hash of what it would run.

    Args:
        trust: the user says so now.

    Raises:
        UserError: it may not; the message names the file, its owner and the scripts.
    """
    file = config.file
    if file is None or not config.fetch.scripts:
        return
    found = file.stat()
    for_all = bool(found.st_mode & stat.S_IWOTH)
    if found.st_uid in (os.getuid(), 0) and not for_all:
        return
    known, store = {}, _store(environment)
    with suppress(OSError, ValueError):
        known = json.loads(store.read_text(encoding="utf-8"))
    path = str(file.resolve())
    entry = {"owner": found.st_uid, "sha256": _digest(file.parent, config.fetch.scripts)}
    if isinstance(known, dict) and known.get(path) == entry:
        return
    if not trust:
        who = "everybody, who may all write to it" if for_all else _name(found.st_uid)
        raise UserError(
            clean(
                f"{file} belongs to {who}, and would run as you: "
                f"{'; '.join(config.fetch.scripts)}. Nothing was done. Read the file and the "
                "scripts; if they may run: rankup fetch --trust (remembered until they change)"
            )
        )
    store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(store, {**(known if isinstance(known, dict) else {}), path: entry}, private=True)


def _digest(folder: Path, lines: tuple[str, ...]) -> str:
    """The sha256 of the lines, and of the scripts that they name."""
    whole = hashlib.sha256(json.dumps(lines).encode())
    for line in lines:
        with suppress(OSError, ValueError, IndexError):
            script = folder / shlex.split(line)[0]
            whole.update(hashlib.sha256(script.read_bytes()).digest())
    return whole.hexdigest()


def _store(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(Path.home(), ".config")
    return Path(home) / _REMEMBERED


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"another user (uid {uid})"
