"""Three layers that are tuned for XLA on a CPU; no other platform uses them.

Each layer computes what Flax's layer computes, with parameters of the same names and shapes. XLA
compiles Flax's layers to slow CPU code in these cases (benchmarks/README.md has the measurements):

  conv.py: XLA's convolution is slow for outputs of a few pixels, for patches of a few values, for
    the kernel gradient of 1x1 convolutions and, where the CPU multiplies bfloat16 numbers, for
    these. Matrix products replace it there.
  pool.py: the gradient of nn.max_pool is slow. Our gradient reads the offset of each maximum in
    its window, which the forward pass has stored.
  norm.py: nn.BatchNorm stores x - mean for its gradient. Ours stores nothing but x.

Nothing was measured on a GPU or a TPU, so networks use Flax's layers there: `models/layers.py`
chooses by the platform.
"""
