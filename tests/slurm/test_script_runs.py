"""Job scripts run from end to end by bash: what torchrun is told, whatever the values are."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from .jobscripts import ONE, Bash, in_folders, of_profile

HOSTILE = (
    "; rm -rf $HOME",
    "$(touch pwned)",
    "`touch pwned`",
    'it\'s "quoted" twice"',
    "a\\b\\",
    "100%j %%",
    "größe-漢字 \u202e",
    "a\tb",
    "--nodes=9",
    "-",
    "*?[a-z]{1,2}",
    "~ !! & | > /dev/null #",
)
# Arguments and variables hold what a file name or a Slurm directive cannot.
HOSTILE_WORDS = (*HOSTILE, "", "a\nb\n", "\n", "\x1b[31m", "\r", "$'\\n'")


# --- what torchrun is told


def test_two_nodes_meet_at_the_first_one(bash: Bash, tmp_path: Path) -> None:
    job = replace(ONE, nodes=2, retries=9, cpus=9, srun_options=("--overlap",))
    job = in_folders(tmp_path, job)
    ran = bash.run(
        job,
        FAKE_NODEADDR="127.0.0.11",
        SLURM_JOB_ID="123456",
        SLURM_RESTART_COUNT="3",
        SLURM_CPUS_PER_TASK="9",
        OMP_NUM_THREADS="1",
    )
    assert ran.code == 0, ran.output
    common = ["--nnodes=2", "--nproc-per-node=2", "--max-restarts=0"]
    # The port is of this job: 10000 + 123456 % 20000.
    head = ["--master-addr=127.0.0.11", "--master-port=13456"]
    rank = ["--no-python", "--", "rankup-rank", *ONE.words]
    assert [list(words) for words in ran.torchrun] == [
        [*common, f"--node-rank={node}", *head, *rank] for node in range(2)
    ]
    for note, option in (("srun.0", "--wait=120"), ("srun.1", "--kill-on-bad-exit=1")):
        words = bash.words(note)
        assert words[: words.index("bash")] == [
            *("--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--relative=0"),
            *("--cpu-bind=none", "--wait=0", option, "--overlap"),
        ]
    for found in ran.environment:
        assert (found["SRUN_CPUS_PER_TASK"], found["OMP_NUM_THREADS"]) == ("9", "4")
        assert (found["HF_HUB_OFFLINE"], found["WANDB_MODE"]) == ("1", "offline")
        assert (found["RANKUP_RUN_DIR"], found["PWD"]) == (job.run_dir, job.work_dir)
        assert int(found["RANKUP_END_TIME"]) > 1_800_000_000
        assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & set(found)


def test_a_run_that_submitted_this_one_is_not_its_parent(bash: Bash, tmp_path: Path) -> None:
    (found,) = bash.run(in_folders(tmp_path, ONE), RANKUP_PARENT="1").environment
    assert "RANKUP_PARENT" not in found


def test_one_node_stands_alone(bash: Bash, tmp_path: Path) -> None:
    job = replace(in_folders(tmp_path, ONE), offline=False, threads=False)
    ran = bash.run(replace(job, path="/opt/it's $HOME/bin"), OMP_NUM_THREADS="1")
    assert ran.code == 0, ran.output
    words = ["--standalone", "--nproc-per-node=2", "--max-restarts=0", "--no-python", "--"]
    assert [list(node) for node in ran.torchrun] == [[*words, "rankup-rank", *ONE.words]]
    assert not (bash.notes / "getent").exists()
    found = ran.environment[0]
    assert found["OMP_NUM_THREADS"] == "1"
    assert "HF_HUB_OFFLINE" not in found
    assert found["PATH"].startswith("/opt/it's $HOME/bin:")


def test_a_profile_with_a_suffix_meets_at_the_name_in_infiniband(
    bash: Bash, tmp_path: Path
) -> None:
    bash.program("timeout", "exit 1")  # nobody sits at the port of an address that is not there
    hosts = "n1i=10.0.0.1\nn1=10.9.9.9"
    job = in_folders(tmp_path, of_profile("jureca-dc"))
    ran = bash.run(job, FAKE_HOSTS=hosts, FAKE_NO_PREFLIGHT="1")
    assert ran.code == 0, ran.output
    for words in ran.torchrun:
        assert {"--master-addr=10.0.0.1", "--master-port=14242"} <= set(words)
    for environment in ran.environment:
        assert environment["NCCL_SOCKET_IFNAME"] == environment["GLOO_SOCKET_IFNAME"] == "ib0"
        gpus = ",".join(map(str, range(job.gpus)))
        assert environment["CUDA_VISIBLE_DEVICES"] == gpus


def test_jupiter_is_different(bash: Bash, tmp_path: Path) -> None:
    bash.program("timeout", "exit 1")
    hosts = "n1i=10.0.0.1\nn1=10.9.9.9"  # where the name with "i" means something else
    job = in_folders(tmp_path, of_profile("jupiter"))
    ran = bash.run(job, FAKE_HOSTS=hosts, FAKE_NO_PREFLIGHT="1")
    assert ran.code == 0, ran.output
    assert all("--master-addr=10.9.9.9" in words for words in ran.torchrun)
    for environment in ran.environment:
        assert environment["NCCL_SOCKET_IFNAME"] == "ib0"
        assert environment["NCCL_SOCKET_FAMILY"] == "AF_INET"
        assert environment["GLOO_USE_IPV6"] == "0"
        assert not {"GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES"} & set(environment)
    assert "--gpu-bind=none" in bash.words("srun.0")
    assert "--gpu-bind=none" in bash.words("srun.1")


def test_without_rankup_a_script_is_started_by_python(bash: Bash, tmp_path: Path) -> None:
    bash.remove("rankup-rank")
    bash.remove("rankup")
    ran = bash.run(in_folders(tmp_path, ONE), FAKE_CODE="3")
    assert ran.ranks == ("python3", *ONE.words)
    assert ran.code == 3


def test_an_older_rankup_in_the_jobs_environment_starts_ranks_alone(
    bash: Bash, tmp_path: Path
) -> None:
    bash.program("rankup-rank", "exit 1")  # whatever it is asked
    ran = bash.run(in_folders(tmp_path, ONE))
    assert (ran.code, ran.ranks) == (0, ("rankup-rank", *ONE.words)), ran.output


def test_a_recipe_needs_rankup_and_the_preflight_says_so(bash: Bash, tmp_path: Path) -> None:
    job = in_folders(tmp_path, replace(ONE, recipe=True, words=("language-model",)))
    assert bash.run(job).ranks == ("rankup-rank", "language-model")
    bash.remove("rankup-rank")
    ran = bash.run(job, SLURM_JOB_ID="4243")
    assert (ran.code, ran.torchrun) == (1, ())
    assert "preflight: node n1: rankup-rank is not on PATH" in ran.output


def test_a_container_starts_torchrun_within(bash: Bash, tmp_path: Path) -> None:
    words = ("apptainer", "exec", "--nv", "/images/my torch.sif")
    ran = bash.run(in_folders(tmp_path, replace(ONE, container=words)))
    assert ran.code == 0, ran.output
    inside = ["torchrun", "--standalone", "--nproc-per-node=2", "--max-restarts=0", "--no-python"]
    assert bash.words("apptainer") == [*words[1:], *inside, "--", "python3", *ONE.words]


# --- the preflight


def test_a_node_that_cannot_read_what_it_needs_is_named(bash: Bash, tmp_path: Path) -> None:
    job = replace(in_folders(tmp_path, replace(ONE, nodes=2)), needs=("/no/such place",))
    ran = bash.run(job)
    assert (ran.code, ran.torchrun) == (1, ())
    for node in ("n1", "n2"):
        assert f"preflight: node {node}: cannot read /no/such place" in ran.output
    assert "the preflight failed, on the nodes or" in ran.output


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"SLURM_GPUS_ON_NODE": "1"}, "Slurm granted 1 GPU(s), the job needs 2"),
        ({"FAKE_GPUS": "0"}, "nvidia-smi sees 0 GPU(s), the job needs 2"),
    ],
)
def test_missing_gpus_are_found_before_torch_is(
    bash: Bash, tmp_path: Path, settings: dict[str, str], words: str
) -> None:
    ran = bash.run(in_folders(tmp_path, ONE), **settings)
    assert (ran.code, ran.torchrun) == (1, ())
    assert words in ran.output


def test_the_work_dir_is_not_mounted(bash: Bash, tmp_path: Path) -> None:
    ran = bash.run(replace(in_folders(tmp_path, ONE), work_dir="/no/such"))
    assert (ran.code, ran.torchrun) == (1, ())
    assert "cannot enter it; is it mounted? /no/such" in ran.output


# --- hostile values


def test_hostile_arguments_and_variables_arrive_word_for_word(bash: Bash, tmp_path: Path) -> None:
    values = {f"VALUE_{number}": value for number, value in enumerate(HOSTILE_WORDS)}
    words = ("/home/me/train.py", *HOSTILE_WORDS)
    job = in_folders(tmp_path, replace(ONE, nodes=2, words=words, variables=values))
    ran = bash.run(job)
    assert ran.code == 0, ran.output
    assert ran.ranks == ("rankup-rank", *words)
    for environment in ran.environment:
        assert {name: environment[name] for name in values} == values
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize(
    "value",
    [
        "".join(value for value in HOSTILE[:-1] if "/" not in value),
        'it\'s "quoted" 100%j %% $(touch pwned) größe; rm *?[a-z]{1,2}',
        "--nodes=9",
    ],
    ids=["all of it", "what may be the run's", "an option"],
)
def test_hostile_names_of_folders_and_of_the_job_do_no_harm(
    bash: Bash, tmp_path: Path, value: str
) -> None:
    printable = value.isprintable() and "\\" not in value
    job = in_folders(tmp_path, ONE, run=value if printable else "run", work=value)
    folder = Path(job.work_dir)
    (folder / "activate.sh").write_text('export ACTIVATED="yes, $PWD"\n')
    (Path(job.run_dir) / "env").write_text(f"FROM_ENV={shlex.quote(value)}\n")
    job = replace(
        job,
        name=value if printable else "name",
        words=(str(folder / "train.py"),),
        activate=str(folder / "activate.sh"),
        made_by=("rankup", "run", value),
        private=True,
    )
    ran = bash.run(job, FAKE_RANKS="stop")
    assert ran.code == 0, ran.output
    assert "requeue 4242" in (bash.notes / "scontrol").read_text()
    assert ran.ranks == ("rankup-rank", str(folder / "train.py"))
    for environment in ran.environment:
        assert environment["RANKUP_RUN_DIR"] == job.run_dir
        assert environment["ACTIVATED"] == f"yes, {job.work_dir}"
        assert environment["FROM_ENV"] == value
    assert not list(tmp_path.rglob("pwned"))
