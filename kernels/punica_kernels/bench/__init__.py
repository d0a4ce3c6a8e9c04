"""How the operators are measured: the timing method, and the cases of each kernel."""
