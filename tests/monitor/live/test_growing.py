"""A growing file is read once, whatever happens to it meanwhile."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from rankup.base.files import cut_json_lines, done_by
from rankup.monitor.live.state import Growing, Run, Table, Watch


def _append(path: Path, *records: object) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    file = Growing(path := tmp_path / "metrics.jsonl")
    assert file.read() == []  # not there yet
    _append(path, {"step": 1}, {"step": 2})
    assert file.read() == [{"step": 1}, {"step": 2}]
    assert file.read() == []
    _append(path, {"step": 3})
    assert file.read() == [{"step": 3}]
    assert file.begun == 1


def test_a_torn_last_line_waits_for_its_end(tmp_path: Path) -> None:
    file = Growing(path := tmp_path / "n.jsonl")
    path.write_text('{"step": 1}\n{"st')
    assert file.read() == [{"step": 1}]
    with path.open("a") as out:
        out.write('ep": 2}\n')
    assert file.read() == [{"step": 2}]


def test_a_resume_replaces_the_file(tmp_path: Path) -> None:
    file = Growing(path := tmp_path / "metrics.jsonl")
    _append(path, *({"step": step} for step in range(10)))
    file.read()
    cut_json_lines(path, lambda record: done_by(record, 4))
    _append(path, *({"step": step} for step in range(5, 30)))  # longer than it was
    assert [record["step"] for record in file.read()] == list(range(30))
    assert file.begun == 2


def test_of_a_long_file_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    _append(path, *({"t": t} for t in range(100_000)))
    file = Growing(path, last=1000)
    found = file.read()
    assert found[0]["t"] > 99_000
    assert found[-1] == {"t": 99_999}
    _append(path, {"t": 100_000})
    assert file.read() == [{"t": 100_000}]


def test_of_a_long_table_the_header_and_the_end_are_read(tmp_path: Path) -> None:
    path = tmp_path / "n.host.csv"
    path.write_text("t,c")
    file = Table(path, last=1000)
    assert file.read() == []
    path.write_text("t,cpu\n" + "".join(f"{t},\n" for t in range(100_000)))
    found = file.read()
    assert int(found[0]["t"]) > 99_000
    assert found[-1] == {"t": "99999", "cpu": ""}
    with path.open("a") as out:
        out.write('100000,"1')
    assert file.read() == []
    # What a killed sampler has torn is cut off by the next one.
    path.write_text("t,cpu\n" + "".join(f"{t},\n" for t in range(100_000)) + "100001,2\n")
    assert file.read() == [{"t": "100001", "cpu": "2"}]


def test_what_is_no_json_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_text('{"loss": NaN}\nnonsense\n[1]\n{"t": 1}\n' + "[" * 9999 + "\n")
    loss, other = Growing(path).read()
    assert math.isnan(loss["loss"])
    assert other == {"t": 1}


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    for folder in ("monitor", "log"):
        (tmp_path / folder).mkdir()
    pipes = [
        tmp_path / name
        for name in ("monitor/n.jsonl", "monitor/n.gpu.csv", "metrics.jsonl", "log/5.out")
    ]
    for pipe in pipes:
        os.mkfifo(pipe)
    watch = Watch(tmp_path, Run("r", log=pipes[-1]))
    watch.look()
    assert (watch.known(), watch.log) == ([], [])
