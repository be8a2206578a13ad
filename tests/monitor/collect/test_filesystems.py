"""Counters of network file systems, from what Linux clients of them show."""

from __future__ import annotations

from pathlib import Path

from rankup.monitor.collect.host import Counts, FileSystems, lustre_counts, nfs_counts

from .trees import write

LUSTRE = """\
snapshot_time             1763834402.123456789 secs.nsecs
start_time                1763800000.000000000 secs.nsecs
read_bytes                12 samples [bytes] 4096 1048576 5000000 9999999999
write_bytes               3 samples [bytes] 1 100 200
read                      12 samples [usecs] 1 9 40 200
open                      5 samples [usecs] 1 2 3 4
close                     5 samples [usecs] 1 2 3 4
getattr                   7 samples [usecs]
"""

MOUNTSTATS = """\
device proc mounted on /proc with fstype proc
device server:/home mounted on /home\\040x with fstype nfs4 statvers=1.1
\topts:	rw,vers=4.2
\tage:	100
\tevents:	1 2 3
\tbytes:	100 200 0 0 3000 4000 5 6
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:	tcp 0 0 1
\tper-op statistics
\tNULL: 1 1 0 44 24 0 0 0 0
\tREAD: 10 10 0 1 1 1 1 1 0
\tWRITE: 20 20 0 1 1 1 1 1 0
\tOPEN_DG: 3 3 0 1 1 1 1 1 0

device tmpfs mounted on /tmp with fstype tmpfs
"""


def test_lustre_counts_calls_and_bytes() -> None:
    assert lustre_counts(LUSTRE) == Counts(5_000_000, 200, 12 + 3 + 5 + 5 + 7)
    assert lustre_counts("") == Counts(0, 0, 0)


def test_nfs_counts_what_went_over_the_wire() -> None:
    assert nfs_counts(MOUNTSTATS) == {"/home x": Counts(3000, 4000, 34)}
    assert nfs_counts("") == {}


def test_each_file_system_is_known_by_where_it_is_mounted(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/mounts": (
                "10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch/sub /p/scratch/long lustre rw 0 0\n"
                "10.0.0.1@o2ib:/scratch /p/scratch lustre rw 0 0\n"
                "10.0.0.1@o2ib:/dark /p/dark lustre rw 0 0\n"
                "home /p/home gpfs rw 0 0\n"
                "server:/home /home\\040x nfs4 rw 0 0\n"
                "tmpfs /tmp tmpfs rw 0 0\n"
            ),
            "proc/self/mountstats": MOUNTSTATS,
            "proc/fs/lustre/llite/scratch-ffff8a0123456789/stats": LUSTRE,
        },
    )
    found = FileSystems(str(tmp_path)).read()
    assert found == {
        "/p/scratch": Counts(5_000_000, 200, 32),
        "/p/dark": None,
        "/p/home": None,
        "/home x": Counts(3000, 4000, 34),
    }


def test_a_node_without_any(tmp_path: Path) -> None:
    assert FileSystems(str(tmp_path)).read() == {}
