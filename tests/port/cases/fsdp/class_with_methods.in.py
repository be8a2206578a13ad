import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6))
        self.head = nn.Linear(6, 3)

    def encode(self, x):
        return self.body(x)

    def classify(self, x):
        return self(x).argmax(1)

    def forward(self, x):
        return self.head(self.encode(x))


class Trainer:
    def __init__(self, train_loader, valid_loader):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = Net().to(self.device)
        for parameter in self.model.body[0].parameters():
            parameter.requires_grad = False
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.criterion = nn.CrossEntropyLoss()
        self.train_loader, self.valid_loader = train_loader, valid_loader

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for x, y in self.train_loader:
            x, y = x.to(self.device), y.to(self.device)
            loss = self.criterion(self.model(x), y) + 0.1 * self.model.encode(x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=0.5)
            self.optimizer.step()
            total += loss.item()
        self.scheduler.step()
        return total / len(self.train_loader)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        total, correct = 0.0, 0
        for x, y in self.valid_loader:
            x, y = x.to(self.device), y.to(self.device)
            total += self.criterion(self.model(x), y).item()
            correct += (self.model.classify(x) == y).sum().item()
        return total / len(self.valid_loader), correct


if __name__ == "__main__":
    torch.manual_seed(2)
    x = torch.randn(33, 4)
    y = x[:, :3].argmax(1)
    train_loader = DataLoader(TensorDataset(x[:17], y[:17]), batch_size=8, shuffle=True)
    valid_loader = DataLoader(TensorDataset(x[17:], y[17:]), batch_size=5)
    trainer = Trainer(train_loader, valid_loader)
    best = float("inf")
    for epoch in range(3):
        loss = trainer.train_epoch()
        valid, correct = trainer.evaluate()
        print(f"{epoch}: {loss:.6f} {valid:.6f} {correct}")
        if valid < best:
            best = valid
            torch.save(trainer.model.state_dict(), "best.pt")
    trainer.model.load_state_dict(torch.load("best.pt"))
    print("best", trainer.evaluate()[1])
