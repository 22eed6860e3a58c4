"""Operations over tensors that have a CPU kernel: argument checks, PyTorch reference, kernel."""
