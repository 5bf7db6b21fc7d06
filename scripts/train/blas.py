"""Fast OpenBLAS kernels for a training command, before numpy or torch is imported.

OpenBLAS 0.3.21 takes slow kernels on processors it does not know. `setup()` names a core type when
the processor has avx512f and nobody chose one, sets one thread, and `check()` compares a product
with float64 once the library is loaded. Only training commands call this, never tests.
"""
import os
import sys


def setup(threads=1):
    for name in ("numpy", "torch"):
        if name in sys.modules:
            raise RuntimeError("blas.setup must run before %s is imported" % name)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(threads))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if "OPENBLAS_CORETYPE" not in os.environ:
        try:
            with open("/proc/cpuinfo") as f:
                if " avx512f " in f.read():
                    os.environ["OPENBLAS_CORETYPE"] = "SKYLAKEX"
        except OSError:
            pass


def check():
    import torch
    g = torch.Generator().manual_seed(1)
    for n, k, m in ((64, 192, 4096), (37, 81, 55), (512, 96, 288)):
        a, b = torch.randn(n, k, generator=g), torch.randn(k, m, generator=g)
        want = a.double() @ b.double()
        worst = float(((a @ b).double() - want).abs().max() / want.abs().max())
        if worst > 1e-5:
            raise SystemExit("blas: products are wrong by %.1e with OPENBLAS_CORETYPE=%s" %
                             (worst, os.environ.get("OPENBLAS_CORETYPE")))
