import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup


class Trainer:
    def __init__(self, model, train_data, optimizer, device):
        self.device = device
        self.model = model.to(device)
        self.train_data = train_data
        self.optimizer = optimizer

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = nn.functional.mse_loss(output, targets)
        rankup.backward(loss)
        self.optimizer.step()

    def _run_epoch(self, epoch):
        b_sz = len(next(iter(self.train_data))[0])
        print(f"Epoch {epoch} | Steps: {len(self.train_data)}", end="\n" if b_sz else "")
        for source, targets in rankup.shard(self.train_data):
            source, targets = source.to(self.device), targets.to(self.device)
            self._run_batch(source, targets)

    def _save_checkpoint(self, epoch):
        ckp = self.model.state_dict()
        rankup.save0(ckp, "checkpoint.pt")
        print(f"Epoch {epoch} | Training checkpoint saved")

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)
        self._save_checkpoint(max_epochs)


def load_train_objs():
    inputs = torch.randn(22, 5)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = nn.Linear(5, 1)
    model = rankup.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return data, model, optimizer


def prepare_dataloader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, shuffle=True)


def main(device, total_epochs, batch_size):
    dataset, model, optimizer = load_train_objs()
    train_data = prepare_dataloader(dataset, batch_size)
    trainer = Trainer(model, train_data, optimizer, device)
    trainer.train(total_epochs)
    print(sum(p.sum().item() for p in model.parameters()))


if __name__ == "__main__":
    rankup.setup()
    rankup.quiet()
    torch.manual_seed(0)
    main("cpu", 2, 6)
