"""What `port` does is needed, and who forgets it is told: by `check`, or else by `verify`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rankup.port.rewrite.fixes.every import NAMES
from tests.port.mutants import Mutant, differences, findings, mutants_of

CASES = Path(__file__).parent / "cases"
INPUTS = sorted(CASES.glob("*.in.py"))
SILENT = "the script prints, draws and logs nothing"
# What changes nothing that anybody could see.
EQUIVALENT = {
    ("text_compiled", "quiet", "rankup.quiet()"): SILENT,
    ("text_cuda_everywhere", "quiet", "rankup.quiet()"): SILENT,
    ("text_downloads", "quiet", "rankup.quiet()"): SILENT,
    ("text_fastai", "quiet", "rankup.quiet()"): SILENT + " itself, but fastai does",
    ("text_for_a_person", "quiet", "rankup.quiet()"): SILENT + "; `input` is a finding of its own",
    ("text_hyphenated_imports", "quiet", "rankup.quiet()"): SILENT,
    ("text_evaluated_elsewhere", "quiet", "rankup.quiet()"): SILENT,
    ("text_optimizer_by_the_model", "quiet", "rankup.quiet()"): SILENT,
    ("text_trained_elsewhere", "quiet", "rankup.quiet()"): SILENT,
    ("text_fetched_by_hand", "setup", "rankup.setup()"): "its device asks for setup as well",
    ("text_parts_of_a_loss", "same_names", "rankup.broadcast( … )"): "rank 0 alone uses the name",
    (
        "run_models_one_after_another",
        "training_numbers",
        "rankup.batch_mean( … )",
    ): "each rank's mean times its size adds up to the same",
}
_METER = "rankup.batch_mean( … ) … rankup.batch_sum( … )"
# What `check` does not see, since one name holds the numbers of both loops, or a function's own
# values are unpacked: for `verify`.
UNSEEN = {
    ("run_average_meter", "evaluation_numbers", "losses.avg = losses.sum / losses.count"),
    ("run_average_meter", "training_numbers", _METER),
    ("run_models_one_after_another", "wrap", "model = rankup.wrap(model)"),
    ("run_one_function_for_both", "training_numbers", _METER),
    ("run_one_function_for_both", "training_numbers", "rankup.batch_sum( … )"),
    ("run_quickstart", "training_numbers", "rankup.batch_sum( … )"),
}
# What neither of them sees.
MISSED = {
    ("run_trainer_class", "batch_size", "rankup.all_reduce( … )"),
    ("text_fetched_by_hand", "numbered", "rankup.setup().device.index or 0"),
    ("text_fetched_by_hand", "rank0_first", "with rankup.rank0_first(): …  … "),
    ("text_fetched_by_hand", "rank0_first", "with rankup.rank0_first(): …  …  …  …  …  …  … "),
    ("text_parts_of_a_loss", "training_numbers", "rankup.batch_mean( … )"),
    ("text_parts_of_a_loss", "training_numbers", "rankup.batch_sum( … )"),
}
# What `verify` does not see: all ranks evaluate everything, and the mean of it is the same; a file
# of a CPU loads onto any.
SAME = [
    ("run_average_meter", "shard"),
    ("run_models_one_after_another", "load"),
    ("run_models_one_after_another", "training_numbers"),
]


def _unnoticed(paths: list[Path]) -> tuple[list[Mutant], Counter[str]]:
    """Mutants that `check` says nothing of, and how many there are of each fix."""
    left: list[Mutant] = []
    made: Counter[str] = Counter()
    for path in paths:
        whole, mutants = mutants_of(path)
        known = findings(path, whole)
        made.update(one.fix for one in mutants)
        left += [one for one in mutants if not findings(path, one.text) - known]
    return left, made


def test_check_notices_what_is_missing_in_the_richest_cases() -> None:
    names = ("run_best_and_patience", "text_cuda_everywhere")
    left, made = _unnoticed([CASES / f"{name}.in.py" for name in names])
    assert len(made) >= 10
    assert {one.key for one in left} <= set(EQUIVALENT)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_check_notices_what_is_missing() -> None:
    """All but what is listed, and all that is listed: of each fix, at each place."""
    left, made = _unnoticed(INPUTS)
    assert set(made) == set(NAMES), "each fix is left out somewhere"
    assert {one.key for one in left} == {*EQUIVALENT, *UNSEEN, *MISSED}
    unnoticed = [one for one in left if one.key not in EQUIVALENT]
    total = made.total() - (len(left) - len(unnoticed))
    print(f"{made.total()} mutants, {total} of them tell; check misses {len(unnoticed)}")
    assert 1 - len(unnoticed) / total >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted({script for script, _, _ in UNSEEN}))
def test_verify_notices_what_check_does_not(script: str, tmp_path: Path) -> None:
    """All mutants of one script in one start of verify, of which the port itself is right."""
    case = CASES / f"{script}.in.py"
    whole, mutants = mutants_of(case)
    ports = {"whole": whole, **{str(k): one.text for k, one in enumerate(mutants)}}
    found = differences(case, ports, tmp_path)
    assert not found["whole"], found["whole"]
    left = [one for k, one in enumerate(mutants) if not found[str(k)]]
    unseen = {one for one in UNSEEN if one[0] == script}
    assert {one.key for one in mutants} >= unseen
    assert not unseen & {one.key for one in left}
    assert sorted((one.script, one.fix) for one in left) == [
        one for one in SAME if one[0] == script
    ]
