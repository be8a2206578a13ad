"""Options of a job: defaults, variables, and secrets that must not reach the script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.site.jobspec import (
    JobSpec,
    refuse_own_directives,
    refuse_secrets,
    variables,
)


def test_what_was_said_wins_over_defaults_and_nothing_else_is_touched() -> None:
    said = JobSpec(nodes=2, sbatch=("--exclude=n1",))
    defaults = {
        "nodes": 4,
        "time": "2h",
        "sbatch": ["--mem=0"],
        "env": ["A=1", "B"],
        "monitor": False,
        "unknown": 1,
    }
    assert said.over(defaults) == JobSpec(
        nodes=2, time="2h", sbatch=("--mem=0", "--exclude=n1"), env=("A=1", "B")
    )
    assert said.over({}) == said


def test_lists_are_put_together_and_what_was_said_comes_last() -> None:
    said = JobSpec(env=("A=said",), sbatch=("--mem=1",))
    found = said.over({"env": ["A=file", "B=file"], "sbatch": ("--mem=0", "--exclude=n1")})
    assert found.sbatch == ("--mem=0", "--exclude=n1", "--mem=1")
    assert variables(found.env, {}) == {"A": "said", "B": "file"}


def test_a_resume_says_nothing_twice() -> None:
    file = {"sbatch": ["--mem=0", "--exclude=n1"], "time": "2h"}
    # A record has names alone, which stand for the values of now.
    assert JobSpec(env=("A=now",)).over({"env": ["A", "B"]}).env == ("B", "A=now")
    first = JobSpec(sbatch=("--comment=x",)).over(file)
    again = JobSpec().over(first.said()).over(file)
    assert again == first
    more = JobSpec(sbatch=("--mem=0",)).over(again.said()).over(file)
    assert more.sbatch == ("--exclude=n1", "--comment=x", "--mem=0"), "the last one wins"


def test_zero_retries_were_said() -> None:
    none = JobSpec(retries=0)
    assert none.over({"retries": 3, "allow_idle_gpus": True}) == replace(none, allow_idle_gpus=True)
    assert none.said() == {"retries": 0}


def test_a_bound_of_attempts_is_an_option_as_the_others() -> None:
    assert JobSpec(max_attempts=3).over({"max_attempts": 9}).said() == {"max_attempts": 3}
    assert JobSpec().over({"max_attempts": 9}).said() == {"max_attempts": 9}


def test_what_was_said_holds_no_values_of_variables() -> None:
    said = JobSpec(account="abc", env=("TOKEN=hidden value", "HOME")).said()
    assert said == {"account": "abc", "env": ["TOKEN", "HOME"]}
    assert JobSpec().said() == {}


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


def test_a_value_that_is_no_text_is_refused_and_not_repeated() -> None:
    with pytest.raises(UserError, match=r"^--env A: the value is not UTF-8$"):
        variables(("A=x\udcff",), {})
    with pytest.raises(UserError, match="--env A"):
        variables(("A",), {"A": "x\udcff"})


@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "RANKUP_END_TIME", "RANKUP_RUN_DIR"),
        *("rankup_base", "rankup_attempts", "UID", "EUID", "PPID", "PATH", "IFS"),
        *("BASH_ENV", "BASHOPTS", "SHELLOPTS"),
    ],
)
def test_what_the_job_script_or_bash_sets_is_refused(name: str) -> None:
    for entry in (f"{name}=1", name):
        with pytest.raises(UserError, match=f"--env {name}: the job script or bash sets {name}"):
            variables((entry,), {name: "1"})


@pytest.mark.parametrize(
    "name", ["MY_PATH", "PYTHONPATH", "PATHS", "GUID", "MY_SLURM_ID", "NO_RANKUP_X", "LD_PRELOAD"]
)
def test_names_that_only_look_like_these_pass(name: str) -> None:
    assert variables((f"{name}=1",), {}) == {name: "1"}


# --- what contradicts the job script


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("--nodes=4", "--nodes"),
        ("-N4", "--nodes"),
        ("-N 4", "--nodes"),
        ("--ntasks-per-node=4", "--nproc: torchrun starts the ranks"),
        ("-n8", "--nproc"),
        ("--time=1:00", "--time"),
        ("-t10", "--time"),
        ("--job-name=x", "--name"),
        ("--partition=gpu", "--partition"),
        ("-Aabc", "--account"),
        ("--qos=high", "--qos"),
        ("--dependency=afterok:1", "--dependency"),
        ("--output=x", "`rankup logs`"),
        ("-e", "`rankup logs`"),
        ("--chdir=/x", "nothing: the script runs where you are"),
    ],
)
def test_options_of_sbatch_that_rankup_sets_are_refused(line: str, use: str) -> None:
    with pytest.raises(UserError) as raised:
        refuse_own_directives(("--mem=0", line))
    assert f"--sbatch {line}: the job script sets this; use {use}" in str(raised.value)


@pytest.mark.parametrize("line", ["mem=0", "", "#SBATCH --mem=0", "--", "--=x", "= 3"])
def test_what_is_no_option_of_sbatch_is_refused(line: str) -> None:
    with pytest.raises(UserError, match="is no option of sbatch; write --sbatch=--"):
        refuse_own_directives((line,))


def test_other_options_of_sbatch_pass() -> None:
    refuse_own_directives(
        (
            "--mem=0",
            "--exclude=n1",
            "--exclusive",
            "--no-requeue",
            "--nodelist=n1",
            "-C a100",
            "-x n1",
        )
    )
    refuse_own_directives(())


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
    "name",
    [
        *("HF_TOKEN", "WANDB_API_KEY", "WANDB_KEY", "MY_SECRET", "DB_PASSWORD", "PGPASSWORD"),
        *("apikey", "AWS_CREDENTIALS", "TOKEN", "MY_PASS", "PASSPHRASE", "githubToken"),
    ],
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


@pytest.mark.parametrize(
    "name",
    ["TOKENIZER_NAME", "HF_TOKEN_PATH", "KEYBOARD", "SECRETARY", "COMPASS", "PASSED", "TOKENS"],
)
def test_a_name_that_only_holds_such_a_word_says_nothing(name: str) -> None:
    refuse_secrets(("--tokenizer=openai-gpt2",), {name: "openai-gpt2"})


def test_the_path_of_a_file_of_credentials_is_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text("{}")
    environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}
    refuse_secrets((f"--credentials={file}",), environment)


@pytest.mark.parametrize(
    "words",
    [
        ("--api-key=" + "0a" * 20,),
        ("--wandb_api_key", "0a" * 20),
        ("--password=letmein",),
        ("--db-password", "x"),
    ],
)
def test_a_secret_by_the_name_of_its_option_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"has a secret as its value.*--env NAME") as refused:
        refuse_secrets(("train.py", *words), {})
    assert words[-1].partition("=")[2] not in str(refused.value) or "=" not in words[-1]


@pytest.mark.parametrize(
    "word",
    [
        "--key=image",
        "--eos-token=<|endoftext|>",
        "--pad_token=50256",
        "--tokenizer=gpt2-large-2019",
    ],
)
def test_keys_and_tokens_of_other_kinds_are_none(word: str) -> None:
    refuse_secrets((word, "--password", "--lr"), {})
