import torch
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(4)
x = torch.randn(26, 5)
data = TensorDataset(x, x.sin().sum(1, keepdim=True))
loader = rankup.shard(DataLoader(data, batch_size=5, shuffle=True))
valid_loader = rankup.shard(DataLoader(TensorDataset(*data[:7]), batch_size=3), train=True)

net = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.ReLU(), torch.nn.Linear(9, 1))
net.cuda() if torch.cuda.is_available() else None
print(sum(p.numel() for p in net.parameters()), "parameters")
net, steps = rankup.parallelize(lambda: net, lambda net: torch.optim.Adam(
    [
        {"params": net[0].parameters(), "lr": 0.01},
        {"params": net[2].parameters()},  # the last layer
    ],
    lr=0.02,
), "fsdp", seed=None)[:2]

seen = 0
for epoch in range(2):
    for number, (inputs, targets) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(net(inputs), targets, reduction="sum")
        rankup.summed((loss / 2)).backward()
        seen += rankup.batch_sum(len(inputs))
        if number % 2:
            steps.step()
            steps.zero_grad()
        if number == 3:
            error = 0.0
            with torch.no_grad():
                for inputs, targets in valid_loader:
                    error += rankup.batch_mean(torch.nn.functional.mse_loss(net(inputs), targets).item())
            print(f"{epoch}.{number}: loss {rankup.batch_sum(loss.item()):.5f}, error {error / len(valid_loader):.6f}")
    rankup.save_full_model(net, f"{epoch}.pt", epoch=epoch, seen=seen)
