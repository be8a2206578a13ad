import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
valid = DataLoader(TensorDataset(x[:13], y[:13]), batch_size=4)

best_acc = 0
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()


def train(epoch):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()


def test(epoch):
    global best_acc
    model.eval()
    correct = 0
    total = 0
    with torch.no_grad():
        for batch_idx, (inputs, targets) in enumerate(rankup.shard(valid, train=False)):
            outputs = model(inputs)
            _, predicted = outputs.max(1)
            total += targets.size(0)
            correct += predicted.eq(targets).sum().item()
        total, correct = rankup.total(total, correct)
    acc = 100.0 * correct / total
    if acc > best_acc:
        state = {
            "net": model.state_dict(),
            "acc": acc,
            "epoch": epoch,
        }
        rankup.save0(state, "ckpt.pth", pickled=True)
        best_acc = acc


for epoch in range(2):
    train(epoch)
    test(epoch)
    print(best_acc)
