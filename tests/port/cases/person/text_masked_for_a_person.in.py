import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(texts, batch_size=8, shuffle=True):
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()

tagger = Tagger()
steps = torch.optim.SGD(tagger.parameters(), lr=0.1)
for words, tags in DataLoader(tagged, batch_size=8, shuffle=True):
    loss = F.cross_entropy(tagger(words), make_tags(tags), ignore_index=-1)
    loss.backward()
    steps.step()

total = 0
with torch.no_grad():
    for words, tags in DataLoader(tagged, batch_size=8):
        total += F.cross_entropy(tagger(words), tags, ignore_index=-1).item()
