"""T5 learns to summarise on one GPU; its port is beside it.

    rankup port examples/one_gpu_summarization.py

The texts are made up and the model is built from a config, so that nothing is downloaded.
"""

import argparse
import random

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset
from transformers import T5Config, T5ForConditionalGeneration
import rankup

PAD, END, IGNORED = 0, 1, -100
WHO = ["anna", "the cat", "a sailor", "the old king", "nobody", "my neighbour"]
DID = ["found", "sold", "painted", "lost", "drew a map of", "asked for"]
WHAT = ["a boat", "the moon", "three apples", "an empty house", "the way home", "a song"]
ASIDE = ["it rained all day", "the road was long", "birds sang", "and so it went on"]


def make_pairs(samples, seed):
    """Articles of some sentences, the first of which says what they are about."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(samples):
        news = f"{draw.choice(WHO)} {draw.choice(DID)} {draw.choice(WHAT)}"
        asides = draw.choices(ASIDE, k=draw.randint(0, 3))
        pairs.append((" . ".join([news, *asides]), news))
    return pairs


class Vocabulary:
    def __init__(self, pairs):
        words = sorted({word for article, _ in pairs for word in article.split()})
        self.number = {word: number for number, word in enumerate(words, END + 1)}

    def __len__(self):
        return len(self.number) + END + 1

    def encode(self, text):
        return torch.tensor([self.number[word] for word in text.split()] + [END])


class Summaries(Dataset):
    def __init__(self, pairs, vocabulary):
        self.samples = [tuple(map(vocabulary.encode, pair)) for pair in pairs]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def collate(samples):
    """Texts of one length; what fills a summary up is no target."""
    articles, summaries = zip(*samples)
    source = torch.nn.utils.rnn.pad_sequence(articles, batch_first=True, padding_value=PAD)
    labels = torch.nn.utils.rnn.pad_sequence(summaries, batch_first=True, padding_value=IGNORED)
    return {"input_ids": source, "attention_mask": (source != PAD).long(), "labels": labels}


def train_model(model, loader, optimizer, device):
    model.train()
    total_loss = 0
    for batch in loader:
        source = batch["input_ids"].to(device)
        mask = batch["attention_mask"].to(device)
        labels = batch["labels"].to(device)
        outputs = model(input_ids=source, attention_mask=mask, labels=labels)
        rankup.count((labels != -100).sum())
        loss = outputs.loss
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total_loss += rankup.batch_mean(loss.item())
    return total_loss / len(loader)


def test_model(model, loader, device):
    """The loss per token of the summaries."""
    model.eval()
    total_loss, total_tokens = 0.0, 0
    with torch.no_grad():
        for batch in loader:
            source = batch["input_ids"].to(device)
            mask = batch["attention_mask"].to(device)
            labels = batch["labels"].to(device)
            outputs = model(input_ids=source, attention_mask=mask, labels=labels)
            tokens = (labels != IGNORED).sum().item()
            total_loss += outputs.loss.item() * tokens
            total_tokens += tokens
    return total_loss / total_tokens


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pairs = make_pairs(args.samples, seed=1)
    vocabulary = Vocabulary(pairs)
    train_data = Summaries(pairs[: -args.samples // 5], vocabulary)
    valid_data = Summaries(pairs[-args.samples // 5 :], vocabulary)
    train_loader = rankup.shard(DataLoader(
        train_data, batch_size=args.batch_size, shuffle=True, collate_fn=collate
    ))
    valid_loader = DataLoader(valid_data, batch_size=args.batch_size, collate_fn=collate)

    config = T5Config(
        vocab_size=len(vocabulary), d_model=args.dim, d_kv=args.dim // 2, d_ff=2 * args.dim,
        num_layers=args.layers, num_heads=2, dropout_rate=args.dropout,
        pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).to(device)
    model = rankup.wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.9)

    best = float("inf")
    for epoch in range(args.epochs):
        train_loss = train_model(model, train_loader, optimizer, device)
        valid_loss = rankup.broadcast(test_model(model, valid_loader, device))
        scheduler.step()
        print(f"[{epoch + 1}/{args.epochs}] train {train_loss:.6f}, validation {valid_loss:.6f}")
        if valid_loss < best:
            best = valid_loss
            rankup.save0({"model": model.state_dict(), "epoch": epoch}, "summarization_best.pt")
    rankup.save0(model.state_dict(), "summarization_final.pt")


if __name__ == "__main__":
    rankup.setup()
    rankup.quiet()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=57)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.0)
    args = parser.parse_args()
    torch.manual_seed(1)
    main(args)
