"""The seven checks over handmade journals: a correct port passes, each mistake fails its own."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from rankup.port.verify import compare, lines, verdict
from rankup.port.verify.compare.said import NOTHING, Said, SaidFile
from rankup.port.verify.protocol import Journal, RankEnd, Run, Seen
from rankup.port.verify.verdict import CHECKS, Result

from .handmade import Events, Runs, ended, rank

TWO = Run("2", "the port on 2 ranks", 2)


def _results(runs: Runs) -> dict[str, Result]:
    original, port = runs.seen()
    found = compare.results({"original": original, "2": port}, [TWO])
    return {one.check: one for one in found}


def test_a_correct_port_passes() -> None:
    found = _results(Runs())
    assert {one.state for one in found.values()} == {"same"}, found
    assert {*found} == {*CHECKS}


def _other_loss(runs: Runs) -> None:
    runs.first("backward", 1, 2)["loss"] = 9.0


def _not_finite(runs: Runs) -> None:
    runs.first("backward", 1, 2)["loss"] = "nan"


def _other_gradient(runs: Runs) -> None:
    for number in (0, 1):
        runs.first("step", number)["gradient"] /= 2


def _other_parameters(runs: Runs) -> None:
    runs.first("step", 1, 2)["parameters"] = 1


def _left_out(runs: Runs) -> None:
    runs.first("batch", 0)["samples"] = [(0, "content of 0/0")]


def _everywhere(runs: Runs) -> None:
    runs.ranks[1] = [event for event in rank(2, 1) if event["event"] not in ("batch", "iterate")]
    at = [event for event in rank(0, 0) if event["event"] in ("batch", "iterate")]
    runs.ranks[0] = _with_batches(rank(2, 0), at)
    runs.ranks[1] = _with_batches(rank(2, 1), at)


def _with_batches(events: list[dict], whole: list[dict]) -> list[dict]:  # type: ignore[type-arg]
    """The events with the original's training batches in the place of the rank's own."""
    batches = iter([one for one in whole if one["event"] == "batch" and one["grad"]])
    for event in events:
        if event["event"] == "batch" and event["grad"]:
            event["samples"] = next(batches)["samples"]
    return events


def _not_shuffled(runs: Runs) -> None:
    for number in (0, 1):
        runs.first("iterate", number).update(shuffles=False, sampler="SequentialSampler")


def _one_order(runs: Runs) -> None:
    for number in (0, 1):
        for nth in (0, 2):
            runs.first("iterate", number, nth).update(sampler="DistributedSampler", epoch=0)


def _evaluates_a_part(runs: Runs) -> None:
    runs.first("batch", 1, 2)["samples"] = []


def _own_metric(runs: Runs) -> None:
    runs.first("line")["text"] = "epoch 1: loss 1.2399 at 6 it/s"


def _two_writers(runs: Runs) -> None:
    runs.ranks[1].append(dict(runs.first("open")))


def _other_file(runs: Runs) -> None:
    runs.first("open")["path"] = "n.pt"


def _prints_too(runs: Runs) -> None:
    runs.ranks[1].append({"event": "line", "text": "hello", "drew": [0, 1]})


def _does_not_load(runs: Runs) -> None:
    why = "load_state_dict(strict=True) fails: Missing key(s)"
    assert runs.compared is not None
    runs.compared["wrong"] = [("", why, True)]


@pytest.mark.parametrize(
    ("break_it", "check", "word"),
    [
        (_other_loss, "losses", "backward 3"),
        (_not_finite, "losses", "nan"),
        (_other_gradient, "losses", "a sum over samples is averaged"),
        (_other_parameters, "parameters", "after optimizer step 3 rank 1"),
        (_left_out, "samples", "1 of 7 samples are left out"),
        (_everywhere, "samples", "each of the 2 ranks draws all 7"),
        (_not_shuffled, "samples", "the original shuffles"),
        (_one_order, "samples", "set_epoch"),
        (_evaluates_a_part, "evaluation", "left out"),
        (_own_metric, "evaluation", "1.2399"),
        (_two_writers, "output", "rank 0 (x.py:20) and rank 1 (x.py:20)"),
        (_other_file, "output", "does not write m.pt"),
        (_prints_too, "output", "rank 1 prints too"),
        (_does_not_load, "saved", "Missing key"),
    ],
)
def test_each_mistake_fails_its_check_alone(
    break_it: Callable[[Runs], None], check: str, word: str
) -> None:
    runs = Runs()
    break_it(runs)
    found = _results(runs)
    assert [name for name, one in found.items() if one.state == "differs"] == [check]
    assert word in found[check].differences[0]


def test_other_contents_and_initial_values_are_differences() -> None:
    """Also where indices are those of the original, and values were made equal afterwards."""
    runs = Runs()
    batch = runs.first("batch", 1)
    batch["samples"] = [(place, "of another split") for place, _ in batch["samples"]]
    runs.first("initial", 1)["sums"] = [1, 3]
    found = _results(runs)
    assert "sample 2 is another one on rank 1" in found["samples"].differences[0]
    assert "1 of 2 parameters" in found["parameters"].differences[0]


def test_one_difference_does_not_hide_others() -> None:
    runs = Runs()
    runs.first("line")["text"] = "epoch 1: loss 1.2399 at 6 it/s"
    runs.first("line", 0, 1)["text"] = "epoch 2: loss 1.2899 at 6 it/s"
    runs.first("batch", 0)["samples"] = [(0, "content of 0/0")]
    for events in (*runs.ranks, runs.original):
        for event in [one for one in events if one.get("dataset") == 1]:
            events.append({**event, "dataset": 2})
    [one for one in runs.ranks[1] if one.get("dataset") == 2][1]["samples"] = []
    found = _results(runs)
    assert len(found["evaluation"].differences) == 3
    assert found["samples"].state == "differs"


def _free(*ranks: Events) -> Seen:
    journals = tuple(Journal(tuple(events)) for events in ranks)
    return Seen(ended("free", world=2, free=True), journals)


def test_ranks_with_random_numbers_of_their_own() -> None:
    """They differ in what they draw, and in nothing that they have in common."""
    original = Runs().seen()[0]
    one, other = (
        [{**event, "content": f"{rank}"} for event in Runs().ranks[rank]] for rank in (0, 1)
    )
    states = {"torch's random": "a"}
    use = {"event": "random", "dataset": 0, "pass": 1, "n": 1, "what": "loop", "states": states}
    apart = [*other, {**use, "states": {"torch's random": "b"}}]
    found = compare.results(
        {"original": original, "free": _free([*one, use], apart)}, [Run("free", "", 2, free=True)]
    )
    assert {result.state for result in found} == {"same"}, found
    for wrong, word in (
        ([*other, use], "draw the same numbers from torch's random in the training loop"),
        ([{**event, "content": "0"} for event in other], "same content on rank 0 and rank 1"),
    ):
        free = _free([*one, use], wrong)
        checks = compare.results(
            {"original": original, "free": free}, [Run("free", "", 2, free=True)]
        )
        differ = [result for result in checks if result.state == "differs"]
        assert [result.check for result in differ] == ["samples"]
        assert word in differ[0].differences[0]
    fewer = other.copy()
    fewer.remove([event for event in other if event["event"] == "backward"][2])
    first = compare.results(
        {"original": original, "free": _free(one, fewer)}, [Run("free", "", 2, free=True)]
    )[0]
    assert "called backward 3 times, rank 0 4 times" in first.differences[0]


SHOWS = "import torch\n\nfor x in range(2):\n    loss = x\n    print(loss)\n"
SAID = Said((SaidFile("x.py", SHOWS, ((5, "loss: of rank 0's part of the batch"),)),))


@pytest.mark.parametrize(
    ("whole", "part", "said", "state"),
    [
        ("loss 1.2345", "loss 1.2345", SAID, "rank 0's"),  # a mean over rank 0's part
        ("loss 1.2345", "loss 0.61725", SAID, "rank 0's"),  # a sum over it
        ("loss 1.2345", "loss 1.2345", NOTHING, "differs"),  # of which port says nothing
        ("loss 1.2345", "loss 2.4690", SAID, "differs"),
    ],
)
def test_numbers_of_rank_0_are_told_from_wrong_ones(
    whole: str, part: str, said: Said, state: str
) -> None:
    """By what port says, and a run in which the parts of each training batch are alike."""
    runs = Runs()
    for number in (0, 1):
        runs.first("line", 0, number).update(text="loss 1.5", drew=[0, 1])
    for event in (one for one in runs.original if one["event"] == "line"):
        event.update(text=whole, drew=[0, 1], at=[["x.py", 5]])
    original, port = runs.seen()
    outcome = ended("alike", world=2, alike=True, against="original-alike")
    lines = [{**one, "text": part} if one["event"] == "line" else one for one in runs.ranks[0]]
    ranks = (Journal(tuple(lines)), Journal(tuple(runs.ranks[1])))
    alike = Seen(outcome, ranks)
    seen = {"original": original, "original-alike": original, "2": port, "alike": alike}
    planned = [TWO, Run("alike", "", 2, alike=True)]
    found = {one.check: one for one in compare.results(seen, planned, said)}
    assert found["output"].state == state, found["output"]
    assert all(one.state != "same" for one in found.values() if one.differences)


@pytest.mark.parametrize(
    ("remark", "calls", "covered"),
    [
        ((5, "x is of rank 0's part of the last batch"), [["x.py", 5]], True),
        ((4, "loss, x: of rank 0's part of the batch"), [["x.py", 5]], True),
        ((4, "x: of rank 0's part of the batch"), [["x.py", 5]], False),
        ((5, "a plain loop"), [["x.py", 5]], False),
        ((5, "of a part"), [["y.py", 5], ["x.py", 5]], True),
        ((5, "of a part"), [["y.py", 5]], False),
    ],
)
def test_what_port_says_of_a_place(
    remark: tuple[int, str], calls: list[list[object]], covered: bool
) -> None:
    """Of its statement, or of a name that is read there."""
    assert Said((SaidFile("x.py", SHOWS, (remark,)),)).covers(calls) is covered


def test_an_evaluation_that_was_not_reached_or_shown_is_not_seen() -> None:
    for text, bar in (("epoch done", False), ("accuracy 0.5", True)):
        runs = Runs()
        for events in (runs.original, runs.ranks[0]):
            for event in (one for one in events if one["event"] == "line"):
                event.update(text=text, bar=bar)
        found = _results(runs)["evaluation"]
        assert (found.state, found.detail) == ("not seen", "prints no number of it")
    runs = Runs()
    runs.original[-1]["unreached"] = ["x.py:30"]
    assert _results(runs)["evaluation"].detail == "not reached: x.py:30"
    runs = Runs()
    runs.original.insert(1, {"event": "cut", "dataset": 5, "kind": "Test", "where": "x.py:8"})
    assert _results(runs)["evaluation"].detail == "not reached: x.py:8 (a loader)"


def test_a_file_that_is_not_compared_is_not_seen() -> None:
    runs = Runs(compared={"path": "model.onnx", "unseen": ["it is of no format"]})
    found = _results(runs)
    assert found["saved"].state == "not seen"
    assert str(verdict.verdict([*found.values()])) == (
        "the same run on 1, 2 and 3 ranks; not seen: model.onnx: it is of no format"
    )


@pytest.mark.parametrize(
    ("name", "other", "same"),
    [
        ("run-20261129-120000.pt", "run-20261129-120107.pt", True),
        ("events.out.tfevents.17644176.n1.77", "events.out.tfevents.17644179.n1.8", True),
        ("a/1f9c3be27a4d.txt", "a/77ac02be11aa.txt", True),
        ("a/1234567be27a4d.txt", "a/ab77ac02be11aa.txt", True),
        ("model_12.pt", "model_6.pt", False),
        ("model_rank0.pt", "model.pt", False),
        ("deadbeef.pt", "feedface.pt", False),
    ],
)
def test_names_by_the_clock(name: str, other: str, same: bool) -> None:
    assert (lines.without_clock(name) == lines.without_clock(other)) is same


def test_a_file_named_by_the_clock_is_no_other_file() -> None:
    runs = Runs()
    runs.original[-3]["path"], runs.ranks[0][-3]["path"] = "run-120000.txt", "run-120107.txt"
    assert _results(runs)["output"].state == "differs"
    named = {"event": "named", "path": "run-120107.txt", "of": "run-120000.txt"}
    runs.ranks[0].append(named)
    assert _results(runs)["output"].state == "same"


@pytest.mark.parametrize("trains", [True, False])
def test_an_evaluation_with_gradients_draws_nothing_for_training(trains: bool) -> None:
    """Its ranks may draw alike, those of a training must not."""
    one, other = (
        [{**event, "content": f"{rank}"} for event in Runs().ranks[rank]] for rank in (0, 1)
    )
    use = {"event": "random", "dataset": 0 if trains else 1, "pass": 1, "n": 1, "what": "loop"}
    use["states"] = {"torch's random": "a"}
    seen = {"original": Runs().seen()[0], "free": _free([*one, use], [*other, use])}
    found = compare.results(seen, [Run("free", "", 2, free=True)])
    assert ("differs" in {result.state for result in found}) is trains


@pytest.mark.parametrize("state", ["a", "b"])
def test_what_is_drawn_behind_a_pass_was_not_drawn_in_it(state: str) -> None:
    one, other = (
        [{**event, "content": f"{rank}"} for event in Runs().ranks[rank]] for rank in (0, 1)
    )
    place = {"dataset": 0, "pass": 1}
    use = {"event": "random", **place, "n": 1, "what": "loop", "states": {"torch's random": "a"}}
    behind = {"event": "behind", **place, "states": {"torch's random": state}}
    seen = {"original": Runs().seen()[0], "free": _free([*one, use], [*other, behind])}
    found = {one.check: one for one in compare.results(seen, [Run("free", "", 2, free=True)])}
    assert found["samples"].state == ("differs" if state == "a" else "same")
    if state == "a":
        assert "draws from torch's random what rank 0 has drawn" in found["samples"].differences[0]


def test_another_learning_rate_is_found_where_no_loss_shows_it() -> None:
    runs = Runs()
    runs.first("step", 0, 1)["options"] = [("lr", 0.099)]
    found = _results(runs)["losses"]
    assert found.state == "differs"
    assert "optimizer step 2: lr is 0.099 where the original's is 0.1" in found.differences[0]


@pytest.mark.parametrize(("last", "state"), [(1.1, "differs"), (1.99, "same")])
def test_a_model_that_no_optimizer_steps_moves_as_the_originals_does(
    last: float, state: str
) -> None:
    runs = Runs()
    moved = {"event": "moved", "model": "Net", "shapes": "[(2,)]", "first": [1.0, 1.0]}
    runs.original.append({**moved, "last": [2.0, 1.0]})
    runs.ranks[0].append({**moved, "last": [last, 1.0]})
    assert _results(runs)["losses"].state == state


def test_weights_are_units_where_they_are_counted() -> None:
    runs = Runs()
    for number, (units, value) in enumerate(((10.0, 1.0), (30.0, 2.0))):
        runs.first("backward", number).update(units=units, loss=value)
    first = next(one for one in runs.original if one["event"] == "backward")
    first["loss"] = 1.75
    assert _results(runs)["losses"].state == "same"


def test_batches_without_a_sample_prove_nothing() -> None:
    runs = Runs()
    for events in (runs.original, *runs.ranks):
        for one in events:
            if one["event"] == "batch" and one["grad"]:
                one["samples"] = []
    assert _results(runs)["samples"].state == "not seen"


def test_a_sample_that_only_keeps_a_rank_in_step_counts_for_nothing() -> None:
    runs = Runs()
    whole = [(one, f"content of 0/{one}") for one in (4, 5, 6)]
    runs.first("batch", 0, 1)["samples"] = whole
    runs.first("batch", 1, 1)["samples"] = whole[:1]
    runs.first("backward", 0, 1).update(samples=3, loss=2.0)
    runs.first("backward", 1, 1).update(samples=0, idle=True, loss="nan")
    states = {name: one.state for name, one in _results(runs).items()}
    assert states["losses"] == states["samples"] == "same"


def test_rank_0_may_evaluate_alone() -> None:
    runs = Runs(ranks=[rank(2, 0), rank(2, 1)])
    whole = [one for one in rank(0, 0) if one["event"] == "batch" and not one["grad"]]
    own = [one for one in runs.ranks[0] if one["event"] == "batch" and not one["grad"]]
    for mine, all_of_it in zip(own, whole, strict=True):
        mine["samples"] = all_of_it["samples"]
    runs.ranks[1] = [one for one in runs.ranks[1] if one.get("grad") is not False]
    assert _results(runs)["evaluation"].state == "same"


def test_what_was_not_there_is_not_proved() -> None:
    runs = Runs(
        original=[one for one in rank(0, 0) if one["event"] not in ("line", "open")],
        ranks=[[one for one in rank(2, k) if one["event"] not in ("line", "open")] for k in (0, 1)],
        compared=None,
    )
    for events in (runs.original, *runs.ranks):
        events[:] = [one for one in events if one.get("grad") is not False]
    found = _results(runs)
    states = {name: one.state for name, one in found.items()}
    assert states["output"] == states["saved"] == "-"
    assert states["evaluation"] == "not seen"
    assert found["evaluation"].detail == "none reached", "the script may have one all the same"


def test_a_run_that_broke_off_is_a_difference() -> None:
    original, port = Runs().seen()
    error = {"event": "end", "code": 1, "error": "ValueError: no", "time": 1.0}
    broken = Seen(
        ended("2", RankEnd(None, False), RankEnd(1, False), world=2),
        (port.ranks[0], Journal((error,))),
    )
    first, *rest = compare.results({"original": original, "2": broken}, [TWO])
    assert first.state == "differs"
    assert "rank 1 of 2 failed:\nValueError: no" in first.differences[0]
    assert {one.state for one in rest} == {"not seen"}
    assert compare.results({"original": original}, [TWO])[0].state == "differs"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.1234", "0.1235", True),  # the rounding of the last place
        ("0.1234", "0.1237", False),
        ("17", "18", False),
        ("17", "17.0", True),
        ("1e-05", "1e-5", True),
        ("12345.67", "12345.90", True),
    ],
)
def test_printed_numbers(one: str, other: str, same: bool) -> None:
    assert lines.near(one, other) is same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[12:30:01] start", "[12:31:59] start"),
        ("2026-11-22 loss 1.5", "2026-11-23 loss 1.5"),
        ("<Net object at 0x7f00aa>", "<Net object at 0x7f00bb>"),
        ("99 it/s", "101 it/s"),
        ("2026-11-22 12:30:01,123 loss", "2026-11-22 12:31:59,456 loss"),
    ],
)
def test_what_passes_is_not_compared(one: str, other: str) -> None:
    a, b = lines.parse(one), lines.parse(other)
    assert (a.words, a.numbers) == (b.words, b.numbers)


def test_a_number_of_many_digits_is_no_date() -> None:
    one, other = (
        lines.parse(f'{{"loss": {loss}, "time": 1795958041.4756265}}')
        for loss in (5.623811721801758, 5.623812437057495)
    )
    assert (one.words, len(one.numbers)) == (other.words, 2)


@pytest.mark.parametrize("unit", ["min", "s", "sec", "seconds", "ms"])
def test_a_number_before_a_word_that_may_be_a_unit_is_a_number(unit: str) -> None:
    one, other = (lines.parse(f"valid {value} {unit} 0.5") for value in ("0.91", "0.97"))
    assert one.words == other.words
    assert [*one.numbers, *other.numbers] == ["0.91", "0.5", "0.97", "0.5"]


def test_the_table_has_no_foreign_control_characters() -> None:
    runs = Runs()
    runs.ranks[1].append({"event": "line", "text": "\x1b]0;title\x07 \u202e", "drew": [0, 1]})
    out = io.StringIO()
    verdict.show(list(_results(runs).values()), ["a \x1b[2J note"], out)
    assert "\x1b" not in out.getvalue()
    assert "5. differs on 2 ranks: rank 1 prints too" in out.getvalue()


def test_a_batch_that_is_only_looked_at_may_keep_a_rank_in_step() -> None:
    """`zip` draws one more of its first loader before its second one has ended."""
    runs = Runs()
    for events in (runs.original, *runs.ranks):
        last = max(place for place, one in enumerate(events) if one["event"] == "batch")
        key = {"dataset": 0, "pass": 2, "grad": True}
        samples = [(9, "content of 0/9")]
        events.insert(last, {"event": "batch", **key, "samples": samples})
    assert _results(runs)["samples"].state == "same"
