import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
x = torch.randn(26, 5)
data = TensorDataset(x, x.sin().sum(1, keepdim=True))
loader = DataLoader(data, batch_size=5, shuffle=True)
valid_loader = DataLoader(TensorDataset(*data[:7]), batch_size=3)

net = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.ReLU(), torch.nn.Linear(9, 1))
net.cuda() if torch.cuda.is_available() else None
print(sum(p.numel() for p in net.parameters()), "parameters")
steps = torch.optim.Adam(
    [
        {"params": net[0].parameters(), "lr": 0.01},
        {"params": net[2].parameters()},  # the last layer
    ],
    lr=0.02,
)

seen = 0
for epoch in range(2):
    for number, (inputs, targets) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(net(inputs), targets, reduction="sum")
        (loss / 2).backward()
        seen += len(inputs)
        if number % 2:
            steps.step()
            steps.zero_grad()
        if number == 3:
            error = 0.0
            with torch.no_grad():
                for inputs, targets in valid_loader:
                    error += torch.nn.functional.mse_loss(net(inputs), targets).item()
            print(f"{epoch}.{number}: loss {loss.item():.5f}, error {error / len(valid_loader):.6f}")
    torch.save({"model": net.state_dict(), "epoch": epoch, "seen": seen}, f"{epoch}.pt")
