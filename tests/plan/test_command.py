"""`rankup plan` as a user sees it: what it prints, proposes and refuses; and what `run` says."""

from __future__ import annotations

import errno
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankup import recipes
from rankup.plan.answer import Answer, Request, answer
from rankup.plan.machines import Asked, choose
from rankup.plan.target import Sizes, find
from rankup.plan.words import layout_of, layout_words
from rankup.recipes.options import LanguageModelOptions
from tests.conftest import RunRankup
from tests.slurm.fake import FakeSlurm

SEVEN = shlex.split(
    "--layers 32 --hidden 4096 --heads 32 --vocab 32000 --seq 4096 --gated --ffn 11008"
)
BOOSTER = ["--site", "juwels-booster"]
RECIPE = shlex.split(
    "language-model --layers 12 --dim 768 --heads 12 --seq-len 1024 --vocab bpe --vocab-size 50000 "
    "--global-batch 64"
)


def _json(rankup: RunRankup, *words: str, code: int = 0) -> Any:
    done = rankup(["plan", "--json", *words])
    assert (done.returncode, done.stderr) == (code, "")
    return json.loads(done.stdout)


def test_it_answers_without_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "gpt2",
                **{"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 99, "n_positions": 32},
            }
        )
    )
    program = """
import sys
from rankup.cli import main
sys.argv = ["rankup", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print([name for name in ("torch", "httpx", "matplotlib") if name in sys.modules])
"""
    for target in ([*SEVEN], ["language-model", "--vocab", "byte"], [str(tmp_path)]):
        done = subprocess.run(
            [sys.executable, "-c", program, "plan", *BOOSTER, "--gpus", "8", *target],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == "[]"


def test_what_it_prints(rankup_here: RunRankup) -> None:
    words = ["plan", *BOOSTER, "--gpus", "64,8,1024", "--tokens", "20B", *SEVEN]
    done = rankup_here(words)
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout
    assert "6.738G parameters" in text
    assert "19,074 steps: 20B tokens" in text
    assert "JUWELS Booster, partition booster: 4 x A100-40GB per node, 100 GB/s" in text
    assert "note: --global-batch 256 is assumed, 1.05M tokens per step" in text
    assert "s/step" in text
    assert "core-h" in text
    assert "adding GPUs stops paying at 1024" in text
    assert "rankup run --nodes " in text


def test_the_rows_follow_from_one_another(rankup_here: RunRankup) -> None:
    found = _json(rankup_here, *BOOSTER, "--gpus", "8,64", "--tokens", "20B", *SEVEN)
    assert found["model"]["parameters"] == pytest.approx(6.74e9, rel=0.001)
    steps = found["steps"]
    assert steps == -(-20_000_000_000 // (256 * 4096))
    for row in found["rows"]:
        layout, seconds = row["layout"], row["seconds_per_step"]
        sizes = (layout["dp_replicate"], layout["dp_shard"], layout["tp"], layout["pp"])
        assert layout["gpus"] == sizes[0] * sizes[1] * sizes[2] * sizes[3]
        assert sum(term["seconds"] for term in row["terms"]) == pytest.approx(seconds)
        assert row["seconds_to_the_end"] == pytest.approx(steps * seconds)
        # A node of JUWELS Booster has 4 GPUs, and costs 48 core-h per hour.
        hours = row["seconds_to_the_end"] / 3600
        assert row["cost"] == pytest.approx(layout["gpus"] * 12 * hours)
        assert row["band"] > 0
        assert row["memory_total"] == pytest.approx(sum(row["memory"].values()))


def _answered(request: Request) -> Answer:
    target = find(request.target, request.args, request.sizes)
    return answer(request, target, choose(request.where))


def test_a_run_is_warned_of_the_layout_that_was_proposed() -> None:
    """`rankup run` reads the proposed options as the very layout that the search compared."""
    words = tuple(RECIPE[1:])
    request = Request(RECIPE[0], words, gpus="32", where=Asked("juwels-booster"), layouts=1000)
    found = _answered(request)
    rows, target = found.rows, found.target
    assert {"ddp", "fsdp", "hsdp", "tp", "pp", "3d"} == {
        row.estimate.layout.strategy for row in rows
    }
    assert not any("--cp" in layout_words(row.estimate.layout, target) for row in rows)
    for row in rows[::7]:
        layout = row.estimate.layout
        options = recipes.find(RECIPE[0]).parse([*words, *layout_words(layout, target)])
        assert isinstance(options, LanguageModelOptions)
        assert layout_of(options, 32, options.layout(32, 4)) == layout


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved"])
def test_a_schedule_that_was_given_is_kept_and_not_repeated(
    rankup_here: RunRankup, schedule: str
) -> None:
    more = ["--pp", "2", "--pp-schedule", schedule, "--micro-batch", "4"]
    found = _json(rankup_here, *BOOSTER, "--gpus", "8", *RECIPE, *more)
    assert {row["layout"]["schedule"] for row in found["rows"]} == {schedule}
    words = shlex.split(found["command"])
    assert [words.count(option) for option in more[::2]] == [1, 1, 1]


@pytest.mark.parametrize(
    "option", [("--strategy", "diloco"), ("--micro-batch", "3"), ("--dp", "3"), ("--tp", "8")]
)
def test_the_option_that_leaves_no_layout_is_named(
    rankup_here: RunRankup, option: tuple[str, str]
) -> None:
    done = rankup_here(["plan", *BOOSTER, "--gpus", "8", *RECIPE, *option])
    assert done.returncode == 2
    assert f"8 GPUs: no layout that is searched goes with {' '.join(option)}" in done.stdout


def test_what_is_assumed_of_odd_sequences_and_nodes(rankup_here: RunRankup) -> None:
    """A power of two of sequences; a part of a node, or nodes."""
    site = ["--gpu", "H100-80GB", "--gpus-per-node", "6"]
    words = [1536 if word == "4096" else word for word in SEVEN[:10]]
    found = _json(rankup_here, *site, *map(str, words), *SEVEN[10:])
    assert found["global_batch"] == 512
    gpus = [row["layout"]["gpus"] for row in found["rows"]]
    gpus += [one["gpus"] for one in found["does_not_fit"]]
    assert len(gpus) == 5
    assert [one for one in gpus if one > 6 and one % 6] == []


def test_a_token_on_a_part_of_a_node_costs_the_node() -> None:
    sizes = Sizes(12, 768, 12, vocab=50304, seq=1024)
    where = Asked("juwels-booster")
    found = _answered(
        Request(None, sizes=sizes, gpus="1,4,8", where=where, tokens="10B", global_batch=1024)
    )
    assert found.steps is not None
    for row in found.rows:
        cost = found.site.token_cost(row.estimate) * found.steps * 1024 * 1024
        assert row.cost == pytest.approx(cost)
    assert (found.rows[0].cost or 0) > 3 * (found.rows[1].cost or 0)


def test_what_does_not_fit_is_said_with_the_nearest_that_does(rankup_here: RunRankup) -> None:
    done = rankup_here(["plan", *BOOSTER, "--gpus", "1,16", *SEVEN])
    assert done.returncode == 0
    assert "1 GPU: does not fit" in done.stdout
    assert "it fits on 16 GPUs" in " ".join(done.stdout.split())
    done = rankup_here(["plan", *BOOSTER, "--gpus", "1", *SEVEN])
    assert done.returncode == 2
    said = " ".join(done.stdout.split())
    assert "of 39.6, most of it optimizer" in said
    assert "the fewest on which it fits are" in said
    assert "no layout is proposed: nothing fits" in said
    assert "rankup run" not in said


def test_a_deadline_takes_the_cheapest_and_a_budget_the_fastest(rankup_here: RunRankup) -> None:
    words = (*BOOSTER, "--gpus", "8,64,512", "--tokens", "20B")
    rows = _json(rankup_here, *words, *SEVEN)["rows"]
    times = {row["layout"]["gpus"]: row["seconds_to_the_end"] for row in rows}
    costs = {row["layout"]["gpus"]: row["cost"] for row in rows}

    def chosen(*more: str, code: int = 0) -> Any:
        found = _json(rankup_here, *words, *more, *SEVEN, code=code)
        return next((r["layout"]["gpus"] for r in found["rows"] if r["chosen"]), None)

    hours = int(times[64] / 3600) + 1
    assert chosen("--deadline", f"{hours}h") == 64
    assert chosen("--budget", f"{costs[512] + 1:.0f}core-h") == 512
    assert chosen("--budget", f"{costs[64] + 1:.0f} core-h") == 64
    assert chosen("--deadline", "1h", code=2) is None
    assert chosen("--budget", "5coreh", code=2) is None


def test_options_of_the_recipe_hold_the_layout(rankup_here: RunRankup) -> None:
    more = ("--strategy", "fsdp", "--micro-batch", "4", "--activation-checkpointing", "full")
    found = _json(rankup_here, *BOOSTER, "--gpus", "8,16", *RECIPE, *more, "--steps", "100")
    assert found["precision"] == "fp32"
    for row in found["rows"]:
        layout = row["layout"]
        assert (layout["strategy"], layout["micro_batch"]) == ("fsdp", 4)
        assert layout["recompute"] == "full"
        assert row["seconds_to_the_end"] == pytest.approx(100 * row["seconds_per_step"])


@pytest.mark.parametrize("zero", ["1", "2"])
def test_a_stage_of_zero_that_was_given_is_kept_and_not_repeated(
    rankup_here: RunRankup, zero: str
) -> None:
    more = ("--precision", "bf16", "--strategy", "fsdp", "--zero", zero)
    found = _json(rankup_here, *BOOSTER, "--gpus", "8", *RECIPE, *more)
    assert {row["layout"]["zero"] for row in found["rows"]} == {int(zero)}
    assert shlex.split(found["command"]).count("--zero") == 1


def test_a_script_is_proposed_what_parallelize_takes(rankup_here: RunRankup) -> None:
    """Its own loop does not say which micro-batch is a step's last."""
    words = ["--gpus", "64", "--layouts", "100", *SEVEN]
    rows = _json(rankup_here, *BOOSTER, *words)["rows"]
    assert {row["layout"]["zero"] for row in rows} == {0, 2, 3}  # 0: nothing is sharded
    slow = ["--gpu", "A100-80GB", "--gpus-per-node", "4", "--nic", "5GB/s", "--gpus", "16"]
    found = _json(rankup_here, *slow, "--global-batch", "16", *SEVEN)
    assert found["in_the_script"].endswith(", zero=2)")


def test_compiling_is_proposed_with_what_it_saves(rankup_here: RunRankup) -> None:
    words = [*BOOSTER, "--gpus", "8", *RECIPE, "--precision", "bf16", "--steps", "1000"]
    found = _json(rankup_here, *words)
    row = next(row for row in found["rows"] if row["chosen"])
    compiled = found["compile"]
    assert shlex.split(compiled["command"])[-1] == "--compile"
    assert "--compile" not in found["command"]
    saved = 1000 * (row["seconds_per_step"] - compiled["seconds_per_step"])
    assert compiled["saves_of"] == "run"
    assert compiled["saves_seconds"] == pytest.approx(saved)
    assert compiled["saves_cost"] == pytest.approx(8 * 12 * saved / 3600)
    assert compiled["saves_cost"] > 0
    said = " ".join(rankup_here(["plan", *words]).stdout.split())
    assert "not compiled: --compile" in said
    # What is asked for is as was said, and nothing more is proposed.
    layout = compiled["layout"]
    own = ["--strategy", layout["strategy"], "--micro-batch", str(layout["micro_batch"])]
    if layout["strategy"] not in ("ddp", "fsdp"):
        own[:2] = ["--dp", str(layout["dp_replicate"]), "--shard", str(layout["dp_shard"])]
    asked = _json(rankup_here, *words, *own, "--compile")
    assert asked["compile"] is None
    assert asked["rows"][0]["seconds_per_step"] == pytest.approx(compiled["seconds_per_step"])


def test_a_script_is_told_of_compiling_too(rankup_here: RunRankup) -> None:
    words = [*BOOSTER, "--gpus", "64", *SEVEN]
    compiled = _json(rankup_here, *words)["compile"]
    assert compiled["in_the_script"].endswith(", compile=True)")
    assert (compiled["saves_of"], compiled["saves_seconds"]) == ("Gtoken", None)
    assert "not compiled: compile=True" in " ".join(rankup_here(["plan", *words]).stdout.split())


def test_the_fewest_gpus_are_the_default(rankup_here: RunRankup) -> None:
    found = _json(rankup_here, "--gpu", "H100-80GB", "--nic", "400GB/s", *SEVEN)
    gpus = [row["layout"]["gpus"] for row in found["rows"]]
    assert gpus[0] * 16 == gpus[-1]
    assert found["machine"]["nic_per_node"] == 400e9


def test_explain_says_every_term(rankup_here: RunRankup) -> None:
    words = [*BOOSTER, "--gpus", "16", *SEVEN]
    row = next(row for row in _json(rankup_here, *words)["rows"] if row["chosen"])
    said = rankup_here(["plan", "--explain", *words]).stdout
    for term in row["terms"]:
        assert term["name"] in said
        assert term["formula"] in said
    for name in row["memory"]:
        assert name in said


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_a_picture(rankup_here: RunRankup, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plan.{suffix}"
    done = rankup_here(["plan", *BOOSTER, "--gpus", "8,64", "--plot", str(path), *SEVEN])
    assert done.returncode == 0
    begin = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(begin)


def test_a_picture_on_a_full_disk_leaves_the_answer_and_the_older_picture(
    rankup_here: RunRankup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.png"
    path.write_text("older")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rankup.base.files.os.fsync", full)
    done = rankup_here(["plan", *BOOSTER, "--gpus", "8,64", "--plot", str(path), *SEVEN])
    assert done.returncode == 2
    assert "cannot be written: No space left on device" in " ".join(done.stderr.split())
    assert "rankup run --nodes " in done.stdout
    assert path.read_text() == "older"


@pytest.mark.parametrize(
    ("nic", "rate"), [("25GB/s", 25e9), ("25gB/s", 25e9), ("200gbit/s", 25e9), ("200Gb/s", 25e9)]
)
def test_a_bandwidth_may_be_written_small(rankup_here: RunRankup, nic: str, rate: float) -> None:
    found = _json(rankup_here, "--gpu", "H100-80GB", "--gpus", "16", "--nic", nic, *SEVEN)
    assert found["machine"]["nic_per_node"] == rate


BAD: dict[str, tuple[list[str], str]] = {
    "gpu": (["--gpu", "A100-40", *SEVEN], "unknown GPU 'A100-40'; did you mean A100-40GB"),
    "site": (["--site", "jupyter", *SEVEN], "did you mean jupiter"),
    "partition": ([*BOOSTER, "--partition", "boster", *SEVEN], "did you mean booster"),
    "two machines": (["--gpu", "H200", *BOOSTER, *SEVEN], "both name a machine"),
    "nic": (["--gpu", "H200", "--nic", "fast", *SEVEN], "as 25GB/s or 200Gbit/s"),
    "nic of a site": ([*BOOSTER, "--nic", "5GB/s", *SEVEN], "--nic goes with --gpu"),
    "no machine": ([*SEVEN], "its GPUs are not known; name the machine with --gpu A100-40GB|"),
    "gpus": ([*BOOSTER, "--gpus", "eight", *SEVEN], "'eight' is no number of GPUs"),
    "no gpus": ([*BOOSTER, "--gpus", "8,,16", *SEVEN], "'nothing' is no number of GPUs"),
    "part of a node": ([*BOOSTER, "--gpus", "18", *SEVEN], "nearest are 16 and 20"),
    "too many": (
        ["--site", "jureca", "--gpus", "4000", *SEVEN],
        "JURECA-DC, partition dc-gpu gives a job 96 at most",
    ),
    "tokens": ([*BOOSTER, "--tokens", "-5", *SEVEN], "write it as 300M, 20B or 1.5T"),
    "tokens of a galaxy": ([*BOOSTER, "--tokens", "1e99T", *SEVEN], "--tokens 1e99T is over 1e+18"),
    "tokens of many digits": ([*BOOSTER, "--tokens", "9" * 400, *SEVEN], "is over 1e+18"),
    "steps of many digits": ([*BOOSTER, "--steps", "9" * 400, *SEVEN], "is not in the range"),
    "batch of many digits": ([*BOOSTER, "--global-batch", "9" * 400, *SEVEN], "not in the range"),
    "layers of many digits": (
        [*BOOSTER, *SEVEN, "--layers", "9" * 400],
        "--layers is over 10,000, and",
    ),
    "recipe of many digits": ([*BOOSTER, *RECIPE, "--dim", "9" * 400 + "6"], "--dim"),
    "both lengths": ([*BOOSTER, "--tokens", "5B", "--steps", "5", *SEVEN], "give one"),
    "an epoch": ([*BOOSTER, "--epochs", "5", *SEVEN], "Add --tokens N, those of one"),
    "budget": (
        [*BOOSTER, "--tokens", "5B", "--budget", "-5core-h", *SEVEN],
        "is no budget; write it as 5000core-h",
    ),
    "another unit": (
        [*BOOSTER, "--tokens", "5B", "--budget", "5GPU-h", *SEVEN],
        "bills core-h; give it in these",
    ),
    "budget of what": ([*BOOSTER, "--budget", "5core-h", *SEVEN], "needs the length of the run"),
    "deadline": ([*BOOSTER, "--tokens", "5B", "--deadline", "soon", *SEVEN], "--deadline 'soon'"),
    "option of nobody": ([*BOOSTER, *RECIPE, "--nonsense"], "unknown option '--nonsense'"),
    "option behind a model": ([*SEVEN, "--tp", "2", *BOOSTER], "no option of `rankup plan`"),
    "size of no recipe": ([*BOOSTER, "--tied", *RECIPE], "--tied is no option of language-model"),
    "several GPUs": (["--gpu", "H100", *SEVEN], "is one of H100-80GB"),
    "plot": ([*BOOSTER, "--plot", "plan.txt", *SEVEN], "ends in .png, .pdf, .svg"),
}


@pytest.mark.parametrize("target", [SEVEN, RECIPE], ids=["sizes", "recipe"])
def test_options_stand_in_front_of_the_target_or_behind_it(
    rankup_here: RunRankup, monkeypatch: pytest.MonkeyPatch, target: list[str]
) -> None:
    monkeypatch.delenv("SYSTEMNAME", raising=False)
    options = [*BOOSTER, "--gpus", "8", "--global-batch", "64", "--steps", "100"]
    answers = [
        rankup_here(["plan", *words]) for words in ([*options, *target], [*target, *options])
    ]
    assert [answer.returncode for answer in answers] == [0, 0], answers
    assert "8" in answers[0].stdout
    assert len({answer.stdout for answer in answers}) == 1


@pytest.mark.parametrize("name", BAD)
def test_bad_input(rankup_here: RunRankup, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("SYSTEMNAME", raising=False)
    words, said = BAD[name]
    done = rankup_here(["plan", *words])
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.fixture
def jureca(tmp_path: Path) -> FakeSlurm:
    """JURECA-DC's Slurm, in a folder whose rankup.toml lets /tmp be seen by its nodes."""
    (tmp_path / "site").mkdir()
    fake = FakeSlurm(tmp_path / "site")
    fake.answers(
        "scontrol show partition",
        out="PartitionName=dc-gpu AllowAccounts=ALL AllowQos=ALL Default=YES MaxNodes=24 "
        "MaxTime=1-00:00:00 MinNodes=1 OverSubscribe=EXCLUSIVE State=UP TotalNodes=24\n",
    )
    fake.answers("sinfo", out="dc-gpu|24|256|512000|idle|gpu:4\n")
    fake.answers("sacctmgr", out="me|mine\n")
    fake.environment = {**fake.environment, "SYSTEMNAME": "jurecadc", "SBATCH_ACCOUNT": "mine"}
    (tmp_path / "rankup.toml").write_text(
        'runs = "runs"\n[site]\nmounts = ["/"]\nnot_mounted = []\n'
    )
    return fake


@pytest.mark.parametrize(
    ("kind", "gpus"),
    [("recipe", "2"), ("recipe", "96"), ("shape", "8"), ("script", "2"), ("script", "96")],
)
def test_run_takes_the_command_that_is_proposed(
    rankup_here: RunRankup, jureca: FakeSlurm, tmp_path: Path, kind: str, gpus: str
) -> None:
    """Also `parallelize` takes what is to stand in a script."""
    (tmp_path / "train.py").write_text("print(1)\n")
    small = ["--layers", "12", "--hidden", "768", "--heads", "12", "--seq", "1024"]
    small += ["--vocab", "50000", "--global-batch", "192"]
    target = {"recipe": RECIPE, "shape": small, "script": [*small, "--gated"]}[kind]
    if kind == "recipe":
        target = [*target[:-1], "192"]
    done = rankup_here(
        ["plan", "--json", "--gpus", gpus, "--tokens", "2B", *target], env=jureca.environment
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    words = shlex.split(found["command"])
    assert words[:2] == ["rankup", "run"]
    run = rankup_here(["run", "--dry-run", "--no-check", *words[2:]], env=jureca.environment)
    assert run.returncode == 0, run.stderr
    assert "#SBATCH --nodes=" in run.stdout
    assert "warning" not in run.stderr
    if kind == "script":
        name, _, said = found["in_the_script"].partition("(")
        assert name == "rankup.parallelize"
        assert said.startswith("build_model, build_optimizer, ")
        # A script of one's own has no stages.
        assert {row["layout"]["pp"] for row in found["rows"]} == {1}


def test_run_warns_of_what_does_not_fit_or_ends_too_late(
    rankup_here: RunRankup, jureca: FakeSlurm
) -> None:
    large = ["--layers", "48", "--dim", "6144", "--heads", "48", "--seq-len", "2048"]
    words = ["language-model", "--vocab", "byte", "--steps", "1000000", *large]
    run = ["run", "--dry-run", "--time", "2h"]
    done = rankup_here([*run, *words], env=jureca.environment)
    assert done.returncode == 0
    assert "warning: a plan says that this will not fit" in done.stderr
    assert "attempts of 02:00:00" in done.stderr
    done = rankup_here([*run, "language-model", "--vocab", "byte"], env=jureca.environment)
    assert "a plan says" not in done.stderr
    small = ["--layers", "6", "--dim", "6144", "--heads", "48", "--micro-batch", "1"]
    words = ["language-model", "--vocab", "byte", *small]
    for freeze, fits in (([], False), (["--freeze", "blocks.*"], True)):
        done = rankup_here([*run, *words, *freeze], env=jureca.environment)
        assert ("not fit" not in done.stderr) == fits, "what is frozen takes no optimizer state"


def test_float32_takes_longer_and_more_memory_unless_products_are_in_tf32(
    rankup_here: RunRankup,
) -> None:
    """The recipe's own precision is float32, for which a GPU has another peak."""
    words = ("--gpu", "A100-80GB", "--gpus", "8", *RECIPE, "--strategy", "ddp")
    words += ("--micro-batch", "8", "--activation-checkpointing", "none")
    half, tf32, full = (
        _json(rankup_here, *words, *more)["rows"][0]
        for more in (("--precision", "bf16"), ("--tf32",), ())
    )
    times = [one["seconds_per_step"] for one in (half, tf32, full)]
    assert times == sorted(times)
    assert times[2] > 5 * times[0]
    assert full["memory"]["activations"] == pytest.approx(2 * half["memory"]["activations"])


def test_a_compiled_run_is_faster_and_is_not_advised_to_compile(rankup_here: RunRankup) -> None:
    words = ("--gpu", "A100-80GB", "--gpus", "8", *RECIPE, "--precision", "bf16")
    [eager, compiled] = (
        _json(rankup_here, *words, more)["rows"][0] for more in ("--no-compile", "--compile")
    )
    assert compiled["seconds_per_step"] < 0.95 * eager["seconds_per_step"]
    assert "--compile" in eager["advice"]
    assert "--compile" not in compiled["advice"]
