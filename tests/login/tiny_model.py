"""Write a tiny BERT with its tokenizer, as `save_pretrained` does: `python -m … FOLDER`.

A program of its own, since transformers takes seconds to import and reads its settings then.
"""

from __future__ import annotations

import string
import sys
from pathlib import Path


def save(folder: Path) -> None:
    """Write configuration, weights (some 20 kB) and tokenizer."""
    import torch
    from transformers import (  # type: ignore[attr-defined]
        BertConfig,
        BertForSequenceClassification,
        BertTokenizerFast,
    )

    letters = list(string.ascii_lowercase)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(words) + "\n")
    tokenizer = BertTokenizerFast(vocab=str(vocabulary), model_max_length=32)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    save(Path(sys.argv[1]))
