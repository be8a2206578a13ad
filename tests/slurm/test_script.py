"""The text of job scripts: golden files, what bash and shellcheck say to them, what is refused.

After a wanted change write the golden files anew, and read their diff:
RANKUP_GOLDEN=write .venv/bin/python -m pytest tests/slurm/test_script.py
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankup.base.errors import UserError
from rankup.site import profile
from rankup.slurm.options import JobOptions
from rankup.slurm.script import JobScript, render

from .fixtures import require
from .jobscripts import ONE, of_profile

GOLDEN = Path(__file__).with_name("golden")
_ALL = JobOptions(
    account="abc",
    reservation="course",
    dependency="afterok:17",
    mail="me@example.org",
    name="my run",
    retries=2,
    deadline="30m",
    sbatch=("--exclude=n7", "--comment='a b'"),
)
JOBS: dict[str, JobScript] = {
    **{name: of_profile(name) for name in profile.names() if name != "local"},
    "generic-one-node": of_profile("generic", nodes=1),
    "generic-recipe": replace(ONE, nodes=2, recipe=True, words=("language-model", "--steps", "9")),
    "generic-gossip": replace(
        ONE, nodes=2, recipe=True, crew=True, words=("language-model", "--strategy", "gossip")
    ),
    "generic-array": of_profile("generic", nodes=1, options=JobOptions(array="0-7%2")),
    "generic-container": replace(
        of_profile("generic"),
        activate=None,
        container=("apptainer", "exec", "--nv", "/p/images/my torch.sif"),
    ),
    "generic-options": of_profile("generic", options=_ALL),
    "generic-env": of_profile("generic", options=JobOptions(env=("HF_TOKEN=not shown",))),
    "generic-cpu": replace(ONE, gpus=0, cpus=None, path="/opt/env/bin", minutes=4),
    "generic-resume": replace(ONE, resume=True, stop_after=90, offline=False, threads=False),
    "generic-stage": replace(
        of_profile("generic"),
        stage=("/p/data/my photos.h5", "/p/data/tokens"),
        stage_options=("--fraction", "0.6", "--broadcast"),
        stage_folder="/local/nvme",
        mounts=("/p/data/photos.sqsh",),
    ),
    "generic-mount": replace(of_profile("generic", nodes=1), mounts=("/p/data/photos.sqsh",)),
}
NAMES = pytest.mark.parametrize("name", sorted(JOBS))


@NAMES
def test_the_text_is_that_of_the_golden_file(name: str) -> None:
    path, text = GOLDEN / f"{name}.sh", render(JOBS[name])
    if os.environ.get("RANKUP_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


def test_every_golden_file_is_tried() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(JOBS)


@NAMES
def test_bash_reads_it(name: str) -> None:
    done = subprocess.run(
        ["bash", "-n"], input=render(JOBS[name]), capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    missing = "" if shutil.which("shellcheck") else "shellcheck is not installed"
    require(missing, os.environ)
    for name, job in JOBS.items():
        (tmp_path / f"{name}.sh").write_text(render(job))
    scripts = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, timeout=120)
    assert done.stdout == ""
    assert done.returncode == 0


@NAMES
def test_the_sections_stand_in_order_and_directives_before_all_commands(name: str) -> None:
    text = render(JOBS[name])
    heads = [line.strip("# -").partition(":")[0] for line in text.splitlines() if "# ----" in line]
    two = JOBS[name].nodes > 1
    assert heads == [
        "this life of the run",
        "environment",
        "what this job runs",
        "until when",
        *(["the address all nodes meet at"] if two else []),
        "preflight",
        *(["data into each node"] if JOBS[name].stage or JOBS[name].mounts else []),
        "run",
    ]
    lines = text.splitlines()
    first_command = next(i for i, line in enumerate(lines) if line and line[0] != "#")
    assert not [line for line in lines[first_command:] if line.startswith("#SBATCH")]
    assert sum(line.startswith("#SBATCH") for line in lines) >= 8
    assert lines[0] == "#!/bin/bash"
    assert text.endswith('\nend_life "$code"\n')


def _directives(job: JobScript) -> dict[str, str]:
    """Options by name as sbatch reads them: quotes group, a backslash escapes within them too."""
    found = {}
    for line in render(job).splitlines():
        if line.startswith("#SBATCH "):
            assert "#" not in line[1:].replace('"', "") or '"' in line
            words = shlex.split(line.removeprefix("#SBATCH "))
            assert len(words) == 1, line
            name, _, value = words[0].partition("=")
            found[name.removeprefix("--")] = value
    return found


@pytest.mark.parametrize(
    "value",
    [
        "; rm -rf $HOME",
        "$(touch pwned)",
        "`touch pwned`",
        'it\'s "quoted"',
        "a\\b",
        "a#b",
        " blanks ",
        "100%j",
        "--help",
        "größe-漢字",
        "a=b",
        "~",
        "*",
    ],
)
def test_a_hostile_value_stays_one_value_of_its_directive(value: str) -> None:
    options = {"account": value, "comment": value}
    found = _directives(replace(ONE, name=value, options=options))
    assert (found["job-name"], found["account"], found["comment"]) == (value, value, value)
    assert len(found) == len(_directives(ONE)) + 2


@pytest.mark.parametrize("value", ["a\nb", "a\n#SBATCH --nodes=99", "a\rb", "a\x1bb", "a\tb"])
@pytest.mark.parametrize("where", ["name", "options", "lines", "run_dir"])
def test_a_line_break_in_a_directive_is_refused(where: str, value: str) -> None:
    jobs = {
        "name": replace(ONE, name=value),
        "options": replace(ONE, options={"account": value}),
        "lines": replace(ONE, lines=(f"--comment={value}",)),
        "run_dir": replace(ONE, run_dir=f"/scratch/{value}"),
    }
    with pytest.raises(UserError, match="line break or a control character"):
        render(jobs[where])


def test_a_backslash_in_the_run_directory_is_refused_as_slurm_would_lose_the_log() -> None:
    with pytest.raises(UserError, match="backslash"):
        render(replace(ONE, run_dir="/scratch/a\\b"))


@pytest.mark.parametrize(
    "values",
    [
        {"words": ("/a.py", "\udcff")},
        {"work_dir": "/\udcff"},
        {"variables": {"A": "\udcff"}},
        {"needs": ("/\udcff",)},
        {"activate": "/\udcff"},
        {"path": "/\udcff"},
        {"container": ("apptainer", "/\udcff")},
        {"stage": ("/\udcff",)},
        {"stage": ("/a",), "stage_folder": "/\udcff"},
        {"mounts": ("/\udcff",)},
    ],
)
def test_what_is_not_unicode_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="UTF-8"):
        render(replace(ONE, **values))


def test_the_log_is_named_absolutely_with_percent_signs_doubled() -> None:
    found = _directives(replace(ONE, run_dir="/runs/50%j of %x"))
    assert found["output"] == "/runs/50%%j of %%x/log/%j.out"
    assert found["chdir"] == "/runs/50%j of %x"
    array = replace(ONE, run_dir="/runs/%a", options={"array": "0-3"})
    assert _directives(array)["output"] == "/runs/%%a/log/%A_%a.out"


def test_a_line_break_in_the_command_that_made_it_stays_a_comment() -> None:
    text = render(replace(ONE, made_by=("rankup", "run", "a\n#SBATCH --nodes=99\nrm -rf x")))
    made = [line for line in text.splitlines() if "--nodes=99" in line or "rm -rf" in line]
    assert [line[:10] for line in made] == ["# Made by:"]


def test_a_short_job_is_sent_no_signal() -> None:
    assert _directives(replace(ONE, minutes=5))["signal"] == "USR1@60"
    assert "signal" not in _directives(replace(ONE, minutes=4))


def test_in_an_allocation_there_is_no_limit_to_ask_for() -> None:
    assert not {"time", "signal"} & set(_directives(replace(ONE, minutes=0)))
    assert _directives(replace(ONE, minutes=90))["time"] == "01:30:00"


def test_it_says_what_else_it_needs_to_run_without_rankup() -> None:
    head = render(replace(ONE, private=True)).partition("#SBATCH")[0]
    assert f"# To submit it:   mkdir -p {ONE.run_dir}/log && sbatch THIS_FILE" in head
    assert f"# `rankup run` writes what --env gave into {ONE.run_dir}/env " in head
    assert "/env" not in render(ONE).partition("#SBATCH")[0]


def test_options_are_said_once() -> None:
    options = {"partition": "gpu", "account": "abc", "exclusive": ""}
    found = _directives(replace(ONE, options=options, lines=("--exclude=n7",)))
    assert (found["partition"], found["account"], found["exclusive"]) == ("gpu", "abc", "")
    assert found["exclude"] == "n7"
    assert (found["nodes"], found["ntasks-per-node"], found["gres"]) == ("1", "1", "gpu:2")
    assert "requeue" in found
    assert not {"gres", "cpus-per-task"} & set(_directives(replace(ONE, gpus=0, cpus=None)))
