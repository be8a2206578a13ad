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

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).to(device)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()

for epoch in range(2):
    running_loss = 0.0
    for inputs, labels in loader:
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
        running_loss += loss.item()
    print(f"epoch {epoch}: {running_loss / len(loader):.8f}")
