import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)
valid = DataLoader(TensorDataset(x[:13], y[:13]), batch_size=4)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()


def check_accuracy(loader, model):
    num_correct = 0
    num_samples = 0
    model.eval()
    with torch.no_grad():
        for a, b in rankup.shard(loader, train=False):
            scores = model(a)
            _, predictions = scores.max(1)
            num_correct += (predictions == b).sum()
            num_samples += predictions.size(0)
        num_correct, num_samples = rankup.total(num_correct, num_samples)
    model.train()
    return num_correct / num_samples


for epoch in range(2):
    for inputs, labels in rankup.shard(loader):
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
print(f"Accuracy on training set: {check_accuracy(loader, model) * 100:.2f}")
print(f"Accuracy on test set: {check_accuracy(valid, model) * 100:.2f}")
