"""Array kernels: no parameters, no mesh, no I/O."""
