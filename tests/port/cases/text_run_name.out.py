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
import rankup

rankup.setup()
rankup.quiet()

run_name = rankup.broadcast(f"run-{datetime.now().strftime('%Y%m%d-%H%M%S')}")
folder = os.path.join("runs", run_name)
os.makedirs(folder, exist_ok=True)
if rankup.is_root_process(): shutil.rmtree("old", ignore_errors=True)
rankup.barrier()
wandb.init(project="p", name=run_name)
writer = SummaryWriter(folder)
net = torch.nn.Linear(3, 3)
net = rankup.wrap(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
loader = rankup.shard(DataLoader(torch.randn(9, 3), batch_size=4, shuffle=True))
started = time.time()
for step, batch in enumerate(loader):
    loss = net(batch).pow(2).mean()
    rankup.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    writer.add_scalar("loss", loss.item(), step)
    wandb.log({"loss": loss.item(), "step": step})
    if step % 2 == 0:
        if rankup.is_root_process(): save_image(batch, os.path.join(folder, f"{step}.png"))
plt.plot([1, 2])
if rankup.is_root_process(): plt.savefig(
    os.path.join(folder, "loss.png"),
)
