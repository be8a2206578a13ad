"""Checks 3 and 4: each sample is trained on once, shuffled as before; evaluations see them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ....base.amounts import words
from ..protocol import Event, Journal, Pass, Sample, Seen, passes
from ..verdict import Result, differs

Passes = Mapping[tuple[int, int], Pass]


def samples(original: Seen, port: Seen) -> Result:
    """The training samples of all ranks, pass by pass, against the original's."""
    ours = [one for one in passes(original.ranks[0]) if one.trained]
    theirs = [_by_key(journal_passes) for journal_passes in map(passes, port.ranks)]
    if not ours:
        first, *others = ([one["loss"] for one in rank.of("backward")] for rank in port.ranks)
        if len({*first}) > 1 and first in others:
            text = f"two ranks have the same {len(first)} losses: they draw the same batches"
            return differs("same batches", text)
        return Result("not seen", "batches drawn by a function")
    wrong: dict[int, str] = {}
    for mine in ours:
        parts = [found.get(mine.key) for found in theirs]
        text = unlike(mine, parts, contents=not port.run.free)
        text = text or _shuffled_otherwise(mine, parts) or _equal_batches(parts)
        if text and mine.dataset not in wrong:  # one data set does not hide another
            wrong[mine.dataset] = f"pass {mine.number} of the loader at {mine.where}: {text}"
    found = [*wrong.values(), *_same_order(ours, theirs[0])]
    found += [*_same_random(port), *_repeated(port)]
    if found:
        return differs("other samples", *found)
    total = sum(len(one.samples) for one in ours)
    if not total:
        return Result("not seen", "batches of no samples")
    return Result("same", f"{total} in {words(len(ours), 'pass', 'passes')}")


def evaluations(original: Seen, port: Seen) -> tuple[list[str], int, int]:
    """Differences in the samples that are evaluated; how many samples and passes there were."""
    ours = _in_place([one for one in passes(original.ranks[0]) if not one.trained])
    theirs = [_in_place(one for one in passes(rank) if not one.trained) for rank in port.ranks]
    wrong: dict[int, str] = {}
    for place, mine in ours.items() if not port.run.free else ():
        parts = [found.get(place) for found in theirs]
        if _whole(mine, parts):
            continue
        text = unlike(mine, parts, contents=True)
        if text and mine.dataset not in wrong:
            wrong[mine.dataset] = f"evaluation {mine.number} at {mine.where}: {text}"
    return list(wrong.values()), sum(len(one.samples) for one in ours.values()), len(ours)


def unreached(original: Seen) -> list[str]:
    """Evaluations that the original did not come to: loops without gradients, unused loaders."""
    journal = original.ranks[0]
    found = [place for event in journal.of("end") for place in event.get("unreached", ())]
    iterated = {event["dataset"] for event in journal.of("iterate")}
    unused = [event for event in journal.of("cut") if event["dataset"] not in iterated]
    return found + [f"{event.get('where') or event['kind']} (a loader)" for event in unused]


def unlike(mine: Pass, parts: Sequence[Pass | None], *, contents: bool) -> str:
    """Return how the samples of all ranks differ from the original's; empty where they do not.

    Args:
        contents: the same contents are wanted as well, not only the same places in the data set.
    """
    wanted = Counter(mine.places)
    found = Counter(one.place for one in _drawn(parts))
    world = len(parts)
    if not contents:  # in another order, of which a break or `drop_last` leaves out others
        most = max(wanted.values(), default=1)
        more = {one: count for one, count in found.items() if count > most}
        if not more or not all(isinstance(one, int) for one in wanted):
            return ""  # the items of a stream are known by contents, which are random here
        return f"{len(more)} of {len(mine.samples)} samples are drawn more than once"
    if wanted == found:
        return _other_contents(mine, parts)
    missing, more = wanted - found, found - wanted
    equal = [part is not None and Counter(part.places) == wanted for part in parts]
    if all(equal) and world > 1:
        return f"each of the {world} ranks draws all {len(mine.samples)} samples"
    texts = []
    if missing:
        texts.append(f"{sum(missing.values())} of {len(mine.samples)} samples are left out")
    if more:
        texts.append(f"{sum(more.values())} are drawn more than once")
    padded = any(part is not None and part.sampler == "DistributedSampler" for part in parts)
    reason = " (DistributedSampler makes all parts equally long)" if padded else ""
    return " and ".join(texts) + reason


def _drawn(parts: Sequence[Pass | None]) -> list[Sample]:
    """The samples of all ranks, without those that a rank gets to keep in step.

    Those are known by their weight, which a batch only has once it is trained on.
    """
    drawn = [part for part in parts if part is not None]
    found: list[Sample] = []
    for rank, part in enumerate(drawn):
        for place, batch in enumerate(part.batches):
            # Its first sample is the owner's, which comes after the ranks without a part.
            later = [one.batches[place] for one in drawn[rank + 1 :] if place < len(one.batches)]
            if len(batch) != 1 or place in part.used or batch not in later:
                found += batch
    return found


def _other_contents(mine: Pass, parts: Sequence[Pass | None]) -> str:
    """The same places in the data set, and other samples there."""
    wanted = set(mine.samples)
    for rank, part in enumerate(parts):
        samples = part.samples if part is not None else []
        if other := [one for one in samples if one not in wanted]:
            return (
                f"sample {other[0].place} is another one on rank {rank} than in the original "
                f"({len(other)} of its {len(samples)} are): the data was split, shuffled or made "
                "with random numbers that are the rank's own"
            )
    return ""


def _equal_batches(parts: Sequence[Pass | None]) -> str:
    """Batches of a free run, which nothing has aligned."""
    known: dict[tuple[int, str], int] = {}
    for rank, part in enumerate(parts):
        if part is None:
            continue
        for place in sorted(part.used - part.uncounted):
            content = part.drawn[place].get("content")
            other = known.setdefault((place, content), rank) if content else rank
            if other != rank:
                return f"batch {place + 1} has the same content on rank {other} and rank {rank}"
    return ""


def _same_random(port: Seen) -> list[str]:
    """Random numbers that two ranks of a free run have drawn alike while they trained.

    An evaluation may be made with gradients as well; what it draws may be alike.
    """
    known: dict[tuple[object, ...], tuple[int, str]] = {}
    found: dict[tuple[str, str], str] = {}
    for rank, journal in enumerate(port.ranks):
        for event in _of_training(journal, "random"):
            for generator, state in event["states"].items():
                place = (event["dataset"], event["pass"], event["n"], event["what"], generator)
                other, before = known.setdefault((*place, state), (rank, state))
                if other != rank and before == state:
                    what = "in a data set" if event["what"] == "samples" else "in the training loop"
                    found[generator, what] = (
                        f"rank {other} and rank {rank} draw the same numbers from {generator} "
                        f"{what}: their parts of a batch get the same noise, crops or pairs"
                    )
    return list(found.values())


def _repeated(port: Seen) -> list[str]:
    """Random numbers that are drawn behind a pass of a free run, and were drawn in it before."""
    found: dict[str, str] = {}
    for rank, journal in enumerate(port.ranks):
        for behind in _of_training(journal, "behind"):
            for other, one in enumerate(port.ranks):
                for event in _of_training(one, "random"):
                    both = event["states"].items() & behind["states"].items()
                    if _key(event) == _key(behind) and both:
                        name = min(both)[0]
                        found[name] = (
                            f"behind a pass rank {rank} draws from {name} what rank {other} has "
                            "drawn in it before; on one GPU the numbers go on"
                        )
    return list(found.values())


def _of_training(journal: Journal, name: str) -> list[Event]:
    """The events of passes that the rank has trained in."""
    trained = {one.key for one in passes(journal) if one.trained}
    return [event for event in journal.of(name) if _key(event) in trained]


def _key(event: Event) -> tuple[int, int]:
    return event["dataset"], event["pass"]


def _shuffled_otherwise(mine: Pass, parts: Sequence[Pass | None]) -> str:
    for rank, part in enumerate(parts):
        if part is not None and part.shuffles != mine.shuffles:
            return (
                f"the original {'shuffles' if mine.shuffles else 'does not shuffle'} "
                f"({mine.sampler} at {mine.where}), the port on rank {rank} "
                f"{'does' if part.shuffles else 'does not'} ({part.sampler})"
            )
    return ""


def _same_order(ours: Sequence[Pass], theirs: Passes) -> list[str]:
    for mine in ours:
        part = theirs.get(mine.key)
        later = theirs.get((mine.dataset, mine.number + 1))
        if part is None or later is None or not (part.shuffles and later.shuffles):
            continue
        if part.epoch is not None and part.epoch == later.epoch:
            return [
                f"DistributedSampler has epoch {part.epoch} in pass {mine.number} and in the next: "
                "without sampler.set_epoch(epoch) every epoch has the same order"
            ]
    return []


def _whole(mine: Pass, parts: Sequence[Pass | None]) -> bool:
    """Return True when rank 0 evaluates all by itself, and others all or nothing: exact as well."""
    wanted = Counter(mine.samples)
    found = [Counter(part.samples if part else ()) for part in parts]
    return found[0] == wanted and all(one in (wanted, Counter()) for one in found)


def _in_place(found: Iterable[Pass]) -> dict[tuple[int, str, int], Pass]:
    """Evaluations by data set, function and number: rank 0 may have some that others have not."""
    placed: dict[tuple[int, str, int], Pass] = {}
    counted: Counter[tuple[int, str]] = Counter()
    for one in found:
        place = one.dataset, one.where.partition(" in ")[2]
        placed[place[0], place[1], counted[place]] = one
        counted[place] += 1
    return placed


def _by_key(found: Sequence[Pass]) -> Passes:
    return {one.key: one for one in found}
