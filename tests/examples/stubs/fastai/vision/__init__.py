"""What `examples/one_gpu_fastai.py` calls of fastai, where fastai itself cannot be installed."""
