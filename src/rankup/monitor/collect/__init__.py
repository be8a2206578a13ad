"""The sampler: one per node beside the training, cheap, in nobody's way, ended with the job."""
