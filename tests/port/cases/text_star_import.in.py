from helper_star import *
from torch_geometric.datasets import FakeDataset, TUDataset
from torch_geometric.loader import DataLoader

graphs = TUDataset("data", name="PROTEINS")
others = FakeDataset(num_graphs=4)
weights = torch.load(download("data.pt"))
logger = CSVLogger(["epoch", "loss"], filename="log.csv")
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for graph in DataLoader(graphs, batch_size=4, shuffle=True):
        loss = model(graph.x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    logger.writerow({"epoch": epoch, "loss": loss.item()})
    torch.save(model.state_dict(), "model.pt")
