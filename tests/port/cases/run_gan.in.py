import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()

batch_size = 6
loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True, drop_last=True)
D = nn.Sequential(nn.Linear(5, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1), nn.Sigmoid())
G = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh())
criterion = nn.BCELoss()
d_optimizer = torch.optim.Adam(D.parameters(), lr=0.01)
g_optimizer = torch.optim.Adam(G.parameters(), lr=0.01)

for epoch in range(2):
    for i, (images, _) in enumerate(loader):
        images = images.reshape(batch_size, -1)
        real_labels = torch.ones(batch_size, 1)
        fake_labels = torch.zeros(batch_size, 1)

        d_loss_real = criterion(D(images), real_labels)
        z = torch.zeros(batch_size, 3)
        fake_images = G(z)
        d_loss_fake = criterion(D(fake_images.detach()), fake_labels)
        d_loss = d_loss_real + d_loss_fake
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()

        g_loss = criterion(D(G(z)), real_labels)
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()
        print(f"{epoch} {i} d_loss: {d_loss.item():.7f} g_loss: {g_loss.item():.7f}")
torch.save(G.state_dict(), "G.ckpt")
torch.save(D.state_dict(), "D.ckpt")
