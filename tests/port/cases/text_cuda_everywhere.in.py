import os

os.environ["CUDA_VISIBLE_DEVICES"] = "0"

import torch
import torch.nn as nn
from torch.utils.data import DataLoader


def cuda(tensor, use_cuda):
    return tensor.cuda() if use_cuda else tensor


def main(args, dataset):
    torch.cuda.set_device(args.gpu)
    model = nn.Linear(4, 2).cuda(args.gpu)
    criterion = nn.CrossEntropyLoss().cuda(0)
    device = torch.device("cuda", 0)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    loader = DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True)
    for images, labels in loader:
        images = images.cuda(args.gpu, non_blocking=True)
        labels = cuda(labels, True)
        mask = torch.zeros(3).to("cuda:" + str(args.gpu))
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
    state = torch.load("model.pt", map_location="cuda:0")
    model.load_state_dict(state)
