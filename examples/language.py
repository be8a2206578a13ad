"""A transformer learns to go on with a text (WikiText-2), word by word, on one GPU.

    python language.py --data wikitext-2

The folder holds train.txt, valid.txt and test.txt. `rankup port language.py` makes it a script for
many GPUs; as it is, it knows of one.
"""

import argparse
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

UNKNOWN, END = "<unk>", "<eos>"


def read_words(path):
    """The words of a text, with an end behind each line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [word for line in lines if line.strip() for word in [*line.split(), END]]


class Vocabulary:
    """The most frequent words of a text, numbered; all others are one unknown word."""

    def __init__(self, words, size):
        counted = Counter(words)
        counted[UNKNOWN] += 1
        self.words = [word for word, _ in counted.most_common(size)]
        if UNKNOWN not in self.words:
            self.words[-1] = UNKNOWN
        self.numbers = {word: number for number, word in enumerate(self.words)}

    def encode(self, words):
        return torch.tensor([self.numbers.get(word, self.numbers[UNKNOWN]) for word in words])


class Text(Dataset):
    """Windows of a text, and the word that follows on each of their words."""

    def __init__(self, tokens, length):
        self.tokens, self.length = tokens, length

    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index):
        start = index * self.length
        window = self.tokens[start : start + self.length + 1]
        return window[:-1], window[1:]


class LanguageModel(nn.Module):
    """A transformer that sees the words up to here, and scores each word as the next."""

    def __init__(self, vocabulary, length, dim, layers, heads, dropout):
        super().__init__()
        self.word = nn.Embedding(vocabulary, dim)
        self.place = nn.Embedding(length, dim)
        block = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout, "gelu", batch_first=True, norm_first=True, bias=False
        )
        end = nn.LayerNorm(dim, bias=False)
        self.blocks = nn.TransformerEncoder(block, layers, end, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, words):
        length = words.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, words.device)
        x = self.word(words) + self.place(torch.arange(length, device=words.device))
        return self.head(self.blocks(x, mask=mask, is_causal=True))


def train_model(model, loader, optimizer, loss_func, device):
    model.train()
    total_loss = 0
    for source, target in loader:
        source, target = source.to(device), target.to(device)
        loss = loss_func(model(source).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total_loss += loss.item()
    return total_loss / len(loader)


def test_model(model, loader, loss_func, device):
    model.eval()
    total_loss = 0.0
    with torch.no_grad():
        for source, target in loader:
            source, target = source.to(device), target.to(device)
            loss = loss_func(model(source).flatten(0, 1), target.flatten())
            total_loss += loss.item() * len(source)
    return total_loss / len(loader.dataset)


def main(args):
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_words = read_words(args.data / "train.txt")
    vocabulary = Vocabulary(train_words, args.words)
    train_set = Text(vocabulary.encode(train_words), args.length)
    valid_set = Text(vocabulary.encode(read_words(args.data / "valid.txt")), args.length)
    test_set = Text(vocabulary.encode(read_words(args.data / "test.txt")), args.length)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    valid_loader = DataLoader(valid_set, batch_size=args.batch_size)
    test_loader = DataLoader(test_set, batch_size=args.batch_size)

    sizes = (args.dim, args.layers, args.heads, args.dropout)
    model = LanguageModel(len(vocabulary.words), args.length, *sizes).to(device)
    loss_func = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    print(f"{len(train_set)} windows of {args.length} words, {len(vocabulary.words)} known words")

    first, best = 0, float("inf")
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        first, best = checkpoint["epoch"], checkpoint["best"]
    for epoch in range(first, args.epochs):
        train_loss = train_model(model, train_loader, optimizer, loss_func, device)
        valid_loss = test_model(model, valid_loader, loss_func, device)
        scheduler.step()
        print(f"epoch {epoch + 1}: train loss {train_loss:.5f}, validation loss {valid_loss:.5f}")
        if valid_loss < best:
            best = valid_loss
            torch.save(model.state_dict(), "language_best.pt")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state.update(scheduler=scheduler.state_dict(), epoch=epoch + 1, best=best)
        torch.save(state, "language_checkpoint.pt")
    test_loss = test_model(model, test_loader, loss_func, device)
    print(f"test loss {test_loss:.5f}")
    torch.save(model.state_dict(), "language_final.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("wikitext-2"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--words", type=int, default=10000, help="size of the vocabulary")
    parser.add_argument("--length", type=int, default=64, help="words of a window")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--resume", type=Path, help="go on from a language_checkpoint.pt")
    parser.add_argument("--seed", type=int, default=1)
    main(parser.parse_args())
