"""Rules about batch scripts: each finds its mistake, and nothing in scripts without it."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.cli import main
from rankup.port.batch import RULES, examine, is_batch
from rankup.port.rules import Rule

from ..test_pages import before_and_after
from .scripts import MANY, ONE, beside

GOLDEN = Path(__file__).parents[2] / "slurm" / "golden"
PAGES = Path(__file__).parents[3] / "docs" / "rules"

# (code, what of MANY is replaced, by what, line of the finding)
MISTAKES = [
    ("RK150", "rc=$?\n", "<<<<<<< HEAD\nrc=$?\n=======\nrc=0\n>>>>>>> other\n", 19),
    ("RK151", "#SBATCH --account", "##SBATCH --account", 2),
    ("RK151", "#SBATCH --account", "# SBATCH --account", 2),
    ("RK151", "#SBATCH --account", " #SBATCH --account", 2),
    ("RK152", "source env.sh\n", "source env.sh\n#SBATCH --qos=long\n", 11),
    ("RK153", "#!/bin/bash\n", "", 1),
    ("RK153", "\n", "\r\n", 1),
    ("RK154", "--account=abc", "--acount=abc", 2),
    ("RK154", "--account=abc", "abc", 2),
    ("RK154", "--account=abc", "-A=abc", 2),
    ("RK154", "--account=abc", "--comment=a\\ b", 2),
    ("RK154", "--account=abc", '--account="abc', 2),
    ("RK154", "--account=abc", "--account=$USER", 2),
    ("RK155", "#SBATCH --time=01:00:00\n", "", 7),
    ("RK156", "$((10000 + SLURM_JOB_ID % 20000))", "7010", 13),
    ("RK157", r"is_host=\$(if ((", "is_host=$(if ((", 17),
    ("RK164", "=$RANDOM", r"=\$RANDOM", 14),
    ("RK159", 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"\n', "", 13),
    ("RK160", "exit $rc\n", "", 14),
    ("RK160", 'rc=$?\necho "ended with $rc"\nexit $rc', "echo ended", 14),
    ("RK161", "--nproc_per_node=gpu", "--nproc_per_node=2", 14),
    ("RK161", "source env.sh", "export CUDA_VISIBLE_DEVICES=0,1", 10),
    ("RK162", "--ntasks-per-node=1", "--ntasks-per-node=4", 14),
    ("RK163", "srun --cpu_bind=none ", "", 14),
    ("RK163", "--nnodes=$SLURM_NNODES", "--nnodes=3", 14),
    ("RK164", "--nnodes=$SLURM_NNODES ", "--standalone ", 14),
    ("RK164", "--nnodes=$SLURM_NNODES ", "", 14),
    ("RK164", "_endpoint=$MASTER_ADDR:", "_endpoint=localhost:", 14),
    ("RK165", "train.py", "tain.py", 14),
    ("RK165", "source env.sh", "source venv/bin/activate", 10),
    ("RK166", "log/%j.out", "logs/%j.out", 8),
    ("RK167", "--account=abc", "--account=<account>", 2),
    ("RK169", "exit $rc", 'exit "$rc', 21),
    ("RK170", 'a b\\""', 'a b\\"" &', 14),
    ("RK151", "#SBATCH --account", "#SABTCH --account", 2),
    ("RK151", "#SBATCH --account", "SBATCH --account", 2),
    ("RK158", "srun --cpu", "srun python ddp.py\nsrun --cpu", 14),
    ("RK168", "--time=01:00:00", "--time=01:00:00 --signal=B:USR1@60", 7),
    ("RK180", "source env.sh", "conda activate torch", 10),
    ("RK190", "--nproc_per_node=gpu", "--nproc_per_node=$GPUS_PER_NODE", 14),
]


def codes(path: Path) -> list[tuple[str, int]]:
    return [(one.code, int(one.place.rpartition(":")[2])) for one in examine(path)[1]]


@pytest.mark.parametrize(("code", "old", "new", "line"), MISTAKES)
def test_a_mistake_is_found(tmp_path: Path, code: str, old: str, new: str, line: int) -> None:
    assert MANY.count(old) >= 1
    found = codes(beside(tmp_path, MANY.replace(old, new)))
    assert (code, line) in found, found
    also = {"RK155": {"RK150"}, "RK160": {"RK170"}, "RK169": set()}
    allowed = {code, *also.get(code, ())}
    assert {one for one, _ in found} <= allowed, found


# What surrounds an example of a page that is no whole script.
FRAME = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:4 --cpus-per-task=48 --time=01:00:00
"""


def test_every_rule_has_a_mistake_and_a_code_of_its_own() -> None:
    known = [rule.code for rule in RULES]
    assert len(set(known)) == len(known)
    assert {code for code, *_ in MISTAKES} == set(known)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_page_is_the_rule_and_its_examples_are_true(tmp_path: Path, rule: Rule) -> None:
    """`RANKUP_GOLDEN=write` writes the pages anew."""
    page = PAGES / f"{rule.code}.md"
    if os.environ.get("RANKUP_GOLDEN") == "write":
        page.write_text(rule.page())
    assert page.read_text() == rule.page()
    found = []
    for example in before_and_after(rule.page()):
        whole = example.startswith("#!") or rule.code == "RK153"
        found.append(codes(beside(tmp_path, example if whole else FRAME + example)))
    assert rule.code in {code for code, _ in found[0]}
    assert rule.code not in {code for code, _ in found[1]}
    listed = (PAGES.parent / "batch-files.md").read_text()
    assert f"| [{rule.code}](rules/{rule.code}.md) | {rule.title} |" in listed


def test_correct_scripts_have_no_finding(tmp_path: Path) -> None:
    assert codes(beside(tmp_path, MANY)) == []
    for golden in sorted(GOLDEN.glob("*.sh")):
        assert codes(golden) == [], golden.name


# Scripts that are right, each in a shape that looks wrong at first.
RIGHT = [
    # switched off on purpose, since the option is given
    MANY.replace("#SBATCH --account=abc", "#SBATCH --account=abc\n##SBATCH --account=other"),
    # on one node the batch shell's own number is right
    MANY.replace("--nodes=2", "--nodes=1").replace(r"=\$(if ((SLURM", "=$(if ((SLURM"),
    # the single quotes are expanded on each node
    MANY.replace('bash -c "torchrun_jsc', "bash -c 'torchrun_jsc")
    .replace('a b\\""', "a b\"'")
    .replace(r"\$(if", "$(if")
    .replace("$RANDOM", "$SLURM_JOB_ID"),
    MANY.replace("--nproc_per_node=gpu", "--nproc_per_node=$N").replace("source env.sh", "N=4"),
    MANY.replace("rc=$?\n", "").replace("source env.sh", "set -euo pipefail").replace("$rc", "$?"),
    MANY.replace("#!/bin/bash", "#!/bin/bash -e").replace("exit $rc", "echo $rc"),
    MANY.replace("source env.sh", "python -m venv env\n. env/bin/activate"),
    MANY.replace("train.py", "run.py").replace("source env.sh", "echo 'a()' > run.py"),
    MANY.replace("--time=", "--cuda-mps --image=a/b:1 --time="),
    MANY.replace("--account=abc", "--account=abc --comment='a#b \"c\"'d \\"),
    MANY.replace("--account=abc", "--acount=abc # noqa: RK154"),
    MANY.replace("=gpu ", "=2 ").replace("srun --cpu", "# noqa: RK161, RK156\nsrun --cpu"),
    # a task for each GPU, a helper of one process before it
    """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=12 --time=1:00:00
export SRUN_CPUS_PER_TASK=12
python -m pip list
srun python train.py
""",
    # one process that uses all GPUs by itself
    """#!/bin/bash
#SBATCH --gres=gpu:4 --time=1:00:00
python parallel.py
""",
    # four runs at once on four GPUs
    """#!/bin/bash
#SBATCH --gres=gpu:4 --time=1:00:00
for i in 0 1 2 3; do
    CUDA_VISIBLE_DEVICES=$i python train.py --seed "$i" > "$i.txt" 2>&1 &
done
wait
""",
    # what the parser does not know of bash is left alone, and nothing is concluded of it
    MANY.replace("exit $rc", "for name do exit $rc; done"),
    MANY.replace("exit $rc", "exit $rc <<A <<B\n'\nA\n(\nB"),
    "#!/bin/bash\ncat <<EOF\n#SBATCH --nodes=2\n(\nEOF\n",
]


@pytest.mark.parametrize("text", RIGHT)
def test_what_looks_wrong_and_is_not(tmp_path: Path, text: str) -> None:
    (tmp_path / "parallel.py").write_text("torch.nn.DataParallel(model)\n")
    assert codes(beside(tmp_path, text)) == []


def test_a_script_for_one_gpu(tmp_path: Path) -> None:
    path = beside(tmp_path, ONE)
    assert codes(path) == [("RK159", 14), ("RK160", 14)]
    path = beside(tmp_path, ONE.replace("gpu:1", "gpu:4"))
    said = [one.message for one in examine(path)[1] if one.code == "RK161"]
    assert any("hides 3 of the 4 GPUs" in one for one in said)
    assert any("3 are paid for and idle" in one for one in said)


def test_what_is_no_batch_script(tmp_path: Path) -> None:
    binary = tmp_path / "a.sbatch"
    binary.write_bytes(b"#!/bin/bash\0")
    with pytest.raises(UserError, match="not text"):
        examine(binary)
    with pytest.raises(UserError, match="name a batch script"):
        examine(tmp_path / "missing.sbatch")
    binary.write_bytes(b"#" * 300_000)
    with pytest.raises(UserError, match="no batch script"):
        examine(binary)
    assert is_batch(binary)
    assert not is_batch(tmp_path / "train.py")
    plain = beside(tmp_path, ONE, "job")
    assert is_batch(plain)
    assert examine(beside(tmp_path, "", "empty.sh"))[1][0].code == "RK153"


def test_nothing_written_makes_it_fail(tmp_path: Path) -> None:
    """Torn and shuffled scripts end in findings; RK169 is what `bash -n` says."""
    chance = random.Random(0)
    known = {rule.code for rule in RULES}
    for round_ in range(60):
        text = list(chance.choice((MANY, ONE)))
        for _ in range(chance.randrange(1, 12)):
            at = chance.randrange(len(text))
            text[at : at + chance.randrange(4)] = chance.choice("\"'`$(){}\\<>|&;#\n=-") * 2
        if round_ % 3 == 0:
            del text[chance.randrange(len(text)) :]
        path = beside(tmp_path, "".join(text))
        found = {one.code for one in examine(path)[1]}
        assert found <= known
        bash = subprocess.run(["bash", "-n", path], check=False, capture_output=True)
        assert "RK169" not in found or bash.returncode


HOSTILE = {
    "random": random.Random(0).randbytes(100_000),
    "large": b"#!/bin/bash\n" + b"python train.py\n" * 700_000,
    "substitutions": b"echo " + b"$(" * 100_000,
    "blocks": b"(" * 2_000 + b"true" + b")" * 2_000,
    "conditions": b"[[ " + b"( " * 2_000 + b"a" + b" )" * 2_000 + b" ]]",
    "arrays": b"a=(" * 20_000,
    "lists": b"true && " * 10_000 + b"true",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_batch_script_ends_in_one_line(
    tmp_path: Path,
    data: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "job.sbatch"
    path.write_bytes(data)
    for verb in ("check", "port"):
        monkeypatch.setattr("sys.argv", ["rankup", verb, str(path)])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        assert ended.value.code in (1, 2), shown.err  # findings, or an error
        assert str(path) in shown.out + shown.err
        assert "Traceback" not in shown.err


HELD = """\
#!/bin/bash
#SBATCH --time=01:00:00 --gres=gpu:1
text=$(cat <<EOF
it's a text (with a paren
EOF
)
bits=$((1<<n))
run=(python tain.py)
train() { "$@" --epochs 3; }
"""
COMMANDS = [
    "srun python tain.py",
    "srun uv run python tain.py",
    "srun uv run tain.py",
    "conda run -n torch --no-capture-output python tain.py",
    "poetry run python tain.py",
    "pixi run torchrun tain.py",
    "srun nsys profile -o report --trace=cuda,nvtx python tain.py",
    "A=1 B='x y' env C=2 nohup python -u \\\n  tain.py",
    'srun "${run[@]}"',
    "launcher='torchrun --nnodes 1'\nsrun bash -c \"$launcher tain.py\"",
    'run="srun python \\\n  tain.py"\n$run --epochs 3',
    "python -m torch.distributed.launch --use_env tain.py",
    'python "$SLURM_SUBMIT_DIR/tain.py"',
    "train python tain.py",
    "for i in 1 2; do if a; then python tain.py > $i 2>&1; fi; done",
    "python tain.py <<EOF\n'(\nEOF",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_python_is_found_behind_what_starts_it(tmp_path: Path, command: str) -> None:
    """A here-document in a substitution does not hide it."""
    path = beside(tmp_path, f"{HELD}{command}\n")
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    found = {code for code, _ in codes(path)}
    assert "RK165" in found
    assert "RK169" not in found


def test_what_follows_the_run_may_be_another_script(tmp_path: Path) -> None:
    (tmp_path / "evaluate.py").write_text("import torch\n")
    text = ONE.replace('echo "through"', "python evaluate.py")
    assert ("RK160", 14) in codes(beside(tmp_path, text))
    assert ("RK160", 14) not in codes(beside(tmp_path, text.replace("source", "set -e\n#")))


def test_an_option_of_a_plugin_is_no_error(tmp_path: Path) -> None:
    """Sites add some of their own; only what looks like a slip is what sbatch refuses."""
    text = MANY.replace("--time=", "--qqq=1 --time=").replace("--account=", "--acount=")
    found = {one.message: one.level for one in examine(beside(tmp_path, text))[1]}
    assert found == {
        "sbatch has no option --acount": "error",
        "sbatch itself has no option --qqq": "warning",
    }


def test_a_pipe_and_what_follows_it_are_two_findings(tmp_path: Path) -> None:
    """Either of them lets a run that failed end as COMPLETED."""
    text = ONE.replace("   # long", " | tee log.txt")
    said = [one.message for one in examine(beside(tmp_path, text))[1] if one.code == "RK160"]
    assert len(said) == 2
    assert "the pipe" in "".join(said)
    assert "commands follow (line 16)" in "".join(said)


def test_the_script_of_a_container_may_stand_in_it(tmp_path: Path) -> None:
    text = FRAME + "srun apptainer exec --nv image.sif python tain.py\n"
    found = {code for code, _ in codes(beside(tmp_path, text))}
    assert "RK159" in found
    assert "RK165" not in found
