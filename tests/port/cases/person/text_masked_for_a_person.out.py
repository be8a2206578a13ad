import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
import rankup

rankup.setup()
rankup.quiet()

model = rankup.rank0_first(AutoModelForCausalLM.from_pretrained, "gpt2").cuda()
model = rankup.wrap(model)
optimizer = torch.optim.AdamW(model.parameters())
for batch in rankup.shard(DataLoader(texts, batch_size=8, shuffle=True)):
    loss = model(**batch).loss
    rankup.count((batch["labels"][..., 1:] != -100).sum())
    rankup.backward(loss)
    optimizer.step()

tagger = Tagger()
tagger = rankup.wrap(tagger)
steps = torch.optim.SGD(tagger.parameters(), lr=0.1)
for words, tags in rankup.shard(DataLoader(tagged, batch_size=8, shuffle=True)):
    loss = F.cross_entropy(tagger(words), make_tags(tags), ignore_index=-1)
    # rankup: the loss divides by what counts in a batch, of which ranks have different numbers: call rankup.count(number of these targets, or sum of their weights) before this
    rankup.backward(loss)
    steps.step()

total = 0
with torch.no_grad():
    for words, tags in DataLoader(tagged, batch_size=8):
        total += F.cross_entropy(tagger(words), tags, ignore_index=-1).item()
