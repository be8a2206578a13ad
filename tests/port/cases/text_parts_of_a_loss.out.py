import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.utils import save_image
from tqdm import tqdm
import rankup

rankup.setup()
rankup.quiet()

loader = rankup.shard(DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8))
nets = nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])
nets = rankup.wrap(nets)
optimizer = torch.optim.Adam(nets.parameters(), lr=0.01)
total, styles = 0.0, 0.0
with tqdm(total=64) as bar:
    for images, wanted in loader:
        style = 0.0
        for net in nets:
            score = net(images)
            style += (score - wanted).pow(2).mean()
        style *= 0.5
        content = images.pow(2).mean()
        loss = style + content
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        total += loss.item()
        styles += style.item()
        bar.update(images.shape[0])
        print(f"loss {total:.3f} D(x) {score.mean().item():.3f}")
if rankup.is_root_process(): save_image(images, "last.png")
rankup.save0(nets.state_dict(), "epoch_" + str(time.ctime()).replace(" ", "_") + ".pt")
name = rankup.broadcast("model_" + time.ctime() + ".pt")
rankup.save0(nets.state_dict(), name)
