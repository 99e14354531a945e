"""What the GPU backend is worth on this machine: `make gpu-check`, or with another Python `python3 -m suite.bench.gpu`.

Needs little beside torch, triton and numpy, so it runs with what a GPU machine has. Four parts, each in a process of
its own that is ended when its time is up, so that the whole takes less than eight minutes whatever happens:

verify  values and gradients of every form of keys, float32 and bfloat16, against the float64 reference on the GPU
time    attention forward and forward + backward at 32,768 tokens, T = 1k, 4k and 16k: gpu against SDPA and masked
flex    the same against compiled FlexAttention with the pattern's `mask_mod`
train   steps of the paper's configuration (60.85 M parameters, 32 windows of 1024 tokens, bfloat16) on random tokens

One JSON file is written anew after each part: `rows` (see `suite.bench.rows`), `fields` (what they mean), `parts` (how
each ended) and `machine`. The exit status is 1 if a verification or a part failed, 2 if there is no GPU. With
TRITON_INTERPRET=1 all is tiny and runs on the CPU.
"""
