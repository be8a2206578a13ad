"""Parts of a submission: where runs go, what is mounted, which Python, and who may read what."""

from __future__ import annotations

import getpass
import shlex
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.launch import ready, request, submit
from rankup.launch.submit import Plan
from rankup.site import profile as profiles
from rankup.site import rundir
from rankup.site.config import Config
from rankup.site.jobspec import JobSpec
from rankup.site.rundir import Job
from rankup.slurm.limits import Grant
from rankup.slurm.script import render

SHAPE = profiles.Partition("gpu", 1440, 2, 8, 8, 3, None)


def _plan(site: str = "generic", **values: object) -> Plan:
    grant = Grant("gpu", 2, 2, 2, 8, 60, True, SHAPE)
    found = Plan(profiles.load(site), grant, JobSpec(), {}, "", ())
    return replace(found, **values)  # type: ignore[arg-type]


def _job(folder: Path, **values: object) -> Job:
    job = Job("id", "script", str(folder / "train.py"), ["--lr", "1"], str(folder), {}, {})
    return replace(job, **values)  # type: ignore[arg-type]


# --- where runs go


def test_runs_go_to_scratch_with_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    config = Config(runs=tmp_path / "runs")
    folder, link = submit.runs_folder(config, _plan())
    assert folder == link
    assert folder.parent == tmp_path / "scratch" / getpass.getuser() / "rankup-runs"
    assert not folder.exists(), "made by the first run"


def test_every_project_has_its_own_folder_of_runs_in_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    (tmp_path / "link").symlink_to(tmp_path / "a" / "project")
    places = [tmp_path / "a" / "project", tmp_path / "b" / "project", tmp_path / "a" / "other"]
    for place in places:
        place.mkdir(parents=True)
    found = [submit.runs_folder(Config(runs=place / "runs"), _plan())[0] for place in places]
    assert [folder.name.rpartition("-")[0] for folder in found] == ["project", "project", "other"]
    assert len(set(found)) == 3
    again = submit.runs_folder(Config(runs=tmp_path / "link" / "runs"), _plan())[0]
    assert again == found[0]


def test_that_scratch_is_cleared_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    submit.runs_folder(Config(runs=tmp_path / "runs"), _plan("juwels-booster"))
    assert "deletes files unused for 90 days" in capsys.readouterr().err


def test_runs_stay_where_the_user_wants_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    runs = tmp_path / "runs"
    assert submit.runs_folder(Config(runs=runs, runs_set=True), _plan()) == (runs, None)
    runs.symlink_to(tmp_path / "gone")  # ours, whose target was purged
    assert submit.runs_folder(Config(runs=runs), _plan()) == (runs, None)
    runs.unlink()
    runs.mkdir()
    assert submit.runs_folder(Config(runs=runs), _plan()) == (runs, None)


def test_without_scratch_runs_are_beside_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCRATCH", raising=False)
    config = Config(runs=tmp_path / "runs")
    assert submit.runs_folder(config, _plan()) == (tmp_path / "runs", None)


def test_the_scratch_of_the_account_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH_abc", str(tmp_path / "abc"))
    monkeypatch.setenv("SCRATCH", str(tmp_path / "other"))
    plan = _plan("jureca-dc", options=JobSpec(account="abc"))
    folder, _ = submit.runs_folder(Config(runs=tmp_path / "runs"), plan)
    assert folder.is_relative_to(tmp_path / "abc")


# --- what is mounted


def test_what_compute_nodes_do_not_mount_is_refused() -> None:
    paths = {"the working directory": Path("/e/x"), "the run directory": Path("/p/x")}
    with pytest.raises(UserError, match=r"the run directory /p/x is not mounted .* JUPITER"):
        submit.refuse_unmounted(_plan("jupiter"), paths)
    submit.refuse_unmounted(_plan("jupiter"), {"the working directory": Path("/e/x")})


def test_a_link_to_what_is_not_mounted_is_refused(tmp_path: Path) -> None:
    plan = _plan(profile=profiles.override(profiles.load("generic"), {"mounts": [str(tmp_path)]}))
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "here").mkdir()
    submit.refuse_unmounted(plan, {"the data": tmp_path / "here"})
    with pytest.raises(UserError, match="the data"):
        submit.refuse_unmounted(plan, {"the data": tmp_path / "link"})


def test_where_nothing_is_known_only_a_folder_of_each_node_is_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    submit.refuse_unmounted(_plan(), {"the run directory": Path("/home/me")})
    assert capsys.readouterr().err == ""
    submit.refuse_unmounted(_plan(), {"the run directory": Path("/dev/shm/me")})
    assert capsys.readouterr().err.startswith("warning: the run directory: in a folder that most")


def test_arguments_that_are_paths_of_something_have_to_be_seen(tmp_path: Path) -> None:
    (tmp_path / "data" / "x=1").mkdir(parents=True)
    (tmp_path / "file").touch()
    args = [
        *("--data", "data/x=1", f"--valid={tmp_path}/file", "./file", "file", "data/none", "/"),
        *("--url=https://example.org/data", "--lr=1/3", "", "/x\0y", "/" + 5000 * "x", "-/"),
    ]
    job = _job(tmp_path, args=args)
    here = str(tmp_path)
    seen = [f"{here}/data/x=1", f"{here}/file", f"{here}/file", "/"]
    assert [str(path) for path in submit.argument_paths(job)] == seen
    found = submit.job_script(_plan(), job, tmp_path / "run", resume=False)
    assert found.needs == (here, f"{here}/train.py", *seen)


def test_arguments_of_a_recipe_stay_on_the_login_node(tmp_path: Path) -> None:
    (tmp_path / "text").touch()  # copied into the run directory as tokens
    job = _job(
        tmp_path, kind="recipe", target="language-model", args=["--data", f"{tmp_path}/text"]
    )
    assert submit.argument_paths(job) == []


# --- which Python


def test_the_templates_activate_is_taken_before_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "venv"
    (prefix / "bin").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
    assert ready.own_environment() == (None, str(prefix / "bin")), "neither is there"
    (prefix / "bin" / "activate").touch()
    assert ready.own_environment() == (str(prefix / "bin" / "activate"), None)
    (tmp_path / "activate.sh").touch()
    assert ready.own_environment() == (str(tmp_path / "activate.sh"), None)
    monkeypatch.setattr(sys, "base_prefix", str(prefix))
    assert ready.own_environment() == (None, str(prefix / "bin")), "no environment at all"


def test_an_activate_that_anybody_could_have_written_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "venv"
    (prefix / "bin").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    (prefix / "bin" / "activate").touch()
    (tmp_path / "activate.sh").touch()
    (tmp_path / "activate.sh").chmod(0o666)
    assert ready.own_environment() == (str(prefix / "bin" / "activate"), None)
    (tmp_path / "activate.sh").chmod(0o664)
    assert ready.own_environment() == (str(tmp_path / "activate.sh"), None)


def test_an_environment_that_is_no_file_is_refused(tmp_path: Path) -> None:
    plan = _plan(options=JobSpec(environment=str(tmp_path)))
    with pytest.raises(UserError, match="is no file; name a script to source"):
        submit.job_script(plan, _job(tmp_path), tmp_path / "run", resume=False)


def test_a_container_that_is_not_there_is_refused(tmp_path: Path) -> None:
    plan = _plan(options=JobSpec(container=str(tmp_path / "no.sif")))
    with pytest.raises(UserError, match=r"does not exist; .*apptainer pull"):
        submit.job_script(plan, _job(tmp_path), tmp_path / "run", resume=False)


@pytest.mark.parametrize(("site", "flag"), [("generic", ["--nv"]), ("lumi-g", ["--rocm"])])
def test_a_container_sees_the_sites_kind_of_gpu(tmp_path: Path, site: str, flag: list[str]) -> None:
    (tmp_path / "a b.sif").touch()
    plan = _plan(site, options=JobSpec(container=str(tmp_path / "a b.sif")))
    found = submit.job_script(plan, _job(tmp_path), tmp_path / "run", resume=False)
    binds = f"{tmp_path}/run,{tmp_path}"
    image = str(tmp_path / "a b.sif")
    assert found.container == ("apptainer", "exec", *flag, "--bind", binds, image)
    assert (found.activate, found.path) == (None, None)


def test_a_container_sees_the_run_the_script_and_the_sites_file_systems(tmp_path: Path) -> None:
    for name in ("work", "code", "home", "a.sif"):
        (tmp_path / name).mkdir()
    mounts = [f"{tmp_path}/home", f"{tmp_path}/not-here"]
    profile = profiles.override(profiles.load("generic"), {"mounts": mounts})
    plan = _plan(profile=profile, options=JobSpec(container=f"{tmp_path}/a.sif"))
    job = _job(tmp_path / "work", target=f"{tmp_path}/code/train.py")
    found = submit.job_script(plan, job, tmp_path / "run", resume=False).container
    folders = found[found.index("--bind") + 1].split(",")
    assert folders == [f"{tmp_path}/{name}" for name in ("run", "work", "home", "code")]


def test_an_image_of_a_registry_is_handed_on_as_it_is(tmp_path: Path) -> None:
    plan = _plan(options=JobSpec(container="docker://example/torch:1"))
    found = submit.job_script(plan, _job(tmp_path), tmp_path / "run", resume=False)
    assert found.container[-1] == "docker://example/torch:1"


@pytest.mark.parametrize("name", ["a:b", "a,b"])
def test_a_folder_that_apptainer_would_misread_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.sif").touch()
    plan = _plan(options=JobSpec(container=f"{tmp_path}/a.sif"))
    with pytest.raises(UserError, match="cannot be seen in a container"):
        submit.job_script(plan, _job(tmp_path), tmp_path / name, resume=False)


# --- what is asked for


def test_options_become_directives(tmp_path: Path) -> None:
    options = JobSpec(
        partition="gpu", account="abc", qos="high", reservation="course",
        dependency="afterok:1", mail="me@example.org", name="a name", retries=2, deadline="90s",
        sbatch=("--exclude=n1",),
    )  # fmt: skip
    found = submit.job_script(_plan(options=options), _job(tmp_path), tmp_path / "run", True)
    assert set(found.options) == {
        "partition", "account", "qos", "reservation", "dependency", "mail-user",
        "mail-type",
    }  # fmt: skip
    assert (found.name, found.retries, found.stop_after) == ("a name", 2, 90)
    assert (found.lines, found.resume) == (("--exclude=n1",), True)
    assert found.needs == (str(tmp_path), str(tmp_path / "train.py"))
    assert found.max_attempts == 100
    bounded = replace(options, max_attempts=3)
    assert (
        submit.job_script(_plan(options=bounded), _job(tmp_path), tmp_path, True).max_attempts == 3
    )


def test_the_name_is_that_of_the_script_or_recipe(tmp_path: Path) -> None:
    script = submit.job_script(_plan(), _job(tmp_path), tmp_path / "run", False)
    assert (script.name, script.recipe) == ("train", False)
    recipe = _job(tmp_path, kind="recipe", target="language-model")
    found = submit.job_script(_plan(), recipe, tmp_path / "run", False)
    assert (found.name, found.recipe, found.needs) == ("language-model", True, (str(tmp_path),))


# --- who may read what


def test_values_of_variables_stand_in_the_private_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "correct horse"
    for words in (["--env", f"MY_KEY={secret}"], [f"--env=MY_KEY={secret}"]):
        monkeypatch.setattr(sys, "argv", ["rankup", "run", *words, "train.py"])
        plan = _plan(variables={"MY_KEY": secret})
        found = submit.job_script(plan, _job(tmp_path), tmp_path, resume=False)
        text = render(found)
        assert secret not in text
        assert "MY_KEY" in text, "the command that made it, without the value"
        assert found.private


def test_script_and_variables_are_for_their_owner_alone(tmp_path: Path) -> None:
    values = {"A": "it's $(x)\n`y` \\", "B": "", "C": "2"}
    script = submit.write_script(_plan(variables=values), tmp_path, "#!/bin/bash\n")
    assert script == tmp_path / "job.sh"
    assert {path.name for path in tmp_path.iterdir()} == {"env", "job.sh"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert _sourced(tmp_path / "env") == values


def test_variables_of_an_earlier_attempt_stay_unless_given_anew(tmp_path: Path) -> None:
    first = {"A": "1\n2=3 'x'", "B": "old"}
    submit.write_script(_plan(variables=first), tmp_path, "")
    submit.write_script(_plan(), tmp_path, "")
    assert _sourced(tmp_path / "env") == first
    submit.write_script(_plan(variables={"B": "new", "C": "3"}), tmp_path, "")
    assert _sourced(tmp_path / "env") == {"A": first["A"], "B": "new", "C": "3"}
    found = submit.job_script(_plan(), _job(tmp_path), tmp_path, resume=True)
    assert found.private, "a resume without --env still reads the file"


def test_threads_of_an_earlier_attempt_stay(tmp_path: Path) -> None:
    assert submit.job_script(_plan(), _job(tmp_path), tmp_path, resume=True).threads
    submit.write_script(_plan(variables={"OMP_NUM_THREADS": "3", "A": "größe"}), tmp_path, "")
    assert not submit.job_script(_plan(), _job(tmp_path), tmp_path, resume=True).threads
    assert _sourced(tmp_path / "env") == {"A": "größe"}


def test_a_damaged_file_of_variables_is_named(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("A='1\n")
    with pytest.raises(UserError, match=r"/env is not as rankup wrote it .*; mend or remove it"):
        submit.job_script(_plan(), _job(tmp_path), tmp_path, resume=True)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--env", "A=1", "x"], ["--env", "A=...", "x"]),
        (["--env=A=1=2", "x"], ["--env=A=...", "x"]),
        (["--env", "A", "--env=B"], ["--env", "A", "--env=B"]),
        (["run", "--env"], ["run", "--env"]),
        (["--environment", "A=1"], ["--environment", "A=1"]),
        (["--env", "--env=A=1", "B=2"], ["--env", "--env=...", "B=2"]),
    ],
)
def test_a_command_is_shown_without_the_values_of_variables(
    words: list[str], shown: list[str]
) -> None:
    assert list(request.without_values(words)) == shown


def test_a_users_variable_wins_over_the_profiles(tmp_path: Path) -> None:
    plan = _plan("jusuf", variables={"NCCL_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "3"})
    found = submit.job_script(plan, _job(tmp_path), tmp_path / "run", False)
    assert "NCCL_SOCKET_IFNAME" not in found.variables
    assert found.variables["GLOO_SOCKET_IFNAME"] == "ib0"
    assert not found.threads


def test_the_jobs_own_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    rundir.write(tmp_path, _job(tmp_path))
    assert stat.S_IMODE((tmp_path / "job.json").stat().st_mode) == 0o600


def _sourced(path: Path) -> dict[str, str]:
    """The variables that a shell finds in the file."""
    text = f"set -a; source {shlex.quote(str(path))}; env -0"
    done = subprocess.run(
        ["bash", "-c", text], env={"PATH": "/usr/bin:/bin"}, capture_output=True, timeout=20
    )
    assert done.returncode == 0, done.stderr
    found = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0")[:-1])
    return {name: value for name, value in found.items() if name in ("A", "B", "C")}
