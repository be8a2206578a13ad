import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()

batch_size = 6
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True, drop_last=True))
D = nn.Sequential(nn.Linear(5, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1), nn.Sigmoid())
D = rankup.wrap(D)
G = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh())
G = rankup.wrap(G)
criterion = nn.BCELoss()
d_optimizer = torch.optim.Adam(D.parameters(), lr=0.01)
g_optimizer = torch.optim.Adam(G.parameters(), lr=0.01)

for epoch in range(2):
    for i, (images, _) in enumerate(loader):
        images = images.reshape(images.size(0), -1)
        real_labels = torch.ones(images.size(0), 1)
        fake_labels = torch.zeros(images.size(0), 1)

        d_loss_real = criterion(D(images), real_labels)
        z = torch.zeros(images.size(0), 3)
        fake_images = G(z)
        d_loss_fake = criterion(D(fake_images.detach()), fake_labels)
        d_loss = d_loss_real + d_loss_fake
        d_optimizer.zero_grad()
        rankup.backward(d_loss)
        d_optimizer.step()

        g_loss = criterion(D(G(z)), real_labels)
        g_optimizer.zero_grad()
        rankup.backward(g_loss)
        g_optimizer.step()
        print(f"{epoch} {i} d_loss: {d_loss.item():.7f} g_loss: {g_loss.item():.7f}")
rankup.save0(G.state_dict(), "G.ckpt")
rankup.save0(D.state_dict(), "D.ckpt")
