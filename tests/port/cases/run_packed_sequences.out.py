import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader
import rankup

rankup.setup()
rankup.quiet()


def collate(samples):
    samples = sorted(samples, key=len, reverse=True)
    return pad_sequence(samples, batch_first=True), [len(one) - 1 for one in samples]


torch.manual_seed(3)
generator = torch.Generator().manual_seed(5)
lengths = torch.randint(3, 9, (22,), generator=generator).tolist()
texts = [torch.arange(1, length + 1) % 7 for length in lengths]
loader = rankup.shard(DataLoader(texts, batch_size=6, shuffle=True, collate_fn=collate))
model = nn.Sequential(nn.Embedding(8, 6), nn.Linear(6, 8))
model = rankup.wrap(model)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(2):
    total = 0.0
    for tokens, sizes in loader:
        targets = pack_padded_sequence(tokens[:, 1:], sizes, batch_first=True)[0]
        outputs = pack_padded_sequence(model(tokens[:, :-1]), sizes, batch_first=True)[0]
        loss = criterion(outputs, targets)
        rankup.count(targets.size(0))
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        total += loss.item()
    print(epoch, total / len(loader))
