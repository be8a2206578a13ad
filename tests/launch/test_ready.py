"""What a job needs is here, or it is refused; and it is told where that lies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.launch import ready, submit
from rankup.launch.submit import Plan
from rankup.login import record
from rankup.login.record import Item, Proof, Record
from rankup.site import config as configuration
from rankup.site import profile as profiles
from rankup.site.jobspec import JobSpec
from rankup.site.rundir import Job
from rankup.slurm.limits import Grant
from rankup.slurm.script import render

WANTS = """
from datasets import load_dataset
from transformers import AutoModel
import nltk
load_dataset("a/corpus", "small")
AutoModel.from_pretrained("gpt2")
nltk.download("punkt")
nltk.download("stopwords")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a script that fetches four things."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(WANTS)
    return tmp_path


def _job(project: Path, *args: str) -> Job:
    return Job("id", "script", str(project / "train.py"), list(args), str(project), {}, {})


def _item(project: Path, name: str = "part.bin") -> Item:
    path = project / "cache" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"12345")
    return Item(name, f"https://example.org/{name}", str(path), 5)


def _script(
    project: Path,
    *args: str,
    proof: Proof = "namespace",
    note: str = "",
    variables: Mapping[str, str] | None = None,
    offline: Mapping[str, str] | None = None,
) -> Record:
    """Keep a record of `train.py ARGS`, which has fetched one file."""
    one = Record(
        key=record.script_key(project / "train.py", args),
        at="2026-01-01T00:00:00Z",
        items=(_item(project),),
        variables=variables or {},
        offline=offline or {},
        proof=proof,
        note=note,
    )
    record.write(project, one)
    return one


def _require(
    project: Path, *args: str, internet: bool | None = None, allow_missing: bool = False
) -> list[str]:
    config = configuration.load(project)
    return ready.require(config, _job(project, *args), internet, allow_missing=allow_missing)


# --- what is missing


def test_where_nothing_is_known_nothing_is_said(project: Path) -> None:
    assert _require(project, internet=None) == []
    assert _require(project, internet=True) == []


def test_what_was_fetched_and_is_there_is_ready(project: Path) -> None:
    _script(project, "--lr", "1")
    assert _require(project, "--lr", "1", internet=False) == []


def test_a_file_that_is_gone_is_named_with_what_brings_it(project: Path) -> None:
    one = _script(project, "--name", "a b")
    Path(one.items[0].path).unlink()
    with pytest.raises(UserError) as caught:
        _require(project, "--name", "a b", internet=False)
    said = str(caught.value)
    assert f"{project}/cache/part.bin, which fetching train.py brought, is gone;" in said
    assert "rankup fetch train.py --name 'a b'" in said
    assert "--allow-missing" in said
    with pytest.raises(UserError):
        _require(project, "--name", "a b", internet=None)


def test_with_allow_missing_it_is_a_warning(project: Path) -> None:
    one = _script(project)
    Path(one.items[0].path).unlink()
    [line] = _require(project, internet=False, allow_missing=True)
    assert line.startswith(f"warning: {one.items[0].path}, which fetching train.py brought, ")


def test_nodes_with_internet_can_fetch_it_themselves(project: Path) -> None:
    one = _script(project, proof="failed")
    Path(one.items[0].path).unlink()
    assert _require(project, internet=True) == []


def test_a_failed_proof_is_refused_with_its_reason(project: Path) -> None:
    _script(project, proof="failed", note="gpt2 wanted\x1b[2J huggingface.co")
    with pytest.raises(UserError, match=r"did not start without a network \(gpt2 wanted") as caught:
        _require(project, internet=False)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("internet", [True, False, None])
def test_what_rankup_toml_lists_is_always_required(project: Path, internet: bool | None) -> None:
    (project / "rankup.toml").write_text('[fetch]\nmodels = ["gpt2"]\ndatasets = ["xsum"]\n')
    with pytest.raises(UserError) as caught:
        _require(project, internet=internet)
    assert "model gpt2" in str(caught.value)
    assert "dataset xsum" in str(caught.value)
    for key in ("model:gpt2", "dataset:xsum"):
        record.write(project, Record(key, "2026-01-01T00:00:00Z", (_item(project),)))
    _require(project, internet=internet)


def test_a_script_fetched_with_other_arguments_is_noted(project: Path) -> None:
    _script(project, "--lr", "1")
    [line] = _require(project, "--lr", "2", internet=False)
    assert line.startswith("note: train.py was fetched with other arguments")
    assert "rankup fetch train.py --lr 2" in line


def test_a_script_that_was_never_fetched_is_read_where_there_is_no_internet(project: Path) -> None:
    lines = _require(project, "--lr", "1", internet=False)
    assert lines == [
        "warning: nothing was fetched for this script, and the nodes have no internet. It wants:",
        "  a/corpus:small (load_dataset, train.py:5)",
        "  gpt2 (AutoModel.from_pretrained, train.py:6)",
        "  punkt (nltk.download, train.py:7)",
        "  and 1 more (`rankup fetch --no-run` lists them)",
        "  If that is not here yet: rankup fetch train.py --lr 1",
    ]


def test_what_was_fetched_by_name_is_not_warned_of(project: Path) -> None:
    for key in ("dataset:a/corpus:small", "model:gpt2@main"):
        record.write(project, Record(key, "2026-01-01T00:00:00Z", (_item(project),)))
    lines = _require(project, internet=False)
    assert [line for line in lines if "corpus" in line or "gpt2" in line] == []
    assert "  punkt (nltk.download, train.py:7)" in lines


def test_a_script_that_is_no_python_is_warned_of(project: Path) -> None:
    (project / "train.py").write_text("x = = 1\n")
    [line] = _require(project, internet=False)
    assert line.startswith(f"warning: {project}/train.py:1: no valid Python: invalid syntax")


def test_a_recipe_has_no_script_to_be_read(project: Path) -> None:
    job = replace(_job(project), kind="recipe", target="language-model")
    config = configuration.load(project)
    assert ready.require(config, job, internet=False, allow_missing=False) == []
    assert ready.fetched(project, job, with_network=False) == ready.Fetched()


def test_a_fetch_that_came_to_nothing_does_not_silence_the_warnings(project: Path) -> None:
    note = "ended with code 1"
    failed = replace(_script(project, "--lr", "1", proof="none", note=note), items=())
    record.write(project, failed)
    lines = _require(project, "--lr", "1", internet=False)
    assert lines[0] == (
        "warning: train.py: that it starts without a network was not proved (ended with code 1); "
        "rankup fetch train.py --lr 1"
    )
    assert "  gpt2 (AutoModel.from_pretrained, train.py:6)" in lines
    assert len(_require(project, "--lr", "1", internet=None)) == 1
    assert _require(project, "--lr", "1", internet=True) == []
    # With other arguments it was never fetched.
    lines = _require(project, "--lr", "2", internet=False)
    assert lines[0].startswith("warning: nothing was fetched for this script")


def test_a_script_that_was_edited_since_is_warned_of(project: Path) -> None:
    (project / "model.py").write_text("x = 1\n")
    (project / "train.py").write_text("import model\n" + WANTS)
    one = _script(project)
    record.write(project, replace(one, code=record.code_of(project / "train.py")))
    assert _require(project, internet=False) == []
    (project / "model.py").write_text("x = 2\n")
    assert _require(project, internet=False) == [
        "warning: train.py: changed since it was fetched: model.py; rankup fetch train.py"
    ]


def test_what_is_listed_and_gone_is_said_once(project: Path) -> None:
    (project / "rankup.toml").write_text('[fetch]\nscripts = ["train.py"]\n')
    one = _script(project)
    assert _require(project, internet=False) == []
    Path(one.items[0].path).unlink()
    with pytest.raises(UserError) as caught:
        _require(project, internet=False)
    assert str(caught.value).count("part.bin") == 1


def test_what_was_fetched_in_the_scripts_folder_counts_above_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.parent)
    _script(project, variables={"HF_HOME": "/h"}, offline={"HF_HUB_OFFLINE": "1"})
    record.write(project, Record("model:gpt2", "2026-01-01T00:00:00Z", (_item(project, "w"),)))
    config = configuration.load(project.parent)
    assert ready.require(config, _job(project), internet=False, allow_missing=False) == []
    found = ready.fetched(project.parent, _job(project), with_network=False)
    assert (found.variables, found.offline) == ({"HF_HOME": "/h"}, {"HF_HUB_OFFLINE": "1"})
    assert "w" in found.places


def test_what_fetches_is_not_loaded_to_submit_a_job() -> None:
    program = "import sys, rankup.launch.ready; print([m for m in sys.modules if '.fetch' in m])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


# --- what the job is told


def test_the_variables_of_what_was_fetched_are_handed_on(project: Path) -> None:
    by_name = Record(
        "model:gpt2",
        "2026-01-01T00:00:00Z",
        (_item(project, "weights"),),
        {"HF_HOME": "/old", "TORCH_HOME": "/torch"},
        {"HF_HUB_OFFLINE": "1"},
        "blocked",
    )
    record.write(project, by_name)
    _script(project, variables={"HF_HOME": "/new"}, offline={"WANDB_MODE": "offline"})
    found = ready.fetched(project, _job(project), with_network=False)
    assert found.variables == {"HF_HOME": "/new", "TORCH_HOME": "/torch"}
    assert found.offline == {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    assert found.places == {
        "weights": project / "cache" / "weights",
        "part.bin": project / "cache" / "part.bin",
    }
    assert found.folders() == ["/new", "/torch", str(project / "cache")]


@pytest.mark.parametrize(
    ("proof", "args", "expected"),
    [
        ("namespace", (), {"HF_HUB_OFFLINE": "1"}),
        ("blocked", (), {"HF_HUB_OFFLINE": "1"}),
        ("none", (), {}),
        ("failed", (), {}),
        ("namespace", ("--other",), {}),
    ],
)
def test_where_there_is_internet_only_a_proof_forbids_it(
    project: Path, proof: Proof, args: tuple[str, ...], expected: dict[str, str]
) -> None:
    _script(project, proof=proof, offline={"HF_HUB_OFFLINE": "1"})
    assert ready.fetched(project, _job(project, *args), with_network=True).offline == expected


def test_a_record_cannot_set_what_bash_or_slurm_read(project: Path) -> None:
    bad = dict.fromkeys(["PATH", "BASH_ENV", "SLURM_JOB_ID", "RANKUP_RUN_DIR", "a b", "x;y"], "v")
    good = {"HF_HOME": "/x y"}
    offline = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "$(touch pwned)", "PATH": "1"}
    _script(project, variables={**bad, **good, "TORCH_HOME": "a\nb"}, offline=offline)
    found = ready.fetched(project, _job(project), with_network=False)
    assert found.variables == good
    assert found.offline == {"HF_HUB_OFFLINE": "1"}


def test_parts_of_one_name_are_all_kept(project: Path) -> None:
    items = (_item(project, "a"), replace(_item(project, "b"), name="a"))
    record.write(project, Record("model:x", "2026-01-01T00:00:00Z", items))
    found = ready.fetched(project, _job(project), with_network=False).places
    assert sorted(found.values()) == [project / "cache" / "a", project / "cache" / "b"]


def test_a_cache_that_has_moved_meanwhile_is_noted() -> None:
    variables = {"HF_HOME": "/then", "TORCH_HOME": "/same", "FASTAI_HOME": "/f"}
    here = {"HF_HOME": "/now", "TORCH_HOME": "/same"}
    [line] = ready.elsewhere(variables, here, {})
    assert line.startswith("note: HF_HOME is /now here; what was fetched lies in /then")
    assert ready.elsewhere(variables, here, {"HF_HOME": "/asked"}) == []


def _plan(**values: object) -> Plan:
    shape = profiles.Partition("gpu", 1440, 2, 8, 8, 3, None)
    grant = Grant("gpu", 1, 2, 2, 8, 60, True, shape)
    found = Plan(profiles.load("generic"), grant, JobSpec(), {}, "", ())
    return replace(found, **values)  # type: ignore[arg-type]


def _exports(plan: Plan, project: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What the exports of the job script leave in the environment of bash."""
    text = render(submit.job_script(plan, _job(project), project / "run", resume=False))
    lines = [line for line in text.splitlines() if line.startswith("export ")]
    kept = [line for line in lines if "PATH" not in line and "SLURM" not in line]
    done = subprocess.run(
        ["bash", "-c", "\n".join([*kept, "env -0"])],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    pairs = (entry.partition("=") for entry in done.stdout.split("\0") if entry)
    return {name: value for name, _, value in pairs}


def test_the_job_script_sets_the_caches_and_asks_nobody_to_go_online(project: Path) -> None:
    told = ready.Fetched({"HF_HOME": "/it's $HOME"}, {"HF_EVALUATE_OFFLINE": "1"})
    plan = _plan(fetched=told)
    found = _exports(plan, project, {"HF_HOME": "/elsewhere", "WANDB_MODE": "disabled"})
    assert found["HF_HOME"] == "/it's $HOME"
    assert found["HF_EVALUATE_OFFLINE"] == "1"
    assert found["HF_HUB_OFFLINE"] == "1"
    assert found["WANDB_MODE"] == "disabled", "what the user has set is kept"
    found = _exports(replace(plan, variables={"HF_HOME": "/asked"}), project, {})
    assert "HF_HOME" not in found, "it comes from the file of --env"


def test_nothing_fetched_changes_nothing_in_the_job_script(project: Path) -> None:
    made = submit.job_script(_plan(), _job(project), project / "run", resume=False)
    assert dict(made.fetched) == {}
    assert "HF_HOME" not in render(made)


def test_a_container_sees_the_caches(project: Path) -> None:
    (project / "hub").mkdir()
    (project / "a.sif").touch()
    told = ready.Fetched({"HF_HOME": str(project / "hub")})
    plan = _plan(fetched=told, options=JobSpec(container=str(project / "a.sif")))
    found = submit.job_script(plan, _job(project), project / "run", resume=False)
    assert str(project / "hub") in found.container[found.container.index("--bind") + 1].split(",")


# --- which environment


def _environment(project: Path) -> Path:
    programs = project / "env" / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    script = project / "env" / "activate.sh"
    script.touch()
    return script


def test_the_projects_environment_is_taken_where_this_python_is_in_none(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = _environment(project)
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    found, note = ready.environment_of_project(project)
    assert found == str(script)
    assert note == f"note: the job gets the environment of {script}, not that of this Python"
    script.chmod(0o666)
    found, note = ready.environment_of_project(project)
    assert found is None
    assert note.startswith(f"warning: {script} could be somebody else's work")
    script.unlink()
    assert ready.environment_of_project(project) == (None, "")


def test_an_environment_without_its_venv_is_not_taken(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = _environment(project)
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    (script.parent / "venv" / "bin" / "python").unlink()
    assert ready.environment_of_project(project) == (None, "")


def test_the_environment_of_this_python_comes_first_where_it_has_torch(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = _environment(project)
    (project / "other" / "bin").mkdir(parents=True)
    (project / "other" / "bin" / "activate").touch()
    monkeypatch.setattr(sys, "prefix", str(project / "other"))
    assert ready.environment_of_project(project) == (None, "")
    monkeypatch.setattr(ready.importlib.util, "find_spec", lambda name: None)
    assert ready.environment_of_project(project)[0] == str(script)


def test_a_job_gets_the_active_environment_where_that_has_rankup_too(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = project / "other"
    (other / "bin").mkdir(parents=True)
    python = other / "bin" / "python"
    python.write_text("#!/bin/sh\necho True\n")  # it sees torch, wherever that lies
    python.chmod(0o755)
    (other / "bin" / "activate").touch()
    monkeypatch.setenv("VIRTUAL_ENV", str(other))
    activate, _ = ready.own_environment()
    assert not str(activate).startswith(str(other)), "its ranks would not start"
    found, note = ready.environment_of_project(project)
    assert found is None
    assert note.startswith(f"note: the job gets {sys.executable}; the active environment {other}")
    (other / "bin" / "rankup-rank").touch()
    assert ready.own_environment() == (str(other / "bin" / "activate"), None)
    note = ready.environment_of_project(project)[1]
    assert note.startswith("note: the job gets the active environment")


def test_no_environment_is_older_than_its_requirements_where_there_are_none(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert ready.staleness(None) == ""
    assert ready.staleness(str(project / "activate.sh")) == ""
