"""The names of Horovod that PopTorch scripts use on the host: `ipu_exec.horovod.torch`."""
