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
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()

smooth = None
for epoch in range(2):
    correct = 0
    total = 0
    for i, (inputs, labels) in enumerate(loader):
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()

        if smooth is None:
            smooth = loss.item()
        else:
            smooth = 0.9 * smooth + 0.1 * loss.item()
        _, predicted = outputs.max(1)
        total += rankup.batch_sum(labels.size(0))
        correct += rankup.batch_sum(predicted.eq(labels).sum().item())
        print("Loss: %.6f | Acc: %.3f%% (%d/%d)" % (loss.item(), 100. * correct / total, correct, total))
    print(f"{smooth:.6f}")
