import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, SWALR, update_bn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(0)
x = torch.randn(31, 5)
y = (x.sum(1) > 0).long()
train_loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)
test_loader = DataLoader(TensorDataset(x, y), batch_size=6)
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
model = rankup.wrap(model)
swa_model = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
swa_scheduler = SWALR(optimizer, swa_lr=0.05)
for epoch in range(3):
    for xb, yb in rankup.shard(train_loader):
        optimizer.zero_grad()
        rankup.backward(nn.functional.cross_entropy(model(xb), yb))
        optimizer.step()
    if epoch >= 1:
        swa_model.update_parameters(model)
        swa_scheduler.step()
update_bn(train_loader, swa_model)
correct = 0
swa_model.eval()
with torch.no_grad():
    for xb, yb in test_loader:
        correct += (swa_model(xb).argmax(1) == yb).sum().item()
print("accuracy", correct / len(test_loader.dataset))
