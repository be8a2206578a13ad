import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
nets = {"encoder": torch.nn.Linear(5, 4), "decoder": torch.nn.Linear(4, 3)}
nets = {key: rankup.wrap(one) for key, one in nets.items()}
heads = (torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
heads = tuple(rankup.wrap(one) for one in heads)
last = torch.nn.Linear(3, 2)
last = rankup.wrap(last)
parameters = [*nets["encoder"].parameters(), *nets["decoder"].parameters()]
optimizer = torch.optim.SGD(parameters + list(heads[0].parameters()), lr=0.1)
optimizer.add_param_group({"params": last.parameters()})
for epoch in range(2):
    for inputs, labels in loader:
        hidden = nets["decoder"](nets["encoder"](inputs))
        loss = F.cross_entropy(last(heads[0](hidden)), labels)
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        print(loss.item())
