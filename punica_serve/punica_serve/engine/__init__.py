"""One model replica on one device, running requests of many LoRA models in the same batches.

``Engine`` decides (planner), computes (model, sampler) and accounts (pools, sequences), one step at a time. It knows no
sockets, no processes and no registry; ``punica_serve.offline`` has its interface for scripts and notebooks.
"""
