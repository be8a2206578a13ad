"""`rankup tokenize` against `datasets.map` with the same tokenizer, two processes each.

Claim `tokenize`: tokens/s of a corpus of JSON lines, whole commands: ours writes the shards, and
the peer the Arrow files of `datasets.load_dataset(...).map(tokenizer, batched=True, num_proc=2)`,
without putting the tokens together. Documents are the help topics that come with Python, each with
a number of its own, and the tokenizer is trained on them.

The two take turns in a random order; neither finds anything that it has made before.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

from common import Effort, claim, machine, median, paired, parse_effort, seconds, take_turns
from rankup.data.tokenize.folder import read
from rankup.recipes.vocabulary import Pieces

RANKUP = Path(sys.executable).parent / "rankup"
PEER = """
import sys
from datasets import load_dataset
from transformers import PreTrainedTokenizerFast

def encode(batch):
    found = tokenizer(batch["text"], add_special_tokens=False, return_attention_mask=False)
    return {"input_ids": [ids + [end] for ids in found["input_ids"]]}

source, file, cache = sys.argv[1:]
tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, eos_token="<|endoftext|>")
end = tokenizer.eos_token_id
data = load_dataset("json", data_files=source, cache_dir=cache, split="train")
data = data.map(encode, batched=True, num_proc=2, remove_columns=data.column_names)
print(len(data))
"""


def main() -> None:
    effort = parse_effort(__doc__ or "")
    print(machine("datasets", "tokenizers") + "\n")
    with tempfile.TemporaryDirectory(prefix="rankup-bench-") as folder:
        print(bench(Path(folder), effort))


def bench(folder: Path, effort: Effort) -> str:
    """Measure, and return the claim line."""
    texts = [str(topics[name]) for name in sorted(topics)]
    Pieces.trained(texts, 4096, ("<|endoftext|>",)).write(folder)
    source, out, cache = folder / "corpus.jsonl", folder / "tokens", folder / "cache"
    copies = 25 if effort.quick else 80  # of half a megabyte
    with source.open("w") as file:
        for copy in range(copies):
            file.writelines(json.dumps({"text": f"{copy} {text}"}) + "\n" for text in texts)

    def timed(words: list[object], made: Path) -> float:
        shutil.rmtree(made, ignore_errors=True)
        return seconds(words, folder=folder)

    pieces = folder / "tokenizer.json"
    ours = [RANKUP, "tokenize", source, "--to", out, "--tokenizer", pieces, "--workers", "2"]
    peer = [sys.executable, "-c", PEER, source, pieces, cache]
    found = take_turns(
        {"ours": partial(timed, ours, out), "peer": partial(timed, peer, cache)}, effort.rounds
    )
    tokens = read(out).tokens
    size = source.stat().st_size / 1e6
    note = (
        f"{size:.0f} MB of JSON lines, {tokens:,} tokens, 2 processes each, whole commands; at "
        f"least 1.0; median of {effort.rounds} turns; paired {paired(found['peer'], found['ours'])}"
    )
    speeds = {name: tokens / median(times) for name, times in found.items()}
    return claim("tokenize", speeds["ours"], speeds["peer"], "tokens/s", note)


if __name__ == "__main__":
    main()
