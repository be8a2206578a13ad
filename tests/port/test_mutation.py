"""What `port` does is needed, and who forgets it is told: by `check`, or else by `verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

import pytest

from rankup.port.check import check_python
from rankup.script.source import from_bytes

from .verify.several import differing, results

CASES = Path(__file__).parent / "cases"
# A script that prints, draws and logs nothing is none the worse without it.
SILENT = "rankup.quiet()"
# What `check` does not see, since a function's own values are unpacked: for `verify`.
UNSEEN = {("run_models_one_after_another", "model = rankup.wrap(model)")}
# What neither of them sees: ranks that may part by rounding alone, what a bar counts, a step of
# fastai's in all ranks; what is removed as a data set is constructed, when rank 0 has been there.
MISSED = {
    ("run_model_made_in_a_try", "model = rankup.wrap(model)"),
    ("run_one_writer", "if rankup.is_root_process(): os.remove(name)"),
    # A loss that is added up, or has another name; a draw that only chooses what runs.
    ("run_counters_side_by_side", "rankup.backward(loss)"),
    ("run_models_one_after_another", "rankup.backward(loss)"),
    ("run_test_of_a_loss", "rankup.backward(loss)"),
    ("run_weighted_by_size", "rankup.backward(loss)"),
    ("text_collectives_in_branches", "if rankup.broadcast(random.random() < 0.5):"),
    ("text_downloads", 'urllib.request.urlretrieve(url, "input.txt")'),
    (
        "text_fastai",
        "with learn.distrib_ctx():\n    learn.fine_tune(1)\n"
        'if rankup.is_root_process(): learn.export("model.pkl")',
    ),
}


def _out(case: str) -> str:
    return (CASES / f"{case}.out.py").read_bytes().decode()


def mutants(case: str) -> Iterator[tuple[str, str]]:
    """Ports that lack one change, with the text that is missing."""
    old = (CASES / f"{case}.in.py").read_bytes().decode().splitlines(keepends=True)
    new = _out(case).splitlines(keepends=True)
    changes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for kind, first, last, begin, end in changes:
        parts = [(begin, end)]
        if kind == "insert":  # each line is a change of its own
            parts = [(line, line + 1) for line in range(begin, end)]
        for place, until in [] if kind == "equal" else parts:
            gone = "".join(new[place:until]).strip()
            if gone and not gone.startswith(("import rankup", "# rankup:")):
                yield gone, "".join([*new[:place], *old[first:last], *new[until:]])


def findings(case: str, text: str) -> Counter[tuple[str, str]]:
    """What `check` says of a script, without lines, which a line less moves."""
    source = from_bytes(CASES / f"{case}.in.py", text.encode())
    return Counter((one.code, one.message) for one in check_python(source))


def unnoticed(case: str) -> set[tuple[str, str]]:
    """Changes without which `check` says nothing of a port."""
    known = findings(case, _out(case))
    return {
        (case, gone)
        for gone, text in mutants(case)
        if gone != SILENT and not _unread(gone, text) and not findings(case, text) - known
    }


def _unread(gone: str, text: str) -> bool:
    """True of a backward of a mean whose value nobody reads: it trains the same without."""
    plain = "rankup.backward(" in gone and "summed" not in gone
    return plain and "loss.item()" not in text


@pytest.mark.parametrize("case", ["run_best_and_patience", "text_cuda_everywhere"])
def test_check_notices_what_is_missing_in_the_richest_cases(case: str) -> None:
    assert len(list(mutants(case))) >= 6
    assert not unnoticed(case)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_check_notices_what_is_missing() -> None:
    """All but what is listed, and all that is listed: at each place of each case."""
    cases = [path.name.removesuffix(".in.py") for path in CASES.glob("*.in.py")]
    assert set().union(*map(unnoticed, cases)) == {*UNSEEN, *MISSED}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", sorted({case for case, _ in UNSEEN}))
def test_verify_notices_what_check_does_not(case: str, tmp_path: Path) -> None:
    ports = {"whole": _out(case)}
    for number, (gone, text) in enumerate(mutants(case)):
        if (case, gone) in UNSEEN:
            ports[f"{number}"] = text
    found = results(tmp_path, (CASES / f"{case}.in.py").read_text(), ports)
    whole = differing(found.pop("whole"))
    assert not whole, whole
    assert found
    assert all(differing(one) for one in found.values())
