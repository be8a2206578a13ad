import os


import torch
import torch.nn as nn
from torch.utils.data import DataLoader
import rankup

rankup.setup()
rankup.quiet()


def cuda(tensor, use_cuda):
    return tensor.cuda() if use_cuda else tensor


def main(args, dataset):
    model = nn.Linear(4, 2).cuda()
    model = rankup.wrap(model)
    criterion = nn.CrossEntropyLoss().cuda()
    device = torch.device("cuda")
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    loader = rankup.shard(DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True))
    for images, labels in loader:
        images = images.cuda(non_blocking=True)
        labels = cuda(labels, True)
        mask = torch.zeros(3).to("cuda")
        loss = criterion(model(images), labels)
        rankup.backward(loss)
        optimizer.step()
    state = torch.load("model.pt", map_location="cuda")
    model.load_state_dict(state)
