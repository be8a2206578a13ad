"""Options of a job: defaults, variables, and secrets that must not reach the script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.slurm.options import JobOptions, refuse_secrets, variables


def test_what_was_said_wins_over_defaults_and_nothing_else_is_touched() -> None:
    said = JobOptions(nodes=2, sbatch=("--exclude=n1",))
    defaults = {
        "nodes": 4,
        "time": "2h",
        "sbatch": ["--mem=0"],
        "env": ["A=1", "B"],
        "nproc": 4,
        "unknown": 1,
    }
    assert said.over(defaults) == JobOptions(
        nodes=2, time="2h", sbatch=("--exclude=n1",), env=("A=1", "B")
    )
    assert said.over({}) == said


def test_zero_retries_were_said() -> None:
    none = JobOptions(retries=0)
    assert none.over({"retries": 3, "allow_idle_gpus": True}) == replace(none, allow_idle_gpus=True)
    assert none.said() == {"retries": 0}


def test_what_was_said_holds_no_values_of_variables() -> None:
    said = JobOptions(account="abc", env=("TOKEN=hidden value", "HOME")).said()
    assert said == {"account": "abc", "env": ["TOKEN", "HOME"]}
    assert JobOptions().said() == {}


def test_variables_are_taken_as_they_are() -> None:
    entries = ("A=1", "B=", "C==x=y", "D= $(x) 'y'\n", "HOME", "A=2")
    assert variables(entries, {"HOME": "/home/me", "OTHER": "x"}) == {
        "A": "2",
        "B": "",
        "C": "=x=y",
        "D": " $(x) 'y'\n",
        "HOME": "/home/me",
    }


@pytest.mark.parametrize("entry", ["", "=x", "1A=x", "A B=x", "A;rm=x", "$(x)=1", "ä=1", "A\n=1"])
def test_what_is_no_name_is_refused(entry: str) -> None:
    with pytest.raises(UserError, match="write NAME=VALUE"):
        variables((entry,), {})


def test_a_name_that_is_not_set_is_refused() -> None:
    with pytest.raises(UserError, match="HF_TOKEN is not set here; write HF_TOKEN=VALUE"):
        variables(("HF_TOKEN",), {"HOME": "/"})


def test_a_null_byte_is_refused() -> None:
    with pytest.raises(UserError, match="null byte"):
        variables(("A=x\0y",), {})


# Made up, of the services' forms.
TOKENS = [
    "hf_" + "aB3" * 11,
    "ghp_" + "x" * 36,
    "github_pat_" + "A1_" * 20,
    "glpat-" + "a" * 20,
    "sk-" + "proj_" * 8,
    "AKIA" + "ABCD" * 4,
]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("form", ["{}", "--token={}", "https://me:{}@example.org/x"])
def test_tokens_of_known_services_are_refused_and_not_repeated(token: str, form: str) -> None:
    with pytest.raises(UserError) as raised:
        refuse_secrets(("train.py", form.format(token)), {})
    assert token not in str(raised.value)
    assert "--env NAME" in str(raised.value)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "MY_SECRET", "DB_PASSWORD", "apikey", "AWS_CREDENTIALS"]
)
def test_the_value_of_a_variable_with_a_telling_name_is_refused(name: str) -> None:
    environment = {name: "correct horse", "HOME": "/home/me", "OTHER": "train.py"}
    with pytest.raises(UserError) as raised:
        refuse_secrets(("train.py", "--key=correct horse!"), environment)
    assert "correct horse" not in str(raised.value)
    assert f"${name}" in str(raised.value)
    assert f"--env {name}" in str(raised.value)


@pytest.mark.parametrize(
    "word",
    ["train.py", "--lr", "0.1", "hf_hub", "sk-learn", "--tokenizer=gpt2", "AKIA", "correct house"],
)
def test_other_words_pass(word: str) -> None:
    refuse_secrets((word,), {"HF_TOKEN": "correct horse", "EMPTY_TOKEN": "", "A_TOKEN": "t"})


def test_the_path_of_a_file_of_credentials_is_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text("{}")
    environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}
    refuse_secrets((f"--credentials={file}",), environment)
