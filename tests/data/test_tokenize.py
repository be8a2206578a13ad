"""`rankup tokenize`: the documents' own tokens, once and in order, whatever happens on the way."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-untyped]
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers

from rankup.base import lock
from rankup.base.errors import RunFailed, UserError
from rankup.data import Loader, Tokens
from rankup.data.errors import BadContainer
from rankup.data.inspect import show
from rankup.data.tokenize import folder as made
from rankup.data.tokenize.command import Request, tokenize
from rankup.recipes.vocabulary import Pieces

from ..conftest import RunRankup

TEXTS = [str(topics[name]) for name in sorted(topics)][:40]
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pieces")
    Pieces.trained(TEXTS, 400, (END,)).write(folder)
    return folder / "tokenizer.json"


def expected(pieces: Path, texts: list[str]) -> list[int]:
    """The tokens by the library alone."""
    own = tokenizers.Tokenizer.from_file(str(pieces))
    end: int = own.get_vocab()[END]
    return [token for text in texts for token in (*own.encode(text).ids, end)]


def lines(texts: list[Any], field: str = "text") -> bytes:
    return "".join(json.dumps({"id": 1, field: text}) + "\n" for text in texts).encode()


def sources(folder: Path) -> list[str]:
    """Files of every kind; the texts of their documents in order."""
    folder.mkdir()
    found = []
    for name, some in (("a.txt", TEXTS[0]), ("b.md", "naïve\r\n\n\nend ")):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + some.encode())
        found.append(some)
    (folder / "c.txt").write_bytes(b"")
    rows = [*TEXTS[3:20], None, ""]
    table = pa.table({"id": range(len(rows)), "text": rows})
    (folder / "d.jsonl").write_bytes(lines(rows)[:-1])  # without the last line's end
    (folder / "e.jsonl.gz").write_bytes(gzip.compress(lines(rows)) + gzip.compress(lines(["x"])))
    with pa.CompressedOutputStream(str(folder / "f.ndjson.zst"), "zstd") as file:
        file.write(lines(rows))
    pq.write_table(table, folder / "g.parquet", row_group_size=7)
    with pa.ipc.new_stream(str(folder / "h.arrow"), table.schema) as stream:
        stream.write_table(table, 5)
    table = table.cast(table.schema.set(1, pa.field("text", pa.large_string())))
    with pa.ipc.new_file(str(folder / "i.arrow"), table.schema) as stream:
        stream.write_table(table)
    (folder / "j.csv").write_text("no,text")
    (folder / ".hidden.txt").write_text("nor this")
    (folder / "link.txt").symlink_to(folder / "gone")
    os.mkfifo(folder / "pipe.txt")  # whose opening waits for somebody who writes
    texts = [text for text in rows if text]
    return [*found, *texts, *texts, "x", *(text for _ in range(4) for text in texts)]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_all_kinds_any_workers(
    tmp_path: Path, pieces: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = sources(tmp_path / "in")
    wanted = expected(pieces, texts)
    asked = (str(tmp_path / "in"),)
    one = tokenize(
        Request(asked, str(tmp_path / "one"), str(pieces), workers=1, shard_tokens=20_000)
    )
    said = capfd.readouterr().err
    assert f"{len(wanted):,} tokens of {len(texts):,} documents" in said
    assert "12 rows have no text" in said
    assert all(name in said for name in ("j.csv", "link.txt", "pipe.txt"))
    assert made.Shards(one)[:].tolist() == wanted
    assert one.documents == len(texts)
    assert [shard.tokens for shard in one.shards[:-1]] == [20_000] * (len(one.shards) - 1)
    tokenize(Request(asked, str(tmp_path / "two"), str(pieces), workers=3, shard_tokens=20_000))
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert (tmp_path / "one/tokenizer.json").read_bytes() == pieces.read_bytes()
    # The public data set: windows run over the ends of shards.
    tokens = Tokens(tmp_path / "one", 64)
    assert (tokens.tokens, len(tokens)) == (len(wanted), (len(wanted) - 1) // 64)
    firsts = []
    for x, y in Loader(tokens, 16, seed=1, workers=0, rank=0, world_size=1):
        assert x[:, 1:].tolist() == y[:, :-1].tolist()
        firsts += [tuple(row) for row in x.tolist()]
    cut = [tuple(wanted[at : at + 64]) for at in range(0, len(wanted) - 64, 64)]
    assert sorted(firsts) == sorted(cut)
    with pytest.raises(UserError, match="has no splits"):
        Tokens(tmp_path / "one", 64, split="train")


def test_a_long_text_is_one_document(tmp_path: Path, pieces: Path) -> None:
    """It is encoded in pieces, which end with lines."""
    line = "words " * 20 + "\n"
    (tmp_path / "long.txt").write_text(line * 9_000)
    found = tokenize(Request((str(tmp_path / "long.txt"),), str(tmp_path / "out"), str(pieces)))
    assert found.documents == 1
    ids = expected(pieces, [line])
    assert made.Shards(found)[:].tolist() == ids[:-1] * 9_000 + ids[-1:]


def test_a_piece_of_a_text_begins_with_no_mark_of_a_beginning(tmp_path: Path) -> None:
    """As Llama 2's tokenizer, which puts `▁` in front of each text."""
    own = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    own.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    line = "the cat sat on the mat and looked at the dog\n"
    special = ["<unk>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=120, special_tokens=special)
    own.train_from_iterator([line] * 50, trainer)
    own.save(str(tmp_path / "own.json"))
    text = line * (3 * (1 << 19) // len(line))
    (tmp_path / "long.txt").write_text(text)
    asked = Request(
        (str(tmp_path / "long.txt"),), str(tmp_path / "out"), str(tmp_path / "own.json")
    )
    wanted = [*own.encode(text, add_special_tokens=False).ids, own.token_to_id("</s>")]
    assert made.Shards(tokenize(asked))[:].tolist() == wanted


def test_inspect_finds_a_flipped_bit_of_any_shard(
    tmp_path: Path, pieces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources(tmp_path / "in")
    out = tmp_path / "out"
    found = tokenize(Request((str(tmp_path / "in"),), str(out), str(pieces), shard_tokens=20_000))
    assert len(found.shards) > 1
    capsys.readouterr()
    assert show(str(out)) == 0
    assert (
        f"{found.tokens:,} tokens, {found.documents} documents, uint16" in capsys.readouterr().out
    )
    assert show(str(out), verify=True) == 0
    assert "is sound: " in capsys.readouterr().out
    for shard in found.shards:
        data = bytearray((out / shard.file).read_bytes())
        data[len(data) // 2] ^= 1
        (out / shard.file).write_bytes(data)
        assert show(str(out), verify=True, as_json=True) == 1
        (damage,) = json.loads(capsys.readouterr().out)["verify"]["damaged"]
        assert f"{shard.file} does not have the hash" in damage["why"]
        data[len(data) // 2] ^= 1
        (out / shard.file).write_bytes(data)
    with pytest.raises(UserError, match="no samples to extract"):
        show(str(out), extract=str(tmp_path / "files"))


def _start(out: Path, source: Path, pieces: Path) -> subprocess.Popen[bytes]:
    words = [
        source,
        "--to",
        out,
        "--tokenizer",
        pieces,
        "--shard-tokens",
        "50000",
        "--workers",
        "1",
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "rankup", "tokenize", *map(str, words)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def test_a_kill_and_a_full_disk(tmp_path: Path, pieces: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_bytes(lines(TEXTS * 8))
    noted = out / "progress.jsonl"
    for number, code, shards in ((signal.SIGTERM, 143, 1), (signal.SIGKILL, -9, 10)):
        process = _start(out, source, pieces)
        while process.poll() is None:
            if noted.is_file() and noted.read_bytes().count(b"\n") > shards:
                os.killpg(process.pid, number)
                break
            time.sleep(0.01)
        assert process.wait() == code
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("tokens-*.bin")}
    assert len(kept) >= 2
    with pytest.raises(BadContainer, match="no complete"):
        Tokens(out, 64)
    asked = Request((str(source),), str(out), str(pieces), shard_tokens=50_000)
    with pytest.raises(UserError, match="--field changed since"):
        tokenize(Request(asked.sources, asked.to, asked.tokenizer, "id", shard_tokens=50_000))
    # A note that was cut off, as by the kill of a node, is not there.
    noted.write_bytes(noted.read_bytes() + b'{"shard": {"fi')
    whole = noted.read_bytes().count(b"\n") - 1
    for path in out.glob("*.part"):
        path.unlink()
    (out / f"tokens-{whole:05}.bin.part").symlink_to("/dev/full")
    with pytest.raises(RunFailed, match=f"no space is left .* {whole} shards are kept"):
        tokenize(asked)
    assert not (out / made.ABOUT).exists()
    with lock.held(out, print), pytest.raises(RunFailed, match="is working on it"):
        tokenize(asked)
    found = tokenize(asked)
    assert made.Shards(found)[:].tolist() == expected(pieces, TEXTS * 8)
    assert all((out / name).stat().st_mtime_ns == at for name, at in kept.items())
    assert not [path for path in out.iterdir() if path.suffix not in (".bin", ".json")]
    # What is complete stays, what has changed is refused, and made anew where that is asked for.
    before = content(out)
    assert tokenize(asked) == found
    assert content(out) == before
    source.write_bytes(lines(TEXTS[:3]))
    with pytest.raises(UserError, match=r"the sources .* changed since"):
        tokenize(asked)
    again = tokenize(Request(asked.sources, asked.to, asked.tokenizer, force=True))
    assert made.Shards(again)[:].tolist() == expected(pieces, TEXTS[:3])
    assert sorted(content(out)) == ["tokenizer.json", "tokens-00000.bin", "tokens.json"]
    # A shard that was cut short is seen.
    os.truncate(out / "tokens-00000.bin", 100)
    with pytest.raises(BadContainer, match=r"has 100 bytes, and .* belong there"):
        Tokens(out, 64)


def test_damaged_notes_are_named(tmp_path: Path, pieces: Path) -> None:
    (tmp_path / "a.txt").write_text("a text")
    asked = Request((str(tmp_path / "a.txt"),), str(tmp_path / "out"), str(pieces), workers=1)
    tokenize(asked)
    about = tmp_path / "out" / made.ABOUT
    there = json.loads(about.read_bytes())
    shard = {**there["shards"][0], "tokens": float("inf")}
    for text in (json.dumps({**there, "shards": [shard]}), "[" * 100_000):
        about.write_text(text)
        with pytest.raises(BadContainer, match=r"is damaged|no complete"):
            made.read(about.parent)
    about.unlink()
    outside = {"shard": {**there["shards"][0], "file": "../a.txt"}, "next": [0, 0, 0]}
    for note in ("[1]", "{}", json.dumps(outside)):
        (about.parent / "progress.jsonl").write_text(f"{json.dumps(there)}\n{note}\n")
        with pytest.raises(BadContainer, match=r"progress.jsonl is damaged .* by --force"):
            tokenize(asked)


def _gz_cut(path: Path) -> None:
    path.write_bytes(gzip.compress(lines(TEXTS))[:-2000])


def _broken_group(path: Path) -> None:
    pq.write_table(pa.table({"text": TEXTS}), path, row_group_size=10, compression="gzip")
    start = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 400] = bytes(400)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.txt", b"ab\xff", "not UTF-8 text .byte 0xff"),
        ("a.txt", b"", "hold no text at all"),
        ("a.json", b"{}", "give JSON lines"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b"', "line 2: no JSON"),
        ("a.jsonl", b'{"texts": "a"}\n', "line 1: no field 'text' .did you mean texts"),
        ("a.jsonl", b'{"text": 3}\n', "field 'text' is int"),
        ("a.jsonl", b"[1]\n", "it is list"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "row 1: half of a character"),
        ("a.jsonl", b'{"text": "\xff"}\n', "line 1: not UTF-8"),
        ("a.jsonl.gz", _gz_cut, "cannot be read as text: .*copy it again"),
        ("a.parquet", b"PAR1 and no more", "cannot be read as Parquet"),
        ("a.parquet", pa.table({"content": ["a"]}), "no column 'text' .known are: content"),
        ("a.parquet", pa.table({"text": [1]}), "column 'text' is int64"),
        ("a.parquet", _broken_group, "cannot be read as Parquet, row group 2"),
        ("a.arrow", b"nothing", "cannot be read as Arrow"),
    ],
)
def test_bad_sources_are_named(
    tmp_path: Path, pieces: Path, name: str, data: Any, said: str
) -> None:
    path = tmp_path / name
    if callable(data):
        data(path)
    elif isinstance(data, bytes):
        path.write_bytes(data)
    else:
        pq.write_table(data, path)
    with pytest.raises(UserError, match=said):
        tokenize(Request((str(path),), str(tmp_path / "out"), str(pieces), workers=1))
    assert not (tmp_path / "out" / made.ABOUT).exists()


def test_a_try_that_wrote_no_shard_stands_in_no_ones_way(tmp_path: Path, pieces: Path) -> None:
    rows = tmp_path / "in.jsonl"
    rows.write_text('{"document": "some text"}\n')
    words: dict[str, Any] = {
        "sources": (str(rows),), "to": str(tmp_path / "out"), "tokenizer": str(pieces)
    }  # fmt: skip
    with pytest.raises(UserError, match="no field 'text'"):
        tokenize(Request(**words))
    assert len(made.Shards(tokenize(Request(**words, field="document")))[:]) > 0


def test_bad_words_exit_with_2(tmp_path: Path, pieces: Path, run_rankup: RunRankup) -> None:
    done = run_rankup(["tokenize", "gone", "--to", "out", "--tokenizer", pieces])
    assert done.returncode == 2
    assert done.stderr == (
        "rankup: SOURCE gone does not exist; give text, .jsonl, .parquet or .arrow files\n"
    )
    text = tmp_path / "in.txt"
    text.write_text("some text")
    bare = tmp_path / "bare.json"
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).save(str(bare))
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("")
    for given, said in (
        ({"tokenizer": str(text)}, "is no file of the package tokenizers"),
        ({"tokenizer": str(tmp_path / "gone.json")}, "cannot be read: No such file"),
        ({"tokenizer": str(bare)}, "has no token of a usual name"),
        ({"end_token": "<|endotext|>"}, r"did you mean <\|endoftext\|>"),
        ({"to": str(text)}, "is a file"),
        ({"to": str(other)}, "holds other files .thesis.tex"),
        ({"to": str(other), "force": True}, "holds other files .thesis.tex"),
        ({"sources": (str(text), str(text))}, "is named twice"),
        ({"sources": (str(other),)}, "holds no file that is known"),
        ({"shard_tokens": 10}, "--shard-tokens 10"),
        ({"workers": 0}, "--workers 0"),
    ):
        words: dict[str, Any] = {
            "sources": (str(text),), "to": str(tmp_path / "out"), "tokenizer": str(pieces)
        }  # fmt: skip
        with pytest.raises(UserError, match=said):
            tokenize(Request(**{**words, **given}))
    assert (other / "thesis.tex").exists()
    found = tokenize(Request((str(text),), str(tmp_path / "b"), str(bare), end_token="a"))
    assert made.Shards(found)[:].tolist() == [0]  # it knows no letter of the text


def test_a_run_of_tokens_goes_over_the_ends_of_shards(tmp_path: Path, pieces: Path) -> None:
    wanted = expected(pieces, sources(tmp_path / "in"))
    folder = tokenize(
        Request((str(tmp_path / "in"),), str(tmp_path / "out"), str(pieces), shard_tokens=20_000)
    )
    shards = made.Shards(folder).part(7, len(wanted) - 5)
    for start, stop in ((0, 5), (19_990, 20_001), (19_993, 60_010), (0, 10**9), (9, 9), (9, 3)):
        run = shards[start:stop]
        assert run.tolist() == wanted[7:-5][start:stop]
        assert run.flags.writeable
    assert shards[::-9_000].tolist() == wanted[7:-5][::-9_000]
    with pytest.raises(IndexError):
        shards[[len(shards)]]


def test_a_text_within_structures_is_named_by_its_path(tmp_path: Path, pieces: Path) -> None:
    rows = [{"a": {"b": "one text"}, "n": 1}, {"a": None, "n": 2}, {"a": {"b": "two"}, "n": 3}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "in.parquet")
    with pa.ipc.new_file(str(tmp_path / "in.arrow"), table.schema) as stream:
        stream.write_table(table)
    wanted = expected(pieces, ["one text", "two"])
    for name in ("in.jsonl", "in.parquet", "in.arrow"):
        to = str(tmp_path / f"out-{name}")
        folder = tokenize(Request((str(tmp_path / name),), to, str(pieces), field="a.b", workers=1))
        assert made.Shards(folder)[:].tolist() == wanted, name
        with pytest.raises(UserError, match=r"no (field|column) 'a.c' .*b"):
            tokenize(
                Request((str(tmp_path / name),), to + "2", str(pieces), field="a.c", workers=1)
            )


@pytest.mark.parametrize("behind", ["", f" {END}", " <mid>"])
def test_the_template_of_the_tokenizer_stands_around_each_document(
    tmp_path: Path, pieces: Path, behind: str
) -> None:
    own = tokenizers.Tokenizer.from_file(str(pieces))
    own.add_special_tokens(["<bos>", "<mid>"])
    number = own.get_vocab()
    special = [(name, number[name]) for name in ("<bos>", "<mid>", END)]
    template = tokenizers.processors.TemplateProcessing
    own.post_processor = template(single=f"<bos> $A{behind}", special_tokens=special)
    own.save(str(tmp_path / "framed.json"))
    texts = ["one text", "two", "words of a long one\n" * 90_000]  # the last in pieces
    for at, text in enumerate(texts):
        (tmp_path / f"{at}.txt").write_text(text)
    files = tuple(str(tmp_path / f"{at}.txt") for at in range(3))
    request = Request(files, str(tmp_path / "out"), str(tmp_path / "framed.json"), workers=1)
    plain = made.Shards(tokenize(request))[:].tolist()
    framed = replace(request, special_tokens=True)
    with pytest.raises(UserError, match="begun otherwise: --special-tokens changed"):
        tokenize(framed)
    got = made.Shards(tokenize(replace(framed, to=str(tmp_path / "framed"))))[:].tolist()
    wanted: list[int] = []
    for token in plain:
        if not wanted or wanted[-1] == number[END]:
            wanted.append(number["<bos>"])
        wanted += [number["<mid>"], token] if "mid" in behind and token == number[END] else [token]
    assert got == wanted
    assert got.count(number["<bos>"]) == 3
    bare = Request(files, str(tmp_path / "bare"), str(pieces), workers=1, special_tokens=True)
    with pytest.raises(UserError, match="puts none around a text"):
        tokenize(bare)


def test_a_template_that_begins_with_the_end_token_is_refused(tmp_path: Path, pieces: Path) -> None:
    """OPT's does: each document would be parted from the next by two."""
    own = tokenizers.Tokenizer.from_file(str(pieces))
    special = [(END, own.token_to_id(END))]
    template = tokenizers.processors.TemplateProcessing
    own.post_processor = template(single=f"{END} $A", special_tokens=special)
    own.save(str(tmp_path / "opt.json"))
    (tmp_path / "in.txt").write_text("one text")
    request = Request(
        (str(tmp_path / "in.txt"),), str(tmp_path / "out"), str(tmp_path / "opt.json")
    )
    with pytest.raises(UserError, match=f"begins with {re.escape(END)}, which stands behind each"):
        tokenize(replace(request, special_tokens=True))
    assert not (tmp_path / "out").exists()


def test_a_column_is_not_taken_for_the_part_of_a_structure(tmp_path: Path, pieces: Path) -> None:
    table = pa.table({"a": [{"b": "within"}, {"b": "it"}], "a.b": ["one text", "two"]})
    pq.write_table(table, tmp_path / "in.parquet")
    request = Request((str(tmp_path / "in.parquet"),), str(tmp_path / "out"), str(pieces))
    got = made.Shards(tokenize(replace(request, field="a.b", workers=1)))[:].tolist()
    assert got == expected(pieces, ["one text", "two"])
