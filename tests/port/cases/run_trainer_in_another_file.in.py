import torch
from helper_trainer import Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def loaders(batch_size):
    x = torch.randn(50, 6)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    train, valid = random_split(data, [38, 12])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(valid, batch_size)


def main():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    trainer = Trainer({"lr": 0.05, "epochs": 4}, model, loaders(8))
    trainer.train()
    print(trainer.best, sum(p.sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
