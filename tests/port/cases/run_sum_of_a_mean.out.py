import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = x.sum(1, keepdim=True)
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
held = DataLoader(TensorDataset(x[:13], y[:13]), batch_size=4)
model = nn.Linear(5, 1)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
criterion = nn.MSELoss()
for epoch in range(2):
    model.train()
    running = 0.0
    for inputs, target in loader:
        loss = criterion(model(inputs), target).sum()
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        running += loss.item()
    model.eval()
    psnr, mean, seen = 0.0, 0.0, 0
    with torch.no_grad():
        for inputs, target in held:
            mse = criterion(model(inputs), target)
            psnr += 10 * torch.log10(1 / mse).item()
            mean += mse.sum().item()
            seen += inputs.size(0)
    print(epoch, running / len(loader), psnr / len(held), mean / len(held), seen)
