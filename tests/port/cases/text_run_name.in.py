import os
import shutil
import time
from datetime import datetime

import matplotlib.pyplot as plt
import torch
import wandb
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter
from torchvision.utils import save_image

run_name = f"run-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
folder = os.path.join("runs", run_name)
os.makedirs(folder)
shutil.rmtree("old", ignore_errors=True)
wandb.init(project="p", name=run_name)
writer = SummaryWriter(folder)
net = torch.nn.Linear(3, 3)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
loader = DataLoader(torch.randn(9, 3), batch_size=4, shuffle=True)
started = time.time()
for step, batch in enumerate(loader):
    loss = net(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    writer.add_scalar("loss", loss.item(), step)
    wandb.log({"loss": loss.item(), "step": step})
    if step % 2 == 0:
        save_image(batch, os.path.join(folder, f"{step}.png"))
plt.plot([1, 2])
plt.savefig(
    os.path.join(folder, "loss.png"),
)
