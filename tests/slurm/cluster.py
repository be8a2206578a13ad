"""A real Slurm for the tests: a controller and three nodes on this host, nobody else's business.

Everything it has lies in one temporary folder; every process it has names that folder, and
`guard.py` ends them all when the tests end, however they end.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import psutil

from . import guard
from .config import GPUS, Node, gres_conf, node_list, slurm_conf

NODES = 3
START_TIMEOUT = 120.0
COMMAND_TIMEOUT = 60.0
# The states a job does not leave again.
ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"}
)
_DAEMONS = ("munged", "slurmctld", "slurmd")
_SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def why_not() -> str:
    """Why no cluster can be started here, or nothing when it can."""
    missing = [name for name in (*_DAEMONS, "sbatch") if shutil.which(name, path=_SEARCH) is None]
    if missing:
        return f"needs a real Slurm: {', '.join(missing)} missing (Debian: slurm-wlm, munge)"
    if os.geteuid() != 0:
        return "needs a real Slurm, and only root can start one"
    return ""


class Cluster:
    """Three nodes of 8 CPUs and 2 pretended GPUs: partitions `booster` (default) and `devel`.

    Attributes:
        folder: everything the cluster writes.
        environment: what a command needs in its environment to reach this cluster.
        nodes: name, address and port of each node.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rankup-slurm-"))
        self._guard = _start_guard(self.folder)
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._controller: subprocess.Popen[bytes] | None = None
        self._slurmd: dict[str, subprocess.Popen[bytes]] = {}
        self._host = os.uname().nodename.split(".")[0]
        self._port, *ports = _free_ports(1 + NODES)
        self.nodes: tuple[Node, ...] = node_list(ports)
        self.environment: Mapping[str, str] = MappingProxyType(
            {"SLURM_CONF": str(self.folder / "slurm.conf")}
        )
        try:
            self._write_files()
            self._start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every process of the cluster and remove its folder."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(timeout=30)
        for daemon in self._daemons:
            daemon.wait(timeout=5)

    def command(self, *words: str | Path, cwd: Path | None = None) -> str:
        """Run a Slurm command and return what it printed.

        Raises:
            AssertionError: it failed (with its output), or took longer than `COMMAND_TIMEOUT`.
        """
        result = self.run(*words, cwd=cwd)
        text = f"{words}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        assert result.returncode == 0, text
        return result.stdout

    def run(
        self, *words: str | Path, cwd: Path | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a Slurm command, whatever its exit code will be."""
        try:
            return subprocess.run(
                list(map(str, words)),
                cwd=cwd,
                env={**os.environ, **self.environment},
                input=stdin,
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            raise AssertionError(f"{words}: no end in {COMMAND_TIMEOUT:g} s") from expired

    def submit(self, script: str, folder: Path, *options: str) -> int:
        """Submit the lines of a bash script from `folder` (the output goes there); the job's id."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}"
        result = self.run("sbatch", "--parsable", *options, cwd=folder, stdin=text)
        assert result.returncode == 0, f"sbatch {options}: {result.stderr}"
        return int(result.stdout.split(";")[0])

    def job(self, job_id: int) -> dict[str, str]:
        """What `scontrol show job` says, field by field."""
        return _fields(self.command("scontrol", "show", "job", "-o", str(job_id)))

    def node(self, name: str) -> dict[str, str]:
        """What `scontrol show node` says, field by field."""
        return _fields(self.command("scontrol", "show", "node", "-o", name))

    def wait(
        self, job_id: int, states: Collection[str] = ENDED, timeout: float = 60
    ) -> dict[str, str]:
        """Wait until the job is in one of the states; its fields then.

        Raises:
            AssertionError: `timeout` seconds have passed, or the job ended in another state.
        """
        job = self.job(job_id)
        deadline = time.monotonic() + timeout
        while job["JobState"] not in states:
            ended = job["JobState"] in ENDED
            assert not ended, f"job {job_id} ended {job['JobState']}, not {states}: {job}"
            assert time.monotonic() < deadline, f"no {states} in {timeout:g} s: {job}"
            time.sleep(0.1)
            job = self.job(job_id)
        return job

    def release(self, job_id: int) -> None:
        """Let a requeued job start now instead of at the end of its wait."""
        # A node refuses what was granted in the second in which it ended the attempt before.
        now = int(time.time())
        while int(time.time()) == now:
            time.sleep(0.05)
        self.command("scontrol", "update", f"jobid={job_id}", "StartTime=now")

    def set_down(self, node: str) -> None:
        """Declare a node dead: Slurm ends what runs there at once."""
        self.command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def kill_node(self, node: str) -> None:
        """Kill a node's slurmd, its job steps and their processes, as a crash would.

        The controller notices after some 20 s.
        """
        daemon = self._slurmd.pop(node)
        daemon.kill()
        daemon.wait(timeout=10)
        self._kill_tasks(lambda process: guard.variable(process, "SLURMD_NODENAME") == node)

    def restore(self, node: str) -> None:
        """Bring a node back that was set down or killed."""
        if node not in self._slurmd:
            self._start_slurmd(node)
        if re.search("DOWN|DRAIN", self.node(node)["State"]):
            # Refused while the node already comes back by itself.
            self.run("scontrol", "update", f"nodename={node}", "state=resume")

    def cancel_all(self) -> None:
        """Cancel every job."""
        jobs = self.command("squeue", "--noheader", "--format=%A").split()
        if jobs:
            self.run("scancel", *sorted(set(jobs)))

    def settle(self, timeout: float = 60) -> None:
        """Cancel what runs, restore every node, and wait until the cluster is as new."""
        self.cancel_all()
        for node in self.nodes:
            self.restore(node.name)
        self._await(self._as_new, timeout, "an idle cluster")
        self._kill_tasks(lambda process: bool(guard.variable(process, "SLURM_JOB_ID")))

    @contextmanager
    def configured(self, **options: str) -> Iterator[None]:
        """Run with other settings in slurm.conf, such as `JobRequeue="0"`."""
        self._write_configuration(options)
        self.command("scontrol", "reconfigure")
        try:
            yield
        finally:
            self._write_configuration({})
            self.command("scontrol", "reconfigure")

    @contextmanager
    def apart(self) -> Iterator[Path]:
        """Give each node memory of its own, at one path, as nodes have that are no one host."""
        memory = self.folder / "memory"
        memory.mkdir(exist_ok=True)
        private = f'mount -t tmpfs -o mode=1777 node {memory} && exec "$@"'
        try:
            self._restart_slurmd("unshare", "--mount", "sh", "-c", private, "sh")
            yield memory
        finally:
            self._restart_slurmd()

    def seen_by(self, node: str, path: Path) -> Path:
        """The path as a node has it that is `apart`."""
        return Path(f"/proc/{self._slurmd[node].pid}/root{path}")

    @contextmanager
    def without_controller(self) -> Iterator[None]:
        """Run while slurmctld does not answer: it is stopped, and goes on afterwards."""
        assert self._controller is not None
        self._controller.terminate()  # a kill would lose jobs of the last seconds
        try:
            self._controller.wait(timeout=60)
            yield
        finally:
            # One that did not end in time must not stand in the next one's way.
            self._controller.kill()
            self._controller.wait(timeout=10)
            self._controller = self._spawn("slurmctld", "-D")
            self._await(self._answers, START_TIMEOUT, "controller that answers")

    def _write_files(self) -> None:
        # Jobs of the tests run as root, but munge and slurm look at who may write here.
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        (self.folder / "jobcomp.txt").touch(mode=0o644)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        for number in range(GPUS):
            # Slurm wants a device file; a link to one needs no right to make devices.
            (self.folder / f"gpu{number}").symlink_to("/dev/null")
        (self.folder / "gres.conf").write_text(gres_conf(self.folder, self.nodes))
        self._write_configuration({})

    def _write_configuration(self, options: Mapping[str, str]) -> None:
        text = slurm_conf(self.folder, self._host, self._port, self.nodes, options)
        (self.folder / "slurm.conf").write_text(text)

    def _start(self) -> None:
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "seed")]
        munge_socket = self.folder / "munge.socket"
        self._spawn("munged", "--foreground", f"--socket={munge_socket}", *files)
        self._await(munge_socket.exists, START_TIMEOUT, "munge's socket")
        self._controller = self._spawn("slurmctld", "-D")
        for node in self.nodes:
            self._start_slurmd(node.name)
        self._await(self._idle, START_TIMEOUT, "three idle nodes")

    def _start_slurmd(self, node: str, *before: str) -> None:
        # Tasks have the variable from Slurm; the steps inherit it from here.
        options = ("-D", "-N", node)
        self._slurmd[node] = self._spawn("slurmd", *options, before=before, SLURMD_NODENAME=node)

    def _restart_slurmd(self, *before: str) -> None:
        for node in self.nodes:
            self._slurmd[node.name].terminate()
            self._slurmd[node.name].wait(timeout=60)
            self._start_slurmd(node.name, *before)
        self._await(self._as_new, START_TIMEOUT, "three idle nodes")

    def _spawn(
        self, daemon: str, *options: str, before: Sequence[str] = (), **variables: str
    ) -> subprocess.Popen[bytes]:
        program = shutil.which(daemon, path=_SEARCH)
        assert program is not None, f"{daemon} is missing"
        with (self.folder / f"{daemon}.out").open("ab") as output:
            process = subprocess.Popen(
                [*before, program, *options],
                cwd=self.folder,
                env={**os.environ, **self.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._daemons.append(process)
        return process

    def _answers(self) -> bool:
        return self.run("scontrol", "ping").returncode == 0

    def _idle(self) -> bool:
        # In this order: while no controller listens, others than ping take seconds to say so.
        if not self._answers() or self.run("squeue", "--noheader").stdout.strip():
            return False
        return list(self._states().values()) == ["idle"] * NODES

    def _as_new(self) -> bool:
        """Whether it is idle; a node that Slurm has given up only since the test is resumed."""
        if self._idle():
            return True
        for node, state in self._states().items():
            if re.search("down|drain", state):
                self.run("scontrol", "update", f"nodename={node}", "state=resume")
        return False

    def _states(self) -> dict[str, str]:
        words = ("--noheader", "--Node", "--partition=booster", "--format=%N %T")
        lines = self.run("sinfo", *words).stdout.splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    def _kill_tasks(self, which: Callable[[psutil.Process], bool]) -> None:
        # A job that ends while its step starts can leave a task behind: Slurm's own race.
        for process in guard.processes_of(self.folder):
            with suppress(psutil.Error, OSError):
                if which(process):
                    process.kill()

    def _await(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"no {what} in {timeout:g} s\n{self._logs()}"
            time.sleep(0.1)

    def _logs(self) -> str:
        files = sorted([*self.folder.glob("*.out"), *self.folder.glob("*.log")])
        tails = (f"--- {file.name}\n{file.read_text(errors='replace')[-1500:]}" for file in files)
        return self.run("squeue").stdout + self.run("sinfo", "-N").stdout + "\n".join(tails)


def _start_guard(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, guard.__file__, str(folder)],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for pytest
    )


def _free_ports(count: int) -> list[int]:
    # Above the ports of jobs and of `tests.pool.free_port` (10000 to 29999), and below the range
    # from which the kernel numbers outgoing connections: any of them could have the port by the
    # time its daemon listens.
    draw = random.SystemRandom()
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            one, port = stack.enter_context(socket.socket()), draw.randrange(30000, 32700)
            with suppress(OSError):
                one.bind(("", port))
                ports.append(port)
    return ports


def _fields(text: str) -> dict[str, str]:
    parts = re.split(r"\s+(?=[A-Za-z/:]+=)", text.strip())
    return dict(part.split("=", 1) for part in parts if "=" in part)
