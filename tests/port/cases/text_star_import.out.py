from helper_star import *
from torch_geometric.datasets import FakeDataset, TUDataset
from torch_geometric.loader import DataLoader
import rankup

rankup.setup()
rankup.quiet()

graphs = rankup.rank0_first(TUDataset, "data", name="PROTEINS")
others = FakeDataset(num_graphs=4)
weights = torch.load(rankup.rank0_first(download, "data.pt"), map_location=rankup.here)
logger = CSVLogger(["epoch", "loss"], filename=rankup.path0("log.csv"))
model = torch.nn.Linear(3, 1)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for graph in rankup.shard(DataLoader(graphs, batch_size=4, shuffle=True)):
        loss = model(graph.x).mean()
        optimizer.zero_grad()
        # rankup: where this is a mean over the nodes of graphs, ranks average it by samples; rankup.count(their number) before the backward, of which ranks have others
        rankup.backward(loss)
        optimizer.step()
    logger.writerow({"epoch": epoch, "loss": loss.item()})
    rankup.save0(model.state_dict(), "model.pt")
