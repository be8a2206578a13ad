"""`rankup.toml`: the nearest one counts, and what is wrong in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.site.config import Config, load


def test_without_a_file(tmp_path: Path) -> None:
    assert load(tmp_path) == Config(tmp_path / "runs")


def test_the_nearest_file_counts(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "rankup.toml").write_text('runs = "out"')
    assert load(deep).runs == tmp_path / "out", "relative to the file"
    (tmp_path / "a" / "rankup.toml").write_text(f'runs = "{tmp_path}/elsewhere"')
    assert load(deep).runs == tmp_path / "elsewhere"
    (deep / "rankup.toml").write_text("# nothing set")
    assert load(deep).runs == deep / "runs"


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    (tmp_path / "rankup.toml").write_text('runs = "~/runs"')
    assert load(tmp_path).runs == Path("/home/someone/runs")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'run = "x"', "unknown key 'run'; did you mean runs?"),
        (b"runs = 3", "runs must be a string, found 3"),
        (b"runs = [", "not TOML"),
        (b"runs = '\xff'", "not TOML"),
        (b"profile = 'jureca'", "no profile 'jureca'; did you mean jureca-dc"),
        (b"site = 3", "site must be a table, found 3"),
        (b"[site]\nhost_sufix = 'i'", "unknown key 'site.host_sufix'; did you mean host_suffix?"),
        (b"[site.partitions.b]\ngpus = '4'", "site.partitions.b.gpus must be a whole number of 0"),
        (b"[job]\nacount = 'x'", "unknown key 'job.acount'; did you mean account?"),
        (b"[job]\naccount = 3", "job.account must be a name without spaces, found 3"),
        (b'[job]\npartition = "x\\n#SBATCH -y"', "job.partition must be a name without spaces"),
        (b"[job]\nnodes = 0", "job.nodes must be a whole number of 1 or more, found 0"),
        (b"[job]\nretries = -1", "job.retries must be a whole number of 0 or more, found -1"),
        (b"[job]\ntime = 07:30:00", "job.time must be a string of one line, found datetime"),
        (b"[job]\nenv = 'A=1'", "job.env must be a list of strings, found 'A=1'"),
        (b'[job]\nsbatch = ["--a\\n#SBATCH -b"]', "job.sbatch must be a list of options"),
        (b'[job]\nenvironment = "a\\u0000b"', "job.environment must be a string of one line"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "rankup.toml").write_bytes(text)
    with pytest.raises(UserError) as refused:
        load(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}/rankup.toml: ")
    assert said in str(refused.value)


def test_what_is_set_is_told_from_what_is_not(tmp_path: Path) -> None:
    assert load(tmp_path) == Config(tmp_path / "runs", False, None, {}, {}, None)
    file = tmp_path / "rankup.toml"
    file.write_text("")
    assert load(tmp_path) == Config(tmp_path / "runs", False, None, {}, {}, file)
    file.write_text('runs = "runs"')
    assert load(tmp_path) == Config(tmp_path / "runs", True, None, {}, {}, file)


def test_the_site_and_the_job(tmp_path: Path) -> None:
    (tmp_path / "rankup.toml").write_text(
        """
        profile = "jusuf"

        [site]
        host_suffix = ""

        [site.partitions.gpus]
        max_nodes = 3

        [job]
        account = "abc"
        time = "02:00:00"
        nodes = 2
        retries = 0
        environment = "activate.sh"
        container = "images/torch.sif"
        env = ["A=1", "B=two words\\n"]
        sbatch = ["--comment=a b"]
        """
    )
    found = load(tmp_path)
    assert found.profile == "jusuf"
    assert found.site == {"host_suffix": "", "partitions": {"gpus": {"max_nodes": 3}}}
    assert found.job == {
        "account": "abc",
        "time": "02:00:00",
        "nodes": 2,
        "retries": 0,
        "environment": str(tmp_path / "activate.sh"),
        "container": str(tmp_path / "images" / "torch.sif"),
        "env": ["A=1", "B=two words\n"],
        "sbatch": ["--comment=a b"],
    }


def test_paths_of_a_job_are_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    (tmp_path / "rankup.toml").write_text(
        "[job]\nenvironment = '~/activate.sh'\ncontainer = 'docker://pytorch/pytorch'"
    )
    below = tmp_path / "below"
    below.mkdir()
    assert load(below).job == {
        "environment": "/home/someone/activate.sh",
        "container": "docker://pytorch/pytorch",
    }


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rankup.toml"
    file.write_text("")

    def refuse(self: Path, encoding: str) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)  # root reads everything
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        load(tmp_path)
