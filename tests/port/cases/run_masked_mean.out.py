import torch
from torch import nn
from torch.utils.data import DataLoader
import rankup

rankup.setup()
rankup.quiet()

PAD = 0


def collate(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True, padding_value=PAD)


def train(model, loader, criterion, optimizer):
    total = 0.0
    for tokens in loader:
        logits = model(tokens[:, :-1])
        loss = criterion(logits.flatten(0, 1), tokens[:, 1:].flatten())
        rankup.count((tokens[:, 1:].flatten() != PAD).sum())
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def evaluate(model, loader, criterion):
    total, words = 0.0, 0
    with torch.no_grad():
        for tokens in loader:
            targets = tokens[:, 1:]
            n = (targets != PAD).sum().item()
            loss = criterion(model(tokens[:, :-1]).flatten(0, 1), targets.flatten())
            total += loss.item() * n
            words += n
    return total / words


torch.manual_seed(3)
generator = torch.Generator().manual_seed(5)
lengths = torch.randint(3, 9, (31,), generator=generator).tolist()
texts = [torch.arange(1, length + 1) % 7 + 1 for length in lengths]
loader = rankup.shard(DataLoader(texts[:22], batch_size=8, shuffle=True, collate_fn=collate))
valid_loader = DataLoader(texts[22:], batch_size=8, collate_fn=collate)
model = nn.Sequential(nn.Embedding(8, 6), nn.Linear(6, 8))
model = rankup.wrap(model)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(3):
    print(epoch, f"{train(model, loader, criterion, optimizer):.6f}")
    print("validation", f"{evaluate(model, valid_loader, criterion):.6f}")
