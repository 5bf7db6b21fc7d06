"""safetensors files: 8 bytes of header length, a JSON header, raw little-endian data."""
import hashlib
import json
import struct

import numpy as np
import torch

KINDS = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64, "U8": np.uint8,
         "F64": np.float64}


def load(path):
    """name -> torch tensor; BF16 is widened to float32."""
    out = {}
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
        data = f.read()
    for name, info in head.items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        raw = data[begin:end]
        if info["dtype"] == "BF16":
            wide = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
            a = wide.view(np.float32)
        else:
            a = np.frombuffer(raw, KINDS[info["dtype"]]).copy()
        out[name] = torch.from_numpy(a.reshape(info["shape"]))
    return out


def as_bf16(x):
    """Rounds to bfloat16 (to nearest, ties to even) and comes back as float32."""
    return x.to(torch.bfloat16).to(torch.float32)


def save(path, tensors, bf16=(), metadata=None):
    """Writes tensors; names in `bf16` (or all float32 ones when it is True) as BF16."""
    head, blobs, at = {}, [], 0
    if metadata:
        head["__metadata__"] = {k: str(v) for k, v in metadata.items()}
    for name in sorted(tensors):
        t = tensors[name].detach().contiguous()
        if t.dtype == torch.float32 and (bf16 is True or name in bf16):
            raw, kind = t.to(torch.bfloat16).view(torch.int16).numpy().tobytes(), "BF16"
        else:
            raw = t.numpy().tobytes()
            kind = {torch.float32: "F32", torch.int32: "I32", torch.int64: "I64",
                    torch.float16: "F16", torch.uint8: "U8"}[t.dtype]
        head[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
        blobs.append(raw)
        at += len(raw)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for raw in blobs:
            f.write(raw)


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            h.update(block)
    return h.hexdigest()
