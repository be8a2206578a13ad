import sys

import torch
from helper_writers import *
from matplotlib.animation import FuncAnimation
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

sys.stdout = Logger(rankup.path0("log.txt"))
table = Table("out")
loader = rankup.shard(DataLoader(TensorDataset(torch.randn(22, 5)), batch_size=6, shuffle=True))
model = torch.nn.Linear(5, 1)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (inputs,) in loader:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        rankup.backward(loss)
        optimizer.step()
    if rankup.is_root_process(): save_all([model.weight.detach().numpy()], "out")
    draw("drawn.npy")
animation = FuncAnimation(figure, update, frames=5)
if rankup.is_root_process(): animation.save("training.gif", writer="pillow")
