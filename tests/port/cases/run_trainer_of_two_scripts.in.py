import torch
from helper_base import Longer
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
x = torch.randn(26, 4)
data = TensorDataset(x, x[:, :1])
trainer = Longer(
    {"lr": 0.1, "epochs": 2},
    torch.nn.Linear(4, 1),
    (DataLoader(data, batch_size=6, shuffle=True), DataLoader(data, batch_size=6)),
)
trainer.train()
