"""The text of job scripts: golden files, what bash and shellcheck say to them, what is refused.

Three stand there whole; of the others what differs from that of JUPITER. After a wanted change
write the golden files anew, and read their diff:
RANKUP_GOLDEN=write .venv/bin/python -m pytest tests/slurm/test_script.py
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest

from rankup.base.errors import UserError
from rankup.site import profile
from rankup.site.jobspec import JobSpec
from rankup.slurm.script import JobScript, render

from .jobscripts import ONE, of_profile

GOLDEN = Path(__file__).with_name("golden")
_ALL = JobSpec(
    account="abc",
    reservation="course",
    dependency="afterok:17",
    mail="me@example.org",
    name="my run",
    retries=2,
    deadline="30m",
    env=("HF_TOKEN=not shown",),
    sbatch=("--exclude=n7", "--comment='a b'"),
)
JOBS: dict[str, JobScript] = {
    # The network of a JSC machine, the exception among them, and a site elsewhere.
    **{name: of_profile(name) for name in ("jureca-dc", "jupiter", "lumi-g")},
    "least": replace(
        ONE, gpus=0, cpus=None, path="/opt/env/bin", minutes=4, offline=False, threads=False
    ),
    "most": replace(
        of_profile("generic", options=_ALL),
        stage=("/p/data/my photos.h5", "/p/data/tokens"),
        stage_options=("--reserve", "40GB", "--broadcast"),
        stage_folder="/local/nvme",
        mounts=("/p/data/photos.sqsh",),
        setup=("module load CUDA", "export DATA='my data'"),
    ),
    "container": replace(
        of_profile("generic"),
        activate=None,
        container=("apptainer", "exec", "--nv", "/p/images/my torch.sif"),
    ),
}
NAMES = pytest.mark.parametrize("name", sorted(JOBS))


WHOLE = ("jupiter", "least", "most")


@NAMES
def test_the_text_is_that_of_the_golden_file(name: str) -> None:
    path, text = GOLDEN / f"{name}.sh", render(JOBS[name])
    if name not in WHOLE:
        usual = render(JOBS["jupiter"]).splitlines()
        lines = unified_diff(usual, text.splitlines(), "jupiter.sh", f"{name}.sh", n=1, lineterm="")
        path, text = path.with_suffix(".diff"), "\n".join(lines) + "\n"
    if os.environ.get("RANKUP_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
@pytest.mark.parametrize("name", ["container", "most"])
def test_shellcheck_finds_nothing(name: str) -> None:
    done = subprocess.run(
        ["shellcheck", "-"], input=render(JOBS[name]), capture_output=True, text=True
    )
    assert done.stdout == ""


def test_every_golden_file_is_tried() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(JOBS)


def test_bash_reads_the_script_of_every_site() -> None:
    for name in profile.names():
        if name != "local":
            text = render(of_profile(name))
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), name


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


def test_hostile_values_stay_one_value_of_their_directive() -> None:
    for value in (
        *("; rm -rf $HOME", "$(touch pwned)", "`touch pwned`", 'it\'s "quoted"', "a\\b", "a#b"),
        *(" blanks ", "100%j", "--help", "größe-漢字", "a=b", "~", "*"),
    ):
        options = {"account": value, "comment": value}
        found = _directives(replace(ONE, name=value, options=options))
        assert (found["job-name"], found["account"], found["comment"]) == (value, value, value)
        assert len(found) == len(_directives(ONE)) + 2


@pytest.mark.parametrize("value", ["a\n#SBATCH --nodes=99", "a\rb", "a\x1bb", "a\tb"])
def test_a_line_break_in_a_directive_is_refused(value: str) -> None:
    for job in (
        replace(ONE, name=value),
        replace(ONE, options={"account": value}),
        replace(ONE, lines=(f"--comment={value}",)),
        replace(ONE, run_dir=f"/scratch/{value}"),
    ):
        with pytest.raises(UserError, match="line break or a control character"):
            render(job)


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


def test_options_are_said_once() -> None:
    options = {"partition": "gpu", "account": "abc", "exclusive": ""}
    found = _directives(replace(ONE, options=options, lines=("--exclude=n7",)))
    assert (found["partition"], found["account"], found["exclusive"]) == ("gpu", "abc", "")
    assert found["exclude"] == "n7"
    assert (found["nodes"], found["ntasks-per-node"], found["gres"]) == ("1", "1", "gpu:2")
    assert "requeue" in found
    assert not {"gres", "cpus-per-task"} & set(_directives(replace(ONE, gpus=0, cpus=None)))
