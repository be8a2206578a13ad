"""What is asked for, the job it becomes, and what is left when it cannot be had."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.launch import submit
from rankup.launch.request import created, new, resumed
from rankup.site import rundir
from rankup.site.jobspec import JobSpec
from rankup.site.rundir import Job
from rankup.slurm.client import Client, SlurmError
from tests.slurm.jobscripts import Site

from .live import script


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `train.py`, at a site of which nothing is known."""
    folder = tmp_path / "project"
    script(folder, "pass", "train.py")
    (folder / "rankup.toml").write_text('profile = "generic"\nsite.mounts = ["/"]\n')
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["rankup", "run", "train.py"])
    for name in ("SCRATCH", "SBATCH_ACCOUNT", "SLURM_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    return folder


def _runs(here: Path) -> list[Path]:
    return list((here / "runs" / "train").iterdir()) if (here / "runs").exists() else []


# --- options behind TARGET


@pytest.mark.parametrize(
    "word",
    ["--nproc", "--nodes=2", "--dry-run", "--partition", "--max-attempts", "--allow-idle-gpus"],
)
def test_where_it_costs_a_job_an_own_option_behind_the_script_is_refused(
    here: Path, word: str
) -> None:
    name = word.partition("=")[0]
    with pytest.raises(UserError, match=f"{name} stands after TARGET .* put `--` before it"):
        new(JobSpec("train.py", ("--lr", "1", word)), here / "runs", strict=True)


def test_elsewhere_it_is_warned_of(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, job = new(JobSpec("train.py", ("--nodes", "2")), here / "runs")
    assert job.args == ["--nodes", "2"]
    assert "warning: --nodes stands after TARGET" in capsys.readouterr().err


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "args",
    [
        ("--", "--nproc", "2"),
        ("--lr", "1", "--", "--nodes=2"),
        *(("--name", "x"), ("--env=cartpole",), ("--time", "5"), ("--mail",)),
        ("nproc", "-nodes", "--nodes-of-the-graph", "--outer"),
    ],
)
def test_what_is_meant_for_the_script_reaches_it_without_a_word(
    here: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], strict: bool
) -> None:
    _, job = new(JobSpec("train.py", args), here / "runs", strict=strict)
    assert job.args == list(args)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("word", ["--nodes", "--name", "--env"])
def test_behind_a_recipe_every_own_option_is_refused(here: Path, word: str) -> None:
    with pytest.raises(UserError, match=f"rankup run {word} ... TARGET"):
        new(JobSpec("language-model", (word, "2")), here / "runs")


# --- the run directory


def _fails(directory: Path, job: Job, error: BaseException, runs: Path) -> None:
    with created(directory, job, runs):
        assert rundir.read(directory) == job
        (directory / "log" / "x").touch()
        raise error


def test_what_was_made_goes_when_the_block_fails_and_what_was_there_stays(here: Path) -> None:
    directory, job = new(JobSpec("train.py"), here / "runs")
    with pytest.raises(KeyboardInterrupt):
        _fails(directory, job, KeyboardInterrupt(), here / "runs")
    assert sorted(path.name for path in here.iterdir()) == ["rankup.toml", "train.py"]
    (here / "mine").mkdir()
    with pytest.raises(OSError, match="full"):
        _fails(here / "mine", job, OSError("full"), here / "runs")
    assert list((here / "mine").iterdir()) == []
    assert not (here / "runs").exists()


def test_what_cannot_be_removed_hides_no_failure(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, job = new(JobSpec("train.py"), here / "runs")

    def refuses(path: Path) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(Path, "rmdir", refuses)
    with pytest.raises(UserError, match="the cause"):
        _fails(directory, job, UserError("the cause"), here / "runs")


def test_a_resume_adds_to_the_arguments_of_the_run(here: Path) -> None:
    directory, job = new(JobSpec("train.py", ("--lr", "1")), here / "runs")
    with created(directory, job, here / "runs"):
        pass
    found, again = resumed(JobSpec("train.py", ("--lr", "2"), resume=job.id), here / "runs")
    assert (found, again.args) == (directory, ["--lr", "1", "--lr", "2"])
    script(here, "pass", "other.py")
    with pytest.raises(UserError, match=r"is a run of .*train\.py, not of .*other\.py"):
        resumed(JobSpec("other.py", resume=job.id), here / "runs")


def test_a_resume_with_another_model_is_refused_before_a_rank_starts(here: Path) -> None:
    directory, job = new(JobSpec("language-model", ("--dim", "32")), here / "runs")
    with created(directory, job, here / "runs"):
        pass
    for words, was in ((("--dim", "64"), "--dim was 32"), (("--layers", "9"), "--layers was 4")):
        with pytest.raises(UserError, match=f"another run: {was} and is now {words[1]}"):
            resumed(JobSpec("language-model", words, resume=job.id), here / "runs")


def test_a_module_is_named_as_its_package_is(here: Path) -> None:
    script(here, "pass", "pkg/__main__.py")
    folder, job = new(JobSpec("pkg", module=True), here / "runs")
    assert folder == here / "runs" / "pkg" / job.id
    with created(folder, job, here / "runs"):
        assert rundir.find(here / "runs", "last") == folder
    with pytest.raises(UserError, match=r"-m \.pkg: a module is named from its first package on"):
        new(JobSpec(".pkg", module=True), here / "runs")


# --- a submission


def _submit(site: Client, resume: str | None = None, **options: object) -> int:
    target = None if resume else "train.py"
    asked = JobSpec(target, resume=resume, **options)  # type: ignore[arg-type]
    return submit.run(asked, site)


def test_a_submission_says_the_jobs_number_alone_to_other_programs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _submit(Site(), time="90m") == 0
    [run] = _runs(here)
    said = capsys.readouterr()
    assert said.out == "4242\n"
    cost = "at most 3 GPU-h per attempt (1 node x 1:30 h, this Slurm cluster)"
    assert said.err.splitlines() == [
        f"run {run.name} in {run}",
        f"job 4242, time limit 01:30:00, {cost}",
        f"script {run}/job.sh",
        f"next: rankup logs -f {run.name} · status · cancel",
    ]
    [attempt] = rundir.read(run).attempts
    assert (attempt["job"], attempt["nodes"], attempt["nproc"]) == ("4242", 1, 2)
    assert stat.S_IMODE((run / "job.sh").stat().st_mode) == 0o600


def test_a_dry_run_prints_the_script_alone_and_leaves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = JobSpec("train.py", dry_run=True, time="1h")
    assert submit.run(request, Site(job=AssertionError("submitted"))) == 0
    said = capsys.readouterr()
    assert said.out.startswith("#!/bin/bash\n")
    assert said.out.endswith('end_attempt "$code"\n')
    assert "--partition" not in said.out, "Slurm's default"
    assert said.err.startswith("not submitted; it would cost at most 2 GPU-h per attempt")
    assert _runs(here) == []


def test_a_refused_job_leaves_nothing_behind(here: Path) -> None:
    with pytest.raises(SlurmError, match="Invalid qos"):
        _submit(Site(job=SlurmError("sbatch", "Invalid qos")))
    assert sorted(path.name for path in here.iterdir()) == ["rankup.toml", "train.py"]


@pytest.mark.parametrize(
    "error", [SlurmError("sbatch", "no answer in 30 s", unreachable=True), KeyboardInterrupt()]
)
def test_where_it_is_not_known_whether_there_is_a_job_its_files_stay(
    here: Path, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        _submit(Site(job=error))
    [run] = _runs(here)
    assert (run / "job.sh").is_file()
    assert rundir.read(run).attempts == []


def test_a_job_that_cannot_be_written_down_is_named(here: Path) -> None:
    def submits(path: Path) -> str:
        (path.parent / "job.json").unlink()
        (path.parent / "job.json").mkdir()  # nothing can be put in its place
        return "4242"

    with pytest.raises(OSError, match=r"job 4242 is submitted, but .*; to end it: scancel 4242"):
        _submit(Site(job=submits))
    [run] = _runs(here)
    assert (run / "job.sh").is_file()


def test_a_refused_resume_leaves_the_run_as_it_was(here: Path) -> None:
    _submit(Site(), env=("A=1",))
    [run] = _runs(here)
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    with pytest.raises(SlurmError):
        _submit(Site(job=SlurmError("sbatch", "Invalid qos")), run.name, env=("A=2", "B=3"))
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_a_resume_begins_to_count_anew(here: Path) -> None:
    _submit(Site())
    [run] = _runs(here)
    counts = [run / "log" / name for name in ("retries", "requeues", "short", "cancelled")]
    for path in (*counts, run / "requeue"):
        path.write_text("99\n")
    _submit(Site(job="4243"), run.name)
    assert [path for path in (*counts, run / "requeue") if path.exists()] == []
    assert rundir.slurm_jobs(run, rundir.read(run)) == ["4242", "4243"]


@pytest.mark.parametrize(
    "options", [{"name": "correct-horse"}, {"sbatch": ("--comment=correct-horse",)}]
)
def test_a_secret_of_env_is_refused_elsewhere(
    here: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    words = ["--name", "correct-horse"] if "name" in options else ["--sbatch", "..."]
    argv = ["rankup", "run", "--env", "WANDB_KEY=correct-horse", *words, "train.py"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(UserError, match=r"holds the value of \$WANDB_KEY") as raised:
        _submit(Site(), env=("WANDB_KEY=correct-horse",), **options)
    assert "correct-horse" not in str(raised.value)
    assert _runs(here) == []
    monkeypatch.setattr(sys, "argv", ["rankup", "run", "--env", "WANDB_KEY=correct-horse"])
    assert _submit(Site(), env=("WANDB_KEY=correct-horse",)) == 0
    [run] = _runs(here)
    texts = {path.name: path.read_text() for path in run.iterdir() if path.is_file()}
    assert [name for name, text in texts.items() if "correct-horse" in text] == ["env"]


def test_an_argument_that_compute_nodes_do_not_see_is_refused(here: Path, tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "data.h5").touch()
    with (here / "rankup.toml").open("a") as file:
        file.write(f"site.not_mounted = ['{tmp_path}/local']\n")
    request = JobSpec("train.py", (f"--data={tmp_path}/local/data.h5",))
    with pytest.raises(UserError, match=r"the argument \S+/data.h5 \S+ is not mounted"):
        submit.run(request, Site(job=AssertionError("submitted")))
    assert _runs(here) == []


def test_an_option_behind_the_script_costs_no_job(here: Path) -> None:
    request = JobSpec("train.py", ("--nodes", "2"))
    with pytest.raises(UserError, match="--nodes stands after TARGET"):
        submit.run(request, Site(job=AssertionError("submitted")))
    assert _runs(here) == []


def test_the_first_run_links_scratch(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    assert _submit(Site()) == 0
    assert (here / "runs").is_symlink()
    assert (here / "runs").resolve().is_relative_to(tmp_path / "scratch")
    assert _submit(Site(job="4243")) == 0
    jobs = [rundir.slurm_jobs(run, rundir.read(run)) for run in _runs(here)]
    assert sorted(jobs) == [["4242"], ["4243"]]


def test_a_recipes_run_that_is_through_is_not_submitted_again(here: Path) -> None:
    done = here / "runs" / "language-model" / "20260101-000000-abcd"
    rundir.create(done)
    job = Job("20260101-000000-abcd", "recipe", "language-model", [], str(here), {}, {})
    rundir.write(done, job)
    (done / "metrics.jsonl").write_text('{"step": 30, "final": true}\n')
    (done / "model-final.pt").touch()
    site = Site(job=AssertionError("submitted"))
    with pytest.raises(UserError, match=r"is through, .* language-model --steps N"):
        submit.run(JobSpec(None, resume=job.id), site)
    more = JobSpec("language-model", ("--steps", "60"), resume=job.id)
    assert submit.run(more, Site()) == 0, "longer than before"


def test_that_a_script_had_ended_well_is_said_before_it_starts_once_more(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _submit(Site()) == 0
    [run] = _runs(here)
    ended = '{"job": "4242", "task": null, "restart": 0, "end": 1700000100, "code": 0}\n'
    (run / rundir.ATTEMPTS).write_text(ended)
    assert _submit(Site(job="4243"), resume="last") == 0
    assert "note: job 4242 of this run ended as it should" in capsys.readouterr().err


def test_a_run_directory_for_all_is_refused(here: Path) -> None:
    shared = here / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(UserError, match=r"all users may write to .*shared.*chmod o-w"):
        submit.run(JobSpec("train.py", out=str(shared)), Site())
    assert list(shared.iterdir()) == []
    _submit(Site())
    [run] = _runs(here)
    run.chmod(0o757)
    with pytest.raises(UserError, match="all users may write"):
        _submit(Site(), resume="last")
