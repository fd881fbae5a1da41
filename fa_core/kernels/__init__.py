"""The Triton kernels. Importing a module here imports triton; `tuning` alone does not."""
