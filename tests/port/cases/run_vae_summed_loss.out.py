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


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(5, 4)
        self.fc2 = nn.Linear(4, 5)

    def encode(self, x):
        return torch.tanh(self.fc1(x))

    def decode(self, z):
        return torch.sigmoid(self.fc2(z))

    def forward(self, x):
        z = self.encode(x)
        return self.decode(z), z


def loss_function(recon_x, x, z):
    bce = nn.functional.binary_cross_entropy(recon_x, x.sigmoid(), reduction="sum")
    return bce + 0.5 * z.pow(2).sum()


model = VAE()
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(epoch):
    model.train()
    train_loss = 0
    for batch_idx, (data, _) in enumerate(loader):
        optimizer.zero_grad()
        recon_batch, z = model(data)
        loss = loss_function(recon_batch, data, z)
        rankup.backward(loss, summed=True)
        train_loss += loss.item()
        optimizer.step()
        if batch_idx % 2 == 0:
            print("Loss: {:.8f}".format(loss.item() / rankup.batch_sum(len(data))))
    print("Average loss: {:.8f}".format(train_loss / len(loader.dataset)))


for epoch in range(2):
    train(epoch)
    with torch.no_grad():
        sample = model.decode(torch.ones(2, 4))
        print(sample.sum().item())
