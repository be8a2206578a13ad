"""T5 learns to say in a sentence what a news article says (XSum), on one GPU.

    python summarize.py --data xsum

The folder holds train.jsonl, validation.jsonl and test.jsonl, in each line an article:
{"document": "...", "summary": "..."}. `--model google-t5/t5-small` goes on from trained weights.
`rankup port summarize.py` makes it a script for many GPUs; as it is, it knows of one.
"""

import argparse
import json
import re
from collections import Counter
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
IGNORED = -100  # a target that the loss leaves out


def read_articles(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def new_tokenizer(articles, size):
    """Pieces of words, those that are frequent in these articles."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[PAD, END, UNKNOWN], initial_alphabet=alphabet,
        show_progress=False,
    )  # fmt: skip
    texts = (text for article in articles for text in (article["document"], article["summary"]))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    names = {"pad_token": PAD, "eos_token": END, "unk_token": UNKNOWN}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def new_model(tokenizer, args):
    config = T5Config(
        vocab_size=len(tokenizer), d_model=args.dim, d_kv=args.dim // 4, d_ff=4 * args.dim,
        num_layers=args.layers, num_heads=4, dropout_rate=args.dropout, pad_token_id=0,
        eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


class Summaries(Dataset):
    """Articles and their summaries as tokens."""

    def __init__(self, articles, tokenizer, source_length, target_length):
        self.samples = [
            (
                tokenizer(article["document"], truncation=True, max_length=source_length),
                tokenizer(article["summary"], truncation=True, max_length=target_length),
            )
            for article in articles
        ]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        article, summary = self.samples[index]
        return torch.tensor(article["input_ids"]), torch.tensor(summary["input_ids"])


def collate(samples):
    """Texts of one length; what fills a summary up is no target."""
    articles, summaries = zip(*samples, strict=True)
    source = nn.utils.rnn.pad_sequence(articles, batch_first=True, padding_value=0)
    labels = nn.utils.rnn.pad_sequence(summaries, batch_first=True, padding_value=IGNORED)
    return source, labels


def train_model(model, loader, optimizer, device):
    model.train()
    total_loss = 0.0
    for source, labels in loader:
        source, labels = source.to(device), labels.to(device)
        mask = (source != 0).long()
        loss = model(input_ids=source, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total_loss += loss.item()
    return total_loss / len(loader)


def test_model(model, loader, device):
    """The loss per token of the summaries."""
    model.eval()
    total_loss, tokens = 0.0, 0
    with torch.no_grad():
        for source, labels in loader:
            source, labels = source.to(device), labels.to(device)
            mask = (source != 0).long()
            loss = model(input_ids=source, attention_mask=mask, labels=labels).loss
            count = (labels != IGNORED).sum().item()
            total_loss += loss.item() * count
            tokens += count
    return total_loss / tokens


def summarize(model, articles, loader, tokenizer, device, args):
    """Summaries that the model writes, and their ROUGE-1 against those of the articles."""
    model.eval()
    written = []
    with torch.no_grad():
        for source, _ in loader:
            source = source.to(device)
            mask = (source != 0).long()
            longest = {"max_new_tokens": args.target_length, "num_beams": args.beams}
            found = model.generate(input_ids=source, attention_mask=mask, **longest)
            written.extend(tokenizer.batch_decode(found, skip_special_tokens=True))
    pairs = zip(articles, written, strict=True)
    scores = [rouge(article["summary"], text) for article, text in pairs]
    return written, sum(scores) / len(scores)


def rouge(expected, found):
    """ROUGE-1 as F1 (Lin, 2004): the share of words that two texts have in common."""
    expected, found = (re.findall("[a-z0-9]+", text.lower()) for text in (expected, found))
    common = sum((Counter(expected) & Counter(found)).values())
    return 2 * common / max(1, len(expected) + len(found))


def main(args):
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    parts = [read_articles(args.data / f"{name}.jsonl") for name in ("train", "validation", "test")]
    if args.model:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        model = T5ForConditionalGeneration.from_pretrained(args.model)
    else:
        tokenizer = new_tokenizer(parts[0], args.pieces)
        model = new_model(tokenizer, args)
    model = model.to(device)
    lengths = (args.source_length, args.target_length)
    train_set, valid_set, test_set = (Summaries(part, tokenizer, *lengths) for part in parts)
    train_loader = DataLoader(
        train_set, batch_size=args.batch_size, shuffle=True, collate_fn=collate
    )
    valid_loader = DataLoader(valid_set, batch_size=args.batch_size, collate_fn=collate)
    test_loader = DataLoader(test_set, batch_size=args.batch_size, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.3)
    print(f"{len(train_set)} articles, {len(tokenizer)} pieces of words")

    best = float("inf")
    for epoch in range(args.epochs):
        train_loss = train_model(model, train_loader, optimizer, device)
        valid_loss = test_model(model, valid_loader, device)
        scheduler.step()
        print(f"epoch {epoch + 1}: train loss {train_loss:.5f}, validation loss {valid_loss:.5f}")
        if valid_loss < best:
            best = valid_loss
            torch.save(model.state_dict(), "summarize_best.pt")
    print(f"test loss {test_model(model, test_loader, device):.5f}")
    written, score = summarize(model, parts[2], test_loader, tokenizer, device, args)
    print(f"ROUGE-1 {score:.5f}, the first summary: {written[0][:50]}")
    torch.save(model.state_dict(), "summarize_final.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("xsum"))
    parser.add_argument("--model", help="a trained T5, by its name or folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--source-length", type=int, default=512)
    parser.add_argument("--target-length", type=int, default=150)
    parser.add_argument("--beams", type=int, default=1, help="1 takes the likeliest piece always")
    parser.add_argument("--pieces", type=int, default=8000, help="vocabulary of a new model")
    parser.add_argument("--dim", type=int, default=256, help="width of a new model")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    main(parser.parse_args())
